"""Statistics of a log: rows, clicks, propensities, positions, users, missing values.

Statistics are counted while a log is written and stored in log.json under "contents".
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replay.logs.schema import USER_FEATURES

__all__ = ["LogStatistics", "StatisticsCounter"]


@dataclass
class LogStatistics:
    """Counts and extremes over all events of a log."""

    items: int = 0
    rows: int = 0
    clicks: int = 0
    propensity_low: float | None = None
    """the smallest recorded propensity, None if none is recorded"""
    propensity_high: float | None = None
    inverse_propensities: float = 0.0
    """the sum of 1 / propensity"""
    affinity_high: float = 0.0
    positions: dict[int, int] = field(default_factory=dict)
    """number of events at each position"""
    missing: dict[str, int] = field(default_factory=dict)
    """number of missing values by column, for columns that have any"""
    categories: dict[str, int] = field(default_factory=dict)
    """number of distinct values of each user feature"""
    users: int = 0
    """number of distinct combinations of user features"""
    first_time: str | None = None
    last_time: str | None = None
    in_order: bool = True
    """whether the timestamps never decrease"""

    @property
    def ctr(self) -> float:
        return self.clicks / self.rows if self.rows else float("nan")

    @property
    def uniform(self) -> bool:
        """Whether every event has the propensity 1 / items."""
        ends = (self.propensity_low, self.propensity_high)
        even = all(p is not None and abs(p * self.items - 1) < 1e-6 for p in ends)
        return self.rows > 0 and even and not self.missing.get("propensity_score")

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "positions": {str(k): v for k, v in sorted(self.positions.items())}}

    @classmethod
    def from_json(cls, contents: Mapping[str, Any]) -> "LogStatistics":
        """The statistics in a description that ``read_description`` has checked."""
        return cls(**{**contents, "positions": {int(k): v for k, v in contents["positions"].items()}})


class StatisticsCounter:
    """Accumulates ``statistics`` over tables of events, which are added in order."""

    def __init__(self, items: int) -> None:
        self.statistics = LogStatistics(items=items)
        self._values: dict[str, set[str | None]] = {name: set() for name in USER_FEATURES}
        self._users: set[tuple[str | None, ...]] = set()
        self._last: Any = None

    def add(self, events: pa.Table) -> None:
        if not events.num_rows:
            return
        counts = self.statistics
        counts.rows += events.num_rows
        counts.clicks += pc.sum(events["click"]).as_py()
        propensity = pc.min_max(events["propensity_score"]).as_py()
        if propensity["min"] is not None:
            counts.propensity_low = min(propensity["min"], counts.propensity_low or propensity["min"])
            counts.propensity_high = max(propensity["max"], counts.propensity_high or propensity["max"])
            counts.inverse_propensities += pc.sum(pc.divide(1.0, events["propensity_score"])).as_py()
        counts.affinity_high = max(counts.affinity_high, pc.max(pc.list_flatten(events["affinity"])).as_py() or 0.0)
        for pair in pc.value_counts(events["position"].combine_chunks()).to_pylist():
            counts.positions[pair["values"]] = counts.positions.get(pair["values"], 0) + pair["counts"]
        for name in events.column_names:
            if events[name].null_count:
                counts.missing[name] = counts.missing.get(name, 0) + events[name].null_count
        self._count_users(events)
        self._follow_time(events["timestamp"])

    def _count_users(self, events: pa.Table) -> None:
        profiles = events.select(list(USER_FEATURES)).group_by(list(USER_FEATURES)).aggregate([])
        columns = [profiles[name].cast(pa.string()).to_pylist() for name in USER_FEATURES]
        self._users.update(zip(*columns, strict=True))
        for name, values in zip(USER_FEATURES, columns, strict=True):
            self._values[name].update(value for value in values if value is not None)
        self.statistics.users = len(self._users)
        self.statistics.categories = {name: len(values) for name, values in self._values.items()}

    def _follow_time(self, timestamps: pa.ChunkedArray) -> None:
        known = timestamps.drop_null().combine_chunks()
        if not len(known):
            return
        counts = self.statistics
        steps = pc.less(known[1:], known[:-1])
        late = bool(len(steps)) and pc.any(steps).as_py()
        counts.in_order &= not late and (self._last is None or known[0].as_py() >= self._last)
        self._last = known[-1].as_py()
        span = pc.min_max(known).as_py()
        counts.first_time = min(filter(None, [counts.first_time, span["min"].isoformat()]))
        counts.last_time = max(filter(None, [counts.last_time, span["max"].isoformat()]))
