"""What blocks cost: a fit on arms (x, k), 10 blocks of d = 196 (mnist's sizes), against one on arms x of d = 196."""

from collections.abc import Callable, Sequence
from statistics import median

import torch

from benchmarks.measure import Row, interleaved, row, trainer
from nl_lightning import NeuralLogUCB2
from nl_lightning.core.rng import CHUNK, Stream, generator
from nl_lightning.environments import ChunkedSimulation, Deal
from nl_lightning.rollout.data import BanditData

_FEATURES, _ARMS = 196, 10


class _Drawn(ChunkedSimulation):
    """One x a round for all arms, in blocks or as it is; the right arm is any."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.blocks, self.dim = blocks, _FEATURES + (blocks > 1)
        self._seeds: Sequence[int] = []

    def reset(self, seeds: Sequence[int]) -> None:
        self._seeds = seeds

    def deal_chunk(self, chunk: int) -> Deal:
        draws = [generator(seed, Stream.ROUNDS, chunk) for seed in self._seeds]
        x = torch.stack([torch.rand(CHUNK, 1, _FEATURES, generator=g, device="cpu") * 2 - 1 for g in draws])
        arms = x.expand(-1, -1, _ARMS, -1)
        if self.blocks > 1:
            number = torch.arange(_ARMS, dtype=arms.dtype, device="cpu").view(-1, 1)
            arms = torch.cat([arms, number.expand(*arms.shape[:-1], 1)], dim=-1)
        right = torch.stack([torch.randint(_ARMS, (CHUNK, 1), generator=g, device="cpu") for g in draws])
        reward = (right == torch.arange(_ARMS, device="cpu")).double()
        return Deal(arms, reward, 1 - reward)


def fits() -> list[Row]:
    """T = 2000 rounds as in the paper, TrainNN included."""
    rows = []
    for replicas in (1, 5):

        def fit(blocks: int, replicas: int = replicas) -> Callable[[], object]:
            def work() -> None:
                environment = _Drawn(blocks)
                agent = NeuralLogUCB2(
                    environment.dim, nu=0.01, lam=1.0, optimizer="gd", lr=1e-4, replicas=replicas, blocks=blocks
                )
                trainer().fit(agent, BanditData(environment, 2000, threads=torch.get_num_threads()))

            return work

        ours, plain = interleaved([fit(_ARMS), fit(1)], repetitions=1, rounds=3)
        what = f"fit on {_ARMS} blocks of d={_FEATURES} / on d={_FEATURES}, T=2000, R={replicas}"
        rows.append(row(what, ours, plain, 3, f"{median(ours):.1f} s"))
    return rows
