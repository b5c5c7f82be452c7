"""A setting of a run as it is compared with others: what its files say of it, read once."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nl_lightning.core.errors import InputError
from nl_lightning.core.intervals import mean_or
from nl_lightning.environments.learner_value import SAMPLED_EVENTS, sampled
from nl_lightning.reporting.discovery import StoredRun

__all__ = ["Contender", "Weights", "seeds_luck"]

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
    luck: float
    """the variance of the mean over seeds that is due to their own chance"""
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
        table = table.filter(pc.is_in(table["replica"], pa.array(members, table["replica"].type)))
        replica, row, click = (table[name].to_numpy() for name in ("replica", "event", "reward"))
        accepted = np.bincount(replica, minlength=len(self.run.summary["replicas"]))
        shares = np.full(len(row), 1 / max(len(row), 1)), np.full(len(row), 1 / max(len(members), 1))
        luck = seeds_luck(replica, row, 1 / accepted[replica], click)
        return self._weights(row, *shares, click, np.ones(len(row), dtype=bool), luck, 1.0)

    def _values(self) -> Weights:
        """The value over all events: e = c pi / (p C)."""
        members = {member["replica"]: member["sums"]["C"] for member in self._valued_replicas}
        table = pq.read_table(self.run.directory.events)
        table = table.filter(pc.is_in(table["replica"], pa.array(members, table["replica"].type)))
        replica, row, weight, pi, click = (
            table[name].to_numpy() for name in ("replica", "row", "weight", "pi", "click")
        )
        e = weight / np.array([members[number] for number in replica.tolist()], dtype=np.float64)
        rows = int(self.run.summary["learner"]["rows"])
        known, share = sampled(row, rows), min(1.0, SAMPLED_EVENTS / rows)
        shares = e / len(members), pi / len(members)
        return self._weights(row, *shares, click, known, seeds_luck(replica, row, e, click), share)

    @property
    def _valued_replicas(self) -> list[Mapping[str, Any]]:
        return [replica for replica in self.replicas if replica.get("value") is not None]

    def _weights(
        self, row: Any, e: Floats, pi: Floats, click: Any, known: NDArray[np.bool_], luck: float, share: float
    ) -> Weights:
        """Sums over the seeds, and over the times that a resample drew an event."""
        rows, place = np.unique(row.astype(np.int64), return_inverse=True)
        e, pi = (np.bincount(place, values, len(rows)).astype(np.float64) for values in (e, pi))
        clicked, of_sample = np.zeros(len(rows)), np.zeros(len(rows), dtype=bool)
        clicked[place], of_sample[place] = click, known
        size = float(mean_or(self._size(), (pi * e**2)[of_sample].sum(), pi[of_sample].sum()))
        events = max((replica["seen"] for replica in self.replicas), default=0)
        return Weights(rows, e, pi, clicked, of_sample, size, luck, share, float(events))

    def _size(self) -> float:
        """The size of a click where no event of the sample was matched: that of one seed."""
        sums = [member["sums"] for member in self._valued_replicas] if self.valued else []
        sizes = [each["pi_w2"] / each["pi"] / each["C"] ** 2 for each in sums if each["pi"] > 0]
        return float(np.mean(sizes)) if sizes else np.nan

    @cached_property
    def excess(self) -> float:
        """How many times the variance of sum e r that of its value is, at least 1: a bad reward model adds to it."""
        if not self.modelled:
            return 1.0
        found = []
        for sums in (member["sums"] for member in self._valued_replicas):
            y, more = sums["A"] / sums["C"], sums["pi_w2"] / sums["pi"] if sums["pi"] > 0 else 0.0
            variance = sums["c2_V2"] - 2 * y * sums["c2_V"] + y**2 * sums["c2"]
            if sums["clicks2"] + more > 0:
                found.append((variance + more) / (sums["clicks2"] + more))
        return max(1.0, *found) if found else 1.0


def seeds_luck(replica: Any, row: Any, e: Floats, click: Any) -> float:
    """The variance of the mean over seeds beyond that of the clicks; 0 with one seed."""
    members, seed = np.unique(replica, return_inverse=True)
    n, met = len(members), click > 0
    if n < 2:
        return 0.0
    rows, place = np.unique(row[met], return_inverse=True)
    each = np.zeros((n, len(rows)))
    np.add.at(each, (seed[met], place), e[met])
    noise = float(((each - each.mean(0)) ** 2).sum()) / (n - 1)
    return max(0.0, float(each.sum(1).var(ddof=1)) - noise) / n
