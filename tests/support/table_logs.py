"""Small logs with columns that are not those of the Open Bandit Dataset."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from replay.logs import writer
from replay.logs.layout import CATEGORY
from replay.logs.reader import Log
from replay.logs.schema import Schema
from replay.logs.writer import LogWriter

ACTIONS = ["tea", "coffee", "milk", "juice", "water"]

SCHEMA: dict[str, Any] = {
    "action": "drink",
    "reward": "sold",
    "propensity": "p",
    "context": {"numeric": ["age", "floor"], "categorical": ["country", "device"]},
    "actions": {"key": "drink", "numeric": ["price"], "categorical": ["brand"]},
    "pair": {"numeric": ["taste"]},
}
"""age is continuous, floor is discrete, and both have missing values."""

PLAIN: dict[str, Any] = {"action": "drink", "reward": "sold", "propensity": "p"}


def schema_with(**changes: Any) -> dict[str, Any]:
    """SCHEMA with other entries; None leaves one out."""
    return {name: value for name, value in {**SCHEMA, **changes}.items() if value is not None}


def items(names: list[str] = ACTIONS) -> pa.Table:
    """A table of actions with a missing brand and a missing price."""
    n = len(names)
    prices = [None if i == 2 else 1.5 + i for i in range(n)]
    brands = [None if i == 3 else "abc"[i % 3] for i in range(n)]
    return pa.table({"drink": names, "price": prices, "brand": pa.array(brands, pa.string()).cast(CATEGORY)})


def events(
    rows: int, schema: dict[str, Any], actions: int = len(ACTIONS), seed: int = 0, discrete: bool = False
) -> pa.Table:
    """Random events with missing values; a click is likelier for young people and the first actions."""
    rng = np.random.default_rng(seed)
    age = rng.normal(40, 12, rows).round() // 2 if discrete else rng.normal(40, 12, rows)
    floor = rng.integers(0, 6, rows)
    country = rng.choice(["de", "fr", "it", "jp"], rows, p=[0.4, 0.3, 0.2, 0.1])
    device = rng.choice(["phone", "desktop", "tablet"], rows, p=[0.5, 0.3, 0.2])
    lists = [np.sort(rng.permutation(actions)[: rng.integers(1, actions + 1)]) for _ in range(rows)]
    if "candidates" not in schema:
        lists = [np.arange(actions)] * rows
    action = np.array([rng.choice(listed) for listed in lists])
    lost = rng.random((4, rows)) < 0.1
    columns: dict[str, Any] = {
        "drink": pa.array(action, pa.int32()),
        "sold": pa.array((rng.random(rows) < 0.6 / (1 + action) * (1 + (floor < 3)) / 2).astype(int), pa.int8()),
        "p": pa.array([1 / len(listed) for listed in lists], pa.float64()),
        "age": pa.array(age, mask=lost[0]),
        "floor": pa.array(floor, mask=lost[1]),
        "country": pa.array(country, mask=lost[2]).cast(CATEGORY),
        "device": pa.array(device, mask=lost[3]).cast(CATEGORY),
        "taste": pa.array([rng.poisson(0.7, len(listed)).astype(float) for listed in lists]),
        "offered": pa.array([listed.astype(np.int32) for listed in lists], pa.list_(pa.int32())),
        "page": pa.array([f"page {i % 3}" for i in range(rows)]),
    }
    return pa.table(columns)


def table_log(
    path: Path,
    schema: dict[str, Any] = SCHEMA,
    rows: int = 1000,
    group: int = 400,
    table: pa.Table | None = None,
    actions: pa.Table | None = None,
    **random: Any,
) -> Log:
    """A log of these events, or of random ones, in row groups of a given size."""
    described = Schema.from_dict(schema)
    actions = items() if actions is None else actions
    table = events(rows, schema, actions.num_rows, **random) if table is None else table
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "ROW_GROUP", group)
        stored = [*described.source_columns]
        log = LogWriter(path, described, actions.select([described.key, *described.action_features]), {"rows": rows})
        log.add(table.select(stored), progress=0)
        log.finish(campaign="drinks", policy="random")
    return Log(path)
