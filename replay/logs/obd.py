"""The columns of the Open Bandit Dataset as a log.

Nearly all affinities are 0, so an event stores the others only: ``affinity_item`` (ascending) and ``affinity``.
"""

import pyarrow as pa

from replay.logs.layout import CATEGORY, TIME
from replay.logs.schema import ActionTable, Columns, Schema

__all__ = [
    "AFFINITY",
    "EVENTS",
    "ITEMS",
    "ITEM_FEATURES",
    "ITEM_NUMBER",
    "MOST_POSITIONS",
    "OBD",
    "POSITION",
    "USER_FEATURES",
]

MOST_POSITIONS = 127
"""The highest position that an int8 can hold."""

POSITION, AFFINITY = "position", "affinity"
USER_FEATURES = ("user_feature_0", "user_feature_1", "user_feature_2", "user_feature_3")
ITEM_NUMBER = "item_feature_0"
ITEM_FEATURES = ("item_feature_1", "item_feature_2", "item_feature_3")

OBD = Schema(
    action="item_id",
    reward="click",
    propensity="propensity_score",
    timestamp="timestamp",
    context=Columns((POSITION,), USER_FEATURES),
    actions=ActionTable("item_id", "item_context.csv", (ITEM_NUMBER,), ITEM_FEATURES),
    pair=(AFFINITY,),
    sparse=True,
)

EVENTS = pa.schema(
    [
        ("timestamp", TIME),
        pa.field("item_id", pa.int32(), nullable=False),
        # 1, 2, 3, from left to right
        pa.field(POSITION, pa.int8(), nullable=False),
        # 0 or 1
        pa.field("click", pa.int8(), nullable=False),
        # the probability, in (0, 1], with which the logging policy showed this item; null where it is not known
        ("propensity_score", pa.float64()),
        *((name, CATEGORY) for name in USER_FEATURES),
        (OBD.sparse_items(AFFINITY), pa.list_(pa.int32())),
        (AFFINITY, pa.list_(pa.float32())),
    ]
)

ITEMS = pa.schema(
    [
        pa.field("item_id", pa.int32(), nullable=False),
        pa.field(ITEM_NUMBER, pa.float64(), nullable=False),
        *((name, CATEGORY) for name in ITEM_FEATURES),
    ]
)
