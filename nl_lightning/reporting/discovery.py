"""Finds the runs of a report in directories, with their summaries and configs."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nl_lightning.core.errors import InputError
from nl_lightning.runs.directory import RunDirectory, is_summary
from nl_lightning.runs.summary import MEASURES, Measure

__all__ = ["Found", "StoredRun", "find", "flat_configs"]

_EXPECTED = (
    "Expected the directory of a run, with the summary.json and rounds.parquet that fit writes, or a directory above "
    "such directories."
)


class StoredRun(NamedTuple):
    """A run on disk."""

    name: str
    """unique among the runs of a report"""
    directory: RunDirectory
    summary: dict[str, Any]
    config: dict[str, Any]

    @property
    def measure(self) -> Measure:
        return MEASURES[self.summary["measure"]]

    @property
    def environment(self) -> dict[str, Any]:
        return (self.config.get("data") or {}).get("environment") or {}


class Found(NamedTuple):
    """The runs found, and a text for each run that was found but cannot be shown."""

    runs: list[StoredRun]
    left_out: list[str]


def find(paths: Sequence[Path]) -> Found:
    """Find the runs in these directories and below, each once, in the order of the paths."""
    runs: dict[Path, tuple[RunDirectory, dict[str, Any]]] = {}
    left_out: dict[str, None] = {}
    for path in paths:
        if not path.is_dir():
            what = "is no directory" if path.exists() else "does not exist"
            raise InputError(f"{path} {what}. {_EXPECTED}")
        here: list[str] = []
        several = len(runs)
        again = False
        for directory in sorted(Path(where) for where, _, _ in os.walk(path)):
            again |= directory.resolve() in runs
            run = RunDirectory(directory)
            why, summary = _inspect(run)
            if summary is not None:
                runs.setdefault(directory.resolve(), (run, summary))
            elif why:
                here.append(f"{directory}: {why}")
        if len(runs) == several and not again:
            raise InputError(" ".join([f"{path} holds no run. {_EXPECTED}", *(f"{line}." for line in here)]))
        left_out |= dict.fromkeys(here)
    names = _names(list(runs))
    stored = [
        # a run that was recorded by the user's own program has no config
        StoredRun(name, run, summary, run.read_config() if run.config.exists() else {})
        for name, (run, summary) in zip(names, runs.values(), strict=True)
    ]
    return Found(stored, list(left_out))


def _inspect(run: RunDirectory) -> tuple[str | None, dict[str, Any] | None]:
    """The summary of a run that can be shown, or the reason why it cannot be. Neither if there is no run."""
    if not run.summary.exists():
        begun = run.config.exists() and (run.parts.is_dir() or run.checkpoint.exists())
        return "a run without a result, which still goes on or was cut off" if begun else None, None
    summary = run.summary_content()
    if not is_summary(summary):
        return "its summary.json is not that of a run", None
    if not summary.get("rounds_kept", True):
        # a grid search of a reproduction, whose result is in RESULTS.md
        return None, None
    if not run.rounds.exists():
        return "its rounds.parquet is missing", None
    return None, summary


def _names(paths: Sequence[Path]) -> list[str]:
    """The last parts of the paths: two (``h1/20250101-120000``), or as many as make them unique."""
    for parts in range(2, max((len(path.parts) for path in paths), default=2) + 1):
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def flat_configs(runs: Sequence[StoredRun]) -> list[dict[str, Any]]:
    """One row per key (``model.init_args.nu``) with one value per run; null if a run's config has no such key."""
    flat = [dict(_flat("", run.config)) for run in runs]
    keys = dict.fromkeys(key for config in flat for key in config)
    rows = []
    for key in keys:
        values = [config.get(key) for config in flat]
        rows.append({"key": key, "values": values, "differs": len(set(values)) > 1})
    return rows


def _flat(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _flat(f"{key}.{name}" if key else str(name), inner)
    elif key:
        yield key, value if isinstance(value, str) else json.dumps(value, default=str)
