"""Numeric columns as features, (x - shift) * factor, clipped: with mean 0 and variance 1, or in [-1, 1]."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nl_lightning.core.errors import InputError

__all__ = ["FEW_VALUES", "LIMITS", "FewValues", "Moments", "Numeric", "nearest", "scaled"]

Numeric = Literal["standard", "scale"]

LIMITS: dict[Numeric, float] = {"standard": 5.0, "scale": 1.0}
"""How numeric columns are scaled, and the largest magnitude that a feature may have; others are clipped to it.

standard: mean 0 and variance 1, clipped to [-5, 5]
scale: the range of the fit becomes [-1, 1], values outside of it are clipped
"""

FEW_VALUES = 64
"""A column of whole numbers with at most this many different ones is discrete: its features are looked up."""


class Moments:
    """Mean, variance and extremes of a column over blocks of values. Missing values, NaN, are counted apart."""

    def __init__(self) -> None:
        self.count = self.missing = 0
        self.mean = self.squares = 0.0
        """sum of (x - mean)^2"""
        self.low, self.high = math.inf, -math.inf

    def add(self, values: NDArray[Any], zeros: int = 0) -> None:
        """Add a block of values, and a number of zeros."""
        known = values[~np.isnan(values)].astype(np.float64)
        self.missing += len(values) - len(known)
        if len(known):
            mean = float(known.mean())
            with np.errstate(over="ignore"):
                squares = float(np.square(known - mean).sum())
            self._merge(len(known), mean, squares, float(known.min()), float(known.max()))
        if zeros:
            self._merge(zeros, 0.0, 0.0, 0.0, 0.0)

    def _merge(self, count: int, mean: float, squares: float, low: float, high: float) -> None:
        # Chan et al.: mean += delta n / (m + n),  squares += squares' + delta^2 m n / (m + n)
        total, delta = self.count + count, mean - self.mean
        self.mean += delta * count / total
        self.squares += squares + delta * delta * (self.count / total) * count
        self.count = total
        self.low, self.high = min(self.low, low), max(self.high, high)

    def scaling(self, numeric: Numeric, column: str) -> tuple[float, float]:
        """shift and factor. A constant column becomes 0."""
        if not self.count or self.low == self.high:
            return (self.low if self.count else 0.0), 1.0
        if numeric == "scale":
            shift, spread = self.low / 2 + self.high / 2, self.high / 2 - self.low / 2
        else:
            shift, spread = self.mean, math.sqrt(self.squares / self.count)
        factor = 1 / spread if spread else math.inf
        if not (math.isfinite(shift) and 0 < factor < math.inf):
            raise InputError(
                f"The column {column} has numbers from {self.low:g} to {self.high:g}, which cannot be scaled in "
                "double precision. Rescale the column, or leave it out of the schema."
            )
        return shift, factor


class FewValues:
    """The different values of a column, as long as they are whole numbers and at most ``FEW_VALUES``."""

    def __init__(self) -> None:
        self._seen: NDArray[np.float64] | None = np.empty(0)

    def add(self, values: NDArray[Any]) -> None:
        if self._seen is None:
            return
        # a few rows tell most columns apart without sorting all of them
        for block in (values[:1000], values[1000:]):
            known = block[~np.isnan(block)].astype(np.float64)
            if (known != np.floor(known)).any() or (np.abs(known) > 2**53).any():
                self._seen = None
                return
            self._seen = np.union1d(self._seen, known)
            if len(self._seen) > FEW_VALUES:
                self._seen = None
                return

    @property
    def values(self) -> list[float] | None:
        """The values, ascending; None if the column is not discrete. A column without any value is not."""
        return None if self._seen is None or not len(self._seen) else self._seen.tolist()


def nearest(seen: Sequence[float], values: NDArray[Any]) -> tuple[NDArray[np.int64], int]:
    """The place (N,) of the nearest value in ``seen``, ``len(seen)`` for NaN; and how many values were not seen.

    A value that the fit has not seen is treated like its neighbour, as a value beyond all of them is clipped.
    """
    known = np.asarray(seen, dtype=np.float64)
    places = np.searchsorted((known[1:] + known[:-1]) / 2, values, side="right").astype(np.int64)
    lost = np.isnan(values)
    unseen = int(((known[places.clip(max=len(known) - 1)] != values) & ~lost).sum())
    places[lost] = len(known)
    return places, unseen


def scaled(values: Any, shift: Any, factor: Any, limit: float) -> Any:
    """(x - shift) * factor, clipped to [-limit, limit]; NaN stays NaN. For tensors and for arrays."""
    result = (values - shift) * factor
    return result.clamp(-limit, limit) if isinstance(result, Tensor) else np.clip(result, -limit, limit)
