"""Results of an experiment: final numbers and curves by agent and seed."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["AgentResult", "Control", "FigureResult", "Floor", "PanelResult", "SweepResult", "Verdict"]


class AgentResult(NamedTuple):
    """One agent in one panel, over n seeds."""

    agent: str
    """its name in the paper's tables"""
    settings: dict[str, float]
    """nu, lam, kappa, S, TrainNN's step lr and, of a network, its width m"""
    seeds: list[int]
    t: NDArray[np.int64]
    """(P,), the rounds of the curves"""
    curves: NDArray[np.float64]
    """(n, P), cumulative regret, or in a replay reward; NaN after a seed's end"""
    final: NDArray[np.float64]
    """(n,), the regret or the CTR; NaN of a seed whose TrainNN diverged"""
    diverged: list[int]
    """the seeds whose TrainNN diverged"""
    accepted: list[int] | None = None
    """(n,), in a replay the events that each seed accepted; they determine how certain a CTR is"""


class PanelResult(NamedTuple):
    """One panel of a figure: agents on the same problems."""

    name: str
    """such as ``h1``, ``h1-low``, ``mnist``, ``kappa=100``"""
    title: str
    """as above the paper's panel"""
    agents: list[AgentResult]
    """in the order of the paper's table"""
    row: int = 0
    """its place in the figure"""
    column: int = 0

    def of(self, agent: str) -> AgentResult:
        return next(result for result in self.agents if result.agent == agent)


class Verdict(NamedTuple):
    """What the numbers say about a claim of the paper's text in one panel."""

    claim: str
    """in the paper's words, or nearly"""
    panel: str
    verdict: str
    """``agrees``, ``disagrees``, ``practically equal`` or ``undecided``"""
    reason: str
    """the test that says so, with its numbers"""


class Control(NamedTuple):
    """Whether a panel needs exploration: what Greedy has against the agents that explore."""

    panel: str
    finding: str
    """``exploration pays``, ``needs no exploration`` or ``undecided``"""
    reason: str


class SweepResult(NamedTuple):
    """Final regrets of an agent in a panel, with one setting changed."""

    panel: str
    agent: str
    varied: str
    """``nu``, ``kappa`` or ``arms``, or such as ``kappa at nu = 0.1``, where all agents have that nu"""
    value: float
    seeds: list[int]
    final: NDArray[np.float64]
    """(n,); NaN of a seed whose TrainNN diverged"""


class Floor(NamedTuple):
    """The regret in a panel of a model that was fitted in hindsight."""

    panel: str
    model: str
    """``linear`` or ``network``"""
    seeds: list[int]
    final: NDArray[np.float64]
    """(n,)"""


class FigureResult(NamedTuple):
    """A figure or the table: what is written and drawn."""

    name: str
    """such as ``fig1`` or ``obd-m``"""
    title: str
    measure: str
    """``regret`` or ``ctr``"""
    panels: Sequence[PanelResult]
    verdicts: Sequence[Verdict]
    tuning: list[dict[str, Any]]
    """rows of the grid search: panel, agent, lr, nu, lam, mean, seeds, diverged, chosen"""
    notes: list[str]
    """what was reduced or differs from the paper"""
    seconds: float
    reading: str = "literal"
    controls: Sequence[Control] = ()
    sweeps: Sequence[SweepResult] = ()
    floors: Sequence[Floor] = ()
