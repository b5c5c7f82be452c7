"""Parse the rows of an Open Bandit Dataset CSV into events, a block at a time."""

import csv
import math
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from nl_lightning.core.errors import InputError
from replay.formats.csv_blocks import BLOCK, CsvBlock, CsvRows, Damage, Refused, csv_blocks, parse_csv, read_header
from replay.formats.obd import AFFINITY, COLUMNS, ITEM_CONTEXT, check_columns, read_items
from replay.logs.obd import EVENTS, MOST_POSITIONS, USER_FEATURES

__all__ = ["BLOCK", "MAY_BE_EMPTY", "NUMBERS", "CsvBlock", "Damage", "ObdRows", "Range"]


NUMBERS = ("item_id", "position", "click", "propensity_score")
MAY_BE_EMPTY = {"propensity_score", *USER_FEATURES}


class Range(NamedTuple):
    """The numbers that a column may hold, ``low`` to ``high``, and how to describe them."""

    low: float
    high: float
    words: str


class ObdRows(CsvRows):
    """The rows of the CSV file ``path``, which lies next to its ``item_context.csv``.

    Items and header are checked at once, rows as they are read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.items = read_items(path.parent / ITEM_CONTEXT)
        n = self.items.num_rows
        with path.open("rb") as file:
            self.header = read_header(path, file.readline(BLOCK))
            self.start, row = file.tell(), file.readline(BLOCK)
        self.size = path.stat().st_size
        self._affinities = check_columns(path, self.header, n)
        if not row:
            raise InputError(f"{path} is empty: it has a header and no rows.")
        self._types = {name: EVENTS.field(name).type for name in COLUMNS}
        self._types["timestamp"] = self._time_type(row)
        self._types |= dict.fromkeys(self._affinities, pa.float32())
        affinity = Range(0, float(np.finfo(np.float32).max), "a number of at least 0")
        self._ranges = {
            "item_id": Range(0, n - 1, f"an item of {ITEM_CONTEXT}, 0 to {n - 1}"),
            "position": Range(1, MOST_POSITIONS, f"a whole number from 1 to {MOST_POSITIONS}"),
            "click": Range(0, 1, "0 or 1"),
            "propensity_score": Range(math.ulp(0.0), 1, "a number above 0 and up to 1"),
            **dict.fromkeys(self._affinities, affinity),
        }
        # Nearly all cells repeat earlier ones.
        self._judge = lru_cache(1 << 14)(self._cell)

    def blocks(self, offset: int, line: int) -> Iterator[CsvBlock]:
        """Iterate over the rows from a byte offset on. Where a block ends depends only on where it begins."""
        return csv_blocks(self.path, offset, line, BLOCK)

    def empty(self) -> pa.Table:
        return EVENTS.empty_table()

    def parse(self, data: bytes, lines: int) -> tuple[pa.Table, list[Damage]]:
        """The events of ``lines`` lines, if all are intact."""
        table = parse_csv(data, self.header, self._types)
        if table.num_rows != lines or (b'"' in data and _has_newline(table)):
            raise Refused("a quotation mark is not closed")
        for name in self._types:
            if table[name].null_count and name not in MAY_BE_EMPTY:
                raise Refused(f"{name} is empty")
        for name in NUMBERS:
            self._check(name, table[name].drop_null().to_numpy())
        columns = {name: table[name] for name in COLUMNS}
        columns["affinity_item"], columns["affinity"] = self._sparse(table)
        return pa.table(columns).cast(EVENTS), []

    def _sparse(self, table: pa.Table) -> tuple[pa.ListArray, pa.ListArray]:
        """The nonzero affinities as two list columns: their items, ascending, and their values."""
        columns = [table[name].to_numpy() for name in self._affinities]
        rows = [np.flatnonzero(column) for column in columns]
        values = np.concatenate([column[row] for column, row in zip(columns, rows, strict=True)])
        self._check(self._affinities[0], values)
        items = np.repeat(np.arange(len(rows), dtype=np.int32), [len(row) for row in rows])
        row = np.concatenate(rows)
        order = np.argsort(row, kind="stable")
        ends = np.cumsum(np.bincount(row, minlength=table.num_rows))
        offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
        return pa.ListArray.from_arrays(offsets, items[order]), pa.ListArray.from_arrays(offsets, values[order])

    def _check(self, name: str, values: np.ndarray) -> None:
        low, high, words = self._ranges[name]
        # NaN fails both comparisons.
        if not ((values >= low) & (values <= high)).all():
            raise Refused(f"{name} is not {words}")

    def cell(self, name: str, cell: str) -> str | None:
        return self._judge(name, cell) if name in self._types else None

    def _cell(self, name: str, cell: str) -> str | None:
        if name in USER_FEATURES or (cell == "0.0" and name.startswith(AFFINITY)):
            return None
        if not cell:
            return None if name in MAY_BE_EMPTY else f"{name} is empty"
        limits = self._ranges.get(name)
        try:
            value = pa.scalar(cell.strip(" \t") if limits else cell).cast(self._types[name])
            if limits is None or limits.low <= value.as_py() <= limits.high:
                return None
        except pa.ArrowInvalid:
            pass
        shown = cell if cell.strip() and cell.isprintable() else repr(cell)
        return f"{name} is {shown[:60]}, expected {limits.words if limits else self._example}"

    @property
    def _example(self) -> str:
        zone = "+00:00" if self._types["timestamp"].tz else ""
        return f"a time like 2019-11-24 00:00:17.004101{zone}"

    def _time_type(self, row: bytes) -> pa.DataType:
        """If the first row's time has no zone, all times are read as UTC without a zone."""
        try:
            cells = dict(zip(self.header, next(csv.reader([row.decode(errors="replace")])), strict=False))
            pa.scalar(cells.get("timestamp", "")).cast(pa.timestamp("us"))
        except (csv.Error, pa.ArrowInvalid):
            return EVENTS.field("timestamp").type
        return pa.timestamp("us")


def _has_newline(table: pa.Table) -> bool:
    """Whether a quoted value spans several lines."""
    dictionaries = (chunk.dictionary for name in USER_FEATURES for chunk in table[name].chunks)
    return any("\n" in value for values in dictionaries for value in values.to_pylist())
