"""Means over replicas with the paper's confidence intervals."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

LEVEL = 0.96
"""The confidence level of the paper's figures."""


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
