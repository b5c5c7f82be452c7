"""The format of a log. A log is a directory with these files:

    items.parquet          one row per item, with item ids 0, 1, ..., n - 1
    events-00000.parquet   the events in the order of the source; long logs have several such files
    log.json               a description of the whole log, written last: a log without it is unfinished

Nearly all affinities are 0, so an event stores the others only: ``affinity_item`` (ascending) and ``affinity``.
"""

from collections.abc import Sequence

import pyarrow as pa

from nl_lightning.core.errors import InputError

__all__ = [
    "EVENTS",
    "EVENTS_FILES",
    "FORMAT",
    "ITEMS",
    "ITEMS_FILE",
    "ITEM_FEATURES",
    "ITEM_NUMBER",
    "LOG_FILE",
    "MOST_POSITIONS",
    "ROW_GROUP",
    "USER_FEATURES",
    "VERSION",
    "check_schema",
]


FORMAT = "nl-lightning replay log"
VERSION = 1

LOG_FILE = "log.json"
ITEMS_FILE = "items.parquet"
EVENTS_FILES = "events-*.parquet"

ROW_GROUP = 65_536
"""Rows per row group, which is read and processed as a unit."""

MOST_POSITIONS = 127
"""The highest position that an int8 can hold."""

USER_FEATURES = ("user_feature_0", "user_feature_1", "user_feature_2", "user_feature_3")
ITEM_NUMBER = "item_feature_0"
ITEM_FEATURES = ("item_feature_1", "item_feature_2", "item_feature_3")

_CATEGORY = pa.dictionary(pa.int32(), pa.string())

EVENTS = pa.schema(
    [
        ("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("item_id", pa.int32(), nullable=False),
        # 1, 2, 3, from left to right
        pa.field("position", pa.int8(), nullable=False),
        # 0 or 1
        pa.field("click", pa.int8(), nullable=False),
        # the probability, in (0, 1], with which the logging policy showed this item; null where it is not known
        ("propensity_score", pa.float64()),
        *((name, _CATEGORY) for name in USER_FEATURES),
        ("affinity_item", pa.list_(pa.int32())),
        ("affinity", pa.list_(pa.float32())),
    ]
)

ITEMS = pa.schema(
    [
        pa.field("item_id", pa.int32(), nullable=False),
        pa.field(ITEM_NUMBER, pa.float64(), nullable=False),
        *((name, _CATEGORY) for name in ITEM_FEATURES),
    ]
)


def check_schema(found: pa.Schema, expected: pa.Schema, file: str) -> None:
    """Raise an InputError unless every expected column is present with its type."""
    missing = [name for name in expected.names if name not in found.names]
    if missing:
        raise InputError(
            f"{file} has no column {_listed(missing)}. A log has the columns {_listed(expected.names)}; "
            f"this file has {_listed(found.names)}. Was a column renamed? Convert the log again."
        )
    for field in expected:
        if found.field(field.name).type != field.type:
            raise InputError(
                f"{file}, column {field.name}: expected {field.type}, got {found.field(field.name).type}. "
                "Convert the log again."
            )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
