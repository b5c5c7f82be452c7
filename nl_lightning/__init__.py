"""Neural logistic bandits as PyTorch Lightning modules.

The public names are loaded when they are first used (PEP 562), so that importing a light part of the package, such as
``nl_lightning.core.errors``, does not load torch or Lightning.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

# A replica's result must not depend on its place among the others, but without this the last digits of MKL's batched
# products depend on where in memory a factor begins. MKL reads it at its first product; it costs no time.
os.environ.setdefault("MKL_CBWR", "AUTO")

# OpenMP reads this when torch is loaded: see ``core.threads``.
if "torch" not in sys.modules:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

if TYPE_CHECKING:
    from nl_lightning.agents import (
        AGENTS,
        NCBFUCB,
        AdaOFUECOLog,
        Greedy,
        LogisticUCB1,
        NeuralLogTS1,
        NeuralLogTS2,
        NeuralLogUCB1,
        NeuralLogUCB2,
    )
    from nl_lightning.agents.base import Agent, LinearAgent, NeuralAgent
    from nl_lightning.agents.callbacks import RoundCallback
    from nl_lightning.environments import Deal, Environment, Simulation
    from nl_lightning.rollout.data import BanditData
    from nl_lightning.runs.results import Results

__version__ = "0.1.0"

__all__ = [
    "AGENTS",
    "NCBFUCB",
    "AdaOFUECOLog",
    "Agent",
    "BanditData",
    "Deal",
    "Environment",
    "Greedy",
    "LinearAgent",
    "LogisticUCB1",
    "NeuralAgent",
    "NeuralLogTS1",
    "NeuralLogTS2",
    "NeuralLogUCB1",
    "NeuralLogUCB2",
    "Results",
    "RoundCallback",
    "Simulation",
    "__version__",
]

_SOURCES = {
    "Agent": "nl_lightning.agents.base",
    "LinearAgent": "nl_lightning.agents.base",
    "NeuralAgent": "nl_lightning.agents.base",
    "RoundCallback": "nl_lightning.agents.callbacks",
    "Deal": "nl_lightning.environments",
    "Environment": "nl_lightning.environments",
    "Simulation": "nl_lightning.environments",
    "BanditData": "nl_lightning.rollout.data",
    "Results": "nl_lightning.runs.results",
}
"""The module of every public name that is not in ``nl_lightning.agents``."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_SOURCES.get(name, "nl_lightning.agents")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
