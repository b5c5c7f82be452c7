"""Read CSV files a block of lines at a time, and find their damaged lines.

A block is parsed as a whole. Only if something in it is wrong is it bisected until every damaged line is found.
"""

import csv
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions, read_csv

from nl_lightning.core.errors import InputError
from replay.logs.address import Address, open_binary, size
from replay.logs.columns import short

__all__ = [
    "BLOCK",
    "FEW",
    "PIECE",
    "CsvBlock",
    "CsvRows",
    "Damage",
    "Refused",
    "csv_blocks",
    "parse_csv",
    "read_header",
]


BLOCK = 16 << 20
"""Bytes of a log that are parsed together."""
PIECE = 2 << 20
"""Bytes of a block that one thread parses at a time."""
FEW = 256
"""When at most this many lines contain a damaged one, they are checked one by one."""


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


class Refused(Exception):
    """One of these lines is damaged."""


def read_header(path: Address, header: bytes) -> list[str]:
    """The column names in a header. No name may occur twice, but several columns may lack one."""
    if not header.strip():
        raise InputError(f"{path} is empty: it has no header.")
    try:
        names = next(csv.reader([header.decode("utf-8-sig").rstrip("\r\n")]))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}:1: the header cannot be read ({error}). Expected a CSV file in UTF-8.") from error
    doubled = min((name for name, number in Counter(names).items() if name and number > 1), default=None)
    if doubled is not None:
        raise InputError(f"{path}:1: there are two columns {short(doubled)}. Remove one of them.")
    return names


def csv_blocks(file: Address, offset: int, line: int, length: int = BLOCK) -> Iterator[CsvBlock]:
    """Iterate over the lines from a byte offset on. Where a block ends depends only on where it begins."""
    total = size(file)
    with open_binary(file) as opened:
        while True:
            opened.seek(offset)
            data = opened.read(length)
            if not data:
                return
            if len(data) == length:
                data = data[: data.rfind(b"\n") + 1]
            elif not data.endswith(b"\n"):
                data += b"\n"
            if not data:
                raise InputError(f"{file}:{line}: the line does not end within {length} bytes. Is this a log?")
            offset = min(offset + len(data), total)
            block = CsvBlock(data, line, data.count(b"\n"), offset)
            yield block
            line += block.lines


def parse_csv(data: bytes, names: Sequence[str], types: dict[str, pa.DataType]) -> pa.Table:
    """The columns that have a type, of lines that all have as many fields as there are names."""
    if b"\r" in data and data.count(b"\r") != data.count(b"\r\n"):
        raise Refused("there is a carriage return within the line")
    try:
        return read_csv(
            pa.BufferReader(data),
            # Columns that are not read are renamed, because their names may occur twice.
            ReadOptions(
                column_names=[name if name in types else f"#{i}" for i, name in enumerate(names)],
                block_size=PIECE,
                use_threads=len(data) > PIECE,
            ),
            ParseOptions(quote_char='"' if b'"' in data else False, ignore_empty_lines=False),
            ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=[""],
                strings_can_be_null=True,
            ),
        )
    except pa.ArrowInvalid as error:
        raise Refused(f"cannot be read ({error})") from None


class CsvRows(ABC):
    """Rows of a CSV file whose header holds the names ``header``."""

    header: list[str]

    @abstractmethod
    def parse(self, data: bytes, lines: int) -> tuple[pa.Table, list[Damage]]:
        """The events of ``lines`` lines, and the damaged rows that it can tell, counted from 0.

        It raises ``Refused`` if one of the lines is damaged and it cannot tell which.
        """

    @abstractmethod
    def cell(self, name: str, cell: str) -> str | None:
        """Why a cell cannot be used; None if no reason is found."""

    def events(self, block: CsvBlock) -> tuple[pa.Table, list[Damage]]:
        """The events of the block's intact rows, and its damaged rows."""
        try:
            table, damages = self.parse(block.data, block.lines)
            return table, [Damage(block.line + row, reason) for row, reason in damages]
        except Refused:
            found: list[Damage] = []
            tables = self._sift(list(enumerate(block.data.split(b"\n")[:-1], block.line)), found)
            return pa.concat_tables([self.empty(), *tables]), sorted(found)

    @abstractmethod
    def empty(self) -> pa.Table:
        """A table of no events."""

    def _sift(self, rows: list[tuple[int, bytes]], damages: list[Damage]) -> list[pa.Table]:
        """The events of the intact rows among (line number, line); the others are added to ``damages``."""
        if not rows:
            return []
        try:
            table, found = self.parse(b"".join(line + b"\n" for _, line in rows), len(rows))
            damages += [Damage(rows[row][0], reason) for row, reason in found]
            return [table]
        except Refused as refused:
            if len(rows) == 1:
                damages.append(Damage(rows[0][0], self.reason(rows[0][1]) or str(refused)))
                return []
        if len(rows) <= FEW:
            found = [Damage(number, reason) for number, line in rows if (reason := self.reason(line))]
            if found:
                damages += found
                lines = {damage.line for damage in found}
                return self._sift([row for row in rows if row[0] not in lines], damages)
        half = len(rows) // 2
        return self._sift(rows[:half], damages) + self._sift(rows[half:], damages)

    def reason(self, line: bytes) -> str | None:
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
        reasons = (self.cell(name, cell) for name, cell in zip(self.header, cells, strict=True))
        return next(filter(None, reasons), None)
