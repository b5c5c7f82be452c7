"""The files of a log. A log is a directory with these files:

    items.parquet          one row per action, in the order of their numbers 0, 1, ..., n - 1
    events-00000.parquet   the events in the order of the source; long logs have several such files
    log.json               a description of the whole log, with its schema; written last: a log without it is unfinished

Columns keep the names of the source, and the schema says which of them plays which role.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa

from nl_lightning.core.errors import InputError
from replay.logs.schema import Schema

__all__ = [
    "CATEGORY",
    "EVENTS_FILES",
    "FORMAT",
    "ITEMS_FILE",
    "LOG_FILE",
    "ROW_GROUP",
    "TIME",
    "VERSION",
    "check_events",
    "check_items",
    "listed",
]


FORMAT = "nl-lightning replay log"
VERSION = 2

LOG_FILE = "log.json"
ITEMS_FILE = "items.parquet"
EVENTS_FILES = "events-*.parquet"

ROW_GROUP = 65_536
"""Rows per row group, which is read and processed as a unit."""

CATEGORY = pa.dictionary(pa.int32(), pa.string())
TIME = pa.timestamp("us", tz="UTC")

_MOST_NAMES = 15
"""Columns that a message lists."""


def check_events(found: pa.Schema, schema: Schema, file: str) -> None:
    """Raise an InputError unless a file of events has every column of the schema, with its type."""
    exact = {schema.action: pa.int32(), schema.reward: pa.int8(), schema.propensity_column: pa.float64()}
    if schema.timestamp:
        exact[schema.timestamp] = TIME
    exact |= dict.fromkeys(schema.context.categorical, CATEGORY)
    if schema.candidates:
        exact[schema.candidates] = pa.list_(pa.int32())
    if schema.sparse:
        exact |= {schema.sparse_items(name): pa.list_(pa.int32()) for name in schema.pair}
        exact |= dict.fromkeys(schema.pair, pa.list_(pa.float32()))
    _check_columns(found, file, exact, schema.context.numeric, () if schema.sparse else schema.pair, schema.keep)


def check_items(found: pa.Schema, schema: Schema, file: str) -> None:
    """Raise an InputError unless a file of actions has their key and features, with their types."""
    features = schema.action_features
    _check_columns(found, file, dict.fromkeys(features.categorical, CATEGORY), features.numeric, (), (schema.key,))


def _check_columns(
    found: pa.Schema,
    file: str,
    exact: dict[str, pa.DataType],
    numbers: tuple[str, ...],
    lists: tuple[str, ...],
    others: tuple[str, ...],
) -> None:
    expected = list(dict.fromkeys([*exact, *numbers, *lists, *others]))
    missing = [name for name in expected if name not in found.names]
    if missing:
        raise InputError(
            f"{file} has no column {listed(missing)}. Its schema names the columns {listed(expected)}; "
            f"this file has {listed(found.names)}. Was a column renamed? Convert the log again."
        )
    for name, number in Counter(found.names).items():
        if number > 1:
            raise InputError(f"{file} has {number} columns {name:.60}. Convert the log again.")
    for name, words in _wrong_types(found, exact, numbers, lists):
        kind = found.field(name).type
        raise InputError(f"{file}, column {name}: expected {words}, got {kind}. Convert the log again.")


def listed(names: Sequence[str]) -> str:
    """The first names, for a message."""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(f"{name:.40}" for name in names[:_MOST_NAMES]) + more


def _wrong_types(
    found: pa.Schema, exact: dict[str, pa.DataType], numbers: tuple[str, ...], lists: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    for name, kind in exact.items():
        if found.field(name).type != kind:
            yield name, str(kind)
    for name in numbers:
        if not _is_number(found.field(name).type):
            yield name, "numbers"
    for name in lists:
        kind = found.field(name).type
        if not (pa.types.is_list(kind) and _is_number(kind.value_type)):
            yield name, "lists of numbers"


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
