"""How large a difference can be seen, and how many events or seeds a difference takes.

The difference of two policies on the same events has the standard error sqrt(sum d^2 r + b) / N, see
``nl_lightning.core.intervals.difference_interval``; b is the part of clicks that were not met. With s2 = sum d^2 r / N,
a difference D is seen (its interval at the level leaves 0 out) with the given power if

    |D| >= k sqrt(s2 N + b) / N,   k = z_(1 - alpha/2) + z_power

and over n seeds, whose paired differences have the standard deviation s, if

    |D| >= (t_(n-1, 1 - alpha/2) + t_(n-1, power)) s / sqrt(n)

Nothing here loads torch.
"""

from math import ceil
from typing import NamedTuple

from scipy.special import ndtri, stdtrit

from nl_lightning.core.statistics import CLICK_LEVEL, LEVEL

__all__ = ["EFFECT", "POWER", "Spread", "events_needed", "seeds_needed", "smallest_difference", "smallest_over_seeds"]

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


def smallest_over_seeds(seeds: int, deviation: float, level: float = LEVEL, power: float = POWER) -> float:
    """The smallest difference that as many seeds (2 at least) show, given the standard deviation of their own."""
    t = stdtrit(seeds - 1, (1 + level) / 2) + stdtrit(seeds - 1, power)
    return float(t * deviation / seeds**0.5)


def seeds_needed(effect: float, deviation: float, level: float = LEVEL, power: float = POWER) -> int:
    """The number of seeds that shows a difference ``effect``."""
    # the normal quantiles are below those of Student's t, so that the search begins below the answer
    seeds = max(2, ceil((_k(level, power) * deviation / effect) ** 2))
    while smallest_over_seeds(seeds, deviation, level, power) > effect:
        seeds += 1
    return seeds


def _k(level: float, power: float) -> float:
    return float(ndtri((1 + level) / 2) + ndtri(power))
