"""Ours, in a process of its own like the peers."""

from benchmarks.peers.asked import answer, path_of

# isort: split
import time
import warnings
from typing import Any

import lightning as L
import torch

from benchmarks import learners
from benchmarks.measure import quiet, trainer
from benchmarks.peers.world import ROWS
from nl_lightning import NeuralLogUCB2
from nl_lightning.agents.base import Agent
from nl_lightning.agents.callbacks import RoundCallback
from nl_lightning.core.types import History
from nl_lightning.environments import Synthetic
from nl_lightning.rollout.data import BanditData
from replay import ReplayLog
from replay.evaluation.evaluate import evaluate_agent
from replay.protocol.candidates import Protocol
from replay.simulation.ground_truth import Online


class _Regret(RoundCallback):
    """The regret of a fit, summed over rounds and replicas."""

    def __init__(self) -> None:
        self.lost = 0.0

    def on_rounds_end(self, trainer: L.Trainer, agent: Agent, history: History) -> None:
        assert history.regret is not None
        self.lost += float(history.regret.sum())


class _Watched:
    """TrainNN of an agent, and how long it took in all."""

    def __init__(self, agent: Agent) -> None:
        self.seconds, self._work = 0.0, agent.train_nn
        agent.train_nn = self  # type: ignore[method-assign]

    def __call__(self) -> None:
        start = time.perf_counter()
        self._work()
        self.seconds += time.perf_counter() - start


def online(seed: int, replicas: int, rounds: int, nu: float, lam: float, **training: Any) -> dict[str, Any]:
    """A whole fit: the rounds are dealt within it. ``training`` are settings of TrainNN."""
    regret = _Regret()
    start = time.perf_counter()
    agent = NeuralLogUCB2(20, width=20, nu=nu, lam=lam, replicas=replicas, seed=seed, **training)
    watched = _Watched(agent)
    trainer(callbacks=[regret]).fit(agent, BanditData(Synthetic("h1"), rounds, threads=torch.get_num_threads()))
    taken = time.perf_counter() - start
    return {"seconds": taken, "training": watched.seconds, "regret": regret.lost / replicas}


def learning(
    log: str, replicas: int, rounds: int, threads: int, steps: int, lr: float, candidates: Protocol = "affinity"
) -> dict[str, Any]:
    """Agents that learn from a log; ``rounds`` accepted events, or less if it ends."""
    torch.set_num_threads(threads)
    try:
        start = time.perf_counter()
        literal: dict[str, Any] = {
            "nu": 0.1,
            "lam": 1.0,
            "optimizer": "gd",
            "lr": lr,
            "steps": steps,
            "update_growth": 0.0,
        }
        agent = NeuralLogUCB2(42, width=20, kappa=50.0, replicas=replicas, **literal)
        training = _Watched(agent)
        environment = ReplayLog(path_of(log) if log else None, candidates=candidates)
        data = BanditData(environment, rounds, threads=torch.get_num_threads())
        trainer().fit(agent, data)
        taken = time.perf_counter() - start
    finally:
        torch.set_num_threads(1)
    counts = data.environment.counts()["replicas"]
    length, reward = agent.buffer.length.double(), agent.buffer.reward.sum(1)
    return {
        "seconds": taken,
        "training": training.seconds,
        "events": sum(place["seen"] for place in counts),
        "accepted": float(length.mean()),
        "ctr": float(reward.sum() / length.sum()),
    }


def frozen(log: str, threads: int, candidates: Protocol = "affinity") -> dict[str, Any]:
    """An agent that learnt from the first events, from Parquet to CTR."""
    environment = ReplayLog(path_of(log), candidates=candidates)
    agent = NeuralLogUCB2(42, width=20, nu=0.1, lam=1.0, kappa=50.0)
    trainer().fit(agent, BanditData(environment, 2000, threads=torch.get_num_threads()))
    assert environment.features is not None
    torch.set_num_threads(threads)
    try:
        start = time.perf_counter()
        found = evaluate_agent(agent, environment.features, environment.log, environment.setting)
        taken = time.perf_counter() - start
    finally:
        torch.set_num_threads(1)
    (replica,) = found["replicas"]
    return {"seconds": taken, "events": environment.log.rows, "ctr": replica["match"], "accepted": replica["accepted"]}


def value(logging: str, seed: int, **rule: Any) -> dict[str, Any]:
    """An agent that learns on a log by DR-ns, and the same agent online for the rounds that the log stands for."""
    path = path_of(f"world-{logging}")
    start = time.perf_counter()
    part = f"{seed * ROWS}:{(seed + 1) * ROWS}"
    environment = ReplayLog(path, "all", rejection="dr-ns", rows=part, **rule)
    learners.fit(learners.agent(1, seed), environment, ROWS)
    seconds = time.perf_counter() - start
    (found,) = environment.counts()["replicas"]
    rounds = max(1, round(found["sums"]["C"]))
    online = learners.fit(learners.agent(20, 1000 + 20 * seed), Online(path, "all"), rounds)
    estimate, accepted = found["value"], found["accepted"]
    earned = float(online.means()[:, -1].mean())
    return {"seconds": seconds, "events": ROWS, "accepted": accepted, "value": estimate, "online": earned}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    quiet()
    torch.set_num_threads(1)
    answer({"online": online, "learning": learning, "frozen": frozen, "value": value})
