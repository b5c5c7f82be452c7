"""Means over replicas with the paper's confidence intervals."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtr, stdtrit

__all__ = ["CLICK_LEVEL", "LEVEL", "Interval", "Paired", "interval", "paired", "rate_variance", "wilson"]


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


def paired(a: NDArray[np.float64], b: NDArray[np.float64], level: float = LEVEL, shared: float = 0.0) -> Paired:
    """Student's paired t test of d_i = a_i - b_i, over the pairs without NaN.

    mean(d) +- t_{n-1} e,  p = P(|T_{n-1}| >= |mean(d)| / e),  e^2 = s^2 / n + v,  s the standard deviation with n - 1.
    v is a variance that all pairs have in common (``shared``), which their mean does not lessen.
    Where all differences are equal and nothing is shared, s tells nothing of chance: the p is that of the sign test,
    2^(1 - n), and there is no interval; where all are 0, p is 1.
    """
    difference = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    difference = difference[~np.isnan(difference)]
    n = len(difference)
    if n == 0:
        return Paired(np.nan, np.nan, np.nan, np.nan, 0)
    if n < 2:
        return Paired(float(difference[0]), np.nan, np.nan, np.nan, n)
    # rounding in the mean must not make a spread of nothing
    equal = bool(np.all(difference == difference[0]))
    mean = float(difference[0] if equal else difference.mean())
    variance = (0.0 if equal else float(difference.var(ddof=1)) / n) + shared
    if variance == 0:
        return Paired(0.0, 0.0, 0.0, 1.0, n) if mean == 0 else Paired(mean, np.nan, np.nan, 2.0 ** (1 - n), n)
    error = variance**0.5
    half = float(stdtrit(n - 1, (1 + level) / 2)) * error
    return Paired(mean, mean - half, mean + half, float(2 * stdtr(n - 1, -abs(mean) / error)), n)


def rate_variance(rate: float, trials: float) -> float:
    """The variance p (1 - p) / n of a rate of clicks in n events, with two clicks and two others added: also where none
    was met, some might have been."""
    p = (rate * trials + 2) / (trials + 4)
    return p * (1 - p) / trials if trials > 0 else np.inf


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
