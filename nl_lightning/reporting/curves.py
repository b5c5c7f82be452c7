"""Curves of runs: read from rounds.parquet, and averaged over the replicas of a setting."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nl_lightning.core.statistics import Interval, interval
from nl_lightning.runs.summary import REGRET, Measure, groups

__all__ = ["SHOWN", "Curves", "bands", "read_columns", "read_curves", "setting_label"]

_POINTS = 400
"""Points of a plotted curve: more than a screen shows."""

SHOWN = 8
"""Settings of a run in a plot or a table, the best ones; more could not be told apart."""


class Curves(NamedTuple):
    """A column of rounds.parquet for R replicas at rounds ``t`` (P,): ``value`` (R, P), NaN after a replica's end."""

    t: NDArray[np.int64]
    value: NDArray[np.float64]


def read_curves(rounds: Path, replicas: int, measure: Measure = REGRET) -> Curves:
    """The curves of a run's rounds.parquet, thinned to what a plot can show."""
    return read_columns(rounds, replicas, [measure.column])[0]


def read_columns(rounds: Path, replicas: int, names: Sequence[str]) -> list[Curves]:
    """Columns of a run's rounds.parquet, thinned to what a plot can show; one row group in memory at a time."""
    file = pq.ParquetFile(rounds)
    groups = range(file.metadata.num_row_groups)
    statistics = [file.metadata.row_group(g).column(file.schema.names.index("t")).statistics for g in groups]
    last = max((s.max for s in statistics), default=1)
    t = np.unique(np.linspace(1, last, min(last, _POINTS)).round().astype(np.int64))
    curves = [Curves(t, np.full((replicas, len(t)), np.nan)) for _ in names]
    for g in groups:
        columns = file.read_row_group(g, columns=["replica", "t", *names])
        rows_t = columns["t"].to_numpy()
        place = np.searchsorted(t, rows_t)
        kept = t[np.minimum(place, len(t) - 1)] == rows_t
        replica = columns["replica"].to_numpy()[kept]
        for name, curve in zip(names, curves, strict=True):
            curve.value[replica, place[kept]] = columns[name].to_numpy()[kept]
    return curves


def bands(curves: Curves, summary: dict[str, Any]) -> list[tuple[dict[str, Any], Interval]]:
    """The band of each of the best settings over its replicas that did not diverge. It ends where the first ends."""
    diverged = {row["replica"] for row in summary["replicas"] if row["diverged_at"] is not None}
    found = []
    for row in summary["over_replicas"][:SHOWN]:
        members = [r for r in row["replicas"] if r not in diverged and not np.isnan(curves.value[r]).all()]
        if members:
            found.append((row, interval(curves.value[members])))
    return found


def setting_label(row: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """What distinguishes this setting from the others of its run; the agent if there is only one setting."""
    found = groups(summary["replicas"])
    return next(label for label, numbers in found.items() if numbers == row["replicas"]) or summary["agent"]
