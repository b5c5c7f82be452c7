"""Read the files of a table in blocks and check their rows."""

import csv
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from nl_lightning.core.errors import InputError
from replay.formats.csv_blocks import BLOCK, CsvBlock, CsvRows, Damage, Refused, csv_blocks, parse_csv, read_header
from replay.logs.address import Address, open_binary, open_parquet, size
from replay.logs.columns import require_columns
from replay.logs.layout import CATEGORY, TIME
from replay.logs.schema import Schema
from replay.logs.table import Checked, TableChecker
from replay.logs.text import is_text

__all__ = ["BATCH", "CsvTable", "ParquetTable", "TableBlock"]

BATCH = 65_536
"""Rows of a Parquet file that are read together."""


class TableBlock(NamedTuple):
    """Consecutive rows of a file of a table."""

    file: int
    """number of the file"""
    rows: CsvBlock | pa.Table
    first: int
    """number of the first line, counted from 1, or of the first row, counted from 0"""
    length: int
    end: int
    """where the block ends: a byte of a CSV file, a row of a Parquet file"""


class CsvTable(CsvRows):
    """A CSV file of a table. Opening it checks its header.

    Args:
        file: the file.
        schema: roles of its columns.
        number: the file's number in its table.
    """

    text = True

    def __init__(self, file: Address, schema: Schema, number: int) -> None:
        self.file, self.schema, self.number = file, schema, number
        with open_binary(file) as opened:
            head = opened.read(BLOCK)
        header, newline, rest = head.partition(b"\n")
        self.header = read_header(file, header)
        require_columns(self.header, schema.source_columns, f"{file}:1", "events")
        self.start = len(header) + len(newline)
        self.size = size(file)
        self.checker = TableChecker(schema, text=True)
        self.seen: Callable[[Checked], None] | None = None
        """told of everything that is checked"""
        self._plain: dict[str, pa.DataType] = dict.fromkeys(schema.source_columns, pa.string())
        repeated = (schema.action, schema.reward, *schema.context.categorical)
        self._plain |= dict.fromkeys(repeated, CATEGORY)
        self._fast = self._plain | dict.fromkeys(schema.context.numeric, pa.float64())
        if schema.propensity:
            self._fast[schema.propensity] = pa.float64()
        if schema.timestamp:
            self._fast[schema.timestamp] = self._time_type(rest.partition(b"\n")[0])

    def blocks(self, place: dict[str, Any] | None) -> Iterator[TableBlock]:
        offset, line = (place["offset"], place["line"]) if place else (self.start, 2)
        for block in csv_blocks(self.file, offset, line, BLOCK):
            yield TableBlock(self.number, block, block.line, block.lines, block.end)

    def check(self, block: TableBlock) -> tuple[pa.Table, list[Damage]]:
        assert isinstance(block.rows, CsvBlock)
        return self.events(block.rows)

    def place(self, block: TableBlock) -> dict[str, Any]:
        return {"file": self.number, "offset": block.end, "line": block.first + block.length}

    def where(self, row: int, whole: bool) -> str:
        return f"{self.file if whole else self.file.name}:{row}"

    def done(self, block: TableBlock) -> int:
        return block.end

    def parse(self, data: bytes, lines: int) -> tuple[pa.Table, list[Damage]]:
        try:
            table = parse_csv(data, self.header, self._fast | dict(self.checker.keep or {}))
        except Refused:
            # A value that is no number is left to the checker, which says where it is.
            table = parse_csv(data, self.header, self._plain)
        if table.num_rows != lines or (b'"' in data and _has_newline(table)):
            raise Refused("a quotation mark is not closed")
        # What pyarrow lets pass: a quotation mark that the end of the data closes, and empty lines.
        last = data[data.rfind(b"\n", 0, -1) + 1 : -1]
        if (b'"' in last and self.reason(last)) or _has_empty_line(data):
            raise Refused("the line is empty, or a quotation mark is not closed")
        checked = self.checker.check(table, str(self.file))
        if checked.damages:
            # Once more, with values as they are written, for the message.
            checked = self.checker.check(parse_csv(data, self.header, self._plain), str(self.file))
        if self.seen:
            self.seen(checked)
        return checked.events, [Damage(*damage) for damage in checked.damages]

    def cell(self, name: str, cell: str) -> str | None:
        return None

    def empty(self) -> pa.Table:
        return self.checker.check(pa.schema(self._plain).empty_table(), str(self.file)).events

    def _time_type(self, row: bytes) -> pa.DataType:
        """How times are read first, judging by the first row; other times are read more slowly."""
        try:
            cells = dict(zip(self.header, next(csv.reader([row.decode(errors="replace")])), strict=False))
            cell = pa.scalar(cells.get(self.schema.timestamp or "", "").strip())
        except (csv.Error, StopIteration):
            return TIME
        for kind in (pa.timestamp("us"), pa.float64()):
            try:
                cell.cast(kind)
                return kind
            except pa.ArrowInvalid:
                pass
        return TIME


class ParquetTable:
    """A Parquet file of a table. Opening it checks its columns.

    Args:
        file: the file.
        schema: roles of its columns.
        number: the file's number in its table.
    """

    text = False

    def __init__(self, file: Address, schema: Schema, number: int) -> None:
        self.file, self.schema, self.number = file, schema, number
        try:
            with open_parquet(file) as parquet:
                self.columns = parquet.schema_arrow
                self.rows = parquet.metadata.num_rows
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{file} is not a complete Parquet file ({_first_line(error)}).") from error
        require_columns(self.columns.names, schema.source_columns, str(file), "events")
        self.size = size(file)
        self.checker = TableChecker(schema)
        self.seen: Callable[[Checked], None] | None = None

    def blocks(self, place: dict[str, Any] | None) -> Iterator[TableBlock]:
        skip, first = (place["row"] if place else 0), 0
        names = list(self.schema.source_columns)
        try:
            with open_parquet(self.file) as parquet:
                for group in range(parquet.metadata.num_row_groups):
                    rows = parquet.metadata.row_group(group).num_rows
                    if first + rows > skip:
                        for batch in parquet.iter_batches(BATCH, [group], names):
                            if first >= skip:
                                table = pa.Table.from_batches([batch])
                                yield TableBlock(self.number, table, first, len(batch), first + len(batch))
                            first += len(batch)
                    else:
                        first += rows
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"{self.file}, row {first}: cannot be read ({_first_line(error)}). The file is damaged; write it again."
            ) from error

    def check(self, block: TableBlock) -> tuple[pa.Table, list[Damage]]:
        checked = self.checker.check(block.rows, str(self.file))
        if self.seen:
            self.seen(checked)
        return checked.events, [Damage(block.first + row, reason) for row, reason in checked.damages]

    def place(self, block: TableBlock) -> dict[str, Any]:
        return {"file": self.number, "row": block.end}

    def where(self, row: int, whole: bool) -> str:
        return f"{self.file if whole else self.file.name}, row {row}"

    def done(self, block: TableBlock) -> int:
        return self.size * block.end // max(self.rows, 1)


def _has_empty_line(data: bytes) -> bool:
    """Whether a line holds nothing. A regular expression would take longer than parsing the data."""
    return data.startswith((b"\n", b"\r\n")) or b"\n\n" in data or (b"\r" in data and b"\n\r\n" in data)


def _has_newline(table: pa.Table) -> bool:
    """Whether a quoted value spans several lines."""
    for column in table.columns:
        for chunk in column.chunks:
            values = chunk.dictionary if pa.types.is_dictionary(chunk.type) else chunk
            if is_text(values.type) and pc.any(pc.match_substring(values, "\n")).as_py():
                return True
    return False


def _first_line(error: Exception) -> str:
    return (str(error) or repr(error)).splitlines()[0]
