"""What the parts of figures and of replays have in common: settings, estimated times, and results read from runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nl_lightning.experiments import fits, paper
from nl_lightning.experiments.pool import Tell, Tick
from nl_lightning.experiments.results import AgentResult
from nl_lightning.reporting.curves import read_curves
from nl_lightning.runs.directory import RunDirectory
from nl_lightning.runs.summary import CTR, MEASURES

__all__ = [
    "finished",
    "joined",
    "network",
    "nothing",
    "of_replicas",
    "parameters",
    "search_directory",
    "seconds",
    "ticks",
    "width",
]


def network(agent: str, m: int = paper.NETWORK["width"]) -> dict[str, Any]:
    """Settings of the network, for an agent that has one."""
    return {} if agent in paper.LINEAR else {**paper.NETWORK, "width": m}


def width(agent: str, m: int) -> dict[str, float]:
    """The width m, for an agent that has a network."""
    return {} if agent in paper.LINEAR else {"m": m}


def parameters(agent: str, features: int, m: int) -> int:
    return features if agent in paper.LINEAR else features * m


def seconds(replicas: int, rounds: int, parameters: int, distinct: int | None = None) -> float:
    """Estimated seconds of a fit on one core: the rounds of all replicas, and TrainNN, whose sums grow with them, or
    with the ``distinct`` arms."""
    summed = rounds if distinct is None else min(rounds, 2 * distinct)
    return 0.1 + rounds * (5e-4 + replicas * (2e-5 + 3e-8 * parameters + 8e-11 * summed * parameters))


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


def search_directory(directory: Path, lr: float | None) -> Path:
    return directory / ("tuning" if lr is None else f"tuning-lr={lr:g}")


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


def joined(first: AgentResult, further: AgentResult) -> AgentResult:
    """The result over the seeds of both."""
    return first._replace(
        seeds=first.seeds + further.seeds,
        curves=np.concatenate([first.curves, further.curves]),
        final=np.concatenate([first.final, further.final]),
        diverged=first.diverged + further.diverged,
    )


def nothing(agent: str, settings: dict[str, float], seeds: list[int]) -> AgentResult:
    """The result of an agent that diverged with every setting."""
    none = np.full((len(seeds), 1), np.nan)
    return AgentResult(agent, settings, seeds, np.array([1], dtype=np.int64), none, none[:, 0], seeds)
