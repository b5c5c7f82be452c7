"""nu and lam of the replay: as the paper has it, those of the synthetic and classification-based experiments."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nl_lightning.agents import AGENTS
from nl_lightning.core.files import write_beside
from nl_lightning.experiments import paper
from nl_lightning.experiments.common import finished, search_directory
from nl_lightning.experiments.readings import Reading

__all__ = ["Shared", "best_of", "read_settings", "settings_file", "settle_settings", "shared_settings"]


class Shared(NamedTuple):
    """nu and lam of an agent in the replay."""

    nu: float
    lam: float
    panels: list[str]
    """the panels whose grids were used; empty if the defaults were used"""


def shared_settings(root: Path, reading: Reading) -> dict[str, Shared]:
    """The setting of every agent with the best mean rank over all grids that were searched here.

    Settings that diverged nowhere come first; where there is none, those that diverged least. Without a grid the
    defaults are taken.
    """
    found: dict[str, dict[str, list[dict[str, Any]]]] = {agent: {} for agent in paper.PAPER_AGENTS}
    # with another step than the replay's, other settings are good
    step = paper.LR[0] if reading.shorter else None
    for figure in paper.FIGURES.values():
        for panel in figure.panels:
            for agent in figure.agents:
                summary = finished(search_directory(root / figure.name / panel.name / AGENTS[agent].__name__, step))
                if summary:
                    found[agent][f"{figure.name} {panel.name}"] = summary["over_replicas"]
    return {agent: best_of(agent, grids) for agent, grids in found.items()}


def best_of(agent: str, grids: Mapping[str, Sequence[Mapping[str, Any]]]) -> Shared:
    """The best setting of grids whose rows come best first."""
    places = [{(row["nu"], row["lam"]): number for number, row in enumerate(rows)} for rows in grids.values()]
    diverged = [{(row["nu"], row["lam"]): row["diverged"] for row in rows} for rows in grids.values()]
    common = sorted(set.intersection(*(set(panel) for panel in places))) if places else []
    if not common:
        return Shared(**paper.DEFAULTS[agent], panels=[])
    nu, lam = min(
        common, key=lambda cell: (sum(panel[cell] for panel in diverged), sum(panel[cell] for panel in places))
    )
    return Shared(nu, lam, list(grids))


def settings_file(root: Path) -> Path:
    return root / "replay-settings.json"


def settle_settings(root: Path, reading: Reading) -> None:
    """Store nu and lam before the first replay. They never change afterwards: a table has one setting per agent."""
    path = settings_file(root)
    if not path.exists():
        stored = {agent: shared._asdict() for agent, shared in shared_settings(root, reading).items()}
        root.mkdir(parents=True, exist_ok=True)
        write_beside(path, lambda beside: beside.write_text(json.dumps(stored, indent=2) + "\n"))


def read_settings(root: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(settings_file(root).read_text())
    return found
