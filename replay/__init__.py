"""Estimate from logged clicks what a learning agent would have earned: logs in Parquet, rejection sampling, estimators.

The public names are resolved when they are first used: importing ``replay.logs`` loads neither torch nor Lightning.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replay.evaluation.comparison import evaluate
    from replay.evaluation.policies import Policy
    from replay.learning import ReplayLog
    from replay.logs.reader import Log
    from replay.logs.schema import Schema
    from replay.protocol.features import Features
    from replay.protocol.fitting import fit_features
    from replay.simulation.ground_truth import Online

__all__ = ["Features", "Log", "Online", "Policy", "ReplayLog", "Schema", "evaluate", "fit_features"]

_MODULES = {
    "Features": "replay.protocol.features",
    "Log": "replay.logs.reader",
    "Online": "replay.simulation.ground_truth",
    "Policy": "replay.evaluation.policies",
    "ReplayLog": "replay.learning",
    "Schema": "replay.logs.schema",
    "evaluate": "replay.evaluation.comparison",
    "fit_features": "replay.protocol.fitting",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
