"""The table on the Open Bandit Dataset and its three figures, on the bundled sample and on a simulated log.

Each width m is a run of its own; the values of kappa and S are replicas of one run, on the same seeds:

    <root>/<log>/m=20/<agent>/     kappa 50, 100, 200 at S = 1; S 10, 100 at kappa = 50
    <root>/<log>/m=50/<agent>/     kappa = 50, S = 1
    <root>/<log>/linear/<agent>/   as m=20; a linear agent has no network, and its run counts for every m
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from nl_lightning.agents import AGENTS
from nl_lightning.experiments import fits, paper, power, tracking
from nl_lightning.experiments.common import finished, network, of_replicas, parameters, seconds, ticks, width
from nl_lightning.experiments.fits import Fit
from nl_lightning.experiments.pool import Tell
from nl_lightning.experiments.readings import READINGS, Reading
from nl_lightning.experiments.results import FigureResult, PanelResult
from nl_lightning.experiments.shared import read_settings, settle_settings
from nl_lightning.runs.summary import CTR

__all__ = [
    "LOGS",
    "Case",
    "LogName",
    "ReplayPart",
    "cases",
    "horizon",
    "logs",
    "notes",
    "parts",
    "prepare",
    "results",
    "simulated_log",
]

LogName = Literal["obd", "simulated"]
LOGS: dict[LogName, str] = {
    "obd": "the sample of the Open Bandit Dataset that obp carries",
    "simulated": "a simulated log",
}
_FEATURES = 42
_LETTERS = {"m": "m", "kappa": r"\kappa", "S": "S"}

Case = tuple[float, float]
"""kappa and S"""


def cases(m: int | None) -> list[Case]:
    """kappa and S of the replicas of a run: only the pairs of the paper's table."""
    base = paper.REPLAY_BASE
    found = [(base["kappa"], base["S"])]
    if m in (None, base["m"]):
        found += [(kappa, base["S"]) for kappa in paper.REPLAY_VARIED["kappa"]]
        found += [(base["kappa"], S) for S in paper.REPLAY_VARIED["S"]]
    return list(dict.fromkeys(found))


class ReplayPart(NamedTuple):
    """One agent of one width on one log."""

    log: LogName
    m: int | None
    """None for a linear agent"""
    agent: str
    reading: Reading
    root: Path
    tracked: tracking.WandbGroup | None = None

    @property
    def figure(self) -> str:
        return self.log

    @property
    def panel_name(self) -> str:
        return "linear" if self.m is None else f"m={self.m}"

    @property
    def name(self) -> str:
        return f"{self.reading.name} {self.log} {self.panel_name} {self.agent}"

    @property
    def directory(self) -> Path:
        return self.root / self.log / self.panel_name / AGENTS[self.agent].__name__

    @property
    def replicas(self) -> list[tuple[Case, int]]:
        """kappa, S and seed of each replica."""
        return [(case, seed) for case in cases(self.m) for seed in range(self.reading.replay_seeds)]

    @property
    def cost(self) -> float:
        size = parameters(self.agent, _FEATURES, self.m or 1)
        return seconds(len(self.replicas), horizon(self.log, self.reading), size)

    @property
    def environment(self) -> paper.Description:
        log = None if self.log == "obd" else str(simulated_log(self.root))
        return paper.Description("replay.ReplayLog", {"log": log, **paper.REPLAY})

    def fit(self) -> Fit:
        shared = read_settings(self.root)[self.agent]
        settings = {
            **self.reading.train,
            **({} if self.m is None else network(self.agent, self.m)),
            **({"lr": paper.LR[0]} if self.reading.shorter else {}),
            "nu": shared["nu"],
            "lam": shared["lam"],
            "kappa": [kappa for (kappa, _), _ in self.replicas],
            "S": [S for (_, S), _ in self.replicas],
            "seed": [seed for _, seed in self.replicas],
            "replicas": len(self.replicas),
            "on_divergence": "mark",
        }
        return Fit(self.directory, self.agent, settings, self.environment, horizon(self.log, self.reading))

    def run(self, tell: Tell) -> str:
        environment = fits.environment_of(self.environment)
        where, told = f"{self.reading.name}-{self.log}", ticks(tell, "replay", horizon(self.log, self.reading), 0, 1)
        with tracking.run(self.tracked, self.directory, where, self.panel_name, self.agent) as loggers:
            summary = fits.run(self.fit(), environment, told, loggers)
        rows = [row for row in summary["replicas"][: self.reading.replay_seeds] if row["diverged_at"] is None]
        rates = [row["ctr"] for row in rows if row["ctr"] is not None]
        return f"CTR {np.mean(rates):.4f}" if rates else "TrainNN diverged for every seed"

    @property
    def finished(self) -> bool:
        return finished(self.directory) is not None

    def seconds(self) -> float:
        summary = finished(self.directory)
        return float(summary["seconds"]) if summary else 0.0

    def of_case(self, case: Case) -> list[int]:
        """The replicas with this kappa and S."""
        return [number for number, (other, _) in enumerate(self.replicas) if other == case]


def logs(reading: Reading) -> list[LogName]:
    """The logs that are replayed in a reading: the simulated one, which is long, only where TrainNN is stable."""
    return [log for log in LOGS if log == "obd" or not reading.shorter]


def horizon(log: LogName, reading: Reading) -> int:
    """T, in accepted events: the paper's, or on the simulated log what the power calculation asks for."""
    if log == "obd" or reading.events is not None:
        return reading.horizon
    return power.accepted_events(paper.SIMULATED_LOG["ctr"])


def parts(log: LogName, reading: Reading, root: Path, tracked: tracking.WandbGroup | None = None) -> list[ReplayPart]:
    widths = [int(m) for m in paper.REPLAY_VARIED["m"]]
    return [
        ReplayPart(log, m, agent, reading, root, tracked)
        for agent in paper.PAPER_AGENTS
        for m in ([None] if agent in paper.LINEAR else widths)
    ]


# ---- logs ------------------------------------------------------------------------------------------------------------


def simulated_log(root: Path) -> Path:
    return root / "simulated-log"


def prepare(logs: Sequence[LogName], reading: Reading, root: Path) -> None:
    """Prepare what the replays need: nu and lam, and the logs."""
    from replay.formats.sample import bundled_log
    from replay.simulation.simulate import make_log
    from replay.simulation.simulated_world import SimulatedWorld

    settle_settings(root, reading)
    if "obd" in logs:
        bundled_log()
    if "simulated" in logs:
        events = reading.events or power.logged_events(horizon("simulated", reading), paper.REPLAY["arms"])
        make_log(simulated_log(root), SimulatedWorld(**paper.SIMULATED_LOG), events)


# ---- results ---------------------------------------------------------------------------------------------------------


def results(log: LogName, reading: Reading, root: Path) -> list[FigureResult]:
    """The figures over m, kappa and S, without verdicts."""
    all_parts = parts(log, reading, root)
    by_run = {(part.agent, part.m): part for part in all_parts}
    summaries = {part.name: finished(part.directory) for part in all_parts}
    shared = read_settings(root)
    total = sum(part.seconds() for part in all_parts)
    made = []
    for varied, values in paper.REPLAY_VARIED.items():
        panels, used = [], []
        for column, value in enumerate(values):
            setting = {**paper.REPLAY_BASE, varied: value}
            agents = []
            for agent in paper.PAPER_AGENTS:
                m = int(setting["m"])
                part = by_run[agent, None if agent in paper.LINEAR else m]
                summary = summaries[part.name]
                assert summary is not None, part.name
                replicas = part.of_case((setting["kappa"], setting["S"]))
                nu_lam = {name: float(shared[agent][name]) for name in ("nu", "lam")}
                values_used = {**nu_lam, "kappa": setting["kappa"], "S": setting["S"], **width(agent, m)}
                agents.append(of_replicas(part.directory, summary, values_used, replicas))
                used += [summary["replicas"][replica] for replica in replicas]
            title = f"${_LETTERS[varied]} = {value:g}$"
            panels.append(PanelResult(f"{varied}={value:g}", title, agents, 0, column))
        made.append(
            FigureResult(
                name=f"{log}-{varied}",
                title=_title(log, varied),
                measure=CTR.name,
                panels=panels,
                verdicts=[],
                tuning=[],
                notes=notes(log, varied, reading, used, next(s for s in summaries.values() if s), shared),
                seconds=total,
                reading=reading.name,
            )
        )
    return made


def _title(log: LogName, varied: str) -> str:
    data = "Open Bandit Dataset" if log == "obd" else "Simulated log"
    fixed = " and ".join(f"${_LETTERS[name]}={value:g}$" for name, value in paper.REPLAY_BASE.items() if name != varied)
    what = f"neural network width ${_LETTERS[varied]}$" if varied == "m" else f"${_LETTERS[varied]}$"
    return f"{data}: replay evaluation with varying {what}, while fixing {fixed}"


def notes(
    log: LogName,
    varied: str,
    reading: Reading,
    rows: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Any],
    shared: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    """What a reader of a figure must know: the log, how much of it was used, and where nu and lam come from."""
    about = summary["log"]
    lines = [f"The log is {LOGS[log]}: {about['events']:,} events with {about['clicks']:,} clicks."]
    wanted = horizon(log, reading)
    if log == "simulated" and reading.events is None:
        lines.append(power.sentence(paper.SIMULATED_LOG["ctr"], paper.REPLAY["arms"]))
    accepted = [row["accepted"] for row in rows if row["diverged_at"] is None]
    if accepted and min(accepted) < wanted:
        lines.append(
            f"T = {wanted:,}, but the log ends before: agents accepted {min(accepted):,} to "
            f"{max(accepted):,} events, and a CTR is that of the events an agent accepted."
        )
    if varied == "m":
        lines.append(f"{' and '.join(paper.LINEAR)} have no network: their run counts for every m.")
    listed = "; ".join(f"{agent} nu {s['nu']:g}, lam {s['lam']:g}" for agent, s in shared.items())
    lines.append(f"nu and lam do not change: {listed}.")
    searched = list(dict.fromkeys(panel for s in shared.values() for panel in s["panels"]))
    if searched:
        lines.append(f"They have the best mean rank over the grids that were searched before: {', '.join(searched)}.")
    without = [agent for agent, s in shared.items() if not s["panels"]]
    if without:
        lines.append(f"No grid was searched before for {', '.join(without)}: nu and lam are defaults.")
    printed = READINGS["literal"]
    if reading.replay_seeds != printed.replay_seeds:
        lines.append(f"{reading.replay_seeds} seeds (the paper: {printed.replay_seeds}).")
    if wanted != printed.horizon:
        lines.append(f"T = {wanted:,} (the paper: {printed.horizon:,}).")
    return lines
