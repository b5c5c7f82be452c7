"""Read a log one row group at a time, so that memory does not grow with its length."""

from collections.abc import Sequence
from copy import copy
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nl_lightning.core.errors import InputError
from replay.logs.address import Address, address, list_files, open_parquet, repair_hint
from replay.logs.description import check_files, read_description
from replay.logs.layout import EVENTS_FILES, ITEMS_FILE, check_events, check_items
from replay.logs.obd import OBD
from replay.logs.rows import parse_rows
from replay.logs.schema import Schema
from replay.logs.statistics import LogStatistics, StatisticsCounter

__all__ = ["Categories", "Events", "Log", "Pairs", "Ragged", "RowGroup"]


_DAMAGED = "The log is damaged; convert it again."


class RowGroup(NamedTuple):
    """A row group of a log."""

    file: Address
    number: int
    """its index within its file"""
    first: int
    """the log's row that it starts with"""
    rows: int
    skip: int = 0
    """rows before the first one in the stored row group, which are not part of it"""

    def __str__(self) -> str:
        return f"{self.file}, row group {self.number}"


class Categories(NamedTuple):
    """A categorical column of N events."""

    codes: NDArray[np.int64]
    """(N,), -1 where the value is missing"""
    values: list[str]


class Ragged(NamedTuple):
    """Lists of N events, one behind the other."""

    length: NDArray[np.int64]
    """(N,)"""
    values: NDArray[Any]
    """(sum of lengths,)"""

    @property
    def owner(self) -> NDArray[np.int64]:
        """(sum of lengths,), the event that each value belongs to; ascending"""
        return np.repeat(np.arange(len(self.length)), self.length)


class Pairs(NamedTuple):
    """A feature of (event, action) of N events."""

    value: Ragged
    item: Ragged | None
    """the actions of the values; other actions have the value 0. None: a value for each candidate, in their order"""


class Events(NamedTuple):
    """N events of a log as NumPy arrays."""

    rows: range
    """their rows in the log"""
    item: NDArray[np.int64]
    """(N,), the number of the logged action"""
    click: NDArray[np.int64]
    """(N,), the reward, 0 or 1"""
    propensity: NDArray[np.float64]
    """(N,), NaN where it is not known"""
    numeric: dict[str, NDArray[Any]]
    """(N,), numeric columns of the context; NaN where a value is missing"""
    categorical: dict[str, Categories]
    candidates: Ragged | None
    """numbers of the actions that could have been shown; None: all"""
    pair: dict[str, Pairs]


class Log:
    """A log on disk or in a remote file system. Opening it checks its files as far as their footers tell.

    Args:
        path: directory of the log, a path or an address such as ``s3://bucket/log``.
    """

    def __init__(self, path: str | Address) -> None:
        self.path = address(path)
        self.description = read_description(self.path)
        check_files(self.path, self.description)
        self.schema = Schema.from_dict(self.description["schema"], stored=True)
        self.statistics = LogStatistics.from_json(self.description["contents"])
        # also in a part of the log, whose own statistics are counted anew
        self._whole = self.statistics
        self.items = _read_items(self.path / ITEMS_FILE, self.schema)
        self.groups: list[RowGroup] = []
        first = 0
        for file in list_files(self.path, EVENTS_FILES):
            with _open(file) as parquet:
                check_events(parquet.schema_arrow, self.schema, str(file))
                for number in range(parquet.metadata.num_row_groups):
                    rows = parquet.metadata.row_group(number).num_rows
                    self.groups.append(RowGroup(file, number, first, rows))
                    first += rows
        if not self.rows:
            raise InputError(f"{self.path} is empty: there is no event to replay.")

    @property
    def rows(self) -> int:
        """The number of events."""
        return sum(group.rows for group in self.groups)

    @property
    def first_row(self) -> int:
        """The first row, which is not 0 in a part of a log."""
        return self.groups[0].first

    @property
    def n_items(self) -> int:
        return self.items.num_rows

    @property
    def actions(self) -> list[Any]:
        """The names of the actions, in the order of their numbers."""
        return self.items[self.schema.key].to_pylist()

    @property
    def columns(self) -> list[str]:
        """The columns that a replay reads. Times are not needed: the events are already in order."""
        schema = self.schema
        named = [schema.action, schema.reward, schema.propensity_column, *schema.context]
        listed = [schema.candidates] if schema.candidates else []
        return [*named, *listed, *schema.pair, *(map(schema.sparse_items, schema.pair) if schema.sparse else ())]

    def part(self, rows: str | None) -> "Log":
        """A part of the log, given like a slice: ``0:5000`` or ``5000:``. Rows keep their numbers."""
        if rows is None:
            return self
        start, stop = parse_rows(rows, self.first_row + self.rows, str(self.path), self.first_row)
        part = copy(self)
        part.groups = []
        for group in self.groups:
            low, high = max(start, group.first), min(stop, group.first + group.rows)
            if low < high:
                skip = group.skip + low - group.first
                part.groups.append(group._replace(first=low, rows=high - low, skip=skip))
        counter = StatisticsCounter(self.schema, self.n_items)
        for group in part.groups:
            table = self.read(group, self.schema.log_columns)
            try:
                counter.add(table)
            except InputError as error:
                raise InputError(f"{group}, {error}") from error
        part.statistics = counter.statistics
        return part

    @property
    def missing_propensities(self) -> int:
        return self.statistics.missing.get(self.schema.propensity_column, 0)

    @property
    def skipped(self) -> int:
        """The number of damaged rows that the conversion skipped."""
        return int(self.description.get("skipped", {}).get("rows", 0))

    def read(self, group: RowGroup, columns: Sequence[str] | None = None, use_threads: bool | None = None) -> pa.Table:
        """Read columns of a row group as they are stored, those of a replay if none are named.

        ``use_threads`` says whether pyarrow may decode columns in parallel. By default it does so if its thread pool
        has more than one thread (``pyarrow.cpu_count()``, which follows ``OMP_NUM_THREADS``).
        """
        threads = pa.cpu_count() > 1 if use_threads is None else use_threads
        columns = self.columns if columns is None else list(columns)
        try:
            with _open(group.file) as parquet:
                whole = parquet.read_row_group(group.number, columns=columns, use_threads=threads)
                return whole.slice(group.skip, group.rows)
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"{group}, column {self._unreadable(group, columns)}: cannot be read ({error}). "
                f"{repair_hint(group.file)}"
            ) from error

    def events(self, group: RowGroup, use_threads: bool | None = None) -> Events:
        """Read the events of a row group and check their values."""
        table, schema = self.read(group, use_threads=use_threads).combine_chunks(), self.schema

        def whole(name: str) -> NDArray[np.int64]:
            column = table[name].combine_chunks()
            if column.null_count:
                raise InputError(f"{group}, column {name}: {column.null_count} values are missing.")
            return column.to_numpy(zero_copy_only=False).astype(np.int64)

        item, click = whole(schema.action), whole(schema.reward)
        propensity = _floats(table[schema.propensity_column])
        known = table[schema.propensity_column].combine_chunks().is_valid().to_numpy(zero_copy_only=False)
        numeric = {name: _numbers(table[name]) for name in schema.context.numeric}
        candidates = _ragged(table[schema.candidates], group, schema.candidates) if schema.candidates else None
        pair = {name: self._pairs(table, name, group) for name in schema.pair}
        _check(group, schema.action, item, (item >= 0) & (item < self.n_items), f"0 to {self.n_items - 1}")
        _check(group, schema.reward, click, (click == 0) | (click == 1), "0 or 1")
        inside = (propensity > 0) & (propensity <= 1)
        _check(group, schema.propensity_column, propensity, inside | ~known, "a number in (0, 1]")
        for name, values in numeric.items():
            inside, words = _within(values, self._whole.numeric.get(name))
            _check(group, name, values, inside | np.isnan(values), words)
        if candidates is not None:
            self._check_candidates(group, candidates, item)
        for name, found in pair.items():
            self._check_pairs(group, name, found, candidates)
        for name in table.column_names:
            nulls, said = table[name].null_count, self._whole.missing.get(name, 0)
            if nulls > said:
                raise InputError(
                    f"{group}, column {name}: {nulls} values are missing, expected at most {said} in the whole log. "
                    f"{_DAMAGED}"
                )
        return Events(
            rows=range(group.first, group.first + group.rows),
            item=item,
            click=click,
            propensity=propensity,
            numeric=numeric,
            categorical={
                name: _categories(table[name], f"{group}, column {name}") for name in schema.context.categorical
            },
            candidates=candidates,
            pair=pair,
        )

    def frame(self, group: RowGroup) -> pd.DataFrame:
        """The events of a row group as a policy may see them: the source's columns that are known before the choice.

        The index is the row in the log. Candidates are lists of the actions' names. Sparse pair features are left out.
        """
        columns = list(self.schema.visible_columns)
        stored = [name for name in columns if not (self.schema.sparse and name in self.schema.pair)]
        table = self.read(group, stored)
        if self.schema.candidates:
            place = table.column_names.index(self.schema.candidates)
            length, numbers = _ragged(table[self.schema.candidates], group, self.schema.candidates)
            inside = (numbers >= 0) & (numbers < self.n_items)
            _check(group, self.schema.candidates, numbers, inside, f"0 to {self.n_items - 1}")
            names = self.items[self.schema.key].combine_chunks().take(pa.array(numbers))
            offsets = pa.array(np.concatenate([[0], np.cumsum(length)]), pa.int32())
            table = table.set_column(place, self.schema.candidates, pa.ListArray.from_arrays(offsets, names))
        frame = table.to_pandas()
        frame.index = pd.RangeIndex(group.first, group.first + group.rows)
        return frame

    def _pairs(self, table: pa.Table, name: str, group: RowGroup) -> Pairs:
        listed = self.schema.sparse_items(name)
        item = _ragged(table[listed], group, listed) if self.schema.sparse else None
        return Pairs(_ragged(table[name], group, name), item)

    def _check_candidates(self, group: RowGroup, candidates: Ragged, item: NDArray[np.int64]) -> None:
        column, (length, values) = str(self.schema.candidates), candidates
        fewest, most = self._whole.candidates or (1, self.n_items)
        inside = (length >= fewest) & (length <= most)
        _check(group, column, length, inside, f"lists of {fewest} to {most} actions")
        _check(group, column, values, (values >= 0) & (values < self.n_items), f"0 to {self.n_items - 1}")
        pairs = candidates.owner * self.n_items + values
        if len(np.unique(pairs)) < len(pairs):
            raise InputError(f"{group}, column {column}: an event lists an action twice. {_DAMAGED}")
        known = np.isin(np.arange(len(item)) * self.n_items + item, pairs)
        _check(group, self.schema.action, item, known, f"one of the event's candidates, in the column {column}")

    def _check_pairs(self, group: RowGroup, name: str, pairs: Pairs, candidates: Ragged | None) -> None:
        values, length = pairs.value.values, pairs.value.length
        if pairs.item is not None:
            listed = self.schema.sparse_items(name)
            if (length != pairs.item.length).any():
                raise InputError(f"{group}, columns {listed} and {name}: their lists differ in length.")
            item = pairs.item.values
            _check(group, listed, item, (item >= 0) & (item < self.n_items), f"0 to {self.n_items - 1}")
        else:
            expected = np.full_like(length, self.n_items) if candidates is None else candidates.length
            wrong = np.flatnonzero(length != expected)
            if len(wrong):
                raise InputError(
                    f"{group}, column {name}: an event with {expected[wrong[0]]} candidates has {length[wrong[0]]} "
                    f"values. {_DAMAGED}"
                )
        _check(group, name, values, *_within(values, self._whole.pair.get(name)))

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


def _read_items(file: Address, schema: Schema) -> pa.Table:
    features = schema.action_features
    with _open(file) as parquet:
        check_items(parquet.schema_arrow, schema, str(file))
        try:
            items = parquet.read(columns=[schema.key, *features])
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{file} cannot be read ({error}). Convert the log again.") from error
    for name in features.numeric:
        numbers = _floats(items[name].drop_null())
        if not np.isfinite(numbers).all():
            raise InputError(
                f"{file}, column {name}: expected finite numbers, got {numbers[~np.isfinite(numbers)][0]}."
            )
    names = items[schema.key]
    if schema == OBD and names.to_pylist() != list(range(len(names))):
        raise InputError(f"{file}, column {schema.key}: items must be numbered 0, 1, 2, ..., in this order.")
    if names.null_count or len(names.unique()) != len(names):
        raise InputError(f"{file}, column {schema.key}: every action must have a name of its own.")
    return items


def _floats(column: pa.ChunkedArray) -> NDArray[np.float64]:
    return column.combine_chunks().to_numpy(zero_copy_only=False).astype(np.float64)


def _numbers(column: pa.ChunkedArray) -> NDArray[Any]:
    """Whole numbers as int64, others as float64, in which a missing value is NaN."""
    if pa.types.is_integer(column.type) and not column.null_count:
        return column.combine_chunks().to_numpy(zero_copy_only=False).astype(np.int64)
    return _floats(column)


def _ragged(column: pa.ChunkedArray, group: RowGroup, name: str) -> Ragged:
    lists = column.combine_chunks()
    length = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = lists.flatten()
    if flat.null_count:
        raise InputError(f"{group}, column {name}: {flat.null_count} values in its lists are missing. {_DAMAGED}")
    # a copy, which tensors may share: those of pyarrow are read-only
    kind = np.int64 if pa.types.is_integer(flat.type) else flat.type.to_pandas_dtype()
    return Ragged(length, flat.to_numpy(zero_copy_only=False).astype(kind))


def _categories(column: pa.ChunkedArray, place: str) -> Categories:
    encoded = column.combine_chunks()
    index = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    values = encoded.dictionary.to_pylist()
    if len(index) and index.max() >= len(values):
        raise InputError(f"{place}: it has {len(values)} categories, but a row has number {index.max()}.")
    return Categories(index, values)


def _within(values: NDArray[Any], ends: Sequence[float] | None) -> tuple[NDArray[np.bool_], str]:
    """Whether values lie between the lowest and the highest one that a log states, and the words for it."""
    if ends is None:
        return np.zeros(len(values), dtype=bool), "no value, as in the whole log"
    return (values >= ends[0]) & (values <= ends[1]), f"{ends[0]:g} to {ends[1]:g}"


def _check(group: RowGroup, column: str, values: np.ndarray, good: np.ndarray, expected: str) -> None:
    if not good.all():
        bad = np.flatnonzero(~good)
        others = f" (and {len(bad) - 1} more such values)" if len(bad) > 1 else ""
        raise InputError(f"{group}, column {column}: expected {expected}, got {values[bad[0]]}{others}. {_DAMAGED}")
