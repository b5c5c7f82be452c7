"""Neural logistic bandits as PyTorch Lightning modules."""

from nl_lightning.agents import (
    AGENTS,
    NCBFUCB,
    AdaOFUECOLog,
    LogisticUCB1,
    NeuralLogTS1,
    NeuralLogTS2,
    NeuralLogUCB1,
    NeuralLogUCB2,
)

__version__ = "0.1.0"

__all__ = [
    "AGENTS",
    "NCBFUCB",
    "AdaOFUECOLog",
    "LogisticUCB1",
    "NeuralLogTS1",
    "NeuralLogTS2",
    "NeuralLogUCB1",
    "NeuralLogUCB2",
]
