"""Differences of runs from a baseline: by event on a log, by seed in a simulation.

On a log an agent is compared by the weights e_i that its estimate gives to the clicks r_i, so that it is sum e r. All
its seeds meet the same clicks and are no independent samples: e is the mean over seeds. The difference of two agents is
D = sum d r with d = e1 - e2, see ``nl_lightning.core.intervals.difference_interval``.

- Where the value over all events was estimated (DR-ns), e = c pi / (p C), from events.parquet. That file holds all
  clicks, but of the other events a sample, from which b_plus and b_minus follow.
- Else the estimate is the CTR of the accepted events, and e = 1 / (their number), from rounds.parquet.

A value with a reward model is no such sum. Two of them are compared by their own intervals, [low1 - high2, high1 -
low2], which is wider and holds however they depend on each other.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.special import ndtri

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
from nl_lightning.core.errors import InputError
from nl_lightning.core.intervals import Ends, mean_or, pseudo_click
from nl_lightning.core.power import Spread
from nl_lightning.core.statistics import CLICK_LEVEL, LEVEL
from nl_lightning.environments.learner_value import SAMPLED_EVENTS, modelled_interval, sampled
from nl_lightning.reporting.discovery import StoredRun
from nl_lightning.runs.summary import CTR, Measure

__all__ = ["Contender", "Differences", "compare", "default_baseline", "difference", "how", "level_of"]

Floats = NDArray[np.float64]


class Weights(NamedTuple):
    """The weights of an agent's estimate, mean over its seeds; one entry per event with a weight above 0."""

    row: NDArray[np.int64]
    """(M,), ascending"""
    e: Floats
    pi: Floats
    """the chance that the agent picks the logged action; as a share of seeds where only matches are known"""
    click: Floats
    known: NDArray[np.bool_]
    """whether the event would be here without its click: only such events give b_plus and b_minus"""
    size: float
    """the mean of e^2 over events, weighted by pi: the size of a click that was not met"""
    share: float
    """of the events that are known without their click"""
    events: float
    """events that were seen"""


class Contender:
    """One setting of a run, as it is compared. What it needs of the files is read once.

    Args:
        label: its name.
        run: the run.
        row: the setting, of the summary's ``over_replicas``.
    """

    def __init__(self, label: str, run: StoredRun, row: Mapping[str, Any]) -> None:
        self.label, self.run, self.row = label, run, row
        replicas = run.summary["replicas"]
        self.replicas = [replicas[r] for r in row["replicas"] if replicas[r]["diverged_at"] is None]

    @property
    def valued(self) -> bool:
        """Whether its value over all events was estimated."""
        return self.row.get("value") is not None

    @property
    def modelled(self) -> bool:
        return self.valued and bool((self.run.summary.get("learner") or {}).get("modelled"))

    @property
    def estimate(self) -> float | None:
        """What it is judged by."""
        found = self.row.get("value", self.row[self.run.measure.name])
        return None if found is None else float(found)

    @cached_property
    def finals(self) -> dict[tuple[int, ...], float]:
        """The final value of every replica by its seed, and by the environment's own seeds if these are lists."""
        name = self.run.measure.name
        own = [(self.run.environment.get("init_args") or {}).get(seed) for seed in ("seed", "noise_seed")]
        return {
            (replica["seed"], *(seeds[replica["replica"]] for seeds in own if isinstance(seeds, list))): replica[name]
            for replica in self.replicas
            if replica[name] is not None
        }

    @cached_property
    def weights(self) -> Weights:
        path = self.run.directory.events if self.valued else self.run.directory.rounds
        try:
            return self._values() if self.valued else self._accepted()
        except (OSError, LookupError, ValueError, pa.ArrowException) as error:
            raise InputError(
                f"{path} is missing, damaged or not that of a run ({error}), and {self.label} cannot be compared "
                "without it. Leave this run out, or run it again."
            ) from error

    def _accepted(self) -> Weights:
        """The CTR: every accepted event of all seeds counts the same."""
        members = [replica["replica"] for replica in self.replicas]
        table = pq.read_table(self.run.directory.rounds, columns=["replica", "event", "reward"])
        replica, row, click = (table[name].to_numpy() for name in ("replica", "event", "reward"))
        kept = np.isin(replica, members)
        share = np.full(kept.sum(), 1 / max(kept.sum(), 1))
        pi = np.full(kept.sum(), 1 / max(len(members), 1))
        return self._weights(row[kept], share, pi, click[kept], np.ones(kept.sum(), dtype=bool), 1.0)

    def _values(self) -> Weights:
        """The value over all events: e = c pi / (p C)."""
        table = pq.read_table(self.run.directory.events)
        replica, row, weight, pi, click = (
            table[name].to_numpy() for name in ("replica", "row", "weight", "pi", "click")
        )
        members = self._valued_replicas
        C = np.full(len(self.run.summary["replicas"]), np.inf)
        for member in members:
            C[member["replica"]] = member["sums"]["C"]
        kept = np.isin(replica, [member["replica"] for member in members])
        e = weight[kept] / C[replica[kept]] / len(members)
        rows = int(self.run.summary["learner"]["rows"])
        known, share = sampled(row[kept], rows), min(1.0, SAMPLED_EVENTS / rows)
        return self._weights(row[kept], e, pi[kept] / len(members), click[kept], known, share)

    @property
    def _valued_replicas(self) -> list[Mapping[str, Any]]:
        return [replica for replica in self.replicas if replica.get("value") is not None]

    def _weights(self, row: Any, e: Floats, pi: Floats, click: Any, known: NDArray[np.bool_], share: float) -> Weights:
        """Sums over the seeds, and over the times that a resample drew an event."""
        rows, place = np.unique(row.astype(np.int64), return_inverse=True)
        e, pi = (np.bincount(place, values, len(rows)).astype(np.float64) for values in (e, pi))
        clicked, of_sample = np.zeros(len(rows)), np.zeros(len(rows), dtype=bool)
        clicked[place], of_sample[place] = click, known
        size = float(mean_or(self._size(), (pi * e**2)[of_sample].sum(), pi[of_sample].sum()))
        events = max((replica["seen"] for replica in self.replicas), default=0)
        return Weights(rows, e, pi, clicked, of_sample, size, share, float(events))

    def _size(self) -> float:
        """The size of a click where no event of the sample was matched: that of one seed."""
        sums = [member["sums"] for member in self._valued_replicas] if self.valued else []
        sizes = [each["pi_w2"] / each["pi"] / each["C"] ** 2 for each in sums if each["pi"] > 0]
        return float(np.mean(sizes)) if sizes else np.nan

    def interval(self, level: float) -> Ends:
        """The mean over seeds of the interval of a value with a reward model."""
        sums = [member["sums"] for member in self._valued_replicas]
        of = {name: np.array([each[name] for each in sums]) for name in sums[0]}
        more = pseudo_click(of["pi"], of["pi_w"], of["pi_w2"])
        low, high = modelled_interval(of["A"], of["C"], of["c2_V2"], of["c2_V"], of["c2"], more, level)
        return Ends(low.mean(), high.mean())


def difference(first: Contender, second: Contender, level: float) -> dict[str, Any]:
    """The first less the second, its interval, and the verdict by the one rule."""
    measure = first.run.measure
    if measure is not CTR:
        both = sorted(first.finals.keys() & second.finals.keys())
        a, b = (np.array([each.finals[seeds] for seeds in both]) for each in (first, second))
        return seed_difference(a, b, measure.better, level)
    log = first.run.summary.get("log") or {}
    rate = second.estimate or log.get("ctr") or 0.0
    if first.estimate is None or second.estimate is None:
        return told_apart(None, None, None, level, 0, Spread(0.0, 0.0), rate)
    one, other = first.weights, second.weights
    n = max(one.events, other.events)
    sums = _sums(one, other, n, rate)
    if not (first.modelled or second.modelled):
        found = click_difference(sums, level)
        if sums.clicks2:
            return found
        # without a click the spread is that of the log's clicks
        spread = Spread(_squares(one, other, n) * log.get("ctr", 0.0) / n if n else 0.0, sums.plus + sums.minus)
        return told_apart(found["value"], found["low"], found["high"], level, n, spread, rate)
    ours, theirs = first.interval(level), second.interval(level)
    low, high = float(ours.low - theirs.high), float(ours.high - theirs.low)
    error = (high - low) / 2 / float(ndtri((1 + level) / 2))
    return told_apart(first.estimate - second.estimate, low, high, level, n, Spread(error**2 * n, 0.0), rate)


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
    return ClickSums(n, float((d * click).sum() * n), float((d**2 * click).sum() * n**2), plus, minus, rate)


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
    if contenders[0].run.measure is not CTR:
        return "Differences are paired by seed."
    shared = "Seeds share the log's clicks and count as one."
    if any(each.modelled for each in contenders):
        return f"Differences are of the values over all events, from their separate intervals. {shared}"
    if any(each.valued for each in contenders):
        return f"Differences are of the values over all events, paired by event. {shared}"
    return f"Differences are of the CTR of the accepted events, paired by event. {shared}"
