"""The paper's 42 features of an (event, item) pair of the Open Bandit Dataset:

    x = [u (16), v (8), position, a, u * a (16)]

    u         truncated SVD of the user's four categories, one-hot
    v         truncated SVD of the item's three categories, one-hot, and its number
    position  scaled to [-1, 1]
    a         affinity, log1p, scaled to [-1, 1]

One-hot encoding followed by SVD is linear: u is the sum of four rows of a table, and v is a row of another table. Both
tables are fitted once. A category that is missing or was not seen by the fit adds nothing to u: its row is zeros.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding

from nl_lightning.core.errors import InputError
from nl_lightning.core.whole import is_whole
from replay.logs.obd import AFFINITY, ITEM_FEATURES, ITEM_NUMBER, MOST_POSITIONS, OBD, POSITION, USER_FEATURES
from replay.logs.reader import Events, Log
from replay.protocol.candidates import Candidates, pair_values
from replay.protocol.features import Encoded, Features, digest, first_rows

__all__ = ["DIM", "ObdFeatures", "digest"]


USER_DIM, ITEM_DIM = 16, 8
DIM = 2 * USER_DIM + ITEM_DIM + 2
"""42"""


class ObdFeatures(Features):
    """Fitted features: tables of users and items, on the CPU in float64 until ``to`` moves them.

    Make them with ``ObdFeatures.fit(log)``.
    """

    dim = DIM
    is_discrete = True
    items_digest: str

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
        """(number of all categories + 4, 16); each feature's last row, of unseen and missing values, is zeros"""
        self.item = item
        """(n, 8)"""
        self.positions = positions
        self.affinity_high = affinity_high
        self.items_digest = items_digest
        """identifies the table of items"""
        self.n_items = len(item)
        self.radix = (*(len(names) + 1 for names in self.categories), positions + 1)
        # the first row of each feature in the table of users
        starts = np.cumsum([0, *self.radix[:-2]])
        self._starts = torch.from_numpy(starts).to(user.device)
        self._codes = [{name: i for i, name in enumerate(names)} for names in self.categories]

    @classmethod
    def fit(cls, log: Log, rows: int | None = None) -> "ObdFeatures":
        """Fit on the users of a log, or of its first ``rows`` events, and on its items, in one pass over the log."""
        _check_columns(log)
        counts: dict[tuple[str | None, ...], int] = {}
        for group in first_rows(log, rows):
            users = log.read(group, USER_FEATURES, use_threads=torch.get_num_threads() > 1)
            profiles = users.group_by(list(USER_FEATURES)).aggregate([([], "count_all")])
            columns = [profiles[name].cast(pa.string()).to_pylist() for name in USER_FEATURES]
            for profile, count in zip(zip(*columns, strict=True), profiles["count_all"].to_pylist(), strict=True):
                counts[profile] = counts.get(profile, 0) + count
        _, positions = log.statistics.numeric[POSITION]
        _, affinity_high = log.statistics.pair.get(AFFINITY, (0.0, 0.0))
        return cls.from_profiles(counts, log.items, int(positions), affinity_high)

    @classmethod
    def from_profiles(
        cls, counts: Mapping[tuple[str | None, ...], int], items: pa.Table, positions: int, affinity_high: float
    ) -> "ObdFeatures":
        """Fit on the number of events of each user profile and the table of items."""
        # n equal rows of a matrix have the same right singular vectors as one row times sqrt(n).
        categories, one_hot = _one_hot([[profile[i] for profile in counts] for i in range(len(USER_FEATURES))])
        vectors = _singular_vectors(one_hot * np.sqrt(np.array(list(counts.values())))[:, None], USER_DIM)
        parts = np.split(vectors, np.cumsum([len(names) for names in categories])[:-1])
        user = np.concatenate([np.pad(part, ((0, 1), (0, 0))) for part in parts])

        _, one_hot = _one_hot([items[name].cast(pa.string()).to_pylist() for name in ITEM_FEATURES])
        described = np.concatenate([one_hot, items[ITEM_NUMBER].to_numpy()[:, None]], axis=1)
        item = described @ _singular_vectors(described, ITEM_DIM)
        tables = (torch.from_numpy(user), torch.from_numpy(item))
        return cls(categories, *tables, positions, affinity_high, digest(items))

    def to(self, like: Tensor) -> "ObdFeatures":
        """The same features on the device and in the precision of ``like``."""
        tables = (self.user.to(like), self.item.to(like))
        return ObdFeatures(self.categories, *tables, self.positions, self.affinity_high, self.items_digest)

    def check(self, log: Log) -> None:
        """Raise an InputError if a log has other items or more positions than the fit."""
        _check_columns(log)
        n, positions = len(self.item), int(log.statistics.numeric[POSITION][1])
        if log.n_items != n:
            raise InputError(f"{log.path} has {log.n_items} items, the agent's features were fitted for {n}.")
        if positions > self.positions:
            raise InputError(
                f"{log.path} has positions up to {positions}, the agent's features end at {self.positions}."
            )

    def encode(self, log: Log, events: Events, arms: Candidates) -> Encoded:
        codes, unseen, missing = [], 0, 0
        for known, name in zip(self._codes, USER_FEATURES, strict=True):
            index, values = events.categorical[name]
            # Index -1, a missing value, selects the last entry.
            table = torch.tensor([*(known.get(value, len(known)) for value in values), len(known)], device="cpu")
            code = table[torch.from_numpy(index)]
            lost, none = int((code == len(known)).sum()), int((index < 0).sum())
            unseen, missing = unseen + lost - none, missing + none
            codes.append(code)
        position = torch.from_numpy(events.numeric[POSITION])
        if position.is_floating_point():
            raise InputError(f"{log.path}, column {POSITION}: expected whole numbers, none of them missing.")
        codes.append(position - 1)
        pair = pair_values(events.pair[AFFINITY], events, arms, log.n_items).unsqueeze(-1)
        return Encoded(
            torch.stack(codes, dim=-1), torch.empty(len(events.item), 0, device="cpu"), pair, unseen, missing
        )

    def encode_profiles(self, profiles: Sequence[Sequence[str]]) -> Tensor:
        """The codes (N, 4) of N users given by the names of their categories."""
        rows = [[known.get(name, len(known)) for known, name in zip(self._codes, p, strict=True)] for p in profiles]
        return torch.tensor(rows, device="cpu")

    def users(self, codes: Tensor) -> Tensor:
        """u (..., 16) for users and positions (..., 5)."""
        return embedding(codes[..., :4] + self._starts, self.user).sum(-2)

    def arms(self, codes: Tensor, numbers: Tensor, item: Tensor, pair: Tensor) -> Tensor:
        """x (..., K, 42) for users and positions (..., 5), items (..., K) and their affinities (..., K, 1)."""
        u = self.users(codes).unsqueeze(-2)
        a = self.scaled_affinity(pair)
        shape = (*item.shape, -1)
        place = self.scaled_position(codes[..., 4] + 1)[..., None, None].expand(*item.shape, 1)
        return torch.cat([u.expand(shape), embedding(item, self.item), place, a, u * a], dim=-1)

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
            "kind": "obd",
            "categories": self.categories,
            "user": self.user.double().cpu(),
            "item": self.item.double().cpu(),
            "positions": self.positions,
            "affinity_high": self.affinity_high,
            "items_digest": self.items_digest,
        }

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> "ObdFeatures":
        """The features that a checkpoint holds. Raises an InputError if they are damaged."""
        for name, expected, got in _faults(state):
            raise InputError(
                f"The features of the log in the checkpoint are damaged: {name} must be {expected}, got {got}. "
                "Take another checkpoint, or train the agent again."
            )
        return cls(**{name: value for name, value in state.items() if name != "kind"})


def _check_columns(log: Log) -> None:
    """Raise an InputError unless a log has the columns of the Open Bandit Dataset, with values that it may have."""
    if log.schema != OBD:
        raise InputError(
            f"{log.path} does not have the columns of the Open Bandit Dataset, which the agent's features take."
        )
    low, high = log.statistics.numeric.get(POSITION, (0, 0))
    if not 1 <= low <= high <= MOST_POSITIONS:
        raise InputError(f"{log.path}, column {POSITION}: expected 1 to {MOST_POSITIONS}, got {low:g} to {high:g}.")
    lowest = log.statistics.pair.get(AFFINITY, (0.0, 0.0))[0]
    if lowest < 0:
        raise InputError(f"{log.path}, column {AFFINITY}: expected numbers of at least 0, got {lowest:g}.")


def _faults(state: Any) -> Iterator[tuple[str, str, str]]:
    """What is wrong with the state of features: a name, what was expected, what was found."""
    names = ("kind", "categories", "user", "item", "positions", "affinity_high", "items_digest")
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
    rows = sum(map(len, categories)) + len(categories)
    unknown = np.cumsum([len(part) + 1 for part in categories]) - 1
    for name, shape in (("user", (rows, USER_DIM)), ("item", (None, ITEM_DIM))):
        table = state[name]
        words = f"finite float64 numbers of shape ({shape[0] or 'items'}, {shape[1]})"
        if not isinstance(table, Tensor) or table.layout != torch.strided or table.dtype != torch.float64:
            yield name, words, _kind(table)
        elif table.dim() != 2 or table.shape[1] != shape[1] or len(table) != (shape[0] or max(len(table), 1)):
            yield name, words, f"the shape {tuple(table.shape)}"
        elif not table.isfinite().all():
            yield name, words, "numbers that are not finite"
        elif name == "user" and table[torch.from_numpy(unknown)].any():
            yield name, "zeros in the last row of each feature", "other numbers"
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
