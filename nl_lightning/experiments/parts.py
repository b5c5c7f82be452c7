"""A part of a figure: one agent in one panel. First its grid search, then its final run with what the search chose.

    <root>/<figure>/<panel>/<agent>/          the final run
    <root>/<figure>/<panel>/<agent>/tuning/   the grid search, every setting and tuning seed a replica of one run

The search has seeds, and with them problems, that the final run does not have.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nl_lightning import report
from nl_lightning.agents import AGENTS
from nl_lightning.experiments import fits, paper, tracking
from nl_lightning.experiments.fits import Fit
from nl_lightning.experiments.pool import Tell, Tick
from nl_lightning.experiments.results import AgentResult
from nl_lightning.run import RunDirectory


class Chosen(NamedTuple):
    """What a grid search came to."""

    nu: float
    lam: float
    diverged: int
    """tuning seeds that diverged; 0 unless every setting has some"""


class Part(NamedTuple):
    """One agent in one panel."""

    figure: str
    panel: paper.Panel
    agent: str
    scale: paper.Scale
    root: Path
    """of all run directories"""
    tracked: tracking.Group | None = None
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
        """About the seconds of the grid search and of the final run."""
        searched = len(self.scale.grid) ** 2 * self.scale.tuning_seeds
        size = parameters(self.agent, self.panel.features, paper.NETWORK["width"])
        return seconds(searched, self.scale.horizon, size), seconds(self.scale.seeds, self.scale.horizon, size)

    @property
    def cost(self) -> float:
        return sum(self.costs)

    # ---- what is run ----------------------------------------------------------------------------------------------

    def tuning(self) -> Fit:
        """Every nu and lam with every tuning seed."""
        values = list(self.scale.grid)
        settings = {"grid": {"nu": values, "lam": values}, "replicas": self.scale.tuning_seeds}
        return self._fit(self.directory / "tuning", settings, paper.FIRST_TUNING_SEED)

    def final(self, chosen: Chosen) -> Fit:
        settings = {"nu": chosen.nu, "lam": chosen.lam, "replicas": self.scale.seeds}
        return self._fit(self.directory, settings, 0)

    def _fit(self, directory: Path, settings: Mapping[str, Any], seed: int) -> Fit:
        # Also where only seeds differ: one that diverges is marked, and the others stay.
        fixed = {**paper.FIXED, **network(self.agent), "seed": seed, "on_divergence": "mark"}
        return Fit(directory, self.agent, {**fixed, **settings}, self.panel.environment, self.scale.horizon)

    def run(self, tell: Tell) -> str:
        """Run what is not finished; a line on what came out."""
        environment = fits.environment_of(self.panel.environment)
        searched, horizon = self.costs[0] / self.cost, self.scale.horizon
        found = fits.run(self.tuning(), environment, ticks(tell, "tuning", horizon, 0, searched))
        fits.drop_rounds(self.directory / "tuning")
        choice = chosen(found)
        if choice is None:
            return "TrainNN diverged in every setting of the grid"
        with tracking.run(self.tracked, self.directory, self.figure, self.panel.name, self.agent) as loggers:
            told = ticks(tell, "final", horizon, searched, 1)
            summary = fits.run(self.final(choice), environment, told, loggers)
        row = summary["over_replicas"][0]
        lost = f", {row['diverged']} of {self.scale.seeds} seeds diverged" if row["diverged"] else ""
        return f"regret {report.estimate(row, report.REGRET)[0]} with nu {choice.nu:g}, lam {choice.lam:g}{lost}"

    # ---- what came out --------------------------------------------------------------------------------------------

    def searched(self) -> dict[str, Any] | None:
        """The summary of the grid search, once it is finished."""
        return finished(self.directory / "tuning")

    @property
    def finished(self) -> bool:
        found = self.searched()
        return found is not None and (chosen(found) is None or finished(self.directory) is not None)

    def seconds(self) -> float:
        found = [finished(self.directory / "tuning"), finished(self.directory)]
        return float(sum(summary["seconds"] for summary in found if summary))

    def result(self) -> AgentResult:
        found = self.searched()
        assert found is not None, self.name
        choice, summary = chosen(found), finished(self.directory)
        used = {name: paper.FIXED[name] for name in ("kappa", "S")} | width(self.agent, paper.NETWORK["width"])
        if choice is None or summary is None:
            return nothing(self.agent, {"nu": np.nan, "lam": np.nan, **used}, self.seeds)
        settings = {"nu": choice.nu, "lam": choice.lam, **used}
        return of_replicas(self.directory, summary, settings, range(self.scale.seeds))

    def tuning_rows(self) -> list[dict[str, Any]]:
        """Every setting of the grid: the mean regret of the seeds that did not diverge, and how many did."""
        found = self.searched()
        assert found is not None, self.name
        choice = chosen(found)
        rows = sorted(found["over_replicas"], key=lambda row: (row["nu"], row["lam"]))
        return [
            {
                "panel": self.panel.name,
                "agent": self.agent,
                "nu": row["nu"],
                "lam": row["lam"],
                "mean": row["regret"],
                "seeds": len(row["replicas"]),
                "diverged": row["diverged"],
                "chosen": choice is not None and (row["nu"], row["lam"]) == choice[:2],
            }
            for row in rows
        ]


def of_figure(
    figure: paper.Figure, scale: paper.Scale, root: Path, tracked: tracking.Group | None = None
) -> list[Part]:
    return [Part(figure.name, panel, agent, scale, root, tracked) for panel in figure.panels for agent in figure.agents]


# ---- what parts have in common with those of the replay --------------------------------------------------------------


def network(agent: str, m: int = paper.NETWORK["width"]) -> dict[str, Any]:
    """Settings of the network, of an agent that has one."""
    return {} if agent in paper.LINEAR else {**paper.NETWORK, "width": m}


def width(agent: str, m: int) -> dict[str, float]:
    """m among an agent's settings, if it has one."""
    return {} if agent in paper.LINEAR else {"m": m}


def parameters(agent: str, features: int, m: int) -> int:
    return features if agent in paper.LINEAR else features * m


def seconds(replicas: int, rounds: int, parameters: int) -> float:
    """About what a fit takes on one core: rounds of all replicas, and the sums of TrainNN, which grow with them."""
    return 0.1 + rounds * (5e-4 + replicas * (2e-5 + 1e-7 * parameters + 2.2e-10 * rounds * parameters))


def ticks(tell: Tell, stage: str, total: int, start: float, end: float) -> fits.OnRounds:
    """Tell how far a fit is whose beginning and end are these fractions of a part: TrainNN grows with the rounds."""

    def on_rounds(played: int) -> None:
        tell(Tick(stage, played, total, start + (end - start) * (played / total) ** 1.5))

    on_rounds(0)
    return on_rounds


def finished(directory: Path) -> dict[str, Any] | None:
    """The summary of a run that has come to its end."""
    summary = RunDirectory(directory).read_summary()
    return summary if summary and summary["finished"] else None


def chosen(searched: Mapping[str, Any]) -> Chosen | None:
    """The lowest mean regret where no tuning seed diverged, else where the fewest did; None if no seed came through."""
    best = searched["over_replicas"][0]
    return None if best["regret"] is None else Chosen(best["nu"], best["lam"], best["diverged"])


def of_replicas(
    directory: Path, summary: Mapping[str, Any], settings: dict[str, float], replicas: Sequence[int]
) -> AgentResult:
    """The result of some replicas of a run."""
    measure = report.MEASURES[summary["measure"]]
    rows = [summary["replicas"][replica] for replica in replicas]
    curves = report.read_curves(RunDirectory(directory).rounds, len(summary["replicas"]), measure)
    lost = [row["seed"] for row in rows if row["diverged_at"] is not None]
    final = [np.nan if row["seed"] in lost or row[measure.name] is None else row[measure.name] for row in rows]
    seeds = [row["seed"] for row in rows]
    value = curves.value[list(replicas)]
    return AgentResult(summary["agent"], settings, seeds, curves.t, value, np.array(final, dtype=np.float64), lost)


def nothing(agent: str, settings: dict[str, float], seeds: list[int]) -> AgentResult:
    """The result of an agent that diverged with every setting."""
    none = np.full((len(seeds), 1), np.nan)
    return AgentResult(agent, settings, seeds, np.array([1], dtype=np.int64), none, none[:, 0], seeds)
