"""Which features a log has, and how they come back from a checkpoint."""

from collections.abc import Mapping
from typing import Any

from nl_lightning.core.errors import InputError
from replay.logs.obd import OBD
from replay.logs.reader import Log
from replay.protocol.features import Features
from replay.protocol.obd_features import ObdFeatures
from replay.protocol.own_features import OwnFeatures, OwnFunction, import_features
from replay.protocol.table_features import TableFeatures
from replay.protocol.table_state import DEFAULTS

__all__ = ["Given", "feature_dim", "features_from_state", "fit_features"]

Given = dict[str, Any] | str | OwnFunction | None
"""Features as users give them: nothing, settings, a function or its import path ``my_module:function``."""

_KINDS = {"obd": ObdFeatures, "table": TableFeatures, "own": OwnFeatures}


def feature_dim(log: Log, features: Given = None) -> int | None:
    """The number of features of a log's arms if it is known without a fit, else None."""
    return ObdFeatures.dim if features is None and log.schema == OBD else None


def fit_features(log: Log, rows: int | None = None, features: Given = None) -> Features:
    """Fit the features of a log.

    Args:
        log: the log, or a part of it.
        rows: events to fit on, the first ones; left out, all of them.
        features: left out, the paper's 42 numbers for the Open Bandit Dataset, and those of its schema
            (``TableFeatures``) for any other log. A dictionary has settings of ``TableFeatures``: ``numeric``,
            ``max_categories``, ``components``, ``products``. A function, or its import path ``my_module:function``,
            computes features of its own (``OwnFeatures``).
    """
    if features is None and log.schema == OBD:
        return ObdFeatures.fit(log, rows)
    if features is None or isinstance(features, Mapping):
        return TableFeatures.fit(log, rows, **_texts(features or {}))
    return OwnFeatures.fit(log, _function(features))


def features_from_state(state: Any, features: Given = None) -> Features:
    """The features that a checkpoint holds. Raises an InputError if they are damaged.

    Args:
        state: the ``state_dict`` of features.
        features: the function, or its import path, of features of one's own, which a checkpoint does not hold. Settings
            are compared with the stored ones.
    """
    kind = state.get("kind") if isinstance(state, Mapping) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InputError(
            f"The features of the log in the checkpoint are damaged: kind must be one of {', '.join(_KINDS)}, got "
            f"{kind!r:.60}. Take another checkpoint, or train the agent again."
        )
    function = None if features is None or isinstance(features, Mapping) else _function(features)
    if kind == "own":
        return OwnFeatures.from_state_dict(state, function)
    if function is not None:
        raise InputError(
            "The agent was not trained with features of your own: its checkpoint holds its features. Leave them out."
        )
    fitted = ObdFeatures.from_state_dict(state) if kind == "obd" else TableFeatures.from_state_dict(state)
    for name, value in _texts(features).items() if isinstance(features, Mapping) else ():
        stored = fitted.settings.get(name) if isinstance(fitted, TableFeatures) else None
        if value != stored:
            raise InputError(f"The agent's features were fitted with {name}: {stored}, not {value}.")
    return fitted


def _texts(settings: Mapping[Any, Any]) -> dict[str, Any]:
    """Settings whose names may be keywords."""
    for name in settings:
        if not isinstance(name, str):
            raise InputError(f"features: there is no setting {name!r:.60}. The settings are {', '.join(DEFAULTS)}.")
    return dict(settings)


def _function(features: Any) -> OwnFunction:
    if isinstance(features, str):
        return import_features(features)
    if not callable(features):
        raise InputError(
            "features must be settings such as {products: true}, a function or its import path my_module:function; "
            f"got {features!r:.60}."
        )
    return features
