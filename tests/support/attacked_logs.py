"""A small simulated log that attacks damage, each a copy of its own, and what must not change."""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nl_lightning.cli.main import main as fit
from replay import Log, Online, ReplayLog
from replay.__main__ import main
from replay.logs.reader import Categories, Events
from replay.protocol.candidates import candidates, check_protocol, pair_values
from replay.protocol.obd_features import ObdFeatures
from replay.simulation.simulate import make_log
from replay.simulation.simulated_world import SimulatedWorld
from tests.support.own_logs import own_events, write_own_log

Keys: TypeAlias = tuple[str | int, ...]
"""the way to a value in JSON"""

ROWS = 300

WRONG = {"null": None, "text": "text", "negative": -1, "list": [], "object": {}, "huge": 10**400}
"""What a value may be replaced by."""

_KEPT: list[tempfile.TemporaryDirectory[str]] = []
"""removed when the interpreter ends"""


def _directory() -> Path:
    _KEPT.append(tempfile.TemporaryDirectory(prefix="attacked-"))
    return Path(_KEPT[-1].name)


@cache
def intact_log() -> Path:
    """A log of a few events with propensities that are not uniform."""
    path = _directory() / "log"
    make_log(path, SimulatedWorld(items=6, users=9, policy="softmax", ctr=0.3), ROWS)
    return path


@cache
def intact_checkpoint() -> Path:
    """The checkpoint of a short fit on the log."""
    where = _directory()
    chosen = ["--model=NeuralLogUCB2", "--data.environment=replay.ReplayLog", f"--data.environment.log={intact_log()}"]
    small = ["--data.rounds=20", "--model.steps=2", "--trainer.enable_progress_bar=false", "--trainer.logger=false"]
    fit(["fit", *chosen, *small, f"--run.dir={where}", "--run.id=a"])
    return where / "fit" / "a" / "checkpoints" / "last.ckpt"


@cache
def own_log() -> Path:
    """A log with every role of a schema, in two parts."""
    path = _directory() / "log"
    write_own_log(path, own_events(120))
    return path


def copy_log(directory: Path, log: Path | None = None) -> Path:
    return Path(shutil.copytree(log or intact_log(), directory / "log"))


def description(log: Path | None = None) -> dict[str, Any]:
    """The content of log.json."""
    found: dict[str, Any] = json.loads(((log or intact_log()) / "log.json").read_text())
    return found


def ways(value: Any, before: Keys = ()) -> Iterator[Keys]:
    """The way to every value within a value of JSON, at every depth."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield (*before, key)
        yield from ways(inner, (*before, key))


def changed(value: Any, keys: Keys, change: Callable[[Any, str | int], None]) -> Any:
    """A copy of a value of JSON in which the container of a key was changed."""
    copy = json.loads(json.dumps(value))
    inside = copy
    for key in keys[:-1]:
        inside = inside[key]
    change(inside, keys[-1])
    return copy


def rewrite(file: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change the table in a Parquet file."""
    pq.write_table(change(pq.read_table(file)), file)


def used(path: Path) -> dict[str, Any]:
    """What commands and environments make of a log; each may refuse it."""
    main(["info", str(path)])
    log = Log(path)
    features = ObdFeatures.fit(log)
    events = [log.events(group) for group in log.groups]
    replayed = ReplayLog(str(path), candidates="all")
    return {
        "statistics": log.statistics.to_json(),
        "items": log.items.to_pylist(),
        "features": [features.user.tolist(), features.item.tolist(), features.positions, features.affinity_high],
        "events": [[part.item.tolist(), part.click.tolist(), part.propensity.tolist()] for part in events],
        "positions": [part.numeric["position"].tolist() for part in events],
        "categories": [_names(column) for part in events for column in part.categorical.values()],
        "affinities": [[column.tolist() for column in _affinities(part)] for part in events],
        "settings": list(replayed.setting),
        "world": Online(str(path)).world.rates(),
    }


def used_own(path: Path) -> dict[str, Any]:
    """What is made of a log of one's own; each may refuse it."""
    main(["info", str(path)])
    log = Log(path)
    found: dict[str, Any] = {"statistics": log.statistics.to_json(), "items": log.items.to_pylist()}
    found |= {"schema": log.schema, "arms": check_protocol("logged", 1, log), "actions": log.actions}
    for number, group in enumerate(log.groups):
        events = log.events(group)
        shown = candidates(events, "logged", found["arms"], log, 0)
        pair = pair_values(events.pair["affinity"], events, shown, log.n_items)
        arrays = [events.item, events.click, events.propensity, events.numeric["age"], events.numeric["recency"]]
        # with NaN, which equals nothing
        found[f"events {number}"] = str([*(array.tolist() for array in arrays), _names(events.categorical["country"])])
        found[f"arms {number}"] = [tensor.tolist() for tensor in (*shown, pair)]
        found[f"frame {number}"] = log.frame(group).to_json(date_format="iso")
    return found


def _names(column: Categories) -> list[str | None]:
    return [None if code < 0 else column.values[code] for code in column.codes]


def _affinities(events: Events) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Owner, item and affinity."""
    value, item = events.pair["affinity"]
    assert item is not None
    return value.owner, item.values, value.values


@cache
def _right() -> dict[str, Any]:
    return used(intact_log())


@cache
def _right_own() -> dict[str, Any]:
    return used_own(own_log())


def unchanged_own(result: Any, _: Path) -> bool:
    """Whether an attack on the log of one's own had no effect."""
    return bool(result == _right_own())


def unchanged(result: Any, _: Path) -> bool:
    """Whether an attack had no effect."""
    return bool(result == _right())
