"""The run directory: everything a run leaves behind, and everything it needs to resume.

    config.yaml            everything needed to repeat the run
    rounds.parquet         one row per round and replica
    summary.json           the result
    curve.png              mean regret or reward with its band
    checkpoints/last.ckpt  the state after a call of TrainNN

While a run is in progress, its rounds are in ``rounds/``, one file per checkpoint. A part is written before its
checkpoint, and parts that no checkpoint covers are dropped on resumption: no round is missing or duplicated.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from nl_lightning.core.errors import InputError
from nl_lightning.core.files import write_beside
from nl_lightning.runs.summary import Measure

__all__ = ["RunDirectory", "schema"]


def schema(measure: Measure, logged: bool) -> pa.Schema:
    """The columns of rounds.parquet; with ``logged``, the row of the log as well."""
    fields = [
        ("replica", pa.int32()),
        ("t", pa.int32()),
        *([("event", pa.int64())] if logged else []),
        ("arm", pa.int32()),
        ("reward", pa.float32()),
        ("score", pa.float64()),
        ("mean", pa.float64()),
        ("bonus", pa.float64()),
        (measure.column, pa.float64()),
        ("radius", pa.float64()),
        ("logdet", pa.float64()),
        ("lam", pa.float64()),
    ]
    return pa.schema(fields)


class RunDirectory:
    """The paths of a run's files, and the rules for using them.

    Args:
        path: the directory, which need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.rounds = path / "rounds.parquet"
        self.parts = path / "rounds"
        self.summary = path / "summary.json"
        self.curve = path / "curve.png"
        self.checkpoint = path / "checkpoints" / "last.ckpt"
        self.lock = path / ".lock"

    def read_summary(self) -> dict[str, Any] | None:
        """The result, if the run has finished or was stopped cleanly; otherwise None."""
        return json.loads(self.summary.read_text()) if self.summary.exists() else None

    @contextmanager
    def claimed(self, config: str) -> Iterator[None]:
        """Hold the directory exclusively; ``config`` is written first. The lock ends with the process.

        If the directory was made here and ends up with nothing that a run could resume from, it is removed again.
        """
        try:
            new = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
            lock = self.lock.open("w")
        except OSError as error:
            text = f"{self.path} cannot be written: {error.strerror}. Set run.dir to another directory."
            raise InputError(text) from error
        with lock:
            try:
                flock(lock, LOCK_EX | LOCK_NB)
            except OSError as error:
                text = f"{self.path} is in use by another process. Wait for it, or choose another run.id."
                raise InputError(text) from error
            write_beside(self.config, lambda path: path.write_text(config))
            try:
                yield
            finally:
                self.lock.unlink(missing_ok=True)
                if new and not self.checkpoint.exists() and not self.summary.exists():
                    shutil.rmtree(self.path, ignore_errors=True)
                    with suppress(OSError):
                        self.path.parent.rmdir()

    def check_same(self, config: dict[str, Any]) -> None:
        """Check that ``config`` has the settings of the stored run. Of the Trainer flags only the precision counts."""
        stored = yaml.safe_load(self.config.read_text()) or {}
        differing = sorted(
            key for part in ("model", "data") for key in _differing(part, stored.get(part), config[part])
        )
        old, new = (str(c.get("trainer", {}).get("precision") or "32-true") for c in (stored, config))
        differing += _differing("trainer.precision", old, new)
        if differing:
            raise InputError(
                f"{self.path} holds a run with other settings; they differ in {', '.join(differing)}. "
                "Choose another run.id, or leave these settings as they were to go on with that run."
            )

    def part(self, first: int) -> Path:
        """The file of the rounds from ``first`` up to the next part."""
        return self.parts / f"from-{first:09d}.parquet"

    def sorted_parts(self) -> list[Path]:
        """The files of all parts, by round."""
        return sorted(self.parts.glob("from-*.parquet"))


def _differing(key: str, old: Any, new: Any) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        return [d for k in old.keys() | new.keys() for d in _differing(f"{key}.{k}", old.get(k), new.get(k))]
    return [] if old == new else [key]
