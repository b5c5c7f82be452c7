"""Means over replicas with the paper's confidence intervals."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

LEVEL = 0.96
"""The confidence level of the paper's figures."""


CLICK_LEVEL = 0.95
"""The confidence level of click rates."""


class Interval(NamedTuple):
    """A mean and its confidence interval; without one (a single replica) low and high are NaN."""

    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def interval(values: NDArray[np.float64], level: float = LEVEL) -> Interval:
    """mean +- t_{n-1} s / sqrt(n) over the first axis, s the standard deviation with n - 1."""
    n = len(values)
    mean = values.mean(axis=0)
    if n < 2:
        nothing = np.full_like(mean, np.nan)
        return Interval(mean, nothing, nothing)
    half = stdtrit(n - 1, (1 + level) / 2) * values.std(axis=0, ddof=1) / np.sqrt(n)
    return Interval(mean, mean - half, mean + half)


def wilson(successes: float, trials: float, level: float = CLICK_LEVEL) -> tuple[float, float]:
    """Wilson's interval of a probability: the p with |successes / n - p| <= z sqrt(p (1 - p) / n).

    (k + z^2/2) / (n + z^2)  +-  z sqrt(k (n - k) / n + z^2/4) / (n + z^2)
    """
    if trials <= 0:
        return 0.0, 1.0
    z2 = float(ndtri((1 + level) / 2)) ** 2
    middle = successes + z2 / 2
    half = (z2 * (successes * (trials - successes) / trials + z2 / 4)) ** 0.5
    # at 0 and n successes rounding must not leave [0, 1]
    return max(0.0, (middle - half) / (trials + z2)), min(1.0, (middle + half) / (trials + z2))
