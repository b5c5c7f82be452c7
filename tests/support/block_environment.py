"""A small environment whose arms are blocks (x, k), for tests that have no data set."""

from collections.abc import Sequence

import torch

from nl_lightning.core.rng import CHUNK, Stream, generator
from nl_lightning.environments import ChunkedSimulation, Deal


class Signs(ChunkedSimulation):
    """Two numbers in [-1, 1]; the right one of three arms is told by their signs."""

    dim, blocks = 3, 3

    def reset(self, seeds: Sequence[int]) -> None:
        self._seeds = seeds

    def deal_chunk(self, chunk: int) -> Deal:
        draws = [generator(seed, Stream.ROUNDS, chunk) for seed in self._seeds]
        x = torch.stack([torch.rand(CHUNK, 2, generator=g, dtype=torch.float64) * 2 - 1 for g in draws])
        number = torch.arange(3.0, dtype=torch.float64).view(3, 1).expand(*x.shape[:2], 3, 1)
        arms = torch.cat([x.unsqueeze(2).expand(-1, -1, 3, -1), number], dim=-1)
        right = (x > 0).sum(-1, keepdim=True)
        reward = (right == torch.arange(3)).double()
        return Deal(arms, reward, 1 - reward)
