"""A process of a group: evaluates several agents on several logs, and writes what the first process has found.

python -m tests.support.devices_worker PROCESSES OUTPUT LOG...
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from nl_lightning import NeuralLogTS1, NeuralLogUCB2
from nl_lightning.agents.base import Agent
from replay.evaluation.evaluate import describe
from replay.evaluation.evaluator import Evaluation
from replay.evaluation.processes import Processes
from replay.evaluation.shards import LogData
from replay.logs.reader import Log
from replay.protocol.events import ReplaySettings
from replay.protocol.obd_features import ObdFeatures

SETTINGS = [
    ReplaySettings("affinity", 5, 0.02, 1),
    ReplaySettings("uniform", 4, 0.02, 1),
    ReplaySettings("all", 12, None, 1),
]


def agents() -> list[Agent]:
    """A UCB agent in float32 and a Thompson agent in float64, with some rewards behind them."""
    made: list[Agent] = [
        NeuralLogUCB2(42, nu=0.2, lr=0.002, steps=20, replicas=2),
        NeuralLogTS1(42, nu=0.2, lr=0.002, steps=20, replicas=2).double(),
    ]
    g = torch.Generator().manual_seed(0)
    for agent in made:
        for _ in range(40):
            arms = torch.randn(5, 42, generator=g, dtype=torch.float64) / 6
            agent.observe(agent.act(arms), torch.randint(2, (2,), generator=g))
        agent.train_nn()
    return made


def evaluated(processes: int, paths: list[str]) -> list[dict[str, Any]]:
    """Every agent with every setting on every log, by one Trainer."""
    trainer, asked, found = Processes(devices=processes).trainer(), agents(), []
    for path in paths:
        log = Log(path)
        # the true CTR does not depend on the log, and takes its time
        del log.description["world"]
        features = ObdFeatures.fit(log)
        for agent in asked:
            for setting in SETTINGS:
                evaluation = Evaluation(agent, features, draws=5 if agent.exploration.stochastic else 1)
                trainer.test(evaluation, LogData(log, features, setting, 2), verbose=False)
                found.append(describe(evaluation, log, setting))
    # a second pass begins anew
    trainer.test(evaluation, LogData(log, features, setting, 2), verbose=False)
    return [*found, describe(evaluation, log, setting)]


if __name__ == "__main__":
    results = evaluated(int(sys.argv[1]), sys.argv[3:])
    Path(f"{sys.argv[2]}-{torch.distributed.get_rank()}.json").write_text(json.dumps(results))
