"""Features of a user's own: a function that is given events and actions, and returns their arms.

    def my_features(frame, actions):    # N events with K actions each
        return x                        # array (N, K, d)

    frame    pandas DataFrame of the events: the columns of the log that are known before the choice
    actions  array (N, K) of the actions' names; where an event has fewer candidates than others, its first one is
             repeated, and what is returned for the repetitions is not used

The number d of features is the same in every call.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from nl_lightning.core.errors import InputError
from nl_lightning.core.imports import import_callable
from nl_lightning.core.whole import is_whole
from replay.logs.reader import Events, Log
from replay.protocol.candidates import Candidates
from replay.protocol.features import Encoded, Features, first_rows

__all__ = ["EVENTS_AT_ONCE", "MOST_BYTES", "OwnFeatures", "OwnFunction", "import_features", "path_of"]

OwnFunction = Callable[[pd.DataFrame, NDArray[Any]], Any]

EVENTS_AT_ONCE = 4096
"""Events that the function is given at once."""

MOST_BYTES = 4_000_000_000
"""Features of a row group that are held in memory."""

_STATE = ("kind", "path", "dim", "columns", "n_items")


def import_features(path: str, setting: str = "features") -> OwnFunction:
    """The function that ``my_module:function`` names."""
    if ":" not in path:
        raise InputError(f"{setting} must name a function as my_module:function, got {path!r:.60}.")
    return import_callable(path.replace(":", "."), setting)


def path_of(function: OwnFunction) -> str:
    """What a checkpoint calls a function: ``module:name``. It is compared, and never imported."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


class OwnFeatures(Features):
    """Features that a function computes.

    Make them with ``OwnFeatures.fit(log, function)``.

    Args:
        function: the function.
        dim: the number of features that it returns.
        columns: the columns that a log must have.
        n_items: number of actions of the log.
        like: device and precision of the arms; by default float64 on the CPU.
    """

    radix = ()
    is_discrete = False

    def __init__(
        self, function: OwnFunction, dim: int, columns: list[str], n_items: int, like: Tensor | None = None
    ) -> None:
        self.function, self.dim, self.columns, self.n_items = function, dim, columns, n_items
        self._like = torch.empty(0, dtype=torch.float64, device="cpu") if like is None else like.new_empty(0)

    @classmethod
    def fit(cls, log: Log, function: OwnFunction) -> "OwnFeatures":
        """Ask the function for a few events to learn how many features it returns."""
        group = next(first_rows(log, 8))
        frame, names = log.frame(group), log.items[log.schema.key].to_numpy()
        first = [lists[0] for lists in frame[log.schema.candidates]] if log.schema.candidates else names[:1]
        actions = np.resize(np.asarray(first, dtype=names.dtype), (group.rows, 1))
        x = _checked(_call(function, frame, actions), function, (group.rows, 1, None))
        return cls(function, x.shape[2], list(log.schema.visible_columns), log.n_items)

    def to(self, like: Tensor) -> "OwnFeatures":
        return OwnFeatures(self.function, self.dim, self.columns, self.n_items, like)

    def check(self, log: Log) -> None:
        """Raise an InputError if a log lacks a column that the function was given in training."""
        missing = [name for name in self.columns if name not in log.schema.visible_columns]
        if missing:
            raise InputError(
                f"{log.path} has no column {', '.join(missing)}, which {path_of(self.function)} was given in training."
            )

    def encode(self, log: Log, events: Events, arms: Candidates) -> Encoded:
        n, k = arms.item.shape
        if n * k * self.dim * 8 > MOST_BYTES:
            raise InputError(
                f"The features of {n:,} events with {k} arms and {self.dim} features each take "
                f"{n * k * self.dim * 8 / 1e9:.1f} GB. Show fewer arms (candidates: uniform), or return fewer features."
            )
        names = log.items[log.schema.key].to_numpy()
        frame, item = _frame(log, events.rows), arms.item.numpy()
        pair = torch.empty(n, k, self.dim, dtype=torch.float64, device="cpu")
        for start in range(0, n, EVENTS_AT_ONCE):
            some = slice(start, start + EVENTS_AT_ONCE)
            x = _call(self.function, frame.iloc[some], names[item[some]])
            pair[some] = torch.from_numpy(_checked(x, self.function, (len(item[some]), k, self.dim)))
        return Encoded(torch.empty(n, 0, dtype=torch.long, device="cpu"), torch.empty(n, 0, device="cpu"), pair)

    def arms(self, codes: Tensor, numbers: Tensor, item: Tensor, pair: Tensor) -> Tensor:
        """x (..., K, d), which is what was encoded."""
        return pair.to(self._like)

    def state_dict(self) -> dict[str, Any]:
        path = path_of(self.function)
        return {"kind": "own", "path": path, "dim": self.dim, "columns": self.columns, "n_items": self.n_items}

    @classmethod
    def from_state_dict(cls, state: Any, function: OwnFunction | None = None) -> "OwnFeatures":
        """The features that a checkpoint describes, with the function given again."""
        fine = isinstance(state, dict) and set(state) == set(_STATE) and isinstance(state["path"], str)
        fine = fine and is_whole(state["dim"], 1) and is_whole(state["n_items"], 1)
        fine = fine and isinstance(state["columns"], list) and all(isinstance(name, str) for name in state["columns"])
        if not fine:
            raise InputError(
                "The features of the log in the checkpoint are damaged: expected the path of a function, its number of "
                "features, columns and a number of actions. Take another checkpoint, or train the agent again."
            )
        path = state["path"]
        if function is None:
            raise InputError(
                f"The agent was trained with features of your own, {path!r:.200}, which a checkpoint does not hold. "
                "Give the function again: --features my_module:function, or features=function in Python."
            )
        if not _same(path, path_of(function)):
            raise InputError(
                f"The agent was trained with the features {path!r:.200}, not with {path_of(function)}. Give the "
                "function that it was trained with."
            )
        return cls(function, state["dim"], state["columns"], state["n_items"])


def _same(one: str, other: str) -> bool:
    """Whether two paths name the same function. In a script that is run, a module is called __main__."""
    (a, name), (b, other_name) = one.split(":", 1), other.split(":", 1)
    return name == other_name and (a == b or "__main__" in (a, b))


def _frame(log: Log, rows: range) -> pd.DataFrame:
    """The frame of some rows, which lie in one row group."""
    for group in log.groups:
        if group.first <= rows.start and rows.stop <= group.first + group.rows:
            skip = group.skip + rows.start - group.first
            return log.frame(group._replace(first=rows.start, rows=len(rows), skip=skip))
    raise InputError(f"{log.path} has no row group with the rows {rows.start} to {rows.stop - 1}.")


def _call(function: OwnFunction, frame: pd.DataFrame, actions: NDArray[Any]) -> Any:
    try:
        return function(frame, actions)
    except InputError:
        raise
    except Exception as error:
        # The user's function may raise anything.
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"The features {path_of(function)} failed for rows of the log: {reason}.") from error


def _checked(x: Any, function: OwnFunction, shape: tuple[int, int, int | None]) -> NDArray[np.float64]:
    """The arms (N, K, d) that a function returned, as finite float64 numbers."""
    n, k, dim = shape
    expected = f"an array of shape ({n}, {k}, {'d' if dim is None else dim})"
    source = f"The features {path_of(function)} must return {expected}"
    try:
        found = np.asarray(x.detach().cpu() if isinstance(x, Tensor) else x)
    except ValueError as error:
        raise InputError(f"{source}; got {type(x).__name__} ({error}).") from error
    if found.dtype.kind not in "biuf":
        raise InputError(f"{source} of numbers; got {type(x).__name__} of {found.dtype}.")
    if found.ndim != 3 or found.shape[:2] != (n, k) or found.shape[2] != (dim or max(1, found.shape[2])):
        raise InputError(f"{source}; got the shape {found.shape}.")
    if not np.isfinite(found).all():
        event, arm, feature = np.argwhere(~np.isfinite(found))[0]
        place = f"feature {feature} of arm {arm} of event {event}"
        raise InputError(f"{source} of finite numbers; {place} is {found[event, arm, feature]}.")
    return np.ascontiguousarray(found, dtype=np.float64)
