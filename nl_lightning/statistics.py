"""Means over replicas with the paper's confidence intervals."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtr, stdtrit

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


class Paired(NamedTuple):
    """The mean of n differences a_i - b_i, its confidence interval, and the p-value of the paired t test.

    With fewer than two pairs low, high and p are NaN, and with none the mean is as well.
    """

    mean: float
    low: float
    high: float
    p: float
    n: int


def paired(a: NDArray[np.float64], b: NDArray[np.float64], level: float = LEVEL) -> Paired:
    """Student's paired t test of d_i = a_i - b_i, over the pairs without NaN.

    mean(d) +- t_{n-1} s / sqrt(n);  p = P(|T_{n-1}| >= |mean(d)| sqrt(n) / s),  s the standard deviation with n - 1.
    Where all differences are equal, s = 0, nothing is left to chance: p is 1 if they are 0, or else 0.
    """
    difference = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    difference = difference[~np.isnan(difference)]
    n = len(difference)
    if n == 0:
        return Paired(np.nan, np.nan, np.nan, np.nan, 0)
    band = interval(difference, level)
    mean, low, high = float(band.mean), float(band.low), float(band.high)
    if n < 2:
        return Paired(mean, low, high, np.nan, n)
    if np.all(difference == difference[0]):
        # rounding in the mean must not make a spread of nothing
        same = float(difference[0])
        return Paired(same, same, same, 1.0 if same == 0 else 0.0, n)
    t = mean / (difference.std(ddof=1) / np.sqrt(n))
    return Paired(mean, low, high, float(2 * stdtr(n - 1, -abs(t))), n)


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
