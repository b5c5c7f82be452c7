"""How many accepted events a replay needs so that a difference between two agents is found."""

import math

from scipy.special import ndtri

from nl_lightning.experiments.comparisons import ALPHA

__all__ = ["accepted_events", "logged_events", "sentence"]

DIFFERENCE = 0.2
"""The difference that is to be found, as a share of the click rate."""
POWER = 0.8
"""The chance of finding it."""
_SPARE = 1.25
"""A log is longer than expected to be needed: agents accept more or less than one of K events."""


def accepted_events(rate: float, difference: float = DIFFERENCE, power: float = POWER, alpha: float = ALPHA) -> int:
    """n = (z_{1 - alpha/2} + z_power)^2 (p (1 - p) + q (1 - q)) / (p - q)^2,  q = p (1 + difference), rounded up.

    Two agents with the click rates p and q, each with n accepted events of its own, are then told apart by the
    two-sided test at alpha with this power. Seeds share the log's clicks, so they do not count as more events.
    """
    other = rate * (1 + difference)
    z = float(ndtri(1 - alpha / 2) + ndtri(power))
    return math.ceil(z**2 * (rate * (1 - rate) + other * (1 - other)) / (rate - other) ** 2)


def logged_events(accepted: int, arms: int) -> int:
    """The events of a uniform log of which one in ``arms`` is accepted, and a quarter more, in thousands."""
    return 1000 * math.ceil(_SPARE * arms * accepted / 1000)


def sentence(rate: float, arms: int) -> str:
    """The calculation in words."""
    accepted = accepted_events(rate)
    return (
        f"Power: to tell a CTR of {rate:.4f} from one of {rate * (1 + DIFFERENCE):.4f} ({DIFFERENCE:.0%} more) with a "
        f"power of {POWER:.0%} in a test at {ALPHA:.0%}, an agent must accept {accepted:,} events. With {arms} arms "
        f"the simulated log gets {logged_events(accepted, arms):,}."
    )
