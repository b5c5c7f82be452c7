"""Read a log one row group at a time, so that memory does not grow with its length."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nl_lightning.core.errors import InputError
from replay.logs.address import Address, address, list_files, open_parquet, repair_hint
from replay.logs.description import check_files, read_description
from replay.logs.schema import EVENTS, EVENTS_FILES, ITEM_NUMBER, ITEMS, ITEMS_FILE, USER_FEATURES, check_schema
from replay.logs.statistics import LogStatistics

__all__ = ["COLUMNS", "Events", "Log", "RowGroup"]


COLUMNS = [name for name in EVENTS.names if name != "timestamp"]
"""The columns that a replay reads. Times are not needed: the events are already in order."""


class RowGroup(NamedTuple):
    """A row group of a log."""

    file: Address
    number: int
    """its index within its file"""
    first: int
    """the log's row that it starts with"""
    rows: int

    def __str__(self) -> str:
        return f"{self.file}, row group {self.number}"


class Events(NamedTuple):
    """N events of a log as NumPy arrays."""

    rows: range
    """their rows in the log"""
    item: NDArray[np.int64]
    """(N,)"""
    position: NDArray[np.int64]
    """(N,), counted from 1"""
    click: NDArray[np.int64]
    """(N,), 0 or 1"""
    propensity: NDArray[np.float64]
    """(N,), NaN where it is not known"""
    users: list[tuple[NDArray[np.int64], list[str]]]
    """for each user feature the index (N,) of its value, -1 where it is missing, and the list of values"""
    affinity_owner: NDArray[np.int64]
    """(A,), the event, counted within these, that each nonzero affinity belongs to; ascending"""
    affinity_item: NDArray[np.int64]
    """(A,)"""
    affinity: NDArray[np.float32]
    """(A,)"""


class Log:
    """A log on disk or in a remote file system. Opening it checks its files as far as their footers tell.

    Args:
        path: directory of the log, a path or an address such as ``s3://bucket/log``.
    """

    def __init__(self, path: str | Address) -> None:
        self.path = address(path)
        self.description = read_description(self.path)
        check_files(self.path, self.description)
        self.statistics = LogStatistics.from_json(self.description["contents"])
        self.items = _read_items(self.path / ITEMS_FILE)
        self.groups: list[RowGroup] = []
        for file in list_files(self.path, EVENTS_FILES):
            with _open(file) as parquet:
                check_schema(parquet.schema_arrow, EVENTS, str(file))
                for number in range(parquet.metadata.num_row_groups):
                    rows = parquet.metadata.row_group(number).num_rows
                    self.groups.append(RowGroup(file, number, self.rows, rows))
        if not self.rows:
            raise InputError(f"{self.path} is empty: there is no event to replay.")

    @property
    def rows(self) -> int:
        return self.groups[-1].first + self.groups[-1].rows if self.groups else 0

    @property
    def n_items(self) -> int:
        return self.items.num_rows

    @property
    def positions(self) -> int:
        """The highest position in the log."""
        return max(self.statistics.positions)

    @property
    def skipped(self) -> int:
        """The number of damaged rows that the conversion skipped."""
        return int(self.description.get("skipped", {}).get("rows", 0))

    def read(self, group: RowGroup, columns: Sequence[str] = COLUMNS, use_threads: bool | None = None) -> pa.Table:
        """Read columns of a row group as they are stored.

        ``use_threads`` says whether pyarrow may decode columns in parallel. By default it does so if its thread pool
        has more than one thread (``pyarrow.cpu_count()``, which follows ``OMP_NUM_THREADS``).
        """
        threads = pa.cpu_count() > 1 if use_threads is None else use_threads
        try:
            with _open(group.file) as parquet:
                return parquet.read_row_group(group.number, columns=list(columns), use_threads=threads)
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"{group}, column {self._unreadable(group, columns)}: cannot be read ({error}). "
                f"{repair_hint(group.file)}"
            ) from error

    def events(self, group: RowGroup, use_threads: bool | None = None) -> Events:
        """Read the events of a row group and check their values."""
        table = self.read(group, use_threads=use_threads).combine_chunks()

        def numbers(name: str, dtype: type[np.generic]) -> np.ndarray:
            column = table[name].combine_chunks()
            if column.null_count and name != "propensity_score":
                raise InputError(f"{group}, column {name}: {column.null_count} values are missing.")
            return column.to_numpy(zero_copy_only=False).astype(dtype)

        item, position, click = (numbers(name, np.int64) for name in ("item_id", "position", "click"))
        propensity = numbers("propensity_score", np.float64)
        known = table["propensity_score"].combine_chunks().is_valid().to_numpy(zero_copy_only=False)
        owner, affinity_item, affinity = _affinities(table, group)
        _check(group, "item_id", item, (item >= 0) & (item < self.n_items), f"0 to {self.n_items - 1}")
        _check(group, "position", position, (position >= 1) & (position <= self.positions), f"1 to {self.positions}")
        _check(group, "click", click, (click == 0) | (click == 1), "0 or 1")
        inside = (propensity > 0) & (propensity <= 1)
        _check(group, "propensity_score", propensity, inside | ~known, "a number in (0, 1]")
        inside = (affinity_item >= 0) & (affinity_item < self.n_items)
        _check(group, "affinity_item", affinity_item, inside, f"0 to {self.n_items - 1}")
        _check(group, "affinity", affinity, np.isfinite(affinity) & (affinity >= 0), "a number of at least 0")
        return Events(
            rows=range(group.first, group.first + group.rows),
            item=item,
            position=position,
            click=click,
            propensity=propensity,
            users=[_categories(table[name], f"{group}, column {name}") for name in USER_FEATURES],
            affinity_owner=owner,
            affinity_item=affinity_item,
            affinity=affinity,
        )

    def _unreadable(self, group: RowGroup, columns: Sequence[str]) -> str:
        """The first column that cannot be read on its own."""
        for column in columns:
            try:
                with _open(group.file) as parquet:
                    parquet.read_row_group(group.number, columns=[column])
            except (pa.ArrowException, OSError, InputError):
                return column
        return ", ".join(columns)


def _open(file: Address) -> pq.ParquetFile:
    try:
        return open_parquet(file)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{file} is not a complete Parquet file ({error}). Convert the log again.") from error


def _read_items(file: Address) -> pa.Table:
    with _open(file) as parquet:
        check_schema(parquet.schema_arrow, ITEMS, str(file))
        try:
            items = parquet.read(columns=ITEMS.names)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{file} cannot be read ({error}). Convert the log again.") from error
    numbers = items[ITEM_NUMBER].to_numpy()
    if not np.isfinite(numbers).all():
        raise InputError(
            f"{file}, column {ITEM_NUMBER}: expected finite numbers, got {numbers[~np.isfinite(numbers)][0]}."
        )
    if items["item_id"].to_pylist() != list(range(items.num_rows)):
        raise InputError(f"{file}, column item_id: items must be numbered 0, 1, 2, ..., in this order.")
    return items


def _affinities(table: pa.Table, group: RowGroup) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(owner, item, affinity) of the nonzero affinities."""
    items, values = table["affinity_item"].combine_chunks(), table["affinity"].combine_chunks()
    counts = pc.fill_null(pc.list_value_length(items), 0).to_numpy(zero_copy_only=False)
    if (counts != pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)).any():
        raise InputError(f"{group}, columns affinity_item and affinity: their lists differ in length.")
    owner = np.repeat(np.arange(len(counts)), counts)
    flat_items = items.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
    return owner, flat_items, values.flatten().to_numpy(zero_copy_only=False).astype(np.float32)


def _categories(column: pa.ChunkedArray, place: str) -> tuple[NDArray[np.int64], list[str]]:
    encoded = column.combine_chunks()
    index = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    values = encoded.dictionary.to_pylist()
    if len(index) and index.max() >= len(values):
        raise InputError(f"{place}: it has {len(values)} categories, but a row has number {index.max()}.")
    return index, values


def _check(group: RowGroup, column: str, values: np.ndarray, good: np.ndarray, expected: str) -> None:
    if not good.all():
        bad = np.flatnonzero(~good)
        others = f" (and {len(bad) - 1} more such values)" if len(bad) > 1 else ""
        raise InputError(
            f"{group}, column {column}: expected {expected}, got {values[bad[0]]}{others}. "
            "The log is damaged; convert it again."
        )
