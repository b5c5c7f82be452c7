"""Policies that can be evaluated on a log: what was logged, simple baselines, a column of the table, a function.

A policy gives every action a probability, given what was known before the choice. Agents are policies as well, but see
arms instead of a table: ``replay.evaluation.evaluator``.
"""

import math
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from nl_lightning.core.errors import InputError
from nl_lightning.core.rng import Stream, row_numbers
from replay.evaluation.probabilities import check_probabilities, pick
from replay.logs.reader import Events, Log

__all__ = [
    "POLICIES",
    "BestFixedPolicy",
    "ColumnPolicy",
    "Decisions",
    "EventBatch",
    "FunctionPolicy",
    "LoggedPolicy",
    "Policy",
    "UniformPolicy",
]


class EventBatch:
    """N events of a log, as a policy is asked about them.

    Args:
        log: the log.
        events: events of one of its row groups.
        frame: the same events as ``log.frame`` shows them; None if no policy needs it.
        start: the first of the N events.
        stop: the event behind the last one.
    """

    def __init__(self, log: Log, events: Events, frame: pd.DataFrame | None, start: int, stop: int) -> None:
        self.log = log
        self.rows = events.rows[start:stop]
        self.item = events.item[start:stop]
        self.click = events.click[start:stop]
        self.propensity = events.propensity[start:stop]
        self._frame = None if frame is None else frame.iloc[start:stop]
        self.listed: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        """event and action of every listed candidate, in the order of the lists; None: all actions are candidates"""
        if events.candidates is not None:
            length, values = events.candidates
            end = int(length[:stop].sum())
            values = values[int(length[:start].sum()) : end]
            self.listed = np.repeat(np.arange(len(self.item)), length[start:stop]), values

    @property
    def frame(self) -> pd.DataFrame:
        """A fresh table of the events, which a policy may change."""
        assert self._frame is not None, "a policy that looks at the table has needs_frame = True"
        return self._frame.copy()

    @property
    def candidates(self) -> NDArray[np.bool_] | None:
        """(N, A), whether an action could have been shown; None: all of them."""
        if self.listed is None:
            return None
        mask = np.zeros((len(self.item), self.log.n_items), dtype=np.bool_)
        mask[self.listed] = True
        return mask


class Decisions(NamedTuple):
    """What a policy does with N events, each (N,)."""

    match: NDArray[np.bool_]
    """m, whether it picks the logged action"""
    weight: NDArray[np.float64]
    """w = pi / p"""
    pi: NDArray[np.float64]
    """the probability of the logged action"""
    logged: NDArray[np.bool_]
    """whether the logged action is a candidate"""


class Policy(ABC):
    """Maps events to probabilities of the log's actions. Users may subclass it.

    Attributes:
        name: what results and messages call it.
        needs_frame: whether ``probabilities`` looks at ``batch.frame``.
        corrected: whether the match estimator removes what the logging policy preferred. Only a policy whose choice is
            the logged one needs no correction.
        notes: sentences on how it was made, once it is prepared.
    """

    name: str
    needs_frame = False
    corrected = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.notes: list[str] = []

    def prepare(self, log: Log) -> None:  # noqa: B027
        """Look at a log, or a part of one, before the policy is evaluated on it. By default it does nothing."""

    @abstractmethod
    def probabilities(self, batch: EventBatch) -> Any:
        """pi (N, A), as ``check_probabilities`` takes them."""

    def decide(self, batch: EventBatch, seed: int) -> Decisions:
        """What it does with some events. Its choice is drawn with a number that is a function of seed and row."""
        candidates, every = batch.candidates, np.arange(len(batch.item))
        given = self.probabilities(batch)
        pi = check_probabilities(given, batch.rows, batch.log.actions, candidates, f"Policy {self.name}")
        uniform = row_numbers(batch.rows, 1, seed, Stream.POLICY_CHOICES).squeeze(1).numpy()
        match = pick(pi, uniform) == batch.item
        logged = np.ones_like(match) if candidates is None else candidates[every, batch.item]
        chance = pi[every, batch.item]
        return Decisions(match, chance / batch.propensity, chance, logged)


class LoggedPolicy(Policy):
    """The logging policy itself: it picks what was logged, so its value is the mean reward."""

    corrected = False

    def __init__(self, name: str = "logged") -> None:
        super().__init__(name)

    def probabilities(self, batch: EventBatch) -> Any:
        raise InputError("A log tells the logging policy's probability of the logged action only, not of the others.")

    def decide(self, batch: EventBatch, seed: int) -> Decisions:
        """pi = p, hence w = 1, also where p is not known: pi counts as 1 there."""
        every = np.ones(len(batch.item), dtype=np.bool_)
        pi = np.where(np.isnan(batch.propensity), 1.0, batch.propensity)
        return Decisions(every, every.astype(np.float64), pi, every)


class UniformPolicy(Policy):
    """Every candidate with the same probability."""

    def __init__(self, name: str = "uniform") -> None:
        super().__init__(name)

    def probabilities(self, batch: EventBatch) -> NDArray[np.float64]:
        mask = batch.candidates
        if mask is None:
            return np.full((len(batch.item), batch.log.n_items), 1 / batch.log.n_items)
        return mask / mask.sum(axis=1, keepdims=True)


class BestFixedPolicy(Policy):
    """The single action with the best value, estimated by SNIPS on other rows than those it is evaluated on.

    The rows are halved: each half is given the action that is best on the other half. Where the log lists candidates,
    it is the best one among them.
    """

    def __init__(self, name: str = "best-fixed") -> None:
        super().__init__(name)

    def prepare(self, log: Log) -> None:
        if log.rows < 2:
            raise InputError(f"Policy {self.name} needs at least two events, one to choose on; {log.path} has one.")
        first, stop = log.first_row, log.first_row + log.rows
        self.middle = first + log.rows // 2
        # SNIPS of the policy that always picks a: sum 1[a_i = a] r_i / p_i  /  sum 1[a_i = a] / p_i
        clicks, weight = np.zeros((2, 2, log.n_items))
        for group in log.groups:
            events = log.events(group)
            if np.isnan(events.propensity).any():
                raise InputError(f"Policy {self.name} is chosen by SNIPS, and {group} has events without a propensity.")
            late = (np.array(events.rows) >= self.middle).astype(np.int64)
            place = late * log.n_items + events.item
            clicks += _sums(place, events.click / events.propensity, clicks.shape)
            weight += _sums(place, 1 / events.propensity, clicks.shape)
        self.value = np.divide(clicks, weight, out=np.full_like(weight, -np.inf), where=weight > 0)
        """(2, A), the estimates of each half; -inf for an action that it never logged"""
        best = [log.actions[int(self.value[half].argmax())] for half in (0, 1)]
        halves = f"{first}:{self.middle}", f"{self.middle}:{stop}"
        self.notes = [
            f"It is cross-fitted: rows {halves[0]} are given {best[1]!r}, the best action by SNIPS on rows "
            f"{halves[1]}, and these are given {best[0]!r}, the best one on rows {halves[0]}"
            + (" (of each event's candidates the best one)." if log.schema.candidates else ".")
        ]

    def probabilities(self, batch: EventBatch) -> NDArray[np.float64]:
        late = np.array(batch.rows) >= self.middle
        value = self.value[np.where(late, 0, 1)]
        mask = batch.candidates
        if mask is not None:
            # an action without an estimate stays ahead of one that is not a candidate
            value = np.where(mask, np.maximum(value, -1.0), -np.inf)
        chosen = np.zeros_like(value)
        chosen[np.arange(len(value)), value.argmax(axis=1)] = 1
        return chosen


class ColumnPolicy(Policy):
    """A column of the table: another system's choice (an action's name), or its probabilities (lists).

    A list has one number per candidate of the event, in the order of the log's list, or one per action of
    ``log.actions``.
    """

    needs_frame = True

    def __init__(self, column: str, name: str | None = None) -> None:
        super().__init__(name or f"column:{column}")
        self.column = column

    def prepare(self, log: Log) -> None:
        schema = log.schema
        hidden = {schema.candidates, *(schema.pair if schema.sparse else ())}
        seen = [name for name in schema.visible_columns if name not in hidden]
        if self.column not in seen:
            known = self.column in (schema.action, schema.reward, schema.propensity_column)
            remedy = (
                "It is known only after the choice."
                if known
                else "Name it in the schema under `keep`, and convert the table again."
            )
            raise InputError(
                f"Policy {self.name}: {self.column} is not among the columns of {log.path} that a policy may use: "
                f"{', '.join(seen) or 'it has none'}. {remedy}"
            )
        self._number = {action: number for number, action in enumerate(log.actions)}
        kind = log.read(log.groups[0], [self.column]).schema.field(self.column).type
        self._per_action: bool | None = None
        if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            self._per_action = self._lists_per_action(log)

    def _lists_per_action(self, log: Log) -> bool:
        """Whether the lists have a number per action. If they also have one per candidate, they are taken as such."""
        listed, n = log.schema.candidates, log.n_items
        fits_actions = fits_candidates = True
        for group in log.groups:
            table = log.read(group, [self.column, *filter(None, [listed])])
            length = _lengths(table[self.column])
            shown = _lengths(table[listed]) if listed else np.full_like(length, n)
            before = fits_actions, fits_candidates
            fits_actions &= bool((length == n).all())
            fits_candidates &= bool((length == shown).all())
            if not (fits_actions or fits_candidates):
                # the row that contradicts what the rows before it left possible
                wrong = np.ones_like(length, dtype=np.bool_)
                for possible, expected in zip(before, (np.full_like(length, n), shown), strict=True):
                    wrong &= np.logical_or.accumulate(length != expected) if possible else True
                row = int(wrong.argmax())
                either = f"{shown[row]} (its candidates) or " if listed and shown[row] != n else ""
                raise InputError(
                    f"Policy {self.name}, row {group.first + row}: expected a list of {either}{n} (the actions) "
                    f"probabilities, the same in all rows; got {length[row]} of them."
                )
        return not fits_candidates

    def probabilities(self, batch: EventBatch) -> NDArray[np.float64]:
        values = batch.frame[self.column].tolist()
        n, actions = len(values), batch.log.n_items
        found = np.zeros((n, actions))
        if self._per_action is None:
            found[np.arange(n), [self._action(value, row) for value, row in zip(values, batch.rows, strict=True)]] = 1
            return found
        flat = np.concatenate([np.asarray(value, dtype=np.float64) for value in values])
        if self._per_action or batch.listed is None:
            return flat.reshape(n, actions)
        np.add.at(found, batch.listed, flat)
        return found

    def _action(self, value: Any, row: int) -> int:
        try:
            return self._number[value]
        except (KeyError, TypeError):
            some = ", ".join(repr(action) for action in list(self._number)[:3])
            what = "nothing" if value is None or value != value else f"{value!r:.60}"
            raise InputError(
                f"Policy {self.name}, row {row}: expected the name of an action ({some}, ...), got {what}."
            ) from None


class FunctionPolicy(Policy):
    """A function: a DataFrame of N events -> probabilities (N, A) over ``log.actions``.

    The DataFrame has the columns that are known before the choice; its index is the row in the log. The function is
    called with some thousand events at a time and must treat each event on its own.
    """

    needs_frame = True

    def __init__(self, function: Callable[[pd.DataFrame], Any], name: str | None = None) -> None:
        own = getattr(function, "__name__", type(function).__name__)
        super().__init__(name or ("policy" if own == "<lambda>" else own))
        self.function = function

    def probabilities(self, batch: EventBatch) -> Any:
        frame, rows = batch.frame, batch.rows
        try:
            # Lightning's inference mode is no business of the user's function
            with torch.inference_mode(False):
                return self.function(frame)
        except InputError:
            raise
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            # the last line of the user's own file: what raised may be deep in a library
            code = getattr(self.function, "__code__", None)
            own = [each for each in frames if code is not None and each.filename == code.co_filename]
            place = (own or frames)[-1]
            columns = f" The columns are {', '.join(map(str, frame.columns))}." if isinstance(error, KeyError) else ""
            raise InputError(
                f"Policy {self.name} failed on rows {rows.start}:{rows.stop}: {type(error).__name__}: {error} "
                f"({place.filename}, line {place.lineno}).{columns}"
            ) from error


def _sums(place: NDArray[np.int64], values: NDArray[np.float64], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """The sums of the values at each place of an array, places counted in its flat form."""
    return np.bincount(place, values, math.prod(shape)).astype(np.float64).reshape(shape)


def _lengths(column: pa.ChunkedArray) -> NDArray[np.int64]:
    return pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)


POLICIES: dict[str, tuple[Callable[[], Policy], str]] = {
    "logged": (LoggedPolicy, "the logging policy itself, whose value is the mean reward"),
    "uniform": (UniformPolicy, "every candidate with the same probability"),
    "best-fixed": (
        BestFixedPolicy,
        "the single action with the best estimated value, chosen on other rows than it is evaluated on",
    ),
}
"""Policies by name, with their meaning for the help of commands."""
