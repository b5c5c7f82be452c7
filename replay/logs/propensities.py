"""Propensities of a table that has none: uniform ones, or estimates of a model of action given context.

The model is a multinomial logistic regression on the context: numeric columns standardised, with an indicator of
missing values, and the most frequent values of categorical columns. It is cross-fitted: the rows of a log are dealt to
``FOLDS`` folds by their number, and a row's propensity comes from a model that was fitted to the other folds. The model
sees at most ``SAMPLE`` rows, evenly spaced over the log, so that memory does not grow with it. Where an event has
candidates, the probabilities are restricted to them and renormalised. No propensity is below ``FLOOR``.

The model does not know which candidates an event had when it is fitted. If what was shown depends on anything else than
the context, the estimates are biased; so are results that rest on them.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nl_lightning.core.errors import InputError
from replay.logs.actions import ActionNumbers
from replay.logs.schema import Schema

__all__ = ["CATEGORIES", "FLOOR", "FOLDS", "MOST_ESTIMATED", "SAMPLE", "Propensities", "Sample"]

FOLDS = 5
FLOOR = 1e-3
"""The lowest estimate: an event counts at most 1,000-fold in an inverse propensity weight."""
SAMPLE = 100_000
"""Rows that a model is fitted to at most."""
MOST_ESTIMATED = 1_000
"""Actions at most, for which propensities are estimated."""
CATEGORIES = 100
"""Values of a categorical column that a model tells apart, the most frequent ones."""

_CELLS = 20_000_000
"""Rows times actions that a model may see, which bounds its memory."""
_TOGETHER = 4_096
"""Rows that are predicted together."""
_ROW = "#row"


class Sample:
    """Evenly spaced rows of a log, at most ``SAMPLE``."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.stride = 1
        self._tables: list[pa.Table] = []
        self._rows = 0

    def add(self, events: pa.Table, names: pa.Array, first: int) -> None:
        """Add events whose first one is the row ``first`` of the log, with the names of their actions."""
        rows = np.arange(first, first + events.num_rows)
        chosen = np.flatnonzero(rows % self.stride == 0)
        columns = {name: events[name] for name in self.schema.context}
        columns[self.schema.action] = names.take(events[self.schema.action].combine_chunks())
        columns[_ROW] = pa.array(rows)
        table = pa.table(columns).take(pa.array(chosen))
        self._tables.append(table.combine_chunks())
        self._rows += len(chosen)
        while self._rows > SAMPLE:
            self.thin()

    def thin(self) -> None:
        """Keep every second row."""
        self.stride *= 2
        whole = self.table
        kept = whole.filter(pa.array(whole[_ROW].to_numpy() % self.stride == 0))
        self._tables, self._rows = [kept.combine_chunks()], kept.num_rows

    @property
    def table(self) -> pa.Table:
        return pa.concat_tables(self._tables, promote_options="permissive").unify_dictionaries()

    @property
    def rows(self) -> NDArray[np.int64]:
        return self.table[_ROW].to_numpy()


class Propensities:
    """Adds the propensities that a schema promises and its table does not have.

    Args:
        schema: says how the log was made.
        actions: the log's actions.
        sample: rows to estimate from, if propensities are estimated.
    """

    def __init__(self, schema: Schema, actions: ActionNumbers, sample: Sample | None = None) -> None:
        self.schema, self.n = schema, len(actions)
        self._models: list[_Model] = []
        if schema.logging == "estimated":
            assert sample is not None
            self._fit(actions, sample)

    def add(self, events: pa.Table, first: int) -> pa.Table:
        """Events with their propensities; the first one is the row ``first`` of the log."""
        if self.schema.logging is None:
            return events
        values = self._uniform(events) if self.schema.logging == "uniform" else self._estimated(events, first)
        return events.append_column(self.schema.propensity_column, pa.array(values, pa.float64()))

    def _uniform(self, events: pa.Table) -> NDArray[np.float64]:
        if self.schema.candidates is None:
            return np.full(events.num_rows, 1 / self.n)
        return 1 / pc.list_value_length(events[self.schema.candidates]).to_numpy().astype(np.float64)

    def _fit(self, actions: ActionNumbers, sample: Sample) -> None:
        if self.n > MOST_ESTIMATED:
            raise InputError(
                f"Propensities can be estimated for at most {MOST_ESTIMATED:,} actions; the log has {self.n:,}. "
                "Give a column of propensities, or `logging: uniform` if that is how it was made."
            )
        while len(sample.rows) * self.n > _CELLS:
            sample.thin()
        table, rows = sample.table, sample.rows
        action = actions.find(table[self.schema.action].combine_chunks())
        for fold in range(FOLDS):
            others = np.flatnonzero(rows % FOLDS != fold) if len(rows) > 1 else np.arange(len(rows))
            if not len(others):
                others = np.arange(len(rows))
            self._models.append(_Model(self.schema, table.take(pa.array(others)), action[others], self.n))

    def _estimated(self, events: pa.Table, first: int) -> NDArray[np.float64]:
        found = np.empty(events.num_rows)
        for start in range(0, events.num_rows, _TOGETHER):
            part = events.slice(start, _TOGETHER)
            rows = np.arange(first + start, first + start + part.num_rows)
            probability = np.empty((part.num_rows, self.n))
            for fold in range(FOLDS):
                mine = np.flatnonzero(rows % FOLDS == fold)
                if len(mine):
                    probability[mine] = self._models[fold].predict(part.take(pa.array(mine)))
            found[start : start + part.num_rows] = self._of_logged(part, probability)
        return np.clip(found, FLOOR, 1.0)

    def _of_logged(self, events: pa.Table, probability: NDArray[np.float64]) -> NDArray[np.float64]:
        """(N,), the probability of the logged action among the event's candidates."""
        action = events[self.schema.action].to_numpy()
        logged = probability[np.arange(len(action)), action]
        if self.schema.candidates is None:
            return logged
        lists = events[self.schema.candidates].combine_chunks()
        length = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
        owner = np.repeat(np.arange(len(action)), length)
        total = np.bincount(owner, probability[owner, lists.flatten().to_numpy()], len(action))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(total > 0, logged / total, 1 / length)


class _Model:
    """Multinomial logistic regression of the action given the context."""

    def __init__(self, schema: Schema, table: pa.Table, action: NDArray[np.int32], n: int) -> None:
        from sklearn.linear_model import LogisticRegression

        self.schema, self.n = schema, n
        self._moments: dict[str, tuple[float, float]] = {}
        self._categories: dict[str, list[str]] = {}
        for name in schema.context.numeric:
            values = _floats(table[name])
            known = values[~np.isnan(values)]
            scale = float(known.std()) if len(known) else 0.0
            self._moments[name] = (float(known.mean()) if len(known) else 0.0, scale if scale > 0 else 1.0)
        for name in schema.context.categorical:
            counts = pc.value_counts(table[name].cast(pa.string()).drop_null()).to_pylist()
            ordered = sorted(counts, key=lambda count: (-count["counts"], count["values"]))
            self._categories[name] = [count["values"] for count in ordered[:CATEGORIES]]
        self.classes = np.unique(action)
        self._regression = None
        if len(self.classes) > 1:
            self._regression = LogisticRegression(max_iter=200).fit(self._features(table), action)

    def predict(self, events: pa.Table) -> NDArray[np.float64]:
        """(N, n), the probability of every action."""
        found = np.zeros((events.num_rows, self.n))
        if self._regression is None:
            found[:, self.classes] = 1.0
        else:
            found[:, self.classes] = self._regression.predict_proba(self._features(events))
        return found

    def _features(self, table: pa.Table) -> Any:
        """(N, features), sparse. Without any context there is one constant: the intercept is the model."""
        from scipy import sparse

        n = table.num_rows
        dense = [np.zeros(n)]
        for name, (mean, scale) in self._moments.items():
            values = _floats(table[name])
            missing = np.isnan(values)
            # A value far outside the sample must not overflow.
            dense += [np.clip(np.where(missing, 0.0, (values - mean) / scale), -1e6, 1e6), missing.astype(float)]
        parts = [sparse.csr_matrix(np.column_stack(dense))]
        for name, categories in self._categories.items():
            code = pc.index_in(table[name].cast(pa.string()), pa.array(categories, pa.string()))
            number = pc.fill_null(code, len(categories)).to_numpy()
            # The last column but one is "another value", the last one "missing".
            missing = table[name].is_null().to_numpy()
            column = np.where(missing, len(categories) + 1, number)
            parts.append(sparse.csr_matrix((np.ones(n), (np.arange(n), column)), (n, len(categories) + 2)))
        return sparse.hstack(parts).tocsr()


def _floats(column: pa.ChunkedArray) -> NDArray[np.float64]:
    return column.cast(pa.float64(), safe=False).to_numpy()
