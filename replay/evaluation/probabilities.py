"""The probabilities that a policy gives to the actions of N events: checked, and turned into one choice an event."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from nl_lightning.core.errors import InputError

__all__ = ["TOLERANCE", "check_probabilities", "pick"]


TOLERANCE = 1e-6
"""How far the probabilities of an event may be from a sum of 1."""


def check_probabilities(
    given: Any,
    rows: range,
    actions: Sequence[Any],
    candidates: NDArray[np.bool_] | None = None,
    policy: str = "The policy",
) -> NDArray[np.float64]:
    """Probabilities (N, A) in float64, after they were checked.

    Args:
        given: a NumPy array, a torch tensor or nested lists of shape (N, A), or a DataFrame with a column per action,
            in any order.
        rows: the N rows of the log, for messages.
        actions: names of the A actions, in the order of their numbers.
        candidates: (N, A), whether an action could have been shown; None: all of them.
        policy: what messages call the policy.

    Raises:
        InputError: a wrong shape, or a row that is no distribution over its candidates; it names the first such row.
    """
    shape = (len(rows), len(actions))
    values = _numbers(given, rows, actions, policy)
    if values.shape != shape:
        raise InputError(
            f"{policy}: expected probabilities of shape {shape}, one row per event and one column per action of "
            f"log.actions; got the shape {values.shape}."
        )
    total = values.sum(axis=1)
    with np.errstate(invalid="ignore"):
        faults = [
            (~np.isfinite(values), "a finite number"),
            (values < 0, "a number of at least 0"),
        ]
    if candidates is not None:
        faults.append(((values > 0) & ~candidates, "0, because it is not a candidate"))
    for bad, expected in faults:
        if bad.any():
            row, action = np.unravel_index(int(bad.argmax()), bad.shape)
            raise InputError(
                f"{policy}, row {rows[int(row)]}: expected the probability of the action {actions[int(action)]!r} to "
                f"be {expected}; got {values[row, action]:g}."
            )
    off = np.abs(total - 1) > TOLERANCE
    if off.any():
        first = int(off.argmax())
        raise InputError(
            f"{policy}, row {rows[first]}: expected probabilities that sum to 1 (within {TOLERANCE:g}); they sum to "
            f"{total[first]:.9g}."
        )
    return values


def pick(probabilities: NDArray[np.float64], uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    """(N,), one action per event: the first a with u < (pi_1 + ... + pi_a) / (pi_1 + ... + pi_A).

    Args:
        probabilities: pi (N, A).
        uniform: u (N,), in [0, 1).
    """
    cumulative = probabilities.cumsum(axis=1)
    chosen = (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(axis=1)
    # where u times the sum is rounded up to the sum, it is the last action that has a probability
    last = probabilities.shape[1] - 1 - (probabilities[:, ::-1] > 0).argmax(axis=1)
    return np.minimum(chosen, last)


def _numbers(given: Any, rows: range, actions: Sequence[Any], policy: str) -> NDArray[np.float64]:
    """What a policy returned as float64 numbers, of whatever shape."""
    if isinstance(given, pd.DataFrame):
        given = _in_order(given, rows, actions, policy)
    if isinstance(given, torch.Tensor):
        # NumPy knows neither gradients nor bfloat16
        given = given.detach().cpu()
        given = (given.double() if given.is_floating_point() else given).numpy()
    values: NDArray[Any] | None
    try:
        values = np.asarray(given)
        if values.dtype.kind not in "biuf":
            values = None if values.dtype.kind in "cSUMmV" else values.astype(np.float64)
    except (TypeError, ValueError):
        values = None
    if values is None or given is None:
        raise InputError(
            f"{policy}: expected probabilities of shape {(len(rows), len(actions))} as a NumPy array, a DataFrame or a "
            f"torch tensor; got a {type(given).__name__} that holds no such numbers."
        )
    return values.astype(np.float64)


def _in_order(given: pd.DataFrame, rows: range, actions: Sequence[Any], policy: str) -> NDArray[Any]:
    """The columns of a DataFrame in the order of the actions, its rows in that of the events."""
    if given.columns.has_duplicates:
        twice = given.columns[given.columns.duplicated()][0]
        raise InputError(f"{policy}: the column {twice!r} of its DataFrame is there twice.")
    known = set(actions)
    missing = [action for action in actions if action not in given.columns]
    unknown = [column for column in given.columns if column not in known]
    if missing or unknown:
        what = f"there is no column {missing[0]!r}" if missing else f"{unknown[0]!r} is no action of the log"
        raise InputError(f"{policy}: expected a DataFrame with one column per action of log.actions; {what}.")
    expected, fresh = pd.RangeIndex(rows.start, rows.stop), pd.RangeIndex(len(given))
    if not (given.index.equals(expected) or given.index.equals(fresh)):
        if len(given) != len(expected) or set(given.index) != set(expected):
            raise InputError(
                f"{policy}: expected a DataFrame with the index of the events, {rows.start} to {rows.stop - 1}, or a "
                "fresh one; got another index."
            )
        given = given.loc[expected]
    return given[list(actions)].to_numpy()
