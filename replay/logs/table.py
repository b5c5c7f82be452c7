"""Turn a table with a schema into the events of a log, checking every value.

A row is damaged if one of its values cannot be what the schema says: a reward other than 0 and 1 (or true and false), a
propensity outside (0, 1], an action that is not known or not among the event's candidates, candidates that are empty or
listed twice, features of (event, action) that are not one finite number per candidate, a number that is infinite or
none, a time that cannot be read. So is a row without a propensity or a time, if the schema names a column of them. A
missing number or category of the context is fine: it becomes null.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nl_lightning.core.errors import InputError
from replay.logs.actions import (
    MOST_ACTIONS,
    ActionNumbers,
    action_items,
    find_action_table,
    names_to_array,
    read_action_table,
)
from replay.logs.columns import (
    as_category,
    as_lists,
    as_numbers,
    as_reward,
    as_times,
    combined,
    decoded,
    require_columns,
    shown,
)
from replay.logs.propensities import Propensities, Sample
from replay.logs.schema import Schema
from replay.logs.text import LAST_SECOND, Read, is_text
from replay.logs.writer import LogWriter, locked

__all__ = ["Checked", "Survey", "TableChecker", "frame_to_table", "read_schema", "write_table"]

WRITTEN = 65_536
"""Rows of a table in memory that are checked and written together."""


class Checked(NamedTuple):
    """Events of the intact rows of a table, and what is wrong with the others."""

    events: pa.Table
    """with the columns of the log, but for propensities that the table does not have"""
    damages: list[tuple[int, str]]
    """(row of the table, reason), by row"""
    actions: ActionNumbers
    """the actions that the events' numbers refer to"""


class _Faults:
    """The first reason by row why it is damaged."""

    def __init__(self, rows: int) -> None:
        self.bad = np.zeros(rows, dtype=bool)
        self.reasons: dict[int, str] = {}

    def add(self, bad: NDArray[np.bool_], reason: Callable[[int], str]) -> None:
        if bad.any():
            for row in np.flatnonzero(bad & ~self.bad).tolist():
                self.reasons[row] = reason(row)
            self.bad |= bad


@dataclass
class TableChecker:
    """Checks tables of events and turns them into events of a log.

    Args:
        schema: the roles of their columns.
        actions: the known actions; None: those of each table, whose numbers then hold for that table alone.
        known: the known actions in the words of an error.
        text: whether numbers may be text, as in a CSV file.
        whole: numeric columns that are whole numbers in every table; others are stored as float64.
        keep: types of the columns that are only kept; by default their own.
    """

    schema: Schema
    actions: ActionNumbers | None = None
    known: str = "one of the actions"
    text: bool = False
    whole: frozenset[str] = frozenset()
    keep: Mapping[str, pa.DataType] | None = None

    def check(self, table: pa.Table, source: str) -> Checked:
        """Check a table; ``source`` is its name in errors. A column of a wrong type is an error."""
        schema, faults = self.schema, _Faults(table.num_rows)
        made: dict[str, pa.Array] = {}

        def place(name: str) -> str:
            return f"{source}, column {name}"

        def note(name: str, read: Read, words: str, required: bool = True, without: str = "") -> pa.Array:
            bad = read.bad | read.values.is_null().to_numpy(zero_copy_only=False) if required else read.bad
            faults.add(bad, lambda row: _reason(name, table[name], row, words, without))
            return read.values

        action, candidates, numbers = self._actions(table, source, faults)
        made[schema.action] = pa.array(action)
        made[schema.reward] = note(schema.reward, as_reward(table[schema.reward], place(schema.reward)), "0 or 1")
        if schema.propensity:
            name = schema.propensity
            read = as_numbers(table[name], place(name), self.text)
            values = pc.fill_null(read.values, 0).to_numpy(zero_copy_only=False)
            inside = (values > 0) & (values <= 1)
            read = Read(read.values, read.bad | ~inside)
            made[name] = note(name, read, "a number above 0 and up to 1", without=_NO_PROPENSITY)
        if schema.timestamp:
            name = schema.timestamp
            read = as_times(table[name], place(name))
            made[name] = note(name, read, _time_words(table[name]), without=_NO_TIME)
        for name in schema.context.numeric:
            read = as_numbers(table[name], place(name), self.text, name in self.whole)
            made[name] = note(name, read, "a finite number, or nothing", required=False)
        for name in schema.context.categorical:
            made[name] = as_category(table[name], place(name))
        if schema.candidates and candidates is not None:
            made[schema.candidates] = candidates
        for name in schema.pair:
            made[name] = note(name, as_lists(table[name], place(name), numbers=True), "a list of finite numbers")
            self._check_lengths(name, made[name], candidates, len(numbers), faults)
        for name in schema.keep:
            if name not in made:
                made[name] = self._kept(table, name, faults)
        events = pa.table({name: made[name] for name in schema.source_columns})
        if faults.reasons:
            events = events.filter(pa.array(~faults.bad))
        return Checked(events, sorted(faults.reasons.items()), numbers)

    def _actions(
        self, table: pa.Table, source: str, faults: _Faults
    ) -> tuple[NDArray[np.int32], pa.Array | None, ActionNumbers]:
        """The numbers of the logged actions, and those of the candidates."""
        schema = self.schema
        named = _names(table[schema.action], f"{source}, column {schema.action}")
        listed = None
        if schema.candidates:
            listed = as_lists(table[schema.candidates], f"{source}, column {schema.candidates}", numbers=False)
        numbers = self.actions or ActionNumbers(_distinct(named, None if listed is None else listed.values.flatten()))
        action = numbers.find(named)
        words = self.known if self.actions else "an action"
        faults.add(action < 0, lambda row: _reason(schema.action, table[schema.action], row, words))
        if schema.candidates is None or listed is None:
            return action, None, numbers
        column, name = table[schema.candidates], schema.candidates
        lists = listed.values
        length = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
        faults.add(listed.bad, lambda row: _reason(name, column, row, "a list of actions, such as [a, b] or a|b"))
        faults.add(length == 0, lambda row: f"{name} is empty, expected a list of at least one action")
        owner = np.repeat(np.arange(len(lists)), length)
        found = numbers.find(lists.flatten())
        unknown = np.zeros(len(lists), dtype=bool)
        unknown[owner[found < 0]] = True

        def which(row: int) -> str:
            inside = lists[row].as_py()
            return next(str(one) for one, number in zip(inside, found[owner == row], strict=True) if number < 0)

        faults.add(unknown, lambda row: f"{name} lists {which(row)}, expected {words}")
        faults.add(_repeated(owner, found, len(lists), len(numbers)), lambda row: f"{name} lists an action twice")
        present = np.zeros(len(lists), dtype=bool)
        present[owner[found == action[owner]]] = True
        faults.add(
            ~present,
            lambda row: (
                f"{schema.action} is {shown(table[schema.action], row)}, expected one of the event's "
                f"candidates in {name}, {shown(column, row)}"
            ),
        )
        offsets = pa.array(np.concatenate([[0], np.cumsum(length)]), pa.int32())
        return action, pa.ListArray.from_arrays(offsets, pa.array(found)), numbers

    def _check_lengths(
        self, name: str, lists: pa.Array, candidates: pa.Array | None, actions: int, faults: _Faults
    ) -> None:
        if candidates is None and self.actions is None:
            return
        length = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
        expected = np.full_like(length, actions)
        if candidates is not None:
            expected = pc.list_value_length(candidates).to_numpy(zero_copy_only=False)
        what = "candidates of the event" if candidates is not None else "actions"
        faults.add(
            length != expected,
            lambda row: f"{name} has {length[row]} numbers, expected {expected[row]}, one for each of the {what}",
        )

    def _kept(self, table: pa.Table, name: str, faults: _Faults) -> pa.Array:
        array = decoded(table[name])
        kind = (self.keep or {}).get(name, array.type)
        if kind == array.type:
            return array
        if is_text(array.type) and not is_text(kind):
            trimmed = pc.utf8_trim(array, " \t")
            try:
                return trimmed.cast(kind)
            except pa.ArrowInvalid:
                values, bad = _cast_each(trimmed, kind)
                words = "a whole number" if pa.types.is_integer(kind) else "a number"
                faults.add(bad, lambda row: _reason(name, table[name], row, f"{words}, or nothing"))
                return values
        return array.cast(kind)


class Survey:
    """What has to be known of a whole table before its events can be written: its actions, and a sample of its rows.

    Args:
        checker: checks the tables without knowing the actions.
    """

    def __init__(self, schema: Schema) -> None:
        self.names: set[Any] = set()
        self.sample = Sample(schema) if schema.logging == "estimated" else None
        self.rows = 0
        self._schema = schema

    def add(self, checked: Checked, source: str) -> None:
        """Add the intact rows of a table."""
        events = checked.events
        used = [pc.unique(events[self._schema.action])]
        if self._schema.candidates:
            used.append(pc.unique(pc.list_flatten(events[self._schema.candidates])))
        for numbers in used:
            self.names.update(checked.actions.names.take(combined(numbers)).to_pylist())
        if len(self.names) > MOST_ACTIONS:
            raise InputError(
                f"{source}, column {self._schema.action}: there are more than {MOST_ACTIONS:,} different actions. "
                "Expected the action that was shown, not an id of the event; or give a table of actions (`actions:`)."
            )
        if self.sample:
            self.sample.add(events, checked.actions.names, self.rows)
        self.rows += events.num_rows


def read_schema(schema: Schema | Mapping[str, Any] | str | Path) -> tuple[Schema, Path | None]:
    """A schema given as itself, as a mapping or as a path to YAML; and the directory of that file."""
    base = None
    if isinstance(schema, str | Path):
        base = Path(schema).parent
        schema = Schema.read(schema)
    found = Schema.from_dict(schema)
    if found.sparse:
        raise InputError("The schema is sparse, which a table cannot be. Name list columns as `pair`.")
    return found, base


def write_table(
    table: pa.Table,
    schema: Schema | Mapping[str, Any] | str | Path,
    path: Path,
    actions: pa.Table | None = None,
    base: Path | None = None,
) -> None:
    """Write a table in memory as a log.

    Args:
        table: one row per event.
        schema: the roles of its columns.
        path: directory of the new log.
        actions: the table of actions; by default the file that the schema names, if any.
        base: directory from which the file of actions is named; by default that of the schema's file.
    """
    found, directory = read_schema(schema)
    source = "The table"
    require_columns(table.column_names, found.source_columns, source, "events")
    table = table.select(list(found.source_columns))
    if not table.num_rows:
        raise InputError(f"{source} is empty: expected one row per event.")
    file = None if actions is not None else find_action_table(found, base or directory)
    if actions is not None:
        if found.actions is None:
            raise InputError("A table of actions was given, but the schema has no `actions`. Add them with their key.")
        items, known = action_items(actions, found, "The table of actions"), "an action of the table of actions"
    elif file is not None:
        items, known = read_action_table(file, found), f"an action of {file.name}"
    elif found.actions is not None:
        raise InputError("The schema has `actions` without a table. Pass the table as `actions`, or name its file.")
    else:
        items, known = None, ""
    whole = frozenset(name for name in found.context.numeric if _is_whole(table[name].type))
    blind = TableChecker(found, whole=whole)
    survey = Survey(found)
    if items is None or survey.sample:
        for start, part in _parts(table):
            survey.add(_intact(blind, part, source, start), source)
    if items is None:
        items = pa.table({found.key: names_to_array(survey.names, as_written=False)})
    numbers = ActionNumbers(combined(items[found.key]))
    checker = TableChecker(found, numbers, known, whole=whole)
    propensities = Propensities(found, numbers, survey.sample)
    with locked(path):
        writer = LogWriter(path, found, items, {"table": "in memory"})
        if writer.progress is not None:
            raise InputError(f"{path} holds an unfinished log. Remove it, or choose another directory.")
        for start, part in _parts(table):
            writer.add(propensities.add(_intact(checker, part, source, start).events, start), {"row": start})
        writer.finish(policy="unknown", campaign="table")


def frame_to_table(frame: pd.DataFrame, columns: Sequence[str], source: str, of: str) -> pa.Table:
    """The columns of a data frame as a table; a column of mixed types is an error."""
    require_columns([str(name) for name in frame.columns], columns, source, of)
    places = {str(name): place for place, name in enumerate(frame.columns)}
    made = {}
    for name in columns:
        try:
            made[name] = pa.Array.from_pandas(frame.iloc[:, places[name]])
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            why = str(error).splitlines()[0]
            raise InputError(
                f"{source}, column {name}: expected values of one type, got a mixture ({why}). Convert the column, "
                "for example with astype(str)."
            ) from error
    return pa.table(made)


def _parts(table: pa.Table) -> Iterable[tuple[int, pa.Table]]:
    for start in range(0, table.num_rows, WRITTEN):
        yield start, table.slice(start, WRITTEN)


def _intact(checker: TableChecker, part: pa.Table, source: str, start: int) -> Checked:
    """The checked events of a part; a damaged row is an error."""
    checked = checker.check(part, source)
    for row, reason in checked.damages:
        more = len(checked.damages) - 1
        others = f" {more} more of the rows {start} to {start + part.num_rows - 1} are damaged." if more else ""
        raise InputError(f"{source}, row {start + row}: {reason}.{others} Repair or remove the row.")
    return checked


def _is_whole(kind: pa.DataType) -> bool:
    return bool(pa.types.is_boolean(kind) or pa.types.is_integer(kind)) and kind != pa.uint64()


def _names(column: pa.ChunkedArray, place: str) -> pa.Array:
    """The names of logged actions: text, whole numbers, or a dictionary of them."""
    array = combined(column)
    kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    if pa.types.is_null(kind):
        return array.cast(pa.string())
    if not (is_text(kind) or pa.types.is_integer(kind)):
        raise InputError(
            f"{place}: expected actions, text or whole numbers, got {kind}. Convert the column"
            f"{', for example with astype(int) where no value is missing' if pa.types.is_floating(kind) else ''}."
        )
    return array


def _distinct(named: pa.Array, listed: pa.Array | None) -> pa.Array:
    """The names that occur, without a null."""
    names = named.dictionary if pa.types.is_dictionary(named.type) else named
    found = [pc.unique(array).drop_null() for array in (names, listed) if array is not None]
    if len({str(array.type) for array in found}) > 1:
        found = [array.cast(pa.string()) for array in found]
    elif pa.types.is_integer(found[0].type):
        found = [array.cast(pa.int64()) for array in found]
    return pc.unique(pa.concat_arrays(found))


def _repeated(owner: NDArray[np.int64], found: NDArray[np.int32], rows: int, actions: int) -> NDArray[np.bool_]:
    """(rows,), whether a row lists an action twice."""
    keys = np.sort(owner * (actions + 1) + found + 1)
    twice = keys[1:] == keys[:-1]
    again = np.zeros(rows, dtype=bool)
    again[keys[1:][twice] // (actions + 1)] = True
    return again


def _cast_each(text: pa.Array, kind: pa.DataType) -> Read:
    values = []
    for cell in text:
        try:
            values.append(cell.cast(kind))
        except pa.ArrowInvalid:
            values.append(pa.scalar(None, kind))
    made = pa.array(values, kind)
    return Read(made, made.is_null().to_numpy(zero_copy_only=False) & text.is_valid().to_numpy(zero_copy_only=False))


_NO_PROPENSITY = " in every row (if some are not known, put `logging: estimated` in place of `propensity`)"
_NO_TIME = ", in every row (if some are not known, leave `timestamp` out of the schema)"


def _reason(name: str, column: pa.ChunkedArray, row: int, words: str, without: str = "") -> str:
    """Why a value cannot be used; ``without`` is added where there is none."""
    value = column[row].as_py()
    missing = value is None or value == "" or (isinstance(value, float) and np.isnan(value))
    return f"{name} is {f'empty, expected {words}{without}' if missing else f'{shown(column, row)}, expected {words}'}"


def _time_words(column: pa.ChunkedArray) -> str:
    words = "a time like 2024-05-01 12:30:00+00:00, or Unix seconds"
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return f"{words} up to {LAST_SECOND} (are these milliseconds?)"
    return words
