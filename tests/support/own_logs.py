"""Small logs with columns of one's own: every role of a schema, lists of candidates, missing values."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from replay.logs import writer
from replay.logs.layout import CATEGORY, TIME
from replay.logs.reader import Log
from replay.logs.schema import Schema
from replay.logs.writer import LogWriter

GIVEN: dict[str, Any] = {
    "action": "item",
    "reward": "bought",
    "propensity": "p",
    "timestamp": "time",
    "context": {"numeric": ["age", "recency"], "categorical": ["country"]},
    "actions": {"key": "name", "table": "items.csv", "numeric": ["price"], "categorical": ["brand"]},
    "pair": {"numeric": ["affinity"]},
    "candidates": "shown",
    "keep": ["page"],
}
"""A schema with every role."""

NAMES = ["hat", "coat", "shoe", "sock", "belt"]


def own_schema(**other: Any) -> Schema:
    """The schema with some keys replaced, or left out where they are None."""
    return Schema.from_dict({key: value for key, value in (GIVEN | other).items() if value is not None})


def own_items() -> pa.Table:
    brand = pa.array(["a", None, "b", "a", "c"]).dictionary_encode().cast(CATEGORY)
    return pa.table({"name": NAMES, "price": [1.5, 2.0, None, 0.0, 9.0], "brand": brand})


def own_events(rows: int, seed: int = 0, uniform: bool = False) -> pa.Table:
    """Events with two to five candidates. ``uniform``: all were equally likely, else the logged one was preferred."""
    random = np.random.default_rng(seed)
    lists = [random.permutation(5)[: random.integers(2, 6)] for _ in range(rows)]
    logged = [int(random.choice(actions)) for actions in lists]
    share = [1 / len(actions) for actions in lists]
    odd = [0.5 * p if uniform is False and row % 3 == 0 else p for row, p in enumerate(share)]
    names = ["nl" if number else "de" for number in random.integers(2, size=rows)]
    country = [None if row % 7 == 3 else name for row, name in enumerate(names)]
    return pa.table(
        {
            "time": pa.array([1_600_000_000_000_000 + 1000 * row for row in range(rows)], TIME),
            "item": pa.array(logged, pa.int32()),
            "bought": pa.array(random.integers(2, size=rows), pa.int8()),
            "p": pa.array(odd, pa.float64()),
            "age": pa.array(random.integers(18, 80, size=rows), pa.int64()),
            "recency": pa.array([None if row % 5 == 2 else float(row) - 2.5 for row in range(rows)], pa.float32()),
            "country": pa.array(country).dictionary_encode().cast(CATEGORY),
            "shown": pa.array(lists, pa.list_(pa.int32())),
            "affinity": pa.array([random.normal(size=len(actions)) for actions in lists], pa.list_(pa.float64())),
            "page": [None if row % 4 == 1 else f"page {row}" for row in range(rows)],
        }
    )


def write_own_log(path: Path, events: pa.Table, schema: Schema | None = None, group: int = 40, part: int = 80) -> Log:
    """Events as a log with row groups and parts of a given size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "ROW_GROUP", group)
        patch.setattr(writer, "PART_ROWS", part)
        log = LogWriter(path, schema or own_schema(), own_items(), {})
        for start in range(0, events.num_rows, part):
            log.add(events.slice(start, part), progress=start)
        log.finish(policy="mine", campaign="own")
    return Log(path)
