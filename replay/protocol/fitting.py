"""Which features a log has, and how they come back from a checkpoint."""

from collections.abc import Mapping
from typing import Any

from nl_lightning.core.errors import InputError
from replay.logs.obd import OBD
from replay.logs.reader import Log
from replay.protocol.features import Features
from replay.protocol.obd_features import ObdFeatures

__all__ = ["feature_dim", "features_from_state", "fit_features"]

_KINDS: dict[str, type[ObdFeatures]] = {"obd": ObdFeatures}


def feature_dim(log: Log) -> int:
    """The number of features of a log's arms, before they are fitted."""
    assert log.schema == OBD
    return ObdFeatures.dim


def fit_features(log: Log, rows: int | None = None) -> Features:
    """Fit the features of a log: the paper's 42 numbers for the Open Bandit Dataset, else those of its schema."""
    assert log.schema == OBD
    return ObdFeatures.fit(log, rows)


def features_from_state(state: Any) -> Features:
    """The features that a checkpoint holds. Raises an InputError if they are damaged."""
    kind = state.get("kind") if isinstance(state, Mapping) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InputError(
            f"The features of the log in the checkpoint are damaged: kind must be one of {', '.join(_KINDS)}, got "
            f"{kind!r:.60}. Take another checkpoint, or train the agent again."
        )
    return _KINDS[kind].from_state_dict(state)
