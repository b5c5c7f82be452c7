"""Small agents for tests on logs, and the arms that they are offered."""

from typing import Any

import torch
from torch import Tensor

from nl_lightning import AGENTS
from nl_lightning.agents.base import Agent
from replay.logs.reader import Events, Log
from replay.protocol.candidates import Candidates, Protocol, candidates
from replay.protocol.features import Features
from replay.protocol.obd_features import ObdFeatures


def offered(
    events: Events, features: Features, protocol: Protocol, arms: int, log: Log, seed: int = 0
) -> tuple[Candidates, Tensor]:
    """The candidates of N events, and their features (N, K, 42)."""
    shown = candidates(events, protocol, arms, log, seed)
    encoded = features.encode(log, events, shown)
    return shown, features.arms(encoded.codes, encoded.numbers, shown.item, encoded.pair)


def learner(name: str, replicas: int = 1, **settings: Any) -> Agent:
    """An agent that learns fast on a short log."""
    given = {"nu": 0.3, "lr": 0.002, "steps": 4, "update_every": 20, "replicas": replicas, **settings}
    if given.get("mode") == "theory":
        # a large S, or else a large lam_t would hold the network at its start
        given |= {"lr": 1e-4, "S": 30.0}
    return AGENTS[name](42, **given).double()


def trained(name: str, log: Log, replicas: int = 1) -> Agent:
    """An agent that has seen some arms of the log."""
    agent = AGENTS[name](42, nu=0.2, lr=0.002, steps=20, replicas=replicas).double()
    events = log.events(log.groups[0])
    _, arms = offered(events, ObdFeatures.fit(log), "affinity", 5, log)
    click = torch.from_numpy(events.click)
    for i in range(60):
        agent.observe(agent.act(arms[i]), click[i].expand(replicas))
    agent.train_nn()
    return agent
