"""Convert a table of one's own, CSV or Parquet, to a log. A schema says which column plays which role.

The values of a CSV file are read as ``replay.logs.text`` says. Rows of a Parquet file are counted from 0, lines of a
CSV file from 1.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nl_lightning.core.errors import InputError
from replay.formats.conversion import check_on_error, damage_message, holds, prefetched, write_events
from replay.formats.csv_blocks import Damage
from replay.formats.fingerprint import fingerprint
from replay.formats.table_blocks import CsvTable, ParquetTable, TableBlock
from replay.formats.table_files import find_files
from replay.logs.actions import ActionNumbers, find_action_table, names_to_array, read_action_table
from replay.logs.address import Address
from replay.logs.columns import combined
from replay.logs.propensities import Propensities
from replay.logs.schema import Schema
from replay.logs.table import Checked, Survey, TableChecker, read_schema
from replay.logs.writer import locked

__all__ = ["convert_table", "table_is_converted"]

_NUMBER = r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?$"
_WHOLE = r"^(?:0|-?[1-9][0-9]{0,17})$"


def convert_table(
    source: str | Address,
    target: Path,
    schema: Schema | Mapping[str, Any] | str | Path,
    on_error: str = "stop",
    policy: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Convert a table. A conversion that was interrupted is resumed; a finished one is left as it is.

    Args:
        source: CSV or Parquet file, or a directory of files of one kind: a path or an address.
        target: directory of the new log.
        schema: roles of the columns: a ``Schema``, a mapping, or the path of a YAML file.
        on_error: ``stop`` at a damaged row with an error, or ``skip`` it.
        policy: name of the logging policy.
        progress: called with the number of bytes done and in total.
    """
    check_on_error(on_error)
    table = _TableSource(source, schema, target)
    if holds(target, table.is_mine, table.origin):
        return
    with locked(target):
        table.prepare(on_error, progress)
        write_events(
            table, target, on_error, progress, str(source), policy=policy or "unknown", campaign=table.name
        )  # fmt: skip
        if progress:
            progress(table.total, table.total)


def table_is_converted(source: str | Address, target: Path, schema: Schema | Mapping[str, Any] | str | Path) -> bool:
    """Whether ``target`` already holds the finished log of a table; a log of another source is an error."""
    table = _TableSource(source, schema, target)
    return holds(target, table.is_mine, table.origin)


class _TableSource:
    """The files of a table as a source of events. Opening it checks their columns and the table of actions.

    ``prepare`` reads all files once where the actions or the propensities are not known yet, or where columns of a CSV
    file are kept, whose types are those of all their values.
    """

    def __init__(self, source: str | Address, schema: Schema | Mapping[str, Any] | str | Path, target: Path) -> None:
        self.schema, base = read_schema(schema)
        self.target, self.source = target, str(source)
        if self.schema.actions is not None and self.schema.actions.table is None:
            raise InputError("The schema has `actions` without a table. Add `table: FILE`, a CSV or Parquet file.")
        self.table = find_action_table(self.schema, base)
        files, self.kind = find_files(source, self.table)
        self.name = Path(files[0].name).stem if len(files) == 1 else Path(str(source)).name
        open_file = CsvTable if self.kind == "csv" else ParquetTable
        self.files = [open_file(file, self.schema, number) for number, file in enumerate(files)]
        self.sizes = [file.size for file in self.files]
        self.total = sum(self.sizes)
        self.origin = self._identity = self._identify()
        self._passed = 0
        self._passes = 1

    def _identify(self) -> dict[str, Any]:
        return {
            "files": [fingerprint(file.file) for file in self.files],
            "actions": fingerprint(self.table) if self.table else None,
            "schema": self.schema.to_dict(),
        }

    def is_mine(self, stored: dict[str, Any]) -> bool:
        return {name: value for name, value in stored.items() if name != "names"} == self._identity

    def prepare(self, on_error: str, progress: Callable[[int, int], None] | None) -> None:
        """Find the actions, the types of kept columns, and rows to estimate propensities from."""
        schema = self.schema
        known = read_action_table(self.table, schema) if self.table else None
        whole, keep = self._types()
        survey, kinds = Survey(schema), _Kinds(self._kept if self.kind == "csv" else ())
        words = f"an action of {self.table.name}" if self.table else "one of the actions"
        numbers = None if known is None else ActionNumbers(combined(known[schema.key]))
        if numbers is None or survey.sample or kinds.columns:
            self._passes = 2
            self._use(TableChecker(schema, numbers, words, self.kind == "csv", whole, keep))

            def seen(checked: Checked) -> None:
                survey.add(checked, self.source)
                kinds.add(checked.events)

            self._survey(seen, on_error, progress)
            self._passed = 1
        if known is None or numbers is None:
            if not survey.names:
                raise InputError(f"{self.source} has no row to make a log from. Expected at least one event.")
            known = pa.table({schema.key: names_to_array(survey.names, as_written=self.kind == "csv")})
            numbers = ActionNumbers(combined(known[schema.key]))
        self.items = known
        self._use(TableChecker(schema, numbers, words, self.kind == "csv", whole, {**keep, **kinds.types}))
        self._propensities = Propensities(schema, numbers, survey.sample)
        names = json.dumps(numbers.names.to_pylist())
        self.origin = {**self._identity, "names": hashlib.sha256(names.encode()).hexdigest()}

    def _use(self, checker: TableChecker) -> None:
        for file in self.files:
            file.checker = checker

    def _survey(
        self, seen: Callable[[Checked], None], on_error: str, progress: Callable[[int, int], None] | None
    ) -> None:
        for file in self.files:
            file.seen = seen
        for block, (_, damages) in prefetched(self.events, self.blocks(None)):
            if damages and on_error == "stop":
                self.check_unchanged()
                raise InputError(damage_message(self, block, damages))
            if progress:
                progress(*self.done(block))
        for file in self.files:
            file.seen = None

    @property
    def _kept(self) -> tuple[str, ...]:
        """The columns that are kept and have no other role."""
        schema = self.schema
        named = (schema.timestamp, schema.candidates, *schema.context, *schema.pair)
        return tuple(name for name in schema.keep if name not in named)

    def _types(self) -> tuple[frozenset[str], dict[str, pa.DataType]]:
        """The numeric columns that are whole numbers in all files, and the types of kept columns."""
        files = [file for file in self.files if isinstance(file, ParquetTable)]
        if not files:
            return frozenset(), {}
        whole = {name for name in self.schema.context.numeric if all(_is_whole(file, name) for file in files)}
        keep: dict[str, pa.DataType] = {}
        owner: dict[str, Address] = {}
        for name in self._kept:
            for file in files:
                kind = _plain(file.columns.field(name).type)
                if pa.types.is_null(kind):
                    continue
                if keep.setdefault(name, kind) != kind:
                    raise InputError(
                        f"{file.file}, column {name}: expected {keep[name]}, as in {owner[name]}, got {kind}. Write "
                        "both files with one type, or leave the column out of `keep`."
                    )
                owner.setdefault(name, file.file)
            keep.setdefault(name, pa.string())
        return frozenset(whole), keep

    # ---- a source of events, for the loop of a conversion ----

    def blocks(self, place: dict[str, Any] | None) -> Iterator[TableBlock]:
        start = place["file"] if place else 0
        for file in self.files[start:]:
            yield from file.blocks(place if place and file.number == start else None)

    def events(self, block: TableBlock) -> tuple[pa.Table, list[Damage]]:
        return self.files[block.file].check(block)

    def complete(self, events: pa.Table, row: int) -> pa.Table:
        return self._propensities.add(events, row)

    def place(self, block: TableBlock) -> dict[str, Any]:
        return self.files[block.file].place(block)

    def where(self, block: TableBlock, line: int | None = None, whole: bool = False) -> str:
        if line is None:
            return f"{'line' if self.kind == 'csv' else 'row'} {block.first + block.length - 1}"
        return self.files[block.file].where(line, whole)

    def done(self, block: TableBlock) -> tuple[int, int]:
        before = self.total * self._passed + sum(self.sizes[: block.file])
        return before + self.files[block.file].done(block), self.total * self._passes

    def check_unchanged(self) -> None:
        if self._identify() != self._identity:
            raise InputError(f"{self.source} has changed while it was converted. Remove {self.target} and start over.")


class _Kinds:
    """The types of text columns: whole numbers, numbers or text, whichever all their values are."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        self.columns = columns
        self._patterns = {name: [(_WHOLE, pa.int64()), (_NUMBER, pa.float64())] for name in columns}
        self._any = dict.fromkeys(columns, False)

    def add(self, events: pa.Table) -> None:
        for name in self.columns:
            values = pc.unique(events[name]).drop_null()
            self._any[name] |= bool(len(values))
            while self._patterns[name]:
                if not pc.any(pc.invert(pc.match_substring_regex(values, self._patterns[name][0][0]))).as_py():
                    break
                del self._patterns[name][0]

    @property
    def types(self) -> dict[str, pa.DataType]:
        return {
            name: patterns[0][1] if patterns and self._any[name] else pa.string()
            for name, patterns in self._patterns.items()
        }


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of a kept column, without a dictionary."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.string() if pa.types.is_large_string(kind) or pa.types.is_string_view(kind) else kind


def _is_whole(file: ParquetTable, name: str) -> bool:
    kind = file.columns.field(name).type
    return bool(pa.types.is_boolean(kind) or pa.types.is_integer(kind)) and kind != pa.uint64()
