"""Confidence intervals of click rates from weighted events, which hold their level also where clicks are rare.

Event i has the click r_i, was logged with probability p_i, and a policy would have picked its action with probability
pi_i; w_i = pi_i / p_i. Clicks are rare counts, so a weighted sum of them is close to a gamma variable with the same
mean and variance (Fay and Feuer 1997). Its lower end is that of the clicks that were met; its upper end allows for one
click more, of the size that an event has on average where the policy itself chooses:

    a = sum pi w^2 / sum pi w,   b = a^2

The mean is over the policy's events. The log has few of those with large weights, so their clicks are easily missed:
with its own mean, sum pi w / sum pi, intervals of softmax logs cover too seldom.

All are functions of sums over events, so they stream and shards add up. Arguments are numbers or arrays of any common
shape, such as one entry per replica; results are float64 arrays of that shape. A sum that is NaN gives NaN ends.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaincinv, ndtri

from nl_lightning.core.statistics import CLICK_LEVEL

__all__ = [
    "Ends",
    "PseudoClick",
    "difference_interval",
    "gamma_interval",
    "ips_interval",
    "mean_or",
    "pseudo_click",
    "snips_interval",
]

Floats = NDArray[np.float64]


class Ends(NamedTuple):
    """The two ends of a confidence interval."""

    low: Floats
    high: Floats


class PseudoClick(NamedTuple):
    """The size of one more click: its weight and its squared weight. NaN where no event was matched."""

    a: Floats
    b: Floats


def pseudo_click(pi_w: ArrayLike, pi_w2: ArrayLike) -> PseudoClick:
    """a and b from the sums of pi w and of pi w^2 over all events."""
    size = mean_or(np.nan, pi_w2, pi_w)
    return PseudoClick(size, size**2)


def mean_or(otherwise: ArrayLike, total: ArrayLike, count: ArrayLike) -> Floats:
    """total / count, or something else where nothing was counted."""
    total, count, otherwise = _floats(total, count, otherwise)
    return np.where(count == 0, otherwise, total / np.where(count == 0, 1.0, count))


def gamma_interval(y: ArrayLike, v: ArrayLike, y_up: ArrayLike, v_up: ArrayLike, level: float = CLICK_LEVEL) -> Ends:
    """The interval of Fay and Feuer for a weighted sum of rare counts.

    low = v/(2y) chi2(alpha/2; 2 y^2/v), 0 where y = 0;  high = v'/(2y') chi2(1 - alpha/2; 2 y'^2/v')

    Args:
        y: the estimate.
        v: its variance.
        y_up: y', the estimate with one click more.
        v_up: v', the variance with one click more.
        level: 1 - alpha.
    """
    y, v, y_up, v_up = _floats(y, v, y_up, v_up)
    return Ends(_gamma_quantile((1 - level) / 2, y, v), _gamma_quantile((1 + level) / 2, y_up, v_up))


def ips_interval(
    clicks: ArrayLike, clicks2: ArrayLike, events: ArrayLike, more: PseudoClick, level: float = CLICK_LEVEL
) -> Ends:
    """The interval of IPS, y = sum w r / N; without a matched event it is [0, 1]. Where y < 1, it ends at 1 at most.

    v = sum w^2 r / N^2,  y' = y + a/N,  v' = v + b/N^2

    Args:
        clicks: sum w r.
        clicks2: sum w^2 r.
        events: N.
        more: a and b, see ``pseudo_click``.
        level: confidence level.
    """
    clicks, clicks2, n, a, b = _floats(clicks, clicks2, events, *more)
    with np.errstate(divide="ignore", invalid="ignore"):
        y = clicks / n
        low, high = gamma_interval(y, clicks2 / n**2, (clicks + a) / n, (clicks2 + b) / n**2, level)
    high = np.where(y < 1, np.minimum(high, 1), high)
    return _or_all(Ends(low, high), clicks, np.isnan(a) | (n == 0))


def snips_interval(
    weight: ArrayLike,
    weight2: ArrayLike,
    clicks: ArrayLike,
    clicks2: ArrayLike,
    more: PseudoClick,
    level: float = CLICK_LEVEL,
) -> Ends:
    """The interval of SNIPS, s = sum w r / W, W = sum w, clipped to [0, 1]; without a matched event it is [0, 1].

    V(t, e) = ((sum w^2 r + e)(1 - 2t) + t^2 sum w^2) / W^2  is the variance sum w^2 (r - t)^2 / W^2, in which e is the
    part of a click that was not met. The gamma interval has y = s, v = V(s, 0), y' = u = s + a/W, v' = V(u, b). Where
    s > 1/2, it is the reflected interval of 1 - r.

    Args:
        weight: W.
        weight2: sum w^2.
        clicks: sum w r.
        clicks2: sum w^2 r.
        more: a and b, see ``pseudo_click``.
        level: confidence level.
    """
    w, w2, clicks, clicks2, a, b = _floats(weight, weight2, clicks, clicks2, *more)
    with np.errstate(divide="ignore", invalid="ignore"):
        mirrored = clicks > w / 2
        clicks = np.where(mirrored, w - clicks, clicks)
        clicks2 = np.where(mirrored, w2 - clicks2, clicks2)

        def variance(t: Floats, e: Floats) -> Floats:
            return np.asarray(((clicks2 + e) * (1 - 2 * t) + t**2 * w2) / w**2)

        # rounding must leave no negative count
        s = np.maximum(clicks, 0) / w
        u = np.minimum(s + a / w, 1)
        low, high = gamma_interval(s, variance(s, np.zeros_like(s)), u, variance(u, b), level)
    low, high = np.where(mirrored, 1 - high, low), np.where(mirrored, 1 - low, high)
    return _or_all(Ends(np.clip(low, 0, 1), np.clip(high, 0, 1)), clicks, np.isnan(a) | (w == 0))


def difference_interval(
    clicks: ArrayLike,
    clicks2: ArrayLike,
    events: ArrayLike,
    plus: ArrayLike,
    minus: ArrayLike,
    level: float = CLICK_LEVEL,
) -> Ends:
    """The interval of a difference of two policies on the same events, with d = w1 - w2.

    D = sum d r / N;  D +- z sqrt(sum d^2 r + b_plus + b_minus) / N, clipped to [-1, 1]

    Args:
        clicks: sum d r.
        clicks2: sum d^2 r.
        events: N.
        plus: b_plus, the mean of d^2 over events with d > 0, weighted by |pi1 - pi2|. Where there is no such event,
            give the size of one that was not met: b of the first policy. NaN if that is not known either: [-1, 1].
        minus: b_minus, the same for d < 0 and the second policy.
        level: confidence level.
    """
    clicks, clicks2, n, plus, minus = _floats(clicks, clicks2, events, plus, minus)
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = clicks / n
        half = ndtri((1 + level) / 2) * np.sqrt(clicks2 + plus + minus) / n
    unknown = ~np.isnan(clicks) & (np.isnan(half) | (n == 0))
    return Ends(
        np.where(unknown, -1.0, np.clip(middle - half, -1, 1)), np.where(unknown, 1.0, np.clip(middle + half, -1, 1))
    )


def _gamma_quantile(q: float, mean: Floats, variance: Floats) -> Floats:
    """The quantile of the gamma variable with a mean and a variance: v/m P^-1(m^2/v, q), P the regularised incomplete
    gamma function; v/(2m) chi2(q; 2 m^2/v) is the same. The mean itself where there is no variance."""
    spread = (mean > 0) & (variance > 0)
    m, v = np.where(spread, mean, 1.0), np.where(spread, variance, 1.0)
    found = v / m * gammaincinv(m**2 / v, q)
    unknown = np.isnan(mean) | np.isnan(variance)
    return np.where(unknown, np.nan, np.where(spread, found, mean))


def _or_all(ends: Ends, known: Floats, unmatched: NDArray[np.bool_]) -> Ends:
    """The ends, or [0, 1], which is all that is known without a match; NaN where the sums are."""
    nothing = unmatched & ~np.isnan(known)
    return Ends(np.where(nothing, 0.0, ends.low), np.where(nothing, 1.0, ends.high))


def _floats(*values: ArrayLike) -> tuple[Floats, ...]:
    """The arguments in float64 and of one shape."""
    return tuple(np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in values)))
