"""What "better" means, in every table, page and file: one rule for the interval of a difference, and its words.

A difference is paired: by event on a log, by seed in a simulation. Several comparisons with one baseline share the
error: each of m has the level 1 - alpha/m (Bonferroni), so that all of them hold together at the level.

Nothing here loads torch.
"""

from collections.abc import Sequence
from math import isfinite
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nl_lightning.core.intervals import difference_interval
from nl_lightning.core.power import (
    EFFECT,
    POWER,
    Spread,
    events_needed,
    seeds_needed,
    smallest_difference,
    smallest_over_seeds,
)
from nl_lightning.core.statistics import CLICK_LEVEL, LEVEL, paired

__all__ = [
    "ClickSums",
    "Verdict",
    "bonferroni",
    "click_difference",
    "plain_number",
    "rule",
    "seed_difference",
    "told_apart",
    "untold",
    "verdict",
]

Verdict = Literal["better", "worse", "cannot tell"]


def verdict(low: float | None, high: float | None, better: int = 1) -> Verdict:
    """The one rule: better (worse) if the whole interval of the difference lies on the good (bad) side of 0.

    ``better`` is 1 where more is better, as of clicks, and -1 where less is, as of regret.
    """
    if low is None or high is None or low <= 0 <= high:
        return "cannot tell"
    return "better" if (low > 0) == (better > 0) else "worse"


def bonferroni(level: float, comparisons: int) -> float:
    """The level of each of several comparisons."""
    return 1 - (1 - level) / max(comparisons, 1)


class ClickSums(NamedTuple):
    """Sums over N events of a policy and a baseline, with d = w1 - w2."""

    events: float
    """N"""
    clicks: float
    """sum d r"""
    clicks2: float
    """sum d^2 r"""
    plus: float
    """b_plus, see ``difference_interval``"""
    minus: float
    """b_minus"""
    rate: float
    """the click rate of which a relative difference is taken: that of the baseline"""


def click_difference(sums: ClickSums, level: float = CLICK_LEVEL) -> dict[str, Any]:
    """The difference of click rates with its interval and verdict, and what the events can show."""
    n = sums.events
    ends = difference_interval(sums.clicks, sums.clicks2, n, sums.plus, sums.minus, level)
    low, high = (plain_number(float(end)) for end in ends)
    spread = Spread(sums.clicks2 / n if n else 0.0, float(sums.plus + sums.minus))
    value = plain_number(sums.clicks / n) if n else None
    return told_apart(value, low, high, level, n, spread, sums.rate)


def told_apart(
    value: float | None,
    low: float | None,
    high: float | None,
    level: float,
    events: float,
    spread: Spread,
    rate: float,
) -> dict[str, Any]:
    """A difference of click rates whose interval is known: its verdict, and what events of this spread can show."""
    effect = EFFECT * rate
    known = events > 0 and all(map(isfinite, spread)) and max(spread) > 0 and effect > 0
    return {
        "value": value,
        "low": low,
        "high": high,
        "level": level,
        "verdict": verdict(low, high),
        "per_event": plain_number(spread.per_event),
        "unmet": plain_number(spread.unmet),
        "effect": effect if known else None,
        "events_needed": round(events_needed(effect, spread, level)) if known else None,
        "smallest_difference": smallest_difference(int(events), spread, level) if known else None,
    }


def seed_difference(
    first: NDArray[np.float64], second: NDArray[np.float64], better: int, level: float = LEVEL
) -> dict[str, Any]:
    """The mean difference over seeds that both have, with Student's interval and its verdict; ``second``: baseline."""
    found = paired(first, second, level)
    low, high = plain_number(found.low), plain_number(found.high)
    deviation = float(np.std(first - second, ddof=1)) if found.n > 1 else 0.0
    effect = EFFECT * abs(float(np.mean(second))) if found.n else 0.0
    known = deviation > 0 and effect > 0
    return {
        "value": plain_number(found.mean),
        "low": low,
        "high": high,
        "level": level,
        "verdict": verdict(low, high, better),
        "seeds": found.n,
        "effect": effect if known else None,
        "seeds_needed": seeds_needed(effect, deviation, level) if known else None,
        "smallest_difference": smallest_over_seeds(found.n, deviation, level) if known else None,
    }


# ---- words -----------------------------------------------------------------------------------------------------------


def rule(who: str, baseline: str, comparisons: int, level: float, better: int = 1) -> str:
    """The rule in words; ``who`` is compared: "A policy", "An agent"."""
    side = "above" if better > 0 else "below"
    text = f"{who} is better than {baseline} if the whole interval of its difference lies {side} 0."
    if comparisons < 2:
        return text
    each = f"{100 * bonferroni(level, comparisons):.4g}%"
    return f"{text} {comparisons} comparisons: each at {each}, so that all hold together at {level:.0%} (Bonferroni)."


def untold(baseline: str, rows: Sequence[tuple[str, dict[str, Any]]], measure: str = "click rate") -> list[str]:
    """What it would take to tell those apart from the baseline that cannot be told: one sentence, or none."""
    names = [name for name, row in rows if row["verdict"] == "cannot tell"]
    if not names:
        return []
    every = len(names) == len(rows) > 2
    start = f"{'None of them can' if every else f'{_listed(names)} cannot'} be told apart from {baseline}"
    known = [row for name, row in rows if name in names and row["effect"] is not None]
    unit = "seeds" if "seeds" in rows[0][1] else "events"
    if not known:
        return [f"{start}, and there is too little to say how many {unit} it would take."]
    seen = _span([row["smallest_difference"] for row in known], "{:.2g}")
    shares = _span([row["smallest_difference"] / row["effect"] * EFFECT for row in known], "{:.0%}")
    needed = _span([_rounded(row[f"{unit}_needed"]) for row in known], "{:,}")
    kind = " of this kind" if unit == "events" else ""
    return [
        f"{start}: with {POWER:.0%} power these {unit} show differences of {seen} ({shares} of {baseline}'s "
        f"{measure}); one of {EFFECT:.0%} takes about {needed} {unit}{kind}."
    ]


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _span(values: Sequence[float], form: str) -> str:
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


def _rounded(number: int) -> int:
    """To two digits."""
    return int(float(f"{number:.1e}"))


def plain_number(value: float) -> float | None:
    """A number for JSON, which has no NaN."""
    return None if value != value else value
