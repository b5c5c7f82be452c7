"""A figure's result as files: everything that RESULTS.md needs, so that it can be rewritten without the runs."""

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any, NamedTuple

import numpy as np

from nl_lightning.core.errors import InputError
from nl_lightning.core.files import write_beside
from nl_lightning.experiments import figures, sweeps
from nl_lightning.experiments.claims import CLAIMS
from nl_lightning.experiments.readings import READINGS
from nl_lightning.experiments.results import (
    AgentResult,
    Control,
    FigureResult,
    Floor,
    PanelResult,
    SweepResult,
    Verdict,
)

__all__ = ["Stored", "from_json", "load", "load_all", "save", "to_json"]


class Stored(NamedTuple):
    """A figure as stored in its JSON file."""

    result: FigureResult
    """without the points of its curves, which are in ``<name>-curves.csv``"""
    horizon: int
    """the last round of the curves"""
    command: str
    """that made it; may be empty"""
    versions: dict[str, str]
    """of the packages that it was made with"""


def save(result: FigureResult, directory: Path, command: str = "") -> None:
    """Write ``<name>.csv``, ``<name>-curves.csv``, ``<name>.png``, ``<name>.svg`` and, last, ``<name>.json``.

    They go to the directory of the reading. With sweeps there are ``<name>-sweeps.png`` and ``.svg`` as well. The JSON
    file comes last: if it exists, the others exist.
    """
    directory = directory / result.reading
    directory.mkdir(parents=True, exist_ok=True)
    finals, curves = figures.finals_csv(result), figures.curves_csv(result)
    write_beside(directory / f"{result.name}.csv", lambda path: path.write_text(finals))
    write_beside(directory / f"{result.name}-curves.csv", lambda path: path.write_text(curves))
    for ending in figures.FORMATS:
        write_beside(directory / f"{result.name}.{ending}", lambda path: figures.draw(result, path))
        if result.sweeps:
            write_beside(directory / f"{result.name}-sweeps.{ending}", lambda path: sweeps.draw(result, path))
    text = json.dumps(to_json(result, command), indent=1, allow_nan=False) + "\n"
    write_beside(directory / f"{result.name}.json", lambda path: path.write_text(text))


def load(path: Path) -> Stored:
    """A figure's JSON file."""
    try:
        return from_json(json.loads(path.read_text()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} must be a figure's result as `reproduce` writes it, and cannot be read so ({error!r}). Remove it, "
            "or make it again."
        ) from error


def load_all(directory: Path) -> list[Stored]:
    """The figures of a directory: by reading, and in the paper's order."""
    paths = (directory / reading / f"{name}.json" for reading in READINGS for name in CLAIMS)
    return [load(path) for path in paths if path.exists()]


def to_json(result: FigureResult, command: str = "") -> dict[str, Any]:
    """Everything but the points of the curves; null where there is no number."""
    horizon = max((int(agent.t[-1]) for panel in result.panels for agent in panel.agents if len(agent.t)), default=0)
    return {
        "name": result.name,
        "title": result.title,
        "measure": result.measure,
        "horizon": horizon,
        "command": command,
        "versions": {
            "python": python_version(),
            **{name: version(name) for name in ("nl-lightning", "torch", "lightning", "numpy")},
        },
        "panels": [_panel_to_json(panel) for panel in result.panels],
        "verdicts": [verdict._asdict() for verdict in result.verdicts],
        "tuning": [{name: _plain(value) for name, value in row.items()} for row in result.tuning],
        "notes": list(result.notes),
        "seconds": float(result.seconds),
        "reading": result.reading,
        "controls": [control._asdict() for control in result.controls],
        "sweeps": [
            {**sweep._asdict(), "value": _plain(sweep.value), "final": [_plain(value) for value in sweep.final]}
            for sweep in result.sweeps
        ],
        "floors": [{**floor._asdict(), "final": [_plain(value) for value in floor.final]} for floor in result.floors],
    }


def from_json(stored: Mapping[str, Any]) -> Stored:
    """The inverse of ``to_json``; curves have no points."""
    result = FigureResult(
        name=stored["name"],
        title=stored["title"],
        measure=stored["measure"],
        panels=[_panel_from_json(panel) for panel in stored["panels"]],
        verdicts=[Verdict(**verdict) for verdict in stored["verdicts"]],
        tuning=stored["tuning"],
        notes=stored["notes"],
        seconds=stored["seconds"],
        reading=stored["reading"],
        controls=[Control(**control) for control in stored["controls"]],
        sweeps=[
            SweepResult(**{**sweep, "final": np.array(sweep["final"], dtype=np.float64)}) for sweep in stored["sweeps"]
        ],
        floors=[Floor(**{**floor, "final": np.array(floor["final"], dtype=np.float64)}) for floor in stored["floors"]],
    )
    return Stored(result, stored["horizon"], stored["command"], stored["versions"])


def _panel_to_json(panel: PanelResult) -> dict[str, Any]:
    agents = [
        {
            "agent": agent.agent,
            "settings": {name: _plain(value) for name, value in agent.settings.items()},
            "seeds": [int(seed) for seed in agent.seeds],
            "final": [_plain(value) for value in agent.final],
            "diverged": [int(seed) for seed in agent.diverged],
            "accepted": None if agent.accepted is None else [int(count) for count in agent.accepted],
        }
        for agent in panel.agents
    ]
    return {"name": panel.name, "title": panel.title, "row": panel.row, "column": panel.column, "agents": agents}


def _panel_from_json(stored: Mapping[str, Any]) -> PanelResult:
    agents = [
        AgentResult(
            agent=agent["agent"],
            settings=agent["settings"],
            seeds=agent["seeds"],
            t=np.empty(0, dtype=np.int64),
            curves=np.empty((len(agent["seeds"]), 0)),
            final=np.array(agent["final"], dtype=np.float64),
            diverged=agent["diverged"],
            accepted=agent["accepted"],
        )
        for agent in stored["agents"]
    ]
    return PanelResult(stored["name"], stored["title"], agents, stored["row"], stored["column"])


def _plain(value: Any) -> Any:
    """A NumPy number as a Python number; NaN, which JSON does not have, as null."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
