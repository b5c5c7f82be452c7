"""A shop that shows each visitor one of twelve offers: a table of clicks whose truth is known.

    python examples/own_clicks/simulate.py clicks.csv --rows 50000

A visitor has six numbers x, drawn from a normal distribution, and the shop's recommender shows offer a with
probability p(a | x). The visitor clicks with probability

    P(click | x, a) = mu(1.2 u_a.x / sqrt(6) + 0.5 cos(v_a.x / 2) + b_a - 2.8)

Because this is known, so is the click rate that any policy would have: ``true_rate``.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CONTEXT = ["age", "recency", "visits", "basket", "distance", "hour"]
OFFERS = [
    "shoes", "boots", "socks", "shirt", "jacket", "coat", "scarf", "hat", "gloves", "belt", "bag", "umbrella",
]  # fmt: skip
_SEED = 7

_random = np.random.default_rng(_SEED)
_LINEAR = _random.normal(size=(len(OFFERS), len(CONTEXT)))
_CURVED = _random.normal(size=(len(OFFERS), len(CONTEXT)))
_POPULAR = 0.3 * _random.normal(size=len(OFFERS))
_MISTAKEN = 0.7 * _random.normal(size=len(OFFERS))
"""what the recommender believes too much or too little of an offer"""


def visitors(rows: int, seed: int) -> Floats:
    """(rows, 6)"""
    return np.random.default_rng(seed).normal(size=(rows, len(CONTEXT)))


def _utility(x: Floats) -> Floats:
    return 1.2 * x @ _LINEAR.T / len(CONTEXT) ** 0.5 + 0.5 * np.cos(x @ _CURVED.T / 2) + _POPULAR


def click_rate(x: Floats) -> Floats:
    """(rows, 12), the probability of a click on every offer"""
    return 1 / (1 + np.exp(2.8 - _utility(x)))


def logging_policy(x: Floats) -> Floats:
    """(rows, 12), the probability with which the recommender shows every offer"""
    weight = np.exp(0.8 * (_utility(x) + _MISTAKEN))
    return weight / weight.sum(axis=1, keepdims=True)


def true_rate(policy: Callable[[Floats], Floats], rows: int = 200_000, seed: int = 1) -> float:
    """The click rate of a policy that maps visitors (rows, 6) to probabilities (rows, 12)."""
    x = visitors(rows, seed)
    return float((policy(x) * click_rate(x)).sum(axis=1).mean())


def best_policy(x: Floats) -> Floats:
    """(rows, 12), 1 for the offer with the highest click rate"""
    return np.eye(len(OFFERS))[click_rate(x).argmax(axis=1)]


def clicks(rows: int, seed: int = 0) -> pd.DataFrame:
    """The log: one row a visitor."""
    x, random = visitors(rows, seed + 2), np.random.default_rng(seed + 3)
    shown = logging_policy(x)
    offer = (shown.cumsum(axis=1) > random.random((rows, 1))).argmax(axis=1)
    row = np.arange(rows)
    frame = pd.DataFrame(x.round(4), columns=CONTEXT)
    frame.insert(0, "time", pd.date_range("2026-01-01", periods=rows, freq="30s", tz="UTC"))
    frame["offer"] = np.array(OFFERS)[offer]
    frame["p"] = shown[row, offer]
    frame["click"] = (random.random(rows) < click_rate(x)[row, offer]).astype(int)
    return frame


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="CSV file to write")
    parser.add_argument("--rows", type=int, default=50_000, help="number of visitors (default: 50000)")
    options = parser.parse_args()
    clicks(options.rows).to_csv(options.file, index=False)
    print(f"{options.file}: {options.rows:,} visitors")
