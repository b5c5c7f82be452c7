"""How large a difference a log can show, and how many events a difference takes.

The difference of two policies on the same events has the standard error sqrt(sum d^2 r + b) / N, see
``nl_lightning.core.intervals.difference_interval``; b is the part of clicks that were not met. With s2 = sum d^2 r / N,
a difference D is seen (its interval at the level leaves 0 out) with the given power if

    |D| >= k sqrt(s2 N + b) / N,   k = z_(1 - alpha/2) + z_power

Nothing here loads torch.
"""

from typing import NamedTuple

from scipy.special import ndtri

from nl_lightning.core.errors import InputError
from nl_lightning.core.statistics import CLICK_LEVEL

__all__ = [
    "EFFECT",
    "POWER",
    "Spread",
    "agreement_spread",
    "check_share",
    "events_needed",
    "relative_effect",
    "smallest_difference",
]

EFFECT = 0.1
"""The relative difference that is asked about where nothing else is said."""
POWER = 0.8
"""The chance to see a difference where nothing else is said."""


class Spread(NamedTuple):
    """How much a difference varies."""

    per_event: float
    """s2 = sum d^2 r / N"""
    unmet: float
    """b = b_plus + b_minus"""


def smallest_difference(events: int, spread: Spread, level: float = CLICK_LEVEL, power: float = POWER) -> float:
    """The smallest difference of click rates that as many events show."""
    return float(_k(level, power) * (spread.per_event * events + spread.unmet) ** 0.5 / events)


def events_needed(effect: float, spread: Spread, level: float = CLICK_LEVEL, power: float = POWER) -> float:
    """The number of events that shows a difference ``effect`` of click rates: N with D^2 N^2 = k^2 (s2 N + b)."""
    k2, d2 = _k(level, power) ** 2, effect**2
    half = k2 * spread.per_event
    return float((half + (half**2 + 4 * d2 * k2 * spread.unmet) ** 0.5) / (2 * d2))


def agreement_spread(ctr: float, mean_inverse_propensity: float, agreement: float) -> Spread:
    """The spread of two deterministic policies that choose the same action in a share of the events.

    Where they differ, each is met with a chance p, and then |d| = 1/p: s2 = 2 (1 - agreement) ctr E[1/p] and
    b = 2 E[1/p^2]. E[1/p] is that over the actions of policies that choose as the log does, its mean of 1/p. The mean
    of 1/p^2 is not known from it; its lower bound E[1/p]^2 is taken, which is exact for uniform logs.
    """
    check_share("--agreement", agreement)
    return Spread(2 * (1 - agreement) * ctr * mean_inverse_propensity, 2 * mean_inverse_propensity**2)


def relative_effect(text: str | float) -> float:
    """A share such as ``10%`` or ``0.1``."""
    given = str(text).strip()
    try:
        value = float(given.removesuffix("%")) / (100 if given.endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise InputError(f"--effect must be a relative difference above 0, like 10% or 0.1; got {text!r}.")
    return value


def check_share(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise InputError(f"{name} must be at least 0 and below 1; got {value:g}.")


def _k(level: float, power: float) -> float:
    return float(ndtri((1 + level) / 2) + ndtri(power))
