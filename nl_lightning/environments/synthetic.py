"""The paper's synthetic problems."""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from nl_lightning.core.checks import check_whole
from nl_lightning.core.errors import InputError
from nl_lightning.core.imports import overridden
from nl_lightning.core.link import mu
from nl_lightning.core.rng import CHUNK, Stream, generator
from nl_lightning.environments.base import ChunkedSimulation, Deal
from nl_lightning.environments.seeds import check_seeds, replica_seeds

__all__ = ["FUNCTIONS", "Function", "Synthetic", "different"]


Function = Literal["h1", "h2", "h3", "h4", "h5", "h6"]

# h(x, th, Th) for x (..., d), th (d,), Th (d, d)
FUNCTIONS: dict[Function, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "h1": lambda x, th, Th: 0.2 * (x @ th) ** 4,
    "h2": lambda x, th, Th: 20 * torch.cos(x @ th),
    "h3": lambda x, th, Th: 5 * ((x @ Th) * x).sum(-1),
    "h4": lambda x, th, Th: 10 * (x @ th) ** 2,
    "h5": lambda x, th, Th: (x @ Th.mT).square().sum(-1),
    "h6": lambda x, th, Th: torch.cos(3 * (x @ th)),
}


class Synthetic(ChunkedSimulation):
    """Clicks with probability mu(h(x)) for one of the paper's functions h.

    h1 = 0.2 (x.th)^4, h2 = 20 cos(x.th), h3 = 5 x^T Th x, h4 = 10 (x.th)^2, h5 = x^T Th^T Th x, h6 = cos(3 x.th).
    Vectors and parameters are uniform in [-1, 1]; the arms of a round are different vectors of a pool.

    Args:
        function: h1 to h6.
        dim: number d of features.
        arms: number K of arms per round.
        pool: number of vectors that arms are drawn from; 10, 50, 10000 give low, medium, high effective dimension.
        seed: seed of the problem (parameters and pool). With one number, all replicas have the same problem; with a
            list, each has its own. If left out, a problem has the seed of its replica.
        noise_seed: seed of the rounds (which arms, which clicks), one number or a list, as for ``seed``.
        norm: length that every vector is scaled to, 1 in the paper's theory; left out, they stay as drawn.
    """

    def __init__(
        self,
        function: Function = "h1",
        dim: int = 20,
        arms: int = 5,
        pool: int = 2500,
        seed: int | list[int] | None = None,
        noise_seed: int | list[int] | None = None,
        norm: float | None = None,
    ) -> None:
        super().__init__()
        if norm is not None and not (isinstance(norm, (int, float)) and 0 < norm < math.inf):
            raise InputError(f"norm must be a number > 0, or None, got {norm!r}.")
        if not isinstance(function, str) or function not in FUNCTIONS:
            raise InputError(f"function must be one of {', '.join(FUNCTIONS)}; got {function!r}.")
        check_whole(1, dim=dim, arms=arms, pool=pool)
        check_seeds(seed=seed, noise_seed=noise_seed)
        if arms > pool:
            raise InputError(
                f"A round shows {arms} different vectors, but the pool has only {pool}; take pool >= arms."
            )
        self.function: Function = function
        self.dim, self.arms, self.pool = dim, arms, pool
        self.seed, self.noise_seed, self.norm = seed, noise_seed, norm
        self._noise_seeds: list[int] = []
        self._pools = self._probabilities = torch.empty(0, device="cpu")
        self._parameters: list[tuple[Tensor, Tensor]] = []

    @property
    def distinct_arms(self) -> int | None:  # type: ignore[override]
        """The size of the pool; None for a subclass that may deal other arms."""
        return None if overridden(self, Synthetic, "reset", "deal", "deal_chunk", "next_deal") else self.pool

    def reset(self, seeds: Sequence[int]) -> None:
        self._noise_seeds = replica_seeds("noise_seed", self.noise_seed, seeds, self.share)
        pools, probabilities, self._parameters = [], [], []
        for seed in replica_seeds("seed", self.seed, seeds, self.share):
            g = generator(seed, Stream.PROBLEM)

            def uniform(*shape: int, g: torch.Generator = g) -> Tensor:
                return 2 * torch.rand(shape, generator=g, dtype=torch.float64, device="cpu") - 1

            vector, matrix, pool = uniform(self.dim), uniform(self.dim, self.dim), uniform(self.pool, self.dim)
            if self.norm is not None:
                pool *= self.norm / torch.linalg.vector_norm(pool, dim=1, keepdim=True)
            pools.append(pool)
            self._parameters.append((vector, matrix))
            probabilities.append(mu(FUNCTIONS[self.function](pool, vector, matrix)))
        self._pools = torch.stack(pools)
        self._probabilities = torch.stack(probabilities)

    def latent(self, start: int, count: int) -> Tensor:
        arms, h = self.deal(start, count).arms.cpu().double(), FUNCTIONS[self.function]
        return torch.stack([h(x, *parameters) for x, parameters in zip(arms, self._parameters, strict=True)])

    def deal_chunk(self, chunk: int) -> Deal:
        drawn, uniform = [], []
        for seed in self._noise_seeds:
            g = generator(seed, Stream.ROUNDS, chunk)
            among, click = (
                torch.rand(CHUNK, n, generator=g, dtype=torch.float64, device="cpu") for n in (self.arms, 1)
            )
            drawn.append(among)
            uniform.append(click)
        first = self.pool * torch.arange(len(drawn), device="cpu")
        # the vectors of all pools, one pool behind the other
        index = (different(torch.cat(drawn), self.pool).view(len(drawn), -1) + first.unsqueeze(1)).flatten()
        shape = (len(drawn), CHUNK, self.arms)
        arms = self._pools.flatten(0, 1).index_select(0, index).view(*shape, self.dim)
        probability = self._probabilities.flatten().index_select(0, index).view(shape)
        reward = (torch.stack(uniform) < probability).double()
        return Deal(arms, reward, probability.amax(-1, keepdim=True) - probability)


def different(uniform: Tensor, pool: int) -> Tensor:
    """Turn numbers uniform in [0, 1), (N, K), into K different members of range(pool), every K-tuple equally likely.

    The k-th is one of the pool - k that are left: count past those taken before, in ascending order.
    """
    columns: list[Tensor] = []
    taken: list[Tensor] = []
    for k, numbers in enumerate(uniform.unbind(1)):
        column = (numbers * (pool - k)).long()
        for smaller in taken:
            column += column >= smaller
        columns.append(column)
        # into its place among those taken: the larger of two goes on
        for place, other in enumerate(taken):
            taken[place], column = torch.minimum(other, column), torch.maximum(other, column)
        taken.append(column)
    return torch.stack(columns, dim=1)
