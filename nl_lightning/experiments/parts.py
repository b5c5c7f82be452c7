"""A part of a figure: one agent in one panel. First its grid search, then its final run with what the search chose.

    <root>/<figure>/<panel>/<agent>/                  the final run
    <root>/<figure>/<panel>/<agent>/tuning-lr=0.01/   the grid search, every setting and tuning seed a replica
    <root>/<figure>/<panel>/<agent>/sweep-kappa/      the chosen setting with other values of kappa
    <root>/<figure>/<panel>/<agent>/sweep-kappa-nu=0.1/    the same, but with this nu for all agents
    <root>/<figure>/<panel>/<agent>/further/          the final run of further seeds (further.py)

The search has seeds, and with them problems or orders of rows, that the final run does not have. Where no setting of
the grid comes through on all tuning seeds, another search may have a shorter step of TrainNN.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from lightning.pytorch.loggers import Logger

from nl_lightning.agents import AGENTS
from nl_lightning.experiments import fits, paper, tracking
from nl_lightning.experiments.common import (
    finished,
    joined,
    network,
    nothing,
    of_replicas,
    parameters,
    search_directory,
    seconds,
    ticks,
    width,
)
from nl_lightning.experiments.fits import Fit
from nl_lightning.experiments.pool import Tell
from nl_lightning.experiments.readings import Reading
from nl_lightning.experiments.results import AgentResult, SweepResult
from nl_lightning.reporting.tables import estimate
from nl_lightning.runs.summary import REGRET

__all__ = [
    "Chosen",
    "Part",
    "Search",
    "of_figure",
]


class Chosen(NamedTuple):
    """The result of a grid search."""

    nu: float
    lam: float
    lr: float | None
    diverged: int
    """tuning seeds that diverged; 0 unless every setting has some"""


class Search(NamedTuple):
    """A finished grid search: the step of TrainNN, None for the agent's default, and its summary."""

    lr: float | None
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
    reading: Reading
    root: Path
    """of the run directories of the reading"""
    tracked: tracking.WandbGroup | None = None
    """W&B's group of runs, if there is one"""

    @property
    def name(self) -> str:
        return f"{self.reading.name} {self.figure} {self.panel.name} {self.agent}"

    @property
    def directory(self) -> Path:
        return self.root / self.figure / self.panel.name / AGENTS[self.agent].__name__

    @property
    def further(self) -> Path:
        """The directory of the further seeds."""
        return self.directory / "further"

    @property
    def seeds(self) -> list[int]:
        return list(range(self.reading.seeds))

    @property
    def sweeps(self) -> list[paper.Sweep]:
        """What is varied after the final run; an agent that does not explore has no nu."""
        found = paper.FIGURES[self.figure].sweeps
        return [sweep for sweep in found if self.agent != paper.CONTROL or (sweep.name != "nu" and sweep.nu is None)]

    @property
    def costs(self) -> tuple[float, float, float]:
        """Estimated seconds of the grid search, of the final run and of the sweeps."""
        settings = math.prod(len(values) for values in self.reading.grid(self.agent).values())
        replicas = (
            settings * self.reading.tuning_seeds,
            self.reading.seeds,
            sum(len(sweep.values) for sweep in self.sweeps) * self.reading.sweep_seeds,
        )
        size = parameters(self.agent, self.panel.features, paper.NETWORK["width"])
        distinct = self.panel.distinct_arms
        search, final, sweeps = (
            seconds(count, self.reading.horizon, size, distinct) if count else 0.0 for count in replicas
        )
        return search, final, sweeps

    @property
    def cost(self) -> float:
        return sum(self.costs)

    # ---- what is run ----------------------------------------------------------------------------------------------

    def tuning(self, lr: float | None) -> Fit:
        """Every nu and lam with every tuning seed."""
        settings = {"grid": self.reading.grid(self.agent), "replicas": self.reading.tuning_seeds, **_step(lr)}
        return self._fit(search_directory(self.directory, lr), settings, paper.FIRST_TUNING_SEED)

    def final(self, chosen: Chosen) -> Fit:
        return self._fit(self.directory, {**self._settled(chosen), "replicas": self.reading.seeds}, 0)

    def sweep(self, chosen: Chosen) -> Iterator[tuple[paper.Sweep, Fit]]:
        """The fits of the sweeps, each with what it varies."""
        base = {**self._settled(chosen), "replicas": self.reading.sweep_seeds}
        for sweep in self.sweeps:
            name, values, nu = sweep
            settings: dict[str, Any] = base if nu is None else {**base, "nu": nu}
            if name == "arms":
                for value in values:
                    sizes = {"arms": int(value), "pool": int(value)}
                    there = self.panel.environment
                    there = there._replace(init_args={**there.init_args, **sizes})
                    fit = self._fit(self.directory / f"sweep-arms={value:g}", settings, 0)
                    yield sweep, fit._replace(environment=self.reading.described(there))
            else:
                settings = {key: value for key, value in settings.items() if key != name}
                settings["grid"] = {name: list(values)}
                directory = self.directory / (f"sweep-{name}" if nu is None else f"sweep-{name}-nu={nu:g}")
                yield sweep, self._fit(directory, settings, 0, without=name)

    def _settled(self, chosen: Chosen) -> dict[str, float]:
        """The settings that a search chose; an agent that does not explore has no nu."""
        return {name: getattr(chosen, name) for name in self.reading.grid(self.agent)} | _step(chosen.lr)

    def _fit(self, directory: Path, settings: Mapping[str, Any], seed: int, without: str = "") -> Fit:
        # Also if only seeds differ: a seed that diverges is marked, and the others continue.
        fixed = {**paper.FIXED, **self.reading.train, **network(self.agent), "seed": seed, "on_divergence": "mark"}
        fixed.pop(without, None)
        environment = self.reading.described(self.panel.environment)
        return Fit(directory, self.agent, {**fixed, **settings}, environment, self.reading.horizon)

    def run_further(self, total: int, tell: Tell) -> None:
        """Run the seeds behind the first ones, so that there are ``total``."""
        choice, first = self.chosen, self.reading.seeds
        assert choice is not None
        fit = self._fit(self.further, {**self._settled(choice), "replicas": total - first}, first)
        where = f"{self.reading.name}-{self.figure}"
        with tracking.run(self.tracked, self.further, where, f"{self.panel.name}-further", self.agent) as loggers:
            _run(fit, ticks(tell, "further", self.reading.horizon, 0, 1), loggers)

    def run(self, tell: Tell) -> str:
        """Run what is not finished, and return a line about the result."""
        horizon, cost = self.reading.horizon, self.cost
        searched, judged = self.costs[0] / cost, sum(self.costs[:2]) / cost
        steps = self.reading.steps(self.panel)
        for lr in steps:
            start = 0 if lr == steps[0] else searched
            told = ticks(tell, "tuning", horizon, start, searched)
            search = Search(lr, _run(self.tuning(lr), told))
            fits.drop_rounds(search_directory(self.directory, lr))
            if search.settled:
                break
        choice = search.chosen()
        if choice is None:
            return "TrainNN diverged in every setting of the grid"
        where = f"{self.reading.name}-{self.figure}"
        with tracking.run(self.tracked, self.directory, where, self.panel.name, self.agent) as loggers:
            summary = _run(self.final(choice), ticks(tell, "final", horizon, searched, judged), loggers)
        swept = list(self.sweep(choice))
        for number, (_, fit) in enumerate(swept):
            start, end = (judged + (1 - judged) * k / len(swept) for k in (number, number + 1))
            _run(fit, ticks(tell, "sweep", horizon, start, end))
            fits.drop_rounds(fit.directory)
        row = summary["over_replicas"][0]
        lost = f", {row['diverged']} of {self.reading.seeds} seeds diverged" if row["diverged"] else ""
        settled = {name: value for name, value in self._settled(choice).items() if (name, value) != ("lr", paper.LR[0])}
        shown = ", ".join(f"{name} {value:g}" for name, value in settled.items())
        return f"regret {estimate(row, REGRET)[0]} with {shown}{lost}"

    # ---- the result --------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        found = self.searches()
        if not found or not (found[-1].settled or len(found) == len(self.reading.steps(self.panel))):
            return False
        choice = found[-1].chosen()
        if choice is None:
            return True
        swept = [fit.directory for _, fit in self.sweep(choice)]
        return all(finished(directory) is not None for directory in (self.directory, *swept))

    @property
    def chosen(self) -> Chosen | None:
        """What the search chose; None if TrainNN diverged everywhere."""
        return self.searches()[-1].chosen()

    def searches(self) -> list[Search]:
        """The grid searches that are finished, up to the last one that was needed."""
        found: list[Search] = []
        for lr in self.reading.steps(self.panel):
            summary = finished(search_directory(self.directory, lr))
            if summary is None:
                break
            found.append(Search(lr, summary))
            if found[-1].settled:
                break
        return found

    def seconds(self) -> float:
        directories = [path.parent for path in self.directory.rglob("summary.json")]
        return float(sum(summary["seconds"] for path in directories if (summary := finished(path))))

    def result(self) -> AgentResult:
        """Of all seeds."""
        first, further = self.first_result(), finished(self.further)
        if further is None:
            return first
        return joined(first, of_replicas(self.further, further, first.settings, range(len(further["replicas"]))))

    def first_result(self) -> AgentResult:
        """Of the first seeds."""
        choice, summary = self.chosen, finished(self.directory)
        used = {name: paper.FIXED[name] for name in ("kappa", "S")} | width(self.agent, paper.NETWORK["width"])
        if choice is None or summary is None:
            return nothing(self.agent, {**dict.fromkeys(self.reading.grid(self.agent), np.nan), **used}, self.seeds)
        settings = {**self._settled(choice), **used}
        return of_replicas(self.directory, summary, settings, range(self.reading.seeds))

    def sweep_results(self) -> list[SweepResult]:
        """The final regrets by what was varied, value and seed."""
        choice = self.chosen
        found: list[SweepResult] = []
        for sweep, fit in self.sweep(choice) if choice else ():
            summary = finished(fit.directory)
            assert summary is not None, fit.directory
            for cell in summary["over_replicas"]:
                value = fit.environment.init_args["arms"] if sweep.name == "arms" else cell[sweep.name]
                rows = [summary["replicas"][replica] for replica in cell["replicas"]]
                final = [np.nan if row["diverged_at"] is not None else row["regret"] for row in rows]
                seeds = [row["seed"] for row in rows]
                final_array = np.array(final, np.float64)
                found.append(SweepResult(self.panel.name, self.agent, sweep.title, value, seeds, final_array))
        return sorted(found, key=lambda result: (result.varied, result.value))

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
        assert search.lr is not None
        tried = " and ".join(f"{other.lr:g}" for other in before)
        return (
            f"{self.agent} on {self.panel.name}: TrainNN takes steps of {search.lr:g}, because with {tried} no setting "
            "of the grid came through on all tuning seeds."
        )


def of_figure(
    figure: paper.Figure, reading: Reading, root: Path, tracked: tracking.WandbGroup | None = None
) -> list[Part]:
    """The parts of a figure in a reading: every agent and the control in every panel."""
    return [
        Part(figure.name, panel, agent, reading, root, tracked)
        for panel in reading.panels(figure)
        for agent in (*figure.agents, paper.CONTROL)
    ]


def _step(lr: float | None) -> dict[str, float]:
    return {} if lr is None else {"lr": lr}


def _run(fit: Fit, told: fits.OnRounds, loggers: list[Logger] | None = None) -> dict[str, Any]:
    return fits.run(fit, fits.environment_of(fit.environment), told, loggers)
