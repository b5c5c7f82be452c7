"""The 42 features of an (event, item) pair:

    x = [u (16), v (8), position, a, u * a (16)]

    u         truncated SVD of the user's four categories, one-hot
    v         truncated SVD of the item's three categories, one-hot, and its number
    position  scaled to [-1, 1]
    a         affinity, log1p, scaled to [-1, 1]

One-hot encoding followed by SVD is linear: u is the sum of four rows of a table, and v is a row of another table. Both
tables are fitted once. A category that is missing or was not seen by the fit adds nothing to u: its row is zeros.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from nl_lightning.core.errors import InputError
from nl_lightning.core.whole import is_whole
from replay.logs.reader import Events, Log
from replay.logs.schema import ITEM_FEATURES, ITEM_NUMBER, MOST_POSITIONS, USER_FEATURES

__all__ = ["DIM", "Features", "Unseen", "digest"]


USER_DIM, ITEM_DIM = 16, 8
DIM = 2 * USER_DIM + ITEM_DIM + 2
"""42"""


class Unseen(NamedTuple):
    """Numbers of user feature values that have no entry in the table."""

    unseen: int
    """values that the fit has not seen"""
    missing: int


class Features:
    """Fitted features: tables of users and items, on the CPU in float64 until ``to`` moves them.

    Make them with ``Features.fit(log)``.
    """

    def __init__(
        self,
        categories: Sequence[Sequence[str]],
        user: Tensor,
        item: Tensor,
        positions: int,
        affinity_high: float,
        items_digest: str,
    ) -> None:
        self.categories = [list(names) for names in categories]
        """the categories of each user feature, sorted"""
        self.user = user
        """(number of all categories + 1, 16); the last row, of unseen and missing values, is zeros"""
        self.item = item
        """(n, 8)"""
        self.positions = positions
        self.affinity_high = affinity_high
        self.items_digest = items_digest
        """identifies the table of items"""
        starts = np.cumsum([0, *map(len, self.categories)])
        self._codes = [
            {name: start + i for i, name in enumerate(names)}
            for start, names in zip(starts, self.categories, strict=False)
        ]

    @classmethod
    def fit(cls, log: Log, rows: int | None = None) -> "Features":
        """Fit on the users of a log, or of its first ``rows`` events, and on its items, in one pass over the log."""
        counts: dict[tuple[str | None, ...], int] = {}
        for group in log.groups:
            if rows is not None and group.first >= rows:
                break
            users = log.read(group, USER_FEATURES, use_threads=torch.get_num_threads() > 1)
            if rows is not None:
                users = users.slice(0, rows - group.first)
            profiles = users.group_by(list(USER_FEATURES)).aggregate([([], "count_all")])
            columns = [profiles[name].cast(pa.string()).to_pylist() for name in USER_FEATURES]
            for profile, count in zip(zip(*columns, strict=True), profiles["count_all"].to_pylist(), strict=True):
                counts[profile] = counts.get(profile, 0) + count
        return cls.from_profiles(counts, log.items, log.positions, log.statistics.affinity_high)

    @classmethod
    def from_profiles(
        cls, counts: Mapping[tuple[str | None, ...], int], items: pa.Table, positions: int, affinity_high: float
    ) -> "Features":
        """Fit on the number of events of each user profile and the table of items."""
        # n equal rows of a matrix have the same right singular vectors as one row times sqrt(n).
        categories, one_hot = _one_hot([[profile[i] for profile in counts] for i in range(len(USER_FEATURES))])
        vectors = _singular_vectors(one_hot * np.sqrt(np.array(list(counts.values())))[:, None], USER_DIM)
        user = np.concatenate([vectors, np.zeros((1, USER_DIM))])

        _, one_hot = _one_hot([items[name].cast(pa.string()).to_pylist() for name in ITEM_FEATURES])
        described = np.concatenate([one_hot, items[ITEM_NUMBER].to_numpy()[:, None]], axis=1)
        item = described @ _singular_vectors(described, ITEM_DIM)
        tables = (torch.from_numpy(user), torch.from_numpy(item))
        return cls(categories, *tables, positions, affinity_high, digest(items))

    def to(self, like: Tensor) -> "Features":
        """The same features on the device and in the precision of ``like``."""
        tables = (self.user.to(like), self.item.to(like))
        return Features(self.categories, *tables, self.positions, self.affinity_high, self.items_digest)

    def check(self, log: Log) -> None:
        """Raise an InputError if a log has other items or more positions than the fit."""
        n = len(self.item)
        if log.n_items != n:
            raise InputError(f"{log.path} has {log.n_items} items, the agent's features were fitted for {n}.")
        if log.positions > self.positions:
            raise InputError(
                f"{log.path} has positions up to {log.positions}, the agent's features end at {self.positions}."
            )

    def encode(self, events: Events) -> tuple[Tensor, Unseen]:
        """The rows (N, 4) of the user table for N events, and the numbers of unknown values."""
        neutral = len(self.user) - 1
        codes, unseen, missing = [], 0, 0
        for known, (index, values) in zip(self._codes, events.users, strict=True):
            # Index -1, a missing value, selects the last entry.
            table = torch.tensor([*(known.get(value, neutral) for value in values), neutral], device="cpu")
            code = table[torch.from_numpy(index)]
            lost, none = int((code == neutral).sum()), int((index < 0).sum())
            unseen, missing = unseen + lost - none, missing + none
            codes.append(code)
        return torch.stack(codes, dim=-1), Unseen(unseen, missing)

    def encode_profiles(self, profiles: Sequence[Sequence[str]]) -> Tensor:
        """The rows (N, 4) of the user table for N users given by the names of their categories."""
        neutral = len(self.user) - 1
        rows = [[known.get(name, neutral) for known, name in zip(self._codes, p, strict=True)] for p in profiles]
        return torch.tensor(rows, device="cpu")

    def arms(self, codes: Tensor, position: Tensor, item: Tensor, affinity: Tensor) -> Tensor:
        """x (..., K, 42) for users (..., 4), positions (...), items (..., K) and their affinities (..., K)."""
        u = self.user[codes].sum(-2).unsqueeze(-2)
        a = self.scaled_affinity(affinity).unsqueeze(-1)
        shape = (*item.shape, -1)
        place = self.scaled_position(position)[..., None, None].expand(*item.shape, 1)
        return torch.cat([u.expand(shape), self.item[item], place, a, u * a], dim=-1)

    def scaled_affinity(self, affinity: Tensor) -> Tensor:
        """2 log1p(a) / log1p(a_max) - 1, clamped to 1 above a_max."""
        largest = float(np.log1p(self.affinity_high)) or 1.0
        return (affinity.to(self.user).log1p() * (2 / largest) - 1).clamp_max(1)

    def scaled_position(self, position: Tensor) -> Tensor:
        """Positions 1, ..., P scaled to [-1, 1]; a single position becomes 0."""
        middle, half = (self.positions + 1) / 2, (self.positions - 1) / 2
        return (position.to(self.user) - middle) / (half or 1.0)

    def state_dict(self) -> dict[str, Any]:
        return {
            "categories": self.categories,
            "user": self.user.double().cpu(),
            "item": self.item.double().cpu(),
            "positions": self.positions,
            "affinity_high": self.affinity_high,
            "items_digest": self.items_digest,
        }

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> "Features":
        """The features that a checkpoint holds. Raises an InputError if they are damaged."""
        for name, expected, got in _faults(state):
            raise InputError(
                f"The features of the log in the checkpoint are damaged: {name} must be {expected}, got {got}. "
                "Take another checkpoint, or train the agent again."
            )
        return cls(**state)


def _faults(state: Any) -> Iterator[tuple[str, str, str]]:
    """What is wrong with the state of features: a name, what was expected, what was found."""
    names = ("categories", "user", "item", "positions", "affinity_high", "items_digest")
    if not isinstance(state, dict):
        yield "their state", "a dictionary", type(state).__name__
        return
    if set(state) != set(names):
        yield "their state", f"{', '.join(names)}", ", ".join(map(str, state))[:200] or "nothing"
        return
    categories = state["categories"]
    if not (
        isinstance(categories, list)
        and len(categories) == len(USER_FEATURES)
        and all(isinstance(part, list) and all(isinstance(text, str) for text in part) for part in categories)
        and all(len(set(part)) == len(part) for part in categories)
    ):
        yield "categories", f"{len(USER_FEATURES)} lists of different texts", _kind(categories)
        return
    rows = sum(map(len, categories)) + 1
    for name, shape in (("user", (rows, USER_DIM)), ("item", (None, ITEM_DIM))):
        table = state[name]
        words = f"finite float64 numbers of shape ({shape[0] or 'items'}, {shape[1]})"
        if not isinstance(table, Tensor) or table.layout != torch.strided or table.dtype != torch.float64:
            yield name, words, _kind(table)
        elif table.dim() != 2 or table.shape[1] != shape[1] or len(table) != (shape[0] or max(len(table), 1)):
            yield name, words, f"the shape {tuple(table.shape)}"
        elif not table.isfinite().all():
            yield name, words, "numbers that are not finite"
        elif name == "user" and table[-1].any():
            yield name, "zeros in the last row", "other numbers"
    if not is_whole(state["positions"], 1) or state["positions"] > MOST_POSITIONS:
        yield "positions", f"a whole number from 1 to {MOST_POSITIONS}", _kind(state["positions"])
    high = state["affinity_high"]
    if not isinstance(high, int | float) or isinstance(high, bool) or not 0 <= high <= 1e300:
        yield "affinity_high", "a finite number of at least 0", _kind(high)
    if not isinstance(state["items_digest"], str):
        yield "items_digest", "text", _kind(state["items_digest"])


def _kind(value: Any) -> str:
    """A value for a message: a number as it is, anything else by its type."""
    return str(value)[:60] if isinstance(value, int | float) else type(value).__name__


def digest(items: pa.Table) -> str:
    """A hash that identifies a table of items."""
    return hashlib.sha256(json.dumps(items.to_pylist(), sort_keys=True).encode()).hexdigest()


def _one_hot(columns: Sequence[Sequence[str | None]]) -> tuple[list[list[str]], NDArray[np.float64]]:
    """The sorted categories of each column, and the columns one-hot side by side; a missing value is all zeros."""
    categories = [sorted({value for value in column if value is not None}) for column in columns]
    blocks = []
    for names, column in zip(categories, columns, strict=True):
        place = {name: i for i, name in enumerate(names)}
        index = np.array([len(names) if value is None else place[value] for value in column], dtype=np.int64)
        blocks.append(np.eye(len(names) + 1)[index, :-1])
    return categories, np.concatenate(blocks, axis=1)


def _singular_vectors(matrix: NDArray[np.float64], components: int) -> NDArray[np.float64]:
    """The first right singular vectors as columns, each with its largest entry positive; zeros beyond the rank."""
    if not matrix.size:
        return np.zeros((matrix.shape[1], components))
    _, values, transposed = np.linalg.svd(matrix, full_matrices=False)
    kept = min(components, int((values > 1e-9 * values.max(initial=0)).sum()))
    vectors = transposed[:kept].T
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(kept)]
    return np.pad(vectors * np.sign(largest), ((0, 0), (0, components - kept)))
