"""The actions of a log: their numbers by their names, and the table of what is known of them."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions, open_csv, read_csv

from nl_lightning.core.errors import InputError
from replay.logs.address import Address, RemotePath, address, open_binary, open_parquet
from replay.logs.columns import as_category, as_numbers, decoded, require_columns, shown
from replay.logs.schema import Schema
from replay.logs.text import is_text

__all__ = ["MOST_ACTIONS", "ActionNumbers", "action_items", "find_action_table", "names_to_array", "read_action_table"]

MOST_ACTIONS = 1_000_000
"""Actions that are found in a log without a table of them."""

_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")


class ActionNumbers:
    """The numbers of actions, 0, 1, ..., n - 1, by their names.

    Args:
        names: text or whole numbers, no two alike.
    """

    def __init__(self, names: pa.Array) -> None:
        self.names = names
        self._text = names.cast(pa.string())

    def __len__(self) -> int:
        return len(self.names)

    def find(self, values: pa.Array) -> NDArray[np.int32]:
        """(N,), the number of each value, -1 where it is not known. A whole number and its text are the same name."""
        if pa.types.is_dictionary(values.type):
            codes = pc.fill_null(values.indices, -1).to_numpy(zero_copy_only=False)
            return np.append(self.find(values.dictionary), np.int32(-1))[codes]
        if pa.types.is_signed_integer(values.type) and pa.types.is_integer(self.names.type):
            found = pc.index_in(values.cast(pa.int64()), self.names)
        elif is_text(values.type) and len(values) > 4096:
            return self.find(values.dictionary_encode())
        else:
            found = pc.index_in(values.cast(pa.string()), self._text)
        return pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int32)


def names_to_array(names: Iterable[Any], as_written: bool) -> pa.Array:
    """Sorted names of actions: whole numbers as int64 and text as text.

    ``as_written`` says that all are text in a file whose numbers are text too: if all of them are whole numbers in
    their shortest form, they become whole numbers.
    """
    found = set(names)
    if as_written and all(_WHOLE.fullmatch(name) for name in found):
        found = set(map(int, found))
    if not all(isinstance(name, int) for name in found):
        return pa.array(sorted(map(str, found)), pa.string())
    return pa.array(sorted(found), pa.int64())


def find_action_table(schema: Schema, base: Path | None) -> Address | None:
    """The file of a schema's table of actions: an address, or a path from the schema's directory or from here."""
    if schema.actions is None or schema.actions.table is None:
        return None
    given = address(schema.actions.table)
    if isinstance(given, RemotePath):
        return given
    places = [given] if given.is_absolute() or base is None else [base / given, given]
    for place in places:
        if place.is_file():
            return place
    raise InputError(
        f"The table of actions {schema.actions.table} does not exist. Expected a CSV or Parquet file at "
        f"{' or '.join(map(str, dict.fromkeys(places)))}; correct actions.table in the schema."
    )


def read_action_table(file: Address, schema: Schema) -> pa.Table:
    """Read and check the table of actions of a schema from a CSV or Parquet file."""
    assert schema.actions is not None
    wanted = [schema.key, *schema.action_features]
    suffix = Path(file.name).suffix.lower()
    try:
        if suffix in (".parquet", ".pq"):
            with open_parquet(file) as parquet:
                require_columns(parquet.schema_arrow.names, wanted, str(file), "actions")
                return action_items(parquet.read(columns=wanted), schema, str(file), lambda row: f"row {row}")
        if suffix != ".csv":
            raise InputError(f"{file}: expected a table of actions in CSV or Parquet (.csv, .parquet), got {suffix!r}.")
        with open_binary(file) as opened:
            data = opened.read()
        text = _read_csv(data, wanted, str(file))
    except (pa.ArrowException, OSError) as error:
        why = str(error).splitlines()[0]
        raise InputError(f"{file}: the table of actions cannot be read ({why}). Repair the file.") from error
    return action_items(text, schema, str(file), lambda row: f"row {row + 1} below the header", True)


def _read_csv(data: bytes, wanted: list[str], file: str) -> pa.Table:
    """The wanted columns as text."""
    if not data.strip():
        raise InputError(f"{file} is empty: expected a table of actions with a header.")
    names = open_csv(pa.BufferReader(data), ReadOptions(block_size=max(1 << 20, len(data)))).schema.names
    require_columns(names, wanted, file, "actions")
    return read_csv(
        pa.BufferReader(data),
        ReadOptions(use_threads=False),
        ParseOptions(newlines_in_values=True),
        ConvertOptions(
            column_types=dict.fromkeys(wanted, pa.string()),
            include_columns=wanted,
            null_values=[""],
            strings_can_be_null=True,
        ),
    )


def action_items(
    table: pa.Table,
    schema: Schema,
    source: str,
    place: Callable[[int], str] = lambda row: f"row {row}",
    as_written: bool = False,
) -> pa.Table:
    """Check a table of actions, and give it the types of a log's ``items.parquet``.

    Args:
        table: one row per action; other columns are left out.
        schema: its key and features.
        source: the table's name in errors.
        place: a row's name in errors.
        as_written: whether every column is text, as in a CSV file.
    """
    require_columns(table.column_names, [schema.key, *schema.action_features], source, "actions")
    if not table.num_rows:
        raise InputError(f"{source}: the table of actions is empty. Expected one row per action.")

    def refuse(name: str, row: int, words: str, column: pa.Array) -> None:
        raise InputError(f"{source}, column {name}, {place(row)}: expected {words}, got {shown(column, row)}.")

    keys = decoded(table[schema.key])
    if not (is_text(keys.type) or pa.types.is_integer(keys.type)):
        raise InputError(
            f"{source}, column {schema.key}: expected names of actions, text or whole numbers, got {keys.type}. "
            "Convert the column, or name another one as actions.key."
        )
    if keys.null_count:
        row = int(np.flatnonzero(keys.is_null().to_numpy(zero_copy_only=False))[0])
        refuse(schema.key, row, "the name of an action", keys)
    first: dict[Any, int] = {}
    for row, name in enumerate(keys.to_pylist()):
        if first.setdefault(name, row) != row:
            raise InputError(
                f"{source}, column {schema.key}, {place(row)}: {shown(keys, row)} is there already, in "
                f"{place(first[name])}. Expected every action once; remove one of the rows."
            )
    if as_written and all(_WHOLE.fullmatch(name) for name in first):
        keys = keys.cast(pa.int64())
    columns = {schema.key: keys.cast(pa.string() if is_text(keys.type) else pa.int64())}
    for name in schema.action_features.numeric:
        column = decoded(table[name])
        read = as_numbers(column, f"{source}, column {name}", as_written)
        if read.bad.any():
            refuse(name, int(np.flatnonzero(read.bad)[0]), "a finite number, or nothing", column)
        columns[name] = read.values
    for name in schema.action_features.categorical:
        columns[name] = as_category(table[name], f"{source}, column {name}")
    return pa.table(columns)
