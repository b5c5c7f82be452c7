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

from nl_lightning.cli.main import main as fit
from replay import Log, Online, ReplayLog
from replay.__main__ import main
from replay.protocol.obd_features import ObdFeatures
from replay.simulation.simulate import make_log
from replay.simulation.simulated_world import SimulatedWorld

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


def copy_log(directory: Path) -> Path:
    return Path(shutil.copytree(intact_log(), directory / "log"))


def description() -> dict[str, Any]:
    """The content of log.json."""
    found: dict[str, Any] = json.loads((intact_log() / "log.json").read_text())
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
        "affinities": [[part.affinity_owner.tolist(), part.affinity.tolist()] for part in events],
        "settings": list(replayed.setting),
        "world": Online(str(path)).world.rates(),
    }


@cache
def _right() -> dict[str, Any]:
    return used(intact_log())


def unchanged(result: Any, _: Path) -> bool:
    """Whether an attack had no effect."""
    return bool(result == _right())
