"""Neural logistic bandits as PyTorch Lightning modules."""

import os

# A replica's result must not depend on its place among the others, but without this the last digits of MKL's batched
# products depend on where in memory a factor begins. MKL asks for it at its first product; it costs no time.
os.environ.setdefault("MKL_CBWR", "AUTO")

# isort: split
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
