"""Neural logistic bandits as PyTorch Lightning modules.

The public names are resolved when they are first used, so that importing a part of the package loads no more than
that part needs.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

# A replica's result must not depend on its place among the others, but without this the last digits of MKL's batched
# products depend on where in memory a factor begins. MKL asks for it at its first product; it costs no time.
os.environ.setdefault("MKL_CBWR", "AUTO")

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


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("nl_lightning.agents"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
