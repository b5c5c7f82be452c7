"""What a log holds, counted once while it is written: rows, clicks, propensities, positions, users, missing values."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nl_lightning.core.errors import InputError
from replay.logs.address import Address, listed, open_parquet
from replay.logs.schema import EVENTS_FILES, FORMAT, ITEMS_FILE, LOG_FILE, USER_FEATURES, VERSION


@dataclass
class Contents:
    """Counts of a log; those of a whole log are the merged ones of its parts."""

    items: int = 0
    rows: int = 0
    clicks: int = 0
    propensity_low: float | None = None
    """the smallest recorded propensity, None where there is none"""
    propensity_high: float | None = None
    inverse_propensities: float = 0.0
    """the sum of 1 / propensity"""
    affinity_high: float = 0.0
    positions: dict[int, int] = field(default_factory=dict)
    """events at each position"""
    missing: dict[str, int] = field(default_factory=dict)
    """rows without a value, by column; columns without such rows are left out"""
    categories: dict[str, int] = field(default_factory=dict)
    """different values of each user feature"""
    users: int = 0
    """different combinations of user features"""
    first_time: str | None = None
    last_time: str | None = None
    in_order: bool = True
    """whether no event is earlier than the one before it"""

    @property
    def ctr(self) -> float:
        return self.clicks / self.rows if self.rows else float("nan")

    @property
    def uniform(self) -> bool:
        """Whether every event was logged with the known probability 1 / items."""
        ends = (self.propensity_low, self.propensity_high)
        even = all(p is not None and abs(p * self.items - 1) < 1e-6 for p in ends)
        return self.rows > 0 and even and not self.missing.get("propensity_score")

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "positions": {str(k): v for k, v in sorted(self.positions.items())}}

    @classmethod
    def of(cls, path: Address, description: Mapping[str, Any]) -> "Contents":
        """From what log.json holds."""
        try:
            stored = description["contents"]
            # a default would be a false statement on the log
            missing = {field.name for field in fields(cls)} - set(stored)
            if missing:
                raise KeyError(*sorted(missing))
            return cls(**{**stored, "positions": {int(k): v for k, v in stored["positions"].items()}})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"{path / LOG_FILE} does not say what the log holds ({error!r}). Convert it again."
            ) from error


class Counter:
    """Counts tables of events, in their order, into ``contents``."""

    def __init__(self, items: int) -> None:
        self.contents = Contents(items=items)
        self._values: dict[str, set[str | None]] = {name: set() for name in USER_FEATURES}
        self._users: set[tuple[str | None, ...]] = set()
        self._last: Any = None

    def add(self, events: pa.Table) -> None:
        if not events.num_rows:
            return
        counts = self.contents
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
        self.contents.users = len(self._users)
        self.contents.categories = {name: len(values) for name, values in self._values.items()}

    def _follow_time(self, timestamps: pa.ChunkedArray) -> None:
        known = timestamps.drop_null().combine_chunks()
        if not len(known):
            return
        counts = self.contents
        steps = pc.less(known[1:], known[:-1])
        late = bool(len(steps)) and pc.any(steps).as_py()
        counts.in_order &= not late and (self._last is None or known[0].as_py() >= self._last)
        self._last = known[-1].as_py()
        span = pc.min_max(known).as_py()
        counts.first_time = min(filter(None, [counts.first_time, span["min"].isoformat()]))
        counts.last_time = max(filter(None, [counts.last_time, span["max"].isoformat()]))


def read_description(path: Address) -> dict[str, Any]:
    """What ``log.json`` says of the log in the directory ``path``."""
    if not path.is_dir():
        found = "is a file; a log is a directory" if path.exists() else "does not exist"
        raise InputError(f"{path} {found}. The convert command makes a log, the simulate command too.")
    file = path / LOG_FILE
    if not file.exists():
        if listed(path, EVENTS_FILES):
            raise InputError(f"{path} is not finished: it has no {LOG_FILE}. Run the command that wrote it again.")
        below = listed(path, f"*/{LOG_FILE}") or listed(path, f"*/*/{LOG_FILE}")
        hint = f" There are logs below it, {below[0].parent} for one." if below else " The convert command makes one."
        raise InputError(f"{path} holds no log: it has no {LOG_FILE}.{hint}")
    try:
        log = json.loads(file.read_text())
    except ValueError as error:
        raise InputError(f"{file} is damaged ({error}). Convert the log again.") from error
    if not isinstance(log, dict) or log.get("format") != FORMAT:
        raise InputError(f"{file} describes no log: expected the format {FORMAT!r}. Is this the right directory?")
    if log.get("version") != VERSION:
        raise InputError(
            f"{file} has version {log.get('version')} of the format, expected {VERSION}. Convert the log again."
        )
    missing = [name for name in ("policy", "campaign", "items", "parts", "source", "contents") if name not in log]
    if missing:
        raise InputError(f"{file} does not tell {', '.join(missing)}. Convert the log again.")
    return log


def check_files(path: Address, log: Mapping[str, Any]) -> None:
    """The log's files are those that it was written with, as far as their footers tell."""
    expected = {EVENTS_FILES.replace("*", f"{number:05d}"): rows for number, rows in enumerate(log["parts"])}
    expected[ITEMS_FILE] = log["items"]
    for name, rows in expected.items():
        try:
            with open_parquet(path / name) as parquet:
                found = parquet.metadata.num_rows
        except FileNotFoundError as error:
            raise InputError(f"{path / name} is missing. Convert the log again.") from error
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{path / name} is not a whole Parquet file ({error}). Convert the log again.") from error
        if found != rows:
            raise InputError(f"{path / name} has {found} rows, expected {rows}. Convert the log again.")
    for file in listed(path, EVENTS_FILES):
        if file.name not in expected:
            raise InputError(f"{file} is not of this log: {LOG_FILE} does not know it. Remove it.")
