"""Statistics of a log: rows, clicks, propensities, extremes of numbers, categories, missing values.

Statistics are counted while a log is written and stored in log.json under "contents".
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nl_lightning.core.errors import InputError
from replay.logs.schema import Schema

__all__ = ["MOST_CATEGORIES", "LogStatistics", "StatisticsCounter"]


MOST_CATEGORIES = 100_000
"""Categories of a column that are told apart; a column with more of them says so."""


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
    uniform_rows: int = 0
    """number of events whose propensity is 1 / candidates"""
    numeric: dict[str, list[float]] = field(default_factory=dict)
    """lowest and highest value of each numeric column of the context that has any"""
    pair: dict[str, list[float]] = field(default_factory=dict)
    """lowest and highest value of each feature of (event, action) that has any"""
    candidates: list[int] | None = None
    """lowest and highest number of candidates; None where all actions are"""
    categories: dict[str, int] = field(default_factory=dict)
    """number of distinct values of each categorical column, counted up to ``MOST_CATEGORIES``"""
    missing: dict[str, int] = field(default_factory=dict)
    """number of missing values by column, for columns that have any"""
    first_time: str | None = None
    last_time: str | None = None
    in_order: bool = True
    """whether the timestamps never decrease"""

    @property
    def ctr(self) -> float:
        return self.clicks / self.rows if self.rows else float("nan")

    @property
    def uniform(self) -> bool:
        """Whether every event has the propensity 1 / candidates."""
        return self.rows > 0 and self.uniform_rows == self.rows

    @property
    def most_candidates(self) -> int:
        return self.items if self.candidates is None else self.candidates[1]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, contents: Mapping[str, Any]) -> "LogStatistics":
        """The statistics in a description that ``read_description`` has checked."""
        return cls(**contents)


class StatisticsCounter:
    """Accumulates ``statistics`` over tables of events, which are added in order."""

    def __init__(self, schema: Schema, items: int) -> None:
        self.schema = schema
        self.statistics = LogStatistics(items=items, categories=dict.fromkeys(schema.context.categorical, 0))
        self._values: dict[str, set[str]] = {name: set() for name in schema.context.categorical}
        self._last: Any = None

    def add(self, events: pa.Table) -> None:
        if not events.num_rows:
            return
        counts, schema = self.statistics, self.schema
        counts.rows += events.num_rows
        counts.clicks += pc.sum(events[schema.reward]).as_py() or 0
        self._add_propensities(events)
        for name in schema.context.numeric:
            _widen(counts.numeric, name, events[name])
        for name in schema.pair:
            _widen(counts.pair, name, pc.list_flatten(events[name]))
        if schema.candidates:
            ends = _ends(pc.fill_null(pc.list_value_length(events[schema.candidates]), 0))
            before = counts.candidates or ends
            counts.candidates = [min(before[0], ends[0]), max(before[1], ends[1])]
        for name in events.column_names:
            if events[name].null_count:
                counts.missing[name] = counts.missing.get(name, 0) + events[name].null_count
        for name, values in self._values.items():
            found = events[name].unify_dictionaries().combine_chunks()
            # a dictionary may list values that no row has
            if len(values) < MOST_CATEGORIES:
                values.update(pc.unique(found).cast(pa.string()).drop_null().to_pylist())
            counts.categories[name] = min(len(values), MOST_CATEGORIES)
        if schema.timestamp:
            self._follow_time(events[schema.timestamp])

    def _add_propensities(self, events: pa.Table) -> None:
        counts, propensity = self.statistics, events[self.schema.propensity_column]
        ends = pc.min_max(propensity).as_py()
        if ends["min"] is None:
            return
        counts.propensity_low = min(ends["min"], counts.propensity_low or ends["min"])
        counts.propensity_high = max(ends["max"], counts.propensity_high or ends["max"])
        counts.inverse_propensities += pc.sum(pc.divide(1.0, propensity)).as_py()
        named = self.schema.candidates
        number = pc.list_value_length(events[named]).cast(pa.float64()) if named else pa.scalar(float(counts.items))
        even = pc.less(pc.abs(pc.subtract(pc.multiply(propensity, number), 1.0)), 1e-6)
        counts.uniform_rows += pc.sum(even).as_py() or 0

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


def _ends(values: pa.ChunkedArray) -> list[Any]:
    found = pc.min_max(values).as_py()
    return [found["min"], found["max"]]


def _widen(extremes: dict[str, list[float]], name: str, values: pa.ChunkedArray) -> None:
    low, high = _ends(values)
    if low is not None and not math.isnan(low):
        if math.isinf(low) or math.isinf(high):
            raise InputError(f"column {name}: expected finite numbers, got {high if math.isinf(high) else low}.")
        before = extremes.get(name, [low, high])
        extremes[name] = [min(low, before[0]), max(high, before[1])]
