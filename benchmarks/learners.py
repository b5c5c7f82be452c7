"""Agents that learn on softmax logs by DR-ns: is their value that of the same agent played online?

Many short logs of several simulated worlds. On each of them an agent learns; the same agent plays as many rounds in the
log's world as the log stands for. For DR-ns these are C = sum c, more than the accepted events: one with c pi / p = 3
stands for three rounds. The mean difference is the bias, and its standard error says how well it is known. The accepted
events of today's rule on the same logs stand beside it. And how fast agents learn on the bundled sample.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import lightning as L
import numpy as np
import torch

from benchmarks.measure import Row, quartiles, quiet, row, trainer
from nl_lightning import AdaOFUECOLog, NeuralLogUCB2
from nl_lightning.agents.base import Agent
from nl_lightning.agents.callbacks import RoundCallback
from nl_lightning.agents.logistic_ucb_1 import LogisticUCB1
from nl_lightning.core.types import History
from nl_lightning.environments import Environment
from nl_lightning.rollout.data import BanditData
from replay import ReplayLog
from replay.simulation.ground_truth import Online
from replay.simulation.simulate import make_log
from replay.simulation.simulated_world import SimulatedWorld

WORLD: dict[str, Any] = {"items": 20, "users": 40, "ctr": 0.2, "policy": "softmax", "temperature": 0.6}
SEEDS = range(100, 108)
"""of the worlds, each of which has as many logs"""
FIT_ROWS = 20_000
"""Events that features are fitted on."""


class Bias(NamedTuple):
    """Of a setting over many logs."""

    difference: np.ndarray
    """(logs,), the value less what the agent earns online in the rounds that the log stands for"""
    value: float
    """the mean over logs"""
    covered: float
    """the share of intervals that hold what it earns online"""
    online_error: float
    accepted: float
    """events a log"""

    @property
    def error(self) -> float:
        return float(np.hypot(self.difference.std(ddof=1) / len(self.difference) ** 0.5, self.online_error))

    @property
    def errors(self) -> float:
        """The bias in standard errors."""
        return float(self.difference.mean() / self.error)


class Rewards(RoundCallback):
    """The rewards of every round, (R, T)."""

    def __init__(self) -> None:
        self.parts: list[np.ndarray] = []

    def on_rounds_end(self, trainer: L.Trainer, agent: Agent, history: History) -> None:
        self.parts.append(history.reward.double().cpu().numpy())

    def means(self) -> np.ndarray:
        """(R, T): the mean over the first 1, 2, ... rounds"""
        rewards = np.concatenate(self.parts, axis=1)
        return np.asarray(rewards.cumsum(1) / np.arange(1, rewards.shape[1] + 1))


def agent(replicas: int, seed: int) -> Agent:
    """A cheap linear agent that learns something within a hundred rounds."""
    return LogisticUCB1(42, nu=0.02, steps=20, update_every=20, design="full", replicas=replicas, seed=seed)


def fit(played: Agent, environment: Environment, rounds: int) -> Rewards:
    rewards = Rewards()
    trainer(callbacks=[rewards]).fit(played, BanditData(environment, rounds))
    return rewards


RULES: dict[str, dict[str, Any]] = {
    "propensity": {"rejection": "propensity"},
    "quantile 0": {"rejection": "dr-ns", "quantile": 0.0},
    "quantile 0.01": {"rejection": "dr-ns", "quantile": 0.01},
}


def bias(
    logs: int,
    rows: int,
    say: Callable[[str], None],
    online: int = 400,
    most: int = 300,
    seeds: Sequence[int] = SEEDS,
) -> dict[str, Bias]:
    """The bias over so many logs, by rule; for today's rule, that of the CTR of accepted events."""
    each, rest = divmod(logs, len(seeds))
    if rest or not each:
        raise ValueError(f"The number of logs must be a multiple of the {len(seeds)} worlds, got {logs}.")
    worlds: list[dict[str, Bias]] = []
    for number, seed in enumerate(seeds):

        def say_log(log: int, done: int = number * each) -> None:
            say(f"log {done + log + 1} of {each * len(seeds)}")

        worlds.append(_bias_in(SimulatedWorld(**WORLD, seed=seed), each, rows, say_log, online, most))
    return {rule: _joined([world[rule] for world in worlds]) for rule in RULES}


def _joined(worlds: list[Bias]) -> Bias:
    """Of worlds with as many logs each; how well their online play is known does not depend on each other."""
    value, covered, accepted = (
        float(np.mean([getattr(world, name) for world in worlds])) for name in ("value", "covered", "accepted")
    )
    error = float(np.sqrt(np.sum([world.online_error**2 for world in worlds])) / len(worlds))
    return Bias(np.concatenate([world.difference for world in worlds]), value, covered, error, accepted)


def _bias_in(
    world: SimulatedWorld, logs: int, rows: int, say: Callable[[int], None], online: int, most: int
) -> dict[str, Bias]:
    found: dict[str, list[tuple[float, float, float, int, float]]] = {rule: [] for rule in RULES}
    with TemporaryDirectory() as directory:
        path = Path(directory) / "log"
        make_log(path, world, logs * rows)
        for number in range(logs):
            say(number)
            for rule, settings in RULES.items():
                part = f"{number * rows}:{(number + 1) * rows}"
                data = ReplayLog(str(path), "all", rows=part, fit_rows=FIT_ROWS, **settings)
                rewards = fit(agent(1, number), data, most)
                result = data.counts()["replicas"][0]
                value = [result.get(name, np.nan) for name in ("value", "value_low", "value_high")]
                rounds = result["accepted"] if rule == "propensity" else result["sums"]["C"]
                if rule == "propensity" and result["accepted"]:
                    value[0] = rewards.means()[0, -1]
                found[rule].append((*value, result["accepted"], rounds))  # type: ignore[arg-type]
        played = fit(agent(online, 10_000), Online(str(path), "all"), most).means()
    earned, spread = played.mean(0), played.std(0, ddof=1) / online**0.5
    results = {}
    for rule, of_logs in found.items():
        value, low, high, accepted, rounds = np.array(of_logs).T
        if rounds.max() > most:
            raise ValueError(f"A log stands for {rounds.max():.0f} rounds; play more than {most} online.")
        truth = np.interp(rounds, np.arange(1, most + 1), earned)
        known = ~np.isnan(value)
        covered = float(((low <= truth) & (truth <= high)).mean())
        difference = (value - truth)[known]
        error = float(np.interp(rounds, np.arange(1, most + 1), spread).mean())
        results[rule] = Bias(difference, float(value[known].mean()), covered, error, float(accepted.mean()))
    return results


def values(say: Callable[[str], None], logs: int = 200, rows: int = 15_000) -> tuple[list[Row], dict[str, Any]]:
    """What is promised of DR-ns."""
    rows_of: list[Row] = []
    results = bias(logs, rows, say)
    for rule, found in results.items():
        if rule == "propensity":
            continue
        name, off = f"DR-ns, {rule}, {logs} softmax logs of {rows:,} events, {len(SEEDS)} worlds", found.errors
        told = f"{found.difference.mean():+.4f} of {found.value:.4f}, {off:+.2f} standard errors"
        rows_of.append((f"{name}: bias against online play", told, "within 2", abs(off) <= 2))
        rows_of.append((f"{name}: intervals that hold the online value", f"{found.covered:.1%}", "-", True))
        ratio, must = found.accepted / results["propensity"].accepted, rule == "quantile 0.01"
        told = f"{found.accepted:.1f} a log, {ratio:.1f} times"
        rows_of.append(
            (f"{name}: accepted, beside today's rule", told, ">= 10 times" if must else "-", not must or ratio >= 10)
        )
    detail = {rule: {**found._asdict(), "difference": found.difference.tolist()} for rule, found in results.items()}
    return rows_of, detail


def speed(repetitions: int = 9) -> list[Row]:
    """Agents that learn on the bundled sample, one replica and one thread: CPU time of whole fits, and of TrainNN."""
    literal: dict[str, Any] = {"optimizer": "gd", "steps": 100, "lr": 0.01, "update_growth": 0.0}
    rows: list[Row] = []
    kinds: list[tuple[type[Agent], dict[str, Any]]] = [(LogisticUCB1, {}), (AdaOFUECOLog, {}), (NeuralLogUCB2, literal)]
    for kind, settings in kinds:
        runs = [_timed(kind(42, kappa=50.0, **settings)) for _ in range(repetitions + 1)][1:]
        name = f"learning on the bundled sample, {kind.name}, 1 replica"
        speeds = [seen / whole for seen, whole, _ in runs]
        linear = kind is not NeuralLogUCB2
        told = f"{median(speeds):,.0f} ({quartiles(speeds, ',.0f')}) events/s"
        limit = ">= 40,000" if linear else "-"
        rows.append((name, told, limit, not linear or median(speeds) >= 40_000))
        if not linear:
            whole, training = ([run[place] for run in runs] for place in (1, 2))
            rows.append(row(f"{name}, gd: the whole / its TrainNN", whole, training, 1.5, ""))
    return rows


def _timed(played: Agent) -> tuple[int, float, float]:
    """Events, CPU seconds of a fit on the sample, and those of its TrainNN."""
    work, training = played.train_nn, 0.0

    def train_nn() -> None:
        nonlocal training
        begin = time.process_time()
        work()
        training += time.process_time() - begin

    played.train_nn = train_nn  # type: ignore[method-assign]
    data = ReplayLog()
    start = time.process_time()
    trainer().fit(played, BanditData(data, 2000, threads=torch.get_num_threads()))
    return data.counts()["replicas"][0]["seen"], time.process_time() - start, training


if __name__ == "__main__":
    quiet()
    for line in values(lambda text: None, *map(int, sys.argv[1:]))[0]:
        print(*line, sep=" | ")
