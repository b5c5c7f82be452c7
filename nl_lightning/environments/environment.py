"""The one abstract environment."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nl_lightning.checks import check_finite
from nl_lightning.errors import InputError
from nl_lightning.randomness import CHUNK


class Deal(NamedTuple):
    """C rounds of R replicas with K arms each."""

    arms: Tensor
    """(R, C, K, d)"""
    reward: Tensor
    """(R, C, K), the reward that each arm would give"""
    regret: Tensor
    """(R, C, K), what choosing this arm loses against the best one, in expectation"""

    def rounds(self, start: int, stop: int) -> "Deal":
        return Deal(self.arms[:, start:stop], self.reward[:, start:stop], self.regret[:, start:stop])


class Environment(ABC):
    """Deals rounds 0, 1, 2, ... of R replicas as a function of the round: it has no state to keep or to lose."""

    dim: int
    """d, the features of an arm"""

    def __init__(self) -> None:
        self._like = torch.empty(0)
        self._chunks: dict[int, Deal] = {}

    def prepare(self, seeds: Sequence[int], like: Tensor) -> None:
        """Make the problems of these replicas; deals will have the device and the precision of ``like``."""
        self._like = like
        self._chunks = {}
        self._prepare(seeds)

    def deal(self, start: int, count: int) -> Deal:
        """Rounds start, ..., start + count - 1."""
        parts = []
        for chunk in range(start // CHUNK, (start + count - 1) // CHUNK + 1):
            first = chunk * CHUNK
            parts.append(self._chunk(chunk).rounds(max(start - first, 0), min(start + count - first, CHUNK)))
        if len(parts) == 1:
            return parts[0]
        return Deal(
            torch.cat([part.arms for part in parts], dim=1),
            torch.cat([part.reward for part in parts], dim=1),
            torch.cat([part.regret for part in parts], dim=1),
        )

    def _chunk(self, chunk: int) -> Deal:
        if chunk not in self._chunks:
            deal = self._deal_chunk(chunk)
            self._check(deal)
            # A block of rounds may reach into the next chunk, never back behind the one before.
            self._chunks = {k: v for k, v in self._chunks.items() if k == chunk - 1}
            self._chunks[chunk] = Deal(deal.arms.to(self._like), deal.reward.to(self._like), deal.regret)
        return self._chunks[chunk]

    def _check(self, deal: Deal) -> None:
        """What an environment deals is looked at once a chunk, not once a round."""
        shape = deal.arms.shape[:3]
        if deal.arms.dim() != 4 or deal.arms.shape[3] != self.dim or shape[2] == 0:
            raise InputError(f"An environment deals arms (R, C, K >= 1, {self.dim}), got {tuple(deal.arms.shape)}.")
        for name, values in (("rewards", deal.reward), ("regrets", deal.regret)):
            if values.shape != shape:
                raise InputError(f"An environment deals {name} {tuple(shape)}, got {tuple(values.shape)}.")
        if not ((deal.reward == 0) | (deal.reward == 1)).all():
            raise InputError("An environment's rewards must be 0 or 1 (a click).")
        check_finite("an environment's arms", deal.arms.to(self._like))
        check_finite("an environment's regrets", deal.regret)

    @abstractmethod
    def _prepare(self, seeds: Sequence[int]) -> None:
        """Make the problem of every replica from its seed."""

    @abstractmethod
    def _deal_chunk(self, chunk: int) -> Deal:
        """Rounds chunk * CHUNK, ..., of all replicas; the same whenever it is asked."""
