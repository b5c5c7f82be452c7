"""Features of (event, action) pairs of any log, from the roles that its schema gives to columns:

    x = [c, v, p]    or, with products,    x = [c, v, p, vec(c v^T)]

    c  the event's context: numeric columns, an indicator for each one that has missing values, and categories
    v  the action: its numeric and categorical columns; without any, which action it is
    p  features of event and action together

Numbers are standardised (``standard``: mean 0, variance 1, clipped to [-5, 5]) or scaled (``scale``: to [-1, 1]). A
missing number becomes 0, and its indicator 1.

Categories of all columns are one-hot side by side. Where these are more than ``components`` numbers, they are projected
onto as many singular vectors (truncated SVD). A column with more than ``max_categories`` categories is hashed into that
many buckets. A category that is missing or was not seen by the fit adds zeros.

Actions without any columns are one-hot. Where there are more than 64 of them, each has a code of 64 signs, +-1/8, taken
from a hash of its name.

All of this is linear in the categories and in discrete numbers (whole numbers with at most 64 different values): c is a
sum of rows of a table, and v is a row of another one. Both tables are fitted in one pass over the log.

Without products a linear agent ranks actions in the same way for every context: c adds the same number to all of them.
A network does not need products.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nl_lightning.core.errors import InputError
from replay.logs.reader import Events, Log
from replay.logs.schema import Schema
from replay.protocol.action_table import action_table
from replay.protocol.candidates import Candidates, pair_values
from replay.protocol.features import Encoded, Features, digest, first_rows
from replay.protocol.one_hot import Known, OneHotCounter, code_table, one_hot_table, width
from replay.protocol.scaling import LIMITS, FewValues, Moments, nearest, scaled
from replay.protocol.table_state import STATE_NAMES, check_settings, state_faults

__all__ = ["MOST_FEATURES", "SMALL_PAIRS", "TableFeatures"]


MOST_FEATURES = 4096
"""The largest number of features; only products reach it."""

SMALL_PAIRS = 16
"""Whole pair features below this can be looked up by a frozen agent."""


class TableFeatures(Features):
    """Fitted features of a log with any columns, on the CPU in float64 until ``to`` moves them.

    Make them with ``TableFeatures.fit(log)``.

    Args:
        schema: the roles of the log's columns.
        settings: those of ``DEFAULTS``.
        actions: names of the actions, in the order of their numbers.
        categories: of each categorical column of the context its categories, sorted, or its number of buckets.
        values: of each numeric column of the context its different values, ascending, or None if it is continuous.
        context: (sum of radix, c_d), the table of the discrete columns, categorical ones first; the last row of each
            column is that of missing values, and of unseen categories.
        shift, factor: (M,), the scaling of the continuous columns.
        indicators: (M,) bool, whether a continuous column has an indicator of missing values.
        action: (n, a), the table of actions.
        pair_shift, pair_factor: (P,), the scaling of pair features.
        small_pairs: whether most pair features are whole numbers from 0 to 15.
        items_digest: identifies the table of actions.
    """

    def __init__(
        self,
        schema: Schema,
        settings: Mapping[str, Any],
        actions: Sequence[str],
        categories: Sequence[Known],
        values: Sequence[Sequence[float] | None],
        context: Tensor,
        shift: Tensor,
        factor: Tensor,
        indicators: Tensor,
        action: Tensor,
        pair_shift: Tensor,
        pair_factor: Tensor,
        small_pairs: bool,
        items_digest: str,
    ) -> None:
        self.schema, self.settings = schema, dict(settings)
        self.actions, self.categories, self.values = list(actions), list(categories), list(values)
        self.context, self.action = context, action
        self.shift, self.factor, self.indicators = shift, factor, indicators
        self.pair_shift, self.pair_factor = pair_shift, pair_factor
        self.small_pairs, self.items_digest = small_pairs, items_digest

        self.n_items = len(action)
        self.limit = LIMITS[self.settings["numeric"]]
        numeric = list(zip(schema.context.numeric, self.values, strict=True))
        self._discrete = [(name, seen) for name, seen in numeric if seen is not None]
        self._continuous = [name for name, seen in numeric if seen is None]
        self.radix = (*(width(known) + 1 for known in self.categories), *(len(seen) + 1 for _, seen in self._discrete))
        # the first row of each discrete column in the table of the context
        starts = np.cumsum([0, *self.radix])[:-1]
        self._starts = torch.from_numpy(starts).to(context.device)
        self._indicated = indicators.nonzero().flatten()
        pairs = len(schema.pair)
        self.is_discrete = not self._continuous and (not pairs or (pairs == 1 and small_pairs))
        c, a = context.shape[1] + len(shift) + len(self._indicated), action.shape[1]
        self.dim = c + a + pairs + c * a * self.settings["products"]

    # ---- fit ------------------------------------------------------------------------------------------------------

    @classmethod
    def fit(cls, log: Log, rows: int | None = None, **settings: Any) -> "TableFeatures":
        """Fit on a log, or on its first ``rows`` events, in one pass.

        Args:
            log: the log.
            rows: events to fit on, the first ones of the log; left out, all of them.
            settings: ``numeric`` ("standard" or "scale"), ``max_categories``, ``components`` and ``products``; see
                ``DEFAULTS``.
        """
        chosen = check_settings(settings)
        numeric, components = chosen["numeric"], chosen["components"]
        schema = log.schema
        counter = OneHotCounter(len(schema.context.categorical), chosen["max_categories"])
        moments = {name: Moments() for name in (*schema.context.numeric, *schema.pair)}
        few = {name: FewValues() for name in schema.context.numeric}
        small = total = 0
        for group in first_rows(log, rows):
            events = log.events(group, use_threads=torch.get_num_threads() > 1)
            counter.add([events.categorical[name] for name in schema.context.categorical])
            for name in schema.context.numeric:
                moments[name].add(events.numeric[name])
                few[name].add(events.numeric[name])
            for name in schema.pair:
                values, zeros = _pair_numbers(events, name, log.n_items)
                moments[name].add(values, zeros)
                small += zeros + int(((values >= 0) & (values < SMALL_PAIRS) & (values == np.floor(values))).sum())
                total += zeros + len(values)

        scaling = {name: column.scaling(numeric, name) for name, column in moments.items()}
        seen = {name: column.values for name, column in few.items()}
        discrete = [name for name in schema.context.numeric if seen[name] is not None]
        continuous = [name for name in schema.context.numeric if seen[name] is None]
        blocks = [one_hot_table(counter.known, counter.gram(), components)]
        for name in discrete:
            blocks.append(_discrete_block(seen[name] or [], *scaling[name], LIMITS[numeric], moments[name].missing > 0))
        shift, factor = _scaling([scaling[name] for name in continuous])
        pair_shift, pair_factor = _scaling([scaling[name] for name in schema.pair])
        action = action_table(log.items, schema, chosen)
        features = cls(
            schema=schema,
            settings=chosen,
            actions=list(map(str, log.actions)),
            categories=counter.known,
            values=[seen[name] for name in schema.context.numeric],
            context=torch.from_numpy(_block_diagonal(blocks)),
            shift=shift,
            factor=factor,
            indicators=torch.tensor([moments[name].missing > 0 for name in continuous], dtype=torch.bool, device="cpu"),
            action=torch.from_numpy(action),
            pair_shift=pair_shift,
            pair_factor=pair_factor,
            small_pairs=2 * small >= total,
            items_digest=digest(log.items),
        )
        if features.dim > MOST_FEATURES:
            raise InputError(
                f"{log.path}: the log has {features.dim} features, more than {MOST_FEATURES}. "
                + ("Leave products out, or choose fewer components." if chosen["products"] else "Use fewer columns.")
            )
        return features

    def to(self, like: Tensor) -> "TableFeatures":
        moved = {name: value for name, value in self._state().items() if name != "schema"}
        for name, value in moved.items():
            if isinstance(value, Tensor):
                # Columns are scaled in double precision, as they are stored.
                moved[name] = value.to(like) if name in ("context", "action") else value.to(like.device)
        return TableFeatures(self.schema, **moved)

    # ---- events ---------------------------------------------------------------------------------------------------

    def check(self, log: Log) -> None:
        """Raise an InputError if the columns that agents see, or the actions, are not those of the fit."""
        then, now = self.schema, log.schema
        for what, fitted, found in (
            ("numeric context", then.context.numeric, now.context.numeric),
            ("categorical context", then.context.categorical, now.context.categorical),
            ("pair features", then.pair, now.pair),
            ("numeric features of actions", then.action_features.numeric, now.action_features.numeric),
            ("categorical features of actions", then.action_features.categorical, now.action_features.categorical),
        ):
            for names, others, words in ((fitted, found, "lacks the column"), (found, fitted, "also has the column")):
                for name in names:
                    if name not in others:
                        raise InputError(
                            f"{log.path}: its {what} {words} {name}. The agent's features were fitted for "
                            f"{', '.join(fitted) or 'none'}, the log's schema says {', '.join(found) or 'none'}."
                        )
        actions = list(map(str, log.actions))
        for number, (mine, other) in enumerate(zip(self.actions, actions, strict=False)):
            if mine != other:
                raise InputError(
                    f"{log.path}: action number {number} is {other!r:.60}, the agent's features were fitted for "
                    f"{mine!r:.60}. Convert the log with the table of actions of the training log."
                )
        if len(actions) != self.n_items:
            raise InputError(
                f"{log.path} has {len(actions)} actions, the agent's features were fitted for {self.n_items}."
            )

    def encode(self, log: Log, events: Events, arms: Candidates) -> Encoded:
        codes, unseen, missing = [], 0, 0
        for known, name in zip(self.categories, self.schema.context.categorical, strict=True):
            index, values = events.categorical[name]
            # index -1, a missing value, selects the last entry
            code = code_table(known, values)[index]
            lost, none = int((code == width(known)).sum()), int((index < 0).sum())
            unseen, missing = unseen + lost - none, missing + none
            codes.append(code)
        for name, seen in self._discrete:
            code, strange = nearest(seen, events.numeric[name])
            unseen, missing = unseen + strange, missing + int((code == len(seen)).sum())
            codes.append(code)
        n = len(events.item)
        numbers = np.empty((n, len(self._continuous)))
        for place, name in enumerate(self._continuous):
            numbers[:, place] = events.numeric[name]
        missing += int(np.isnan(numbers).sum())
        numbers = scaled(numbers, self._numpy(self.shift), self._numpy(self.factor), self.limit)
        pairs = [pair_values(events.pair[name], events, arms, log.n_items) for name in self.schema.pair]
        return Encoded(
            torch.from_numpy(np.stack(codes, axis=1) if codes else np.empty((n, 0), dtype=np.int64)),
            torch.from_numpy(numbers),
            torch.stack(pairs, dim=-1) if pairs else torch.empty(*arms.item.shape, 0, device="cpu"),
            unseen,
            missing,
        )

    @staticmethod
    def _numpy(values: Tensor) -> NDArray[np.float64]:
        return values.double().cpu().numpy()

    def contexts(self, codes: Tensor, numbers: Tensor) -> Tensor:
        """c (..., c) for codes (..., C) and scaled numbers (..., M), in which NaN is a missing value."""
        parts = [self.context[codes + self._starts].sum(-2)]
        if numbers.shape[-1]:
            parts.append(numbers.nan_to_num(0.0).to(self.context))
        if len(self._indicated):
            parts.append(numbers[..., self._indicated].isnan().to(self.context))
        return torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]

    def arms(self, codes: Tensor, numbers: Tensor, item: Tensor, pair: Tensor) -> Tensor:
        """x (..., K, d) for codes (..., C), numbers (..., M), actions (..., K) and pair features (..., K, P)."""
        c, v = self.contexts(codes, numbers).unsqueeze(-2), self.action[item]
        parts = [c.expand(*item.shape, -1), v]
        if pair.shape[-1]:
            parts.append(scaled(pair.double(), self.pair_shift, self.pair_factor, self.limit).to(self.action))
        if self.settings["products"]:
            parts.append((c.unsqueeze(-1) * v.unsqueeze(-2)).flatten(-2))
        return torch.cat(parts, dim=-1)

    # ---- state ----------------------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in STATE_NAMES}

    def state_dict(self) -> dict[str, Any]:
        state = self._state()
        for name, value in state.items():
            if isinstance(value, Tensor):
                state[name] = value.cpu() if value.dtype == torch.bool else value.double().cpu()
        return {"kind": "table", **state, "schema": self.schema.to_dict()}

    @classmethod
    def from_state_dict(cls, state: Any) -> "TableFeatures":
        """The features that a checkpoint holds. Raises an InputError if they are damaged."""
        for name, expected, got in state_faults(state):
            raise InputError(
                f"The features of the log in the checkpoint are damaged: {name} must be {expected}, got {got}. "
                "Take another checkpoint, or train the agent again."
            )
        given = {name: state[name] for name in STATE_NAMES}
        return cls(**{**given, "schema": Schema.from_dict(state["schema"], stored=True)})


# ---- the parts of a fit ----------------------------------------------------------------------------------------------


def _pair_numbers(events: Events, name: str, items: int) -> tuple[NDArray[Any], int]:
    """The values of a pair feature over all candidates: those that are stored, and the number of zeros beside them."""
    value, item = events.pair[name]
    if item is None:
        return value.values, 0
    offered = len(events.item) * items if events.candidates is None else int(events.candidates.length.sum())
    return value.values, offered - len(value.values)


def _scaling(columns: Sequence[tuple[float, float]]) -> tuple[Tensor, Tensor]:
    """shift and factor of several columns"""
    table = torch.tensor(columns, dtype=torch.float64, device="cpu").reshape(len(columns), 2)
    return table[:, 0].clone(), table[:, 1].clone()


def _discrete_block(
    seen: Sequence[float], shift: float, factor: float, limit: float, indicator: bool
) -> NDArray[np.float64]:
    """(V + 1, 1 or 2): the features of the values of a discrete number; the last row is that of a missing one."""
    block = np.zeros((len(seen) + 1, 1 + indicator))
    block[:-1, 0] = scaled(np.array(seen), shift, factor, limit)
    block[-1, 1:] = 1
    return block


def _block_diagonal(blocks: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    rows, columns = (sum(block.shape[i] for block in blocks) for i in range(2))
    whole = np.zeros((rows, columns))
    row = column = 0
    for block in blocks:
        whole[row : row + len(block), column : column + block.shape[1]] = block
        row, column = row + len(block), column + block.shape[1]
    return whole
