"""Features of (event, action) pairs: what is fitted once, stored with an agent, and applied to every event."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
from torch import Tensor

from replay.logs.reader import Events, Log, RowGroup
from replay.protocol.candidates import Candidates

__all__ = ["Encoded", "Features", "digest", "first_rows"]


class Encoded(NamedTuple):
    """What features take from N events with K arms each."""

    codes: Tensor
    """(N, C) long, discrete columns of the context: a number below ``radix`` each"""
    numbers: Tensor
    """(N, M), continuous columns of the context"""
    pair: Tensor
    """(N, K, P), what belongs to an event and an action together"""
    unseen: int = 0
    """values of the context that the fit has not seen"""
    missing: int = 0
    """values of the context that are missing"""


class Features(ABC):
    """Maps events to arms, x (..., K, d).

    Fitted features are on the CPU in float64 until ``to`` moves them. An agent that does not learn gives equal arms
    equal scores: arms whose context is all codes are computed once and looked up.
    """

    dim: int
    """d"""
    radix: tuple[int, ...]
    """number of codes of each discrete column; the last code is that of missing and unseen values"""
    n_items: int
    is_discrete: bool
    """whether an arm is given by its codes, its action and at most one pair feature"""
    items_digest: str | None = None
    """identifies the table of actions; None if it does not matter"""

    @abstractmethod
    def encode(self, log: Log, events: Events, arms: Candidates) -> Encoded:
        """What ``arms`` needs to know of N events."""

    @abstractmethod
    def arms(self, codes: Tensor, numbers: Tensor, item: Tensor, pair: Tensor) -> Tensor:
        """x (..., K, d) for codes (..., C), numbers (..., M), actions (..., K) and pairs (..., K, P)."""

    @abstractmethod
    def to(self, like: Tensor) -> "Features":
        """The same features on the device and in the precision of ``like``."""

    @abstractmethod
    def check(self, log: Log) -> None:
        """Raise an InputError if a log does not fit: other actions, another schema."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The fitted features as tensors and plain values, with their ``kind``."""


def digest(items: pa.Table) -> str:
    """A hash that identifies a table of actions."""
    return hashlib.sha256(json.dumps(items.to_pylist(), sort_keys=True, default=str).encode()).hexdigest()


def first_rows(log: Log, rows: int | None) -> Iterator[RowGroup]:
    """The row groups of the first events of a log, or of a part of it; the last group is cut. None: all of them."""
    stop = log.rows if rows is None else rows
    for group in log.groups:
        begin = group.first - log.first_row
        if begin < stop:
            yield group._replace(rows=min(group.rows, stop - begin))
