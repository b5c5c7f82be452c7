"""One file an algorithm: its formulas, and what differs from the others."""

from nl_lightning.agents.ada_ofu_ecolog import AdaOFUECOLog
from nl_lightning.agents.base import Agent
from nl_lightning.agents.greedy import Greedy
from nl_lightning.agents.logistic_ucb_1 import LogisticUCB1
from nl_lightning.agents.ncbf_ucb import NCBFUCB
from nl_lightning.agents.neurallog_ts_1 import NeuralLogTS1
from nl_lightning.agents.neurallog_ts_2 import NeuralLogTS2
from nl_lightning.agents.neurallog_ucb_1 import NeuralLogUCB1
from nl_lightning.agents.neurallog_ucb_2 import NeuralLogUCB2

AGENTS: dict[str, type[Agent]] = {
    agent.name: agent
    for agent in (NCBFUCB, LogisticUCB1, AdaOFUECOLog, NeuralLogUCB1, NeuralLogUCB2, NeuralLogTS1, NeuralLogTS2, Greedy)
}
"""The seven agents by their names in the paper's tables, and Greedy, the control."""

__all__ = [
    "AGENTS",
    "NCBFUCB",
    "AdaOFUECOLog",
    "Greedy",
    "LogisticUCB1",
    "NeuralLogTS1",
    "NeuralLogTS2",
    "NeuralLogUCB1",
    "NeuralLogUCB2",
]
