"""The diagonal of a design matrix where arms are blocks (x, k): see ``inputs``.

The first layer's gradient delta_1 (x) [0, .., x, .., 0] is zero outside of block k, so a round changes the diagonal of
one block, and an arm's norm asks for that of one block.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nl_lightning.core.types import Factors
from nl_lightning.designs.base import DesignMatrix
from nl_lightning.designs.diagonal import DiagonalDesign

__all__ = ["BlockDiagonalDesign"]


class BlockDiagonalDesign(DesignMatrix):
    """D_j = ridge + sum_i w_i g_ij^2, the first layer by blocks.

    What is asked for after every round, 1/D or log D, is kept, and of the block that changed computed anew.
    """

    first: Tensor
    """(R, K, d, m), the diagonal of the first layer"""
    _inverse: Tensor | None
    """(R K, d, m), 1/D, from the first norm on"""
    _logs: Tensor | None
    """(R K,), the sum of log D over a block, from the first logdet on"""

    def __init__(self, shapes: Sequence[tuple[int, int]], ridge: Tensor, blocks: int = 1, **settings: Any) -> None:
        super().__init__(shapes, ridge, blocks, **settings)
        (units, n_in), *others = shapes
        self.register_buffer("first", ridge.view(-1, 1, 1, 1).repeat(1, blocks, n_in // blocks, units))
        self.others = DiagonalDesign(others, ridge) if others else None
        self._forget()

    @property
    def factor_sizes(self) -> list[int]:
        """As of any network, but x and the number of its block stand for the input."""
        (units, n_in), *others = self.shapes
        behind = self.others.factor_sizes if self.others else []
        return [*([units] if others else []), n_in // self.blocks + 1, *behind]

    @property
    def numbers_per_arm(self) -> int:
        return 1

    def prepare(self, factors: Factors, places: Factors) -> None:
        """Squares of all but the block's number, which stands behind x."""
        for factor, place in zip(factors, places, strict=True):
            place.copy_(factor).square_()
        arms = 1 if self.others else 0
        places[arms][..., -1].copy_(factors[arms][..., -1])

    def norm(self, squares: Factors, replicas: Tensor | None = None) -> Tensor:
        """sqrt(sum_j g_j^2 / D_j), (R, N): that of the block k is (x^2)^T (1/D_k) delta_1^2"""
        # What is kept must be writable outside a caller's inference mode.
        if self._inverse is None:
            with torch.inference_mode(False):
                self._inverse = self.first.flatten(0, 1).reciprocal()
        delta, z, k, others = self._split(squares)
        count, arms, features = z.shape
        selected = self._inverse.index_select(0, k)
        terms = torch.bmm(z.reshape(-1, 1, features), selected).view(count, arms, -1)
        total = (terms if delta is None else terms.mul_(delta)).sum(-1)
        if self.others is not None:
            total += self.others._squared_norm(others)
        return total.sqrt_()

    def add(self, squares: Factors, weight: Tensor, accepted: Tensor | None = None) -> None:
        """D_j += w g_j^2 for one sample a replica (N = 1), w (R, 1, 1); g is 0 where ``accepted`` (R,) is False."""
        delta, z, k, others = self._split(squares)
        if self.others is not None:
            self.others.add(others, weight, accepted)
        diagonal = self.first.flatten(0, 1)
        changed = diagonal.index_select(0, k).addcmul_(z.mT, weight if delta is None else delta * weight)
        diagonal.index_copy_(0, k, changed)
        if self._inverse is not None:
            self._inverse.index_copy_(0, k, changed.reciprocal())
        if self._logs is not None:
            self._logs.index_copy_(0, k, changed.log_().sum((1, 2)))

    def logdet(self) -> Tensor:
        """log det M = sum_j log D_j, (R,)"""
        if self._logs is None:
            with torch.inference_mode(False):
                self._logs = self.first.flatten(0, 1).log().sum((1, 2))
        total = self._logs.view(-1, self.blocks).sum(1)
        return total if self.others is None else total + self.others.logdet()

    def _split(self, squares: Factors) -> tuple[Tensor | None, Tensor, Tensor, Factors]:
        """delta_1^2 (None where it is 1), x^2, the block of each arm among the R K of all replicas, and the rest."""
        delta, (arms, *others) = (squares[0], squares[1:]) if self.others else (None, squares)
        number = torch.arange(len(arms), device=arms.device).unsqueeze(1) * self.blocks
        return delta, arms[..., :-1], (arms[..., -1].long() + number).flatten(), tuple(others)

    def _forget(self) -> None:
        self._inverse = self._logs = None

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> "BlockDiagonalDesign":
        super()._apply(fn, *args, **kwargs)
        self._forget()
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._forget()
