"""Statistics of a log (rows, clicks, propensities, positions, users, missing values) and its description, log.json.

Statistics are counted while a log is written and stored in log.json under "contents".
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nl_lightning.core.errors import InputError
from replay.logs.address import Address, list_files, open_parquet
from replay.logs.schema import EVENTS_FILES, FORMAT, ITEMS_FILE, LOG_FILE, USER_FEATURES, VERSION

__all__ = ["LogStatistics", "StatisticsCounter", "check_files", "read_description"]


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
    def from_description(cls, path: Address, description: Mapping[str, Any]) -> "LogStatistics":
        """Read the statistics from the content of log.json."""
        try:
            stored = description["contents"]
            # A default would be a wrong statement about the log.
            missing = {field.name for field in fields(cls)} - set(stored)
            if missing:
                raise KeyError(*sorted(missing))
            return cls(**{**stored, "positions": {int(k): v for k, v in stored["positions"].items()}})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"{path / LOG_FILE} does not hold the statistics of the log ({error!r}). Convert it again."
            ) from error


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


def read_description(path: Address) -> dict[str, Any]:
    """Read ``log.json`` of the log in the directory ``path``."""
    if not path.is_dir():
        found = "is a file; a log is a directory" if path.exists() else "does not exist"
        raise InputError(f"{path} {found}. Make a log with `python -m replay convert` or `simulate`.")
    file = path / LOG_FILE
    if not file.exists():
        if list_files(path, EVENTS_FILES):
            raise InputError(f"{path} is unfinished: it has no {LOG_FILE}. Run the command that wrote it again.")
        below = list_files(path, f"*/{LOG_FILE}") or list_files(path, f"*/*/{LOG_FILE}")
        hint = (
            f" There are logs below it, for example {below[0].parent}."
            if below
            else " Make one with `python -m replay convert`."
        )
        raise InputError(f"{path} holds no log: it has no {LOG_FILE}.{hint}")
    try:
        log = json.loads(file.read_text())
    except ValueError as error:
        raise InputError(f"{file} is damaged ({error}). Convert the log again.") from error
    if not isinstance(log, dict) or log.get("format") != FORMAT:
        raise InputError(
            f"{file} does not describe a log: expected the format {FORMAT!r}. Is this the right directory?"
        )
    if log.get("version") != VERSION:
        raise InputError(
            f"{file} has version {log.get('version')} of the format, expected version {VERSION}. Convert the log again."
        )
    missing = [name for name in ("policy", "campaign", "items", "parts", "source", "contents") if name not in log]
    if missing:
        raise InputError(f"{file} lacks {', '.join(missing)}. Convert the log again.")
    return log


def check_files(path: Address, log: Mapping[str, Any]) -> None:
    """Check that the log has the files it was written with, as far as their footers tell."""
    expected = {EVENTS_FILES.replace("*", f"{number:05d}"): rows for number, rows in enumerate(log["parts"])}
    expected[ITEMS_FILE] = log["items"]
    for name, rows in expected.items():
        try:
            with open_parquet(path / name) as parquet:
                found = parquet.metadata.num_rows
        except FileNotFoundError as error:
            raise InputError(f"{path / name} is missing. Convert the log again.") from error
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"{path / name} is not a complete Parquet file ({error}). Convert the log again."
            ) from error
        if found != rows:
            raise InputError(f"{path / name} has {found} rows, expected {rows}. Convert the log again.")
    for file in list_files(path, EVENTS_FILES):
        if file.name not in expected:
            raise InputError(f"{file} does not belong to this log: {LOG_FILE} does not list it. Remove it.")
