"""Small logs of a schema of one's own for tests of policies, with the same events as plain rows."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from replay.logs import writer
from replay.logs.layout import CATEGORY
from replay.logs.reader import Log
from replay.logs.schema import Schema
from replay.logs.writer import LogWriter

ACTIONS = ["tea", "coffee", "cocoa", "milk", "water"]
ROWS, GROUP = 430, 100


class Made(NamedTuple):
    """A log and what it was written from."""

    log: Log
    events: list[dict[str, Any]]
    """in order, with ``shown``, the numbers of the candidates"""


def make(path: Path, listed: bool = False, rows: int = ROWS, propensity: bool = True, **schema: Any) -> Made:
    """A log in row groups of 100 events, two a file; with ``listed`` every event has candidates of its own."""
    random = np.random.default_rng(3)
    events = []
    for _ in range(rows):
        shown = random.permutation(5)[: random.integers(2, 6) if listed else 5]
        shown = shown if listed else np.arange(5)
        p = random.dirichlet(np.full(len(shown), 4.0))
        place = random.choice(len(shown), p=p)
        age = float(random.normal())
        probabilities = random.dirichlet(np.ones(len(shown)))
        per_action = np.zeros(5)
        per_action[shown] = probabilities
        events.append(
            {
                "item": int(shown[place]),
                "p": float(p[place]),
                "click": int(random.random() < (0.2 + 0.1 * shown[place])),
                "age": age,
                "country": random.choice(["no", "se", "fi"]),
                "shown": shown.tolist(),
                "choice": ACTIONS[int(random.choice(shown))],
                "chances": probabilities.tolist(),
                "all_chances": per_action.tolist(),
            }
        )
    given = {
        "action": "item",
        "reward": "click",
        **({"propensity": "p"} if propensity else {}),
        "context": {"numeric": ["age"], "categorical": ["country"]},
        "keep": ["choice", "chances", "all_chances"],
        **({"candidates": "shown"} if listed else {}),
        **schema,
    }
    return Made(write(path, Schema.from_dict(given), events), events)


def write(path: Path, schema: Schema, events: list[dict[str, Any]]) -> Log:
    """Write events as they are."""
    columns = {name: [event[name] for event in events] for name in events[0]}
    kinds = {
        "item": pa.int32(),
        "p": pa.float64(),
        "click": pa.int8(),
        "age": pa.float64(),
        "country": CATEGORY,
        "shown": pa.list_(pa.int32()),
    }
    arrays = {
        name: pa.array(values).cast(kinds[name]) if name == "country" else pa.array(values, kinds.get(name))
        for name, values in columns.items()
    }
    if schema.propensity_column != "p":
        arrays[schema.propensity_column] = arrays.pop("p")
    if not schema.candidates:
        arrays.pop("shown")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "ROW_GROUP", GROUP)
        patch.setattr(writer, "PART_ROWS", 2 * GROUP)
        log = LogWriter(path, schema, pa.table({schema.key: ACTIONS}), {"rows": len(events)})
        table = pa.table(arrays)
        for first in range(0, len(events), 2 * GROUP):
            log.add(table.slice(first, 2 * GROUP), progress=first)
        log.finish(campaign="made", policy="made")
    return Log(path)


def lean(frame: pd.DataFrame) -> np.ndarray:
    """A policy that prefers early actions to young ages; of the listed candidates if there are any."""
    scores = -np.outer(frame["age"].to_numpy(), np.arange(5.0))
    if "shown" in frame:
        listed = np.array([[action in names for action in ACTIONS] for names in frame["shown"]])
        scores = np.where(listed, scores, -np.inf)
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(chances / chances.sum(axis=1, keepdims=True))
