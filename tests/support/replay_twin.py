"""Slow, plain float64 twins of the replay: features, candidates, the loop, the estimators.

Written from the text of ALGORITHMS.md and the layout of a log alone, with loops and dictionaries. Tests compare the
fast implementation with it, so nothing here is shared with the package and nothing here is clever.
"""

from collections.abc import Callable, Sequence
from itertools import combinations
from math import fsum, log1p, nan, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import chi2

Array = NDArray[np.float64]
Column = tuple[str, str]  # a one-hot column: the feature and its category

USER = ("user_feature_0", "user_feature_1", "user_feature_2", "user_feature_3")
ITEM_NUMBER = "item_feature_0"
ITEM = ("item_feature_1", "item_feature_2", "item_feature_3")
USER_SIZE, ITEM_SIZE = 16, 8

NOT_A_CANDIDATE = "not in the candidate set"
CORRECTION = "propensity correction"
ANOTHER_ARM = "another arm chosen"


# 1. Features


def _columns(table: pd.DataFrame, names: Sequence[str]) -> dict[Column, int]:
    """The number of every one-hot column: feature after feature, in a feature its categories in sorted order."""
    columns: dict[Column, int] = {}
    for name in names:
        for category in sorted({str(value) for value in table[name] if not pd.isna(value)}):
            columns[name, category] = len(columns)
    return columns


def _one_hot(row: Any, names: Sequence[str], columns: dict[Column, int]) -> list[float]:
    """1 at the column of each feature's category; a missing or unseen category leaves its block 0."""
    x = [0.0] * len(columns)
    for name in names:
        if not pd.isna(row[name]) and (name, str(row[name])) in columns:
            x[columns[name, str(row[name])]] = 1.0
    return x


def right_singular_vectors(matrix: Array, size: int) -> Array:
    """V_k (columns, size) of matrix = U S V^T, largest first.

    Of each vector the entry of largest absolute value is positive (of equal ones, up to rounding, the first). A vector
    whose s < 1e-9 s_1, and one beyond the rank, is 0.
    """
    v = np.zeros((matrix.shape[1], size))
    if matrix.size == 0:
        return v
    _, s, vt = np.linalg.svd(matrix, full_matrices=False)
    for j in range(min(size, len(s))):
        if s[j] == 0 or s[j] < 1e-9 * s[0]:
            continue
        magnitudes = [abs(float(entry)) for entry in vt[j]]
        largest = max(magnitudes)
        first = next(i for i, magnitude in enumerate(magnitudes) if magnitude >= largest * (1 - 1e-9))
        for i in range(matrix.shape[1]):
            v[i, j] = vt[j, i] if vt[j, first] > 0 else -vt[j, i]
    return v


def _project(x: Sequence[float], v: Array) -> list[float]:
    """x V_k, entry by entry."""
    return [fsum(x[i] * float(v[i, j]) for i in range(len(x))) for j in range(v.shape[1])]


def scale_position(position: int, lowest: int, highest: int) -> float:
    """-1 + 2 (position - lowest) / (highest - lowest); 0 where there is one position."""
    return 0.0 if highest == lowest else -1.0 + 2.0 * (position - lowest) / (highest - lowest)


def scale_affinity(a: float, a_max: float) -> float:
    """min(1, 2 log1p(a) / log1p(a_max) - 1); -1 for a_max = 0."""
    return -1.0 if a_max == 0 else min(1.0, 2.0 * log1p(a) / log1p(a_max) - 1.0)


def features(events: pd.DataFrame, items: pd.DataFrame) -> Callable[[Any, Sequence[int]], Array]:
    """arms(event_row, item_ids) -> (K, 42): 16 user | 8 item | position | affinity | 16 user * affinity."""
    event_rows, item_rows = events.to_dict("records"), items.to_dict("records")

    user_columns = _columns(events, USER)
    users = [_one_hot(row, USER, user_columns) for row in event_rows]
    user_v = right_singular_vectors(np.array(users).reshape(len(users), len(user_columns)), USER_SIZE)

    item_columns = _columns(items, ITEM)
    contexts = {int(row["item_id"]): [*_one_hot(row, ITEM, item_columns), float(row[ITEM_NUMBER])] for row in item_rows}
    item_v = right_singular_vectors(np.array(list(contexts.values())), ITEM_SIZE)

    positions = {int(row["position"]) for row in event_rows}
    highest = max(positions)
    lowest = highest if len(positions) == 1 else 1
    a_max = max([0.0, *(float(a) for row in event_rows for a in row["affinity"].values())])

    def arms(event_row: Any, item_ids: Sequence[int]) -> Array:
        user = _project(_one_hot(event_row, USER, user_columns), user_v)
        position = scale_position(int(event_row["position"]), lowest, highest)
        rows = []
        for item in item_ids:
            affinity = scale_affinity(float(event_row["affinity"].get(int(item), 0.0)), a_max)
            products = [u * affinity for u in user]
            rows.append([*user, *_project(contexts[int(item)], item_v), position, affinity, *products])
        return np.array(rows, dtype=np.float64).reshape(len(rows), USER_SIZE + ITEM_SIZE + 2 + USER_SIZE)

    return arms


# 2. Candidates


def affinity_candidates(logged: int, affinity: dict[int, float], n_items: int, k: int) -> list[int]:
    """The k - 1 items beside the logged one of highest affinity, ties by lower id; in that order, without `logged`."""
    if k < 1:
        raise ValueError(f"the logged item is always a candidate, so k >= 1; got {k}")
    others = [item for item in range(n_items) if item != logged]
    others.sort(key=lambda item: (-float(affinity.get(item, 0.0)), item))
    return others[: k - 1]


# 3. The loop


def replay(
    events: pd.DataFrame,
    choose: Callable[[int], int],
    candidates: Callable[[int], Sequence[int]],
    learn: Callable[[int], None] | None = None,
    *,
    u: Sequence[float] | Array | None = None,
    c: float | None = None,
) -> tuple[list[int], dict[str, int]]:
    """Indices of the accepted events, and the rejections by reason; one event at a time, in order.

    Event e passes if its item is in candidates(e), then (where u and c are given) if u[e] < c / p[e], then if
    choose(e) is its item; then learn(e). `choose` is called only for an event that passed the first two.
    """
    if (u is None) != (c is None):
        raise ValueError("the propensity correction needs both u and c")
    accepted: list[int] = []
    rejected = {NOT_A_CANDIDATE: 0, CORRECTION: 0, ANOTHER_ARM: 0}
    for e, row in enumerate(events.to_dict("records")):
        logged = int(row["item_id"])
        shown = [int(item) for item in candidates(e)]
        if logged not in shown:
            rejected[NOT_A_CANDIDATE] += 1
            continue
        if u is not None and c is not None:
            if pd.isna(row["propensity_score"]):
                raise ValueError(f"event {e} has no propensity")
            if not float(u[e]) < c / float(row["propensity_score"]):
                rejected[CORRECTION] += 1
                continue
        chosen = int(choose(e))
        if chosen not in shown:
            raise ValueError(f"event {e}: item {chosen} was chosen and is no candidate")
        if chosen != logged:
            rejected[ANOTHER_ARM] += 1
            continue
        accepted.append(e)
        if learn is not None:
            learn(e)
    return accepted, rejected


# 4. Estimators. pi: the probability with which the evaluated policy shows the logged item; p: the propensity.


def _ratio(numerator: float, denominator: float) -> float:
    """numerator / denominator; nan for 0 / 0, where there is nothing to estimate from."""
    return nan if denominator == 0 else numerator / denominator


def _weights(pi: Sequence[float], p: Sequence[float]) -> list[float]:
    """w = pi / p."""
    return [float(a) / float(b) for a, b in zip(pi, p, strict=True)]


def match_ctr(click: Sequence[float], match: Sequence[float]) -> float:
    """sum(match click) / sum(match)."""
    hits = fsum(float(m) * float(r) for m, r in zip(match, click, strict=True))
    return _ratio(hits, fsum(float(m) for m in match))


def acceptance_rate(match: Sequence[float]) -> float:
    """sum(match) / n."""
    return _ratio(fsum(float(m) for m in match), len(match))


def ips(click: Sequence[float], pi: Sequence[float], p: Sequence[float]) -> float:
    """mean(pi / p click), over all events."""
    return _ratio(fsum(w * float(r) for w, r in zip(_weights(pi, p), click, strict=True)), len(click))


def snips(click: Sequence[float], pi: Sequence[float], p: Sequence[float]) -> float:
    """sum(pi / p click) / sum(pi / p)."""
    weights = _weights(pi, p)
    return _ratio(fsum(w * float(r) for w, r in zip(weights, click, strict=True)), fsum(weights))


def effective_sample_size(pi: Sequence[float], p: Sequence[float]) -> float:
    """(sum w)^2 / sum w^2, w = pi / p."""
    weights = _weights(pi, p)
    return _ratio(fsum(weights) ** 2, fsum(w * w for w in weights))


def wilson(successes: float, n: float, level: float = 0.95) -> tuple[float, float]:
    """The two p with |p_hat - p| = z sqrt(p (1 - p) / n), each by bisection; (0, 1), the limit, for n = 0."""
    if n == 0:
        return 0.0, 1.0
    z, p_hat = NormalDist().inv_cdf((1 + level) / 2), successes / n

    def root(outside: float) -> float:
        inside = p_hat  # in the interval, as `outside` is not, or is its end
        for _ in range(200):
            middle = (inside + outside) / 2
            if abs(p_hat - middle) <= z * sqrt(middle * (1 - middle) / n):
                inside = middle
            else:
                outside = middle
        return (inside + outside) / 2

    return root(0.0), root(1.0)


# 5. The policy that shows the best of a random subset


def best_in_random_subset(scores: Sequence[float] | Array, k: int, tolerance: float = 0.0) -> Array:
    """P(item is the highest-scored of a uniform k-subset), over all subsets.

    Scores that equal the highest one, up to a relative tolerance, share equally.
    """
    if not 1 <= k <= len(scores):
        raise ValueError(f"a subset has 1 to {len(scores)} items; got {k}")
    probabilities = np.zeros(len(scores))
    subsets = list(combinations(range(len(scores)), k))
    for subset in subsets:
        best = max(float(scores[i]) for i in subset)
        winners = [i for i in subset if float(scores[i]) >= best - tolerance * abs(best)]
        for i in winners:
            probabilities[i] += 1.0 / (len(winners) * len(subsets))
    return probabilities


def _pseudo_click(pi: Sequence[float], p: Sequence[float]) -> tuple[float, float]:
    """a = sum pi w^2 / sum pi w, b = a^2"""
    pairs = list(zip(pi, p, strict=True))
    a = fsum(x * (x / q) ** 2 for x, q in pairs) / fsum(x * x / q for x, q in pairs)
    return a, a * a


def _gamma(y: float, v: float, y_up: float, v_up: float) -> tuple[float, float]:
    low = v / (2 * y) * chi2.ppf(0.025, 2 * y * y / v) if y > 0 else 0.0
    high = float(v_up / (2 * y_up) * chi2.ppf(0.975, 2 * y_up * y_up / v_up))
    return float(low), min(1.0, high) if y < 1 else high


def ips_interval(click: Sequence[float], pi: Sequence[float], p: Sequence[float]) -> tuple[float, float]:
    n, (a, b) = len(click), _pseudo_click(pi, p)
    y = fsum(x / q * r for r, x, q in zip(click, pi, p, strict=True)) / n
    v = fsum((x / q) ** 2 * r for r, x, q in zip(click, pi, p, strict=True)) / n**2
    return _gamma(y, v, y + a / n, v + b / n**2)


def snips_interval(click: Sequence[float], pi: Sequence[float], p: Sequence[float]) -> tuple[float, float]:
    a, b = _pseudo_click(pi, p)
    weights = [x / q for x, q in zip(pi, p, strict=True)]
    total = fsum(weights)
    s = fsum(w * r for w, r in zip(weights, click, strict=True)) / total
    if s > 0.5:
        low, high = snips_interval([1 - r for r in click], pi, p)
        return 1 - high, 1 - low

    def spread(t: float, e: float) -> float:
        clicked = fsum(w * w * r for w, r in zip(weights, click, strict=True)) + e
        return (clicked * (1 - 2 * t) + t * t * fsum(w * w for w in weights)) / total**2

    u = s + a / total
    return _gamma(s, spread(s, 0.0), u, spread(u, b))


def chance_over_sets(scores: Sequence[float], item: int, arms: int) -> float:
    """The chance that an item is in a uniformly drawn set and is taken from it, set by set; ties are shared."""
    chance, sets = 0.0, 0
    for drawn in combinations(range(len(scores)), arms):
        sets += 1
        best = max(scores[i] for i in drawn)
        if item in drawn and scores[item] == best:
            chance += 1 / sum(scores[i] == best for i in drawn)
    return chance / sets
