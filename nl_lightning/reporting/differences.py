"""Differences of runs from a baseline: by event on a log, by seed in a simulation.

On a log an agent is compared by the weights e_i that its estimate gives to the clicks r_i, so that it is sum e r. All
its seeds meet the same clicks and are no independent samples: e is the mean over seeds. The difference of two agents is
D = sum d r with d = e1 - e2, see ``nl_lightning.core.intervals.difference_interval``.

Seeds also learn differently by their own chance. Of n seeds with the estimates y_k = sum e_k r, the spread beyond that
of the clicks is added to the variance of each agent:  max(0, s^2(y) - sum_k sum (e_k - e)^2 r / (n - 1)) / n. That
another log would have taught them otherwise is not in it: one log cannot show that.

- Where the value over all events was estimated (DR-ns), e = c pi / (p C), from events.parquet. That file holds all
  clicks, but of the other events a sample, from which b_plus and b_minus follow.
- Else the estimate is the CTR of the accepted events, and e = 1 / (their number), from rounds.parquet.

A value with a reward model differs from sum e r by terms that lower its variance if the model is any good. D is then
the difference of these values; its variance is that of sum d r, times what a bad model adds to that of a value.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nl_lightning.agents import Greedy
from nl_lightning.core.differences import (
    ClickSums,
    bonferroni,
    click_difference,
    rule,
    seed_difference,
    told_apart,
    untold,
)
from nl_lightning.core.intervals import mean_or
from nl_lightning.core.power import Spread
from nl_lightning.core.statistics import CLICK_LEVEL, LEVEL
from nl_lightning.reporting.contenders import Contender, Weights
from nl_lightning.runs.summary import CTR, Measure

__all__ = ["Differences", "compare", "default_baseline", "difference", "how", "level_of"]

Floats = NDArray[np.float64]


def difference(first: Contender, second: Contender, level: float) -> dict[str, Any]:
    """The first less the second, its interval, and the verdict by the one rule."""
    measure, log = first.run.measure, first.run.summary.get("log")
    if not log:
        both = sorted(first.finals.keys() & second.finals.keys())
        a, b = (np.array([each.finals[seeds] for seeds in both]) for each in (first, second))
        return seed_difference(a, b, measure.better, level)
    rate = second.estimate or log["ctr"]
    if first.estimate is None or second.estimate is None:
        return told_apart(None, None, None, level, 0, Spread(0.0, 0.0), rate)
    one, other = first.weights, second.weights
    n = max(one.events, other.events)
    sums = _sums(one, other, n, rate)
    excess = max(first.excess, second.excess)
    sums = sums._replace(
        clicks=(first.estimate - second.estimate) * n if first.modelled or second.modelled else sums.clicks,
        clicks2=sums.clicks2 * excess,
        plus=sums.plus * excess,
        minus=sums.minus * excess,
    )
    found = click_difference(sums, level)
    if sums.clicks2 or not n:
        return found
    # without a click the spread is that of the log's clicks
    spread = Spread(_squares(one, other, n) * log["ctr"] / n, sums.plus + sums.minus)
    return told_apart(found["value"], found["low"], found["high"], level, n, spread, rate)


def _paired(one: Weights, other: Weights) -> tuple[Floats, ...]:
    """Over the events of both: d, |pi1 - pi2|, the click, and whether the event is known whether clicked or not."""
    rows = np.union1d(one.row, other.row)
    d, apart, click, known = np.zeros(len(rows)), np.zeros(len(rows)), np.zeros(len(rows)), np.zeros(len(rows))
    for sign, each in ((1, one), (-1, other)):
        place = np.searchsorted(rows, each.row)
        d[place] += sign * each.e
        apart[place] += sign * each.pi
        click[place], known[place] = each.click, each.known
    return d, np.abs(apart), click, known


def _sums(one: Weights, other: Weights, n: float, rate: float) -> ClickSums:
    """With w = n e, so that sum w r / n is the estimate."""
    d, apart, click, known = _paired(one, other)
    sizes = []
    for side, own in ((d > 0, one.size), (d < 0, other.size)):
        weight = apart * known * side
        sizes.append(float(mean_or(own, (weight * d**2).sum(), weight.sum())))
    plus, minus = (size * n**2 for size in sizes)
    variance = float((d**2 * click).sum()) + one.luck + other.luck
    return ClickSums(n, float((d * click).sum() * n), variance * n**2, plus, minus, rate)


def _squares(one: Weights, other: Weights, n: float) -> float:
    """sum (n d)^2 over all events, from those that are known."""
    d, _, _, known = _paired(one, other)
    return float((d**2 * known).sum()) * n**2 / one.share


# ---- several ---------------------------------------------------------------------------------------------------------


class Differences(NamedTuple):
    """Runs against a baseline."""

    baseline: int
    """its place among the contenders"""
    rows: list[dict[str, Any] | None]
    """of each contender; None for the baseline"""
    notes: list[str]


def default_baseline(agents: Sequence[str]) -> int:
    """The place of the agent that others are compared with: Greedy, which does not explore, or else the first."""
    return agents.index(Greedy.name) if Greedy.name in agents else 0


def level_of(measure: Measure) -> float:
    """The level at which all comparisons hold together."""
    return CLICK_LEVEL if measure is CTR else LEVEL


def compare(contenders: Sequence[Contender], baseline: int) -> Differences:
    """Each against the baseline."""
    measure, base = contenders[0].run.measure, contenders[baseline]
    level, count = level_of(measure), len(contenders) - 1
    rows = [
        None if place == baseline else difference(each, base, bonferroni(level, count))
        for place, each in enumerate(contenders)
    ]
    if not count:
        return Differences(baseline, rows, [])
    named = [(each.label, row) for each, row in zip(contenders, rows, strict=True) if row is not None]
    what = "click rate" if measure is CTR else "regret"
    notes = [
        how(contenders),
        rule("An agent", base.label, count, level, measure.better),
        *untold(base.label, named, what),
    ]
    return Differences(baseline, rows, notes)


def how(contenders: Sequence[Contender]) -> str:
    """What a difference is one of."""
    if not contenders[0].run.summary.get("log"):
        return "Differences are paired by seed."
    shared = "Seeds share the log's clicks: an agent is compared by its mean weights."
    if any(each.valued for each in contenders):
        return f"Differences are of the values over all events, paired by event. {shared}"
    return f"Differences are of the CTR of the accepted events, paired by event. {shared}"
