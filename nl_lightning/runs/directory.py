"""The run directory: everything a run leaves behind, and everything it needs to resume.

    config.yaml            everything needed to repeat the run
    rounds.parquet         one row per round and replica
    events.parquet         events by which agents on the same log are compared (where their values are estimated)
    summary.json           the result
    curve.png              mean regret or reward with its band
    checkpoints/last.ckpt  the state after a call of TrainNN

While a run is in progress, its rounds are in ``rounds/``, one file per checkpoint. A part is written before its
checkpoint, which lists all parts with their checksums. On resumption a part that is missing or was changed is refused,
and parts that the checkpoint does not list are dropped: no round is missing, changed or duplicated.
"""

import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from nl_lightning.core.arguments import program
from nl_lightning.core.credentials import check_no_credentials
from nl_lightning.core.errors import InputError
from nl_lightning.core.files import write_beside
from nl_lightning.runs.summary import Measure

__all__ = ["NEEDED", "RunDirectory", "check_name", "checksum", "differences", "is_summary", "schema", "settings_of"]


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
        self.events = path / "events.parquet"
        self.parts = path / "rounds"
        self.summary = path / "summary.json"
        self.curve = path / "curve.png"
        self.checkpoint = path / "checkpoints" / "last.ckpt"
        self.lock = path / ".lock"

    def read_config(self) -> dict[str, Any]:
        """The stored config; an :class:`InputError` if the file is damaged."""
        try:
            config = yaml.safe_load(self.config.read_text())
        except (OSError, ValueError, yaml.YAMLError) as error:
            reason = f" ({' '.join(str(error).split())})"
        else:
            if isinstance(config, dict):
                check_no_credentials(config, str(self.config))
                return config
            reason = ""
        raise InputError(
            f"{self.config} is damaged: expected is the YAML that fit writes{reason}. Put it back as it was, or leave "
            "this run out."
        )

    def read_summary(self) -> dict[str, Any] | None:
        """The result, if the run has finished or was stopped cleanly; otherwise None.

        Raises:
            InputError: the file is damaged, or is not the summary of a run.
        """
        if not self.summary.exists():
            return None
        summary = self.summary_content()
        if not is_summary(summary):
            raise InputError(
                f"{self.summary} is not the summary of a run: expected is the JSON that fit writes, with "
                f"{', '.join(NEEDED)}. Leave this run out, or remove that file and go on with {self.command}"
            )
        return summary

    def summary_content(self) -> Any:
        """What summary.json holds; an :class:`InputError` if it is no JSON."""
        try:
            return json.loads(self.summary.read_text())
        except (ValueError, OSError) as error:
            raise InputError(
                f"{self.summary} is damaged ({error}). Expected the JSON that fit writes: leave this run out, or "
                f"remove that file and go on with {self.command}"
            ) from error

    @property
    def command(self) -> str:
        """The command that goes on with the run."""
        return f"{program('nl_lightning')} fit --resume {shlex.quote(str(self.path))}"

    def clear(self) -> None:
        """Remove what the run has produced, so that it begins again; its config stays."""
        for file in (self.summary, self.checkpoint, self.rounds, self.events, self.curve):
            file.unlink(missing_ok=True)
        shutil.rmtree(self.parts, ignore_errors=True)

    @contextmanager
    def claimed(self, config: str) -> Iterator[None]:
        """Hold the directory exclusively; ``config`` is written first. The lock ends with the process.

        If the directory was made here and ends up with nothing that a run could resume from, it is removed again.
        """
        missing = [path for path in (self.path, *self.path.parents) if not path.exists()]
        new = bool(missing)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = self.lock.open("w")
        except OSError as error:
            for path in missing:
                with suppress(OSError):
                    path.rmdir()
            text = f"{self.path} cannot be written: {error.strerror}. Set run.dir to another directory."
            raise InputError(text) from error
        with lock:
            try:
                flock(lock, LOCK_EX | LOCK_NB)
            except OSError as error:
                text = f"{self.path} is in use by another process. Wait for it, or choose another run.id."
                raise InputError(text) from error
            try:
                write_beside(self.config, lambda path: path.write_text(config))
                yield
            finally:
                self.lock.unlink(missing_ok=True)
                if new and not self.checkpoint.exists() and not self.summary.exists():
                    shutil.rmtree(self.path, ignore_errors=True)
                    with suppress(OSError):
                        self.path.parent.rmdir()

    def check_same(self, config: Mapping[str, Any]) -> None:
        """Check that ``config`` has the settings of the stored run. Of the Trainer flags only the precision counts."""
        differing = differences(settings_of(self.read_config()), settings_of(config))
        if differing:
            raise InputError(
                f"{self.path} holds a run with other settings; they differ in {', '.join(differing)}. "
                "Choose another run.id, or leave these settings as they were to go on with that run."
            )

    # ---- parts --------------------------------------------------------------------------------------------------

    def part(self, first: int) -> Path:
        """The file of the rounds from ``first`` up to the next part."""
        return self.parts / f"from-{first:09d}.parquet"

    def keep_parts(self, listed: Mapping[str, str]) -> None:
        """Check the parts that a checkpoint lists, by file name with their checksums, and drop all others."""
        for name in listed:
            self.read_part(name, listed)
        for path in self.parts.glob("from-*.parquet"):
            if path.name not in listed:
                path.unlink()

    def read_part(self, name: str, listed: Mapping[str, str]) -> bytes:
        """The content of a part, which must be what was written."""
        path = self.parts / name
        try:
            content = path.read_bytes()
        except OSError as error:
            problem = f"is missing ({error.strerror})"
        else:
            if checksum(content) == listed[name]:
                return content
            problem = "is not what this run wrote: it was changed or is damaged"
        raise InputError(
            f"{path} {problem}, so that the rounds before the checkpoint are lost. Put the file back, or play the run "
            f"again from its beginning: {self.command} --restart"
        )


LONGEST_NAME = 255
"""Bytes of a name that every usual file system takes."""


def check_name(setting: str, name: str, nested: bool = False) -> None:
    """Refuse what cannot be the name of a directory, before anything is made; ``nested`` allows a path."""
    parts = name.split("/") if nested else [name]
    wrong = name in ("", ".", "..") or (not nested and "/" in name)
    if wrong or not name.isprintable() or max(len(os.fsencode(part)) for part in parts) > LONGEST_NAME:
        shown = repr(name) if len(name) <= 60 else f"{name[:57]!r}... of {len(name)} characters"
        raise InputError(
            f"{setting} must be the name of a directory, got {shown}. Take a name of 1 to {LONGEST_NAME} bytes without "
            "control characters" + ("." if nested else " and slashes.")
        )


NEEDED = ("agent", "measure", "finished", "rounds", "replicas", "over_replicas", "versions")
"""Keys that identify the summary of a run."""


def is_summary(content: Any) -> bool:
    """Whether the content of a JSON file is the summary of a run."""
    return isinstance(content, dict) and all(name in content for name in NEEDED)


def checksum(content: bytes) -> str:
    """SHA-256, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a config decides the result of a run."""
    precision = str((config.get("trainer") or {}).get("precision") or "32-true")
    return {"model": config.get("model"), "data": config.get("data"), "trainer": {"precision": precision}}


def differences(old: Any, new: Any, key: str = "") -> list[str]:
    """The keys in which two configs differ, such as ``model.init_args.nu``, sorted."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        found = [differences(old.get(k), new.get(k), f"{key}.{k}" if key else k) for k in old.keys() | new.keys()]
        return sorted(name for names in found for name in names)
    return [] if old == new else [key]
