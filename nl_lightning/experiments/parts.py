"""A part of a figure: one agent in one panel. First its grid search, then its final run with what the search chose.

    <root>/<figure>/<panel>/<agent>/                  the final run
    <root>/<figure>/<panel>/<agent>/tuning-lr=0.01/   the grid search, every setting and tuning seed a replica

The search has seeds, and with them problems or orders of rows, that the final run does not have. Where no setting of
the grid comes through on all tuning seeds, another search has a shorter step of TrainNN.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nl_lightning.agents import AGENTS
from nl_lightning.experiments import fits, paper, tracking
from nl_lightning.experiments.fits import Fit
from nl_lightning.experiments.pool import Tell, Tick
from nl_lightning.experiments.results import AgentResult
from nl_lightning.reporting.curves import read_curves
from nl_lightning.reporting.tables import estimate
from nl_lightning.runs.directory import RunDirectory
from nl_lightning.runs.summary import CTR, MEASURES, REGRET

__all__ = [
    "Chosen",
    "Part",
    "Search",
    "finished",
    "network",
    "nothing",
    "of_figure",
    "of_replicas",
    "parameters",
    "search_directory",
    "seconds",
    "ticks",
    "width",
]


class Chosen(NamedTuple):
    """The result of a grid search."""

    nu: float
    lam: float
    lr: float
    diverged: int
    """tuning seeds that diverged; 0 unless every setting has some"""


class Search(NamedTuple):
    """A finished grid search: the step of TrainNN, and its summary."""

    lr: float
    summary: dict[str, Any]

    def chosen(self) -> Chosen | None:
        """The lowest mean regret where no tuning seed diverged, else where the fewest did; None if all did."""
        best = self.summary["over_replicas"][0]
        return None if best["regret"] is None else Chosen(best["nu"], best["lam"], self.lr, best["diverged"])

    @property
    def settled(self) -> bool:
        """Whether some setting did not diverge on any tuning seed, so that no shorter step need be tried."""
        choice = self.chosen()
        return choice is not None and not choice.diverged


class Part(NamedTuple):
    """One agent in one panel."""

    figure: str
    panel: paper.Panel
    agent: str
    scale: paper.Scale
    root: Path
    """of all run directories"""
    tracked: tracking.WandbGroup | None = None
    """W&B's group of runs, if there is one"""

    @property
    def name(self) -> str:
        return f"{self.figure} {self.panel.name} {self.agent}"

    @property
    def directory(self) -> Path:
        return self.root / self.figure / self.panel.name / AGENTS[self.agent].__name__

    @property
    def seeds(self) -> list[int]:
        return list(range(self.scale.seeds))

    @property
    def costs(self) -> tuple[float, float]:
        """Estimated seconds of the grid search and of the final run."""
        searched = len(self.scale.grid) ** 2 * self.scale.tuning_seeds
        size = parameters(self.agent, self.panel.features, paper.NETWORK["width"])
        return seconds(searched, self.scale.horizon, size), seconds(self.scale.seeds, self.scale.horizon, size)

    @property
    def cost(self) -> float:
        return sum(self.costs)

    # ---- what is run ----------------------------------------------------------------------------------------------

    def tuning(self, lr: float) -> Fit:
        """Every nu and lam with every tuning seed."""
        values = list(self.scale.grid)
        settings = {"grid": {"nu": values, "lam": values}, "replicas": self.scale.tuning_seeds, "lr": lr}
        return self._fit(search_directory(self.directory, lr), settings, paper.FIRST_TUNING_SEED)

    def final(self, chosen: Chosen) -> Fit:
        settings = {"nu": chosen.nu, "lam": chosen.lam, "replicas": self.scale.seeds, "lr": chosen.lr}
        return self._fit(self.directory, settings, 0)

    def _fit(self, directory: Path, settings: Mapping[str, Any], seed: int) -> Fit:
        # Also if only seeds differ: a seed that diverges is marked, and the others continue.
        fixed = {**paper.FIXED, **network(self.agent), "seed": seed, "on_divergence": "mark"}
        return Fit(directory, self.agent, {**fixed, **settings}, self.panel.environment, self.scale.horizon)

    def run(self, tell: Tell) -> str:
        """Run what is not finished, and return a line about the result."""
        environment = fits.environment_of(self.panel.environment)
        searched, horizon = self.costs[0] / self.cost, self.scale.horizon
        for lr in self.panel.lr:
            start = 0 if lr == self.panel.lr[0] else searched
            told = ticks(tell, "tuning", horizon, start, searched)
            search = Search(lr, fits.run(self.tuning(lr), environment, told))
            fits.drop_rounds(search_directory(self.directory, lr))
            if search.settled:
                break
        choice = search.chosen()
        if choice is None:
            return "TrainNN diverged in every setting of the grid"
        with tracking.run(self.tracked, self.directory, self.figure, self.panel.name, self.agent) as loggers:
            told = ticks(tell, "final", horizon, searched, 1)
            summary = fits.run(self.final(choice), environment, told, loggers)
        row = summary["over_replicas"][0]
        lost = f", {row['diverged']} of {self.scale.seeds} seeds diverged" if row["diverged"] else ""
        step = f", lr {choice.lr:g}" if choice.lr != paper.LR[0] else ""
        return f"regret {estimate(row, REGRET)[0]} with nu {choice.nu:g}, lam {choice.lam:g}{step}{lost}"

    # ---- the result --------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        found = self.searches()
        last = found and (found[-1].settled or len(found) == len(self.panel.lr))
        return bool(last) and (found[-1].chosen() is None or finished(self.directory) is not None)

    def searches(self) -> list[Search]:
        """The grid searches that are finished, up to the last one that was needed."""
        found: list[Search] = []
        for lr in self.panel.lr:
            summary = finished(search_directory(self.directory, lr))
            if summary is None:
                break
            found.append(Search(lr, summary))
            if found[-1].settled:
                break
        return found

    def seconds(self) -> float:
        found = [search.summary for search in self.searches()]
        return float(sum(summary["seconds"] for summary in (*found, finished(self.directory)) if summary))

    def result(self) -> AgentResult:
        choice, summary = self.searches()[-1].chosen(), finished(self.directory)
        used = {name: paper.FIXED[name] for name in ("kappa", "S")} | width(self.agent, paper.NETWORK["width"])
        if choice is None or summary is None:
            return nothing(self.agent, {"nu": np.nan, "lam": np.nan, "lr": np.nan, **used}, self.seeds)
        settings = {"nu": choice.nu, "lam": choice.lam, "lr": choice.lr, **used}
        return of_replicas(self.directory, summary, settings, range(self.scale.seeds))

    def tuning_rows(self) -> list[dict[str, Any]]:
        """Every setting of the grids: the mean regret of the seeds that did not diverge, and how many did."""
        found = self.searches()
        choice = found[-1].chosen()
        return [
            {
                "panel": self.panel.name,
                "agent": self.agent,
                "lr": search.lr,
                "nu": row["nu"],
                "lam": row["lam"],
                "mean": row["regret"],
                "seeds": len(row["replicas"]),
                "diverged": row["diverged"],
                "chosen": choice is not None and (row["nu"], row["lam"], search.lr) == choice[:3],
            }
            for search in found
            for row in sorted(search.summary["over_replicas"], key=lambda row: (row["nu"], row["lam"]))
        ]

    def note(self) -> str | None:
        """Says if the step is not the paper's, and why."""
        *before, search = self.searches()
        if not before:
            return None
        tried = " and ".join(f"{other.lr:g}" for other in before)
        return (
            f"{self.agent} on {self.panel.name}: TrainNN takes steps of {search.lr:g}, because with {tried} no setting "
            "of the grid came through on all tuning seeds."
        )


def of_figure(
    figure: paper.Figure, scale: paper.Scale, root: Path, tracked: tracking.WandbGroup | None = None
) -> list[Part]:
    return [Part(figure.name, panel, agent, scale, root, tracked) for panel in figure.panels for agent in figure.agents]


# ---- what parts have in common with those of the replay --------------------------------------------------------------


def network(agent: str, m: int = paper.NETWORK["width"]) -> dict[str, Any]:
    """Settings of the network, for an agent that has one."""
    return {} if agent in paper.LINEAR else {**paper.NETWORK, "width": m}


def width(agent: str, m: int) -> dict[str, float]:
    """The width m, for an agent that has a network."""
    return {} if agent in paper.LINEAR else {"m": m}


def parameters(agent: str, features: int, m: int) -> int:
    return features if agent in paper.LINEAR else features * m


def seconds(replicas: int, rounds: int, parameters: int) -> float:
    """Estimated seconds of a fit on one core: the rounds of all replicas, and TrainNN, whose sums grow with them."""
    return 0.1 + rounds * (5e-4 + replicas * (2e-5 + 1e-7 * parameters + 2.2e-10 * rounds * parameters))


def ticks(tell: Tell, stage: str, total: int, start: float, end: float) -> fits.OnRounds:
    """Report the progress of a fit that takes the fractions ``start`` to ``end`` of a part."""

    def on_rounds(played: int) -> None:
        # TrainNN takes longer with every round
        tell(Tick(stage, played, total, start + (end - start) * (played / total) ** 1.5))

    on_rounds(0)
    return on_rounds


def finished(directory: Path) -> dict[str, Any] | None:
    """The summary of a finished run; None if the run is not finished."""
    summary = RunDirectory(directory).read_summary()
    return summary if summary and summary["finished"] else None


def search_directory(directory: Path, lr: float) -> Path:
    return directory / f"tuning-lr={lr:g}"


def of_replicas(
    directory: Path, summary: Mapping[str, Any], settings: dict[str, float], replicas: Sequence[int]
) -> AgentResult:
    """The result of some replicas of a run."""
    measure = MEASURES[summary["measure"]]
    rows = [summary["replicas"][replica] for replica in replicas]
    curves = read_curves(RunDirectory(directory).rounds, len(summary["replicas"]), measure)
    lost = [row["seed"] for row in rows if row["diverged_at"] is not None]
    final = [np.nan if row["seed"] in lost or row[measure.name] is None else row[measure.name] for row in rows]
    seeds = [row["seed"] for row in rows]
    value = curves.value[list(replicas)]
    accepted = [row["accepted"] for row in rows] if measure is CTR else None
    final_array = np.array(final, dtype=np.float64)
    return AgentResult(summary["agent"], settings, seeds, curves.t, value, final_array, lost, accepted)


def nothing(agent: str, settings: dict[str, float], seeds: list[int]) -> AgentResult:
    """The result of an agent that diverged with every setting."""
    none = np.full((len(seeds), 1), np.nan)
    return AgentResult(agent, settings, seeds, np.array([1], dtype=np.int64), none, none[:, 0], seeds)
