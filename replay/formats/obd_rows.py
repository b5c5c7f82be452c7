"""Parse the rows of an Open Bandit Dataset CSV into events, a block at a time.

A block is parsed as a whole. Only if something in it is wrong is it bisected until every damaged line is found.
"""

import csv
import math
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions, read_csv

from nl_lightning.core.errors import InputError
from replay.formats.obd import AFFINITY, COLUMNS, ITEM_CONTEXT, check_columns, read_header, read_items
from replay.logs.obd import EVENTS, MOST_POSITIONS, USER_FEATURES

__all__ = ["BLOCK", "FEW", "MAY_BE_EMPTY", "NUMBERS", "PIECE", "CsvBlock", "Damage", "ObdRows", "Range"]


BLOCK = 16 << 20
"""Bytes of a log that are parsed together."""
PIECE = 2 << 20
"""Bytes of a block that one thread parses at a time."""
FEW = 256
"""When at most this many lines contain a damaged one, they are checked one by one."""

NUMBERS = ("item_id", "position", "click", "propensity_score")
MAY_BE_EMPTY = {"propensity_score", *USER_FEATURES}


class CsvBlock(NamedTuple):
    """Lines of a CSV file and their place in it."""

    data: bytes
    """ends with a newline"""
    line: int
    """number of the first line, counted from 1"""
    lines: int
    end: int
    """byte offset of the block's end"""


class Damage(NamedTuple):
    """A row that cannot be used."""

    line: int
    reason: str


class Range(NamedTuple):
    """The numbers that a column may hold, ``low`` to ``high``, and how to describe them."""

    low: float
    high: float
    words: str


class _Refused(Exception):
    """One of these lines is damaged."""


class ObdRows:
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
        with self.path.open("rb") as file:
            while True:
                file.seek(offset)
                data = file.read(BLOCK)
                if not data:
                    return
                if len(data) == BLOCK:
                    data = data[: data.rfind(b"\n") + 1]
                elif not data.endswith(b"\n"):
                    data += b"\n"
                if not data:
                    raise InputError(f"{self.path}:{line}: the line does not end within {BLOCK} bytes. Is this a log?")
                offset = min(offset + len(data), self.size)
                block = CsvBlock(data, line, data.count(b"\n"), offset)
                yield block
                line += block.lines

    def events(self, block: CsvBlock) -> tuple[pa.Table, list[Damage]]:
        """The events of the block's intact rows, and its damaged rows."""
        try:
            return self._parse(block.data, block.lines), []
        except _Refused:
            damages: list[Damage] = []
            tables = self._sift(list(enumerate(block.data.split(b"\n")[:-1], block.line)), damages)
            return pa.concat_tables([EVENTS.empty_table(), *tables]), sorted(damages)

    def _parse(self, data: bytes, lines: int) -> pa.Table:
        """The events of ``lines`` lines, if all are intact."""
        if b"\r" in data and data.count(b"\r") != data.count(b"\r\n"):
            raise _Refused("there is a carriage return within the line")
        try:
            table = read_csv(
                pa.BufferReader(data),
                # Columns that are not read are renamed, because their names may occur twice.
                ReadOptions(
                    column_names=[name if name in self._types else f"#{i}" for i, name in enumerate(self.header)],
                    block_size=PIECE,
                    use_threads=len(data) > PIECE,
                ),
                ParseOptions(quote_char='"' if b'"' in data else False, ignore_empty_lines=False),
                ConvertOptions(
                    column_types=self._types,
                    include_columns=list(self._types),
                    null_values=[""],
                    strings_can_be_null=True,
                ),
            )
        except pa.ArrowInvalid as error:
            raise _Refused(f"cannot be read ({error})") from None
        if table.num_rows != lines or (b'"' in data and _has_newline(table)):
            raise _Refused("a quotation mark is not closed")
        for name in self._types:
            if table[name].null_count and name not in MAY_BE_EMPTY:
                raise _Refused(f"{name} is empty")
        for name in NUMBERS:
            self._check(name, table[name].drop_null().to_numpy())
        columns = {name: table[name] for name in COLUMNS}
        columns["affinity_item"], columns["affinity"] = self._sparse(table)
        return pa.table(columns).cast(EVENTS)

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
            raise _Refused(f"{name} is not {words}")

    def _sift(self, rows: list[tuple[int, bytes]], damages: list[Damage]) -> list[pa.Table]:
        """The events of the intact rows among (line number, line); the others are added to ``damages``."""
        if not rows:
            return []
        try:
            return [self._parse(b"".join(line + b"\n" for _, line in rows), len(rows))]
        except _Refused as refused:
            if len(rows) == 1:
                damages.append(Damage(rows[0][0], self._reason(rows[0][1]) or str(refused)))
                return []
        if len(rows) <= FEW:
            found = [Damage(number, reason) for number, line in rows if (reason := self._reason(line))]
            if found:
                damages += found
                lines = {damage.line for damage in found}
                return self._sift([row for row in rows if row[0] not in lines], damages)
        half = len(rows) // 2
        return self._sift(rows[:half], damages) + self._sift(rows[half:], damages)

    def _reason(self, line: bytes) -> str | None:
        """Why a line cannot be used; None if no reason is found."""
        line = line.removesuffix(b"\r")
        if not line:
            return "the line is empty"
        if b"\r" in line:
            return "there is a carriage return within the line"
        try:
            reader = csv.reader([line.decode() + "\n", ""])
            cells = next(reader)
        except UnicodeDecodeError:
            return "the line is not UTF-8 text"
        except csv.Error as error:
            return f"the line cannot be read ({error})"
        if reader.line_num > 1:
            return "a quotation mark is not closed"
        if len(cells) != len(self.header):
            return f"the line has {len(cells)} fields, expected {len(self.header)}"
        reasons = (
            self._judge(name, cell) for name, cell in zip(self.header, cells, strict=True) if name in self._types
        )
        return next(filter(None, reasons), None)

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
