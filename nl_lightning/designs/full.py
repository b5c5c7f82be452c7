"""The exact design matrix."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nl_lightning.core.errors import InputError
from nl_lightning.core.types import Factors
from nl_lightning.designs.base import DesignMatrix
from nl_lightning.designs.samples import Samples, gradient, solve, squared_norm, take_shape

__all__ = ["FullDesign"]


class FullDesign(DesignMatrix):
    """The whole of M, kept as its log-determinant and its inverse or, in dual form, the factor of A.

    Primal, with u = M^{-1} g and c = 1 + g^T u (Sherman-Morrison, and the determinant lemma):
    (M + g g^T)^{-1} = M^{-1} - u u^T / c,    log det(M + g g^T) = log det M + log c.
    Dual, with A = L L^T, y = L^{-1} k and c = ridge + |g|^2 - |y|^2: L grows by the row (y, sqrt(c)), and
    log det(M + g g^T) = log det M + log(c / ridge).
    """

    ridge: Tensor
    """(R,)"""
    inverse: Tensor
    """primal: (R, p, p); in dual form (R, 0, 0)"""
    log_determinant: Tensor
    """(R,)"""

    def __init__(self, shapes: Sequence[tuple[int, int]], ridge: Tensor, blocks: int = 1, **settings: Any) -> None:
        super().__init__(shapes, ridge, blocks, **settings)
        # sqrt(w) g; their square matrix is L
        self.samples = Samples(shapes, ridge, ridge.sqrt())
        self.register_buffer("ridge", ridge.clone())
        self.register_buffer("inverse", ridge.new_zeros(len(ridge), 0, 0))
        self.register_buffer("log_determinant", self.samples.dimension * ridge.log())

    @property
    def dual(self) -> bool:
        return self.inverse.shape[1] == 0

    def norm(self, factors: Factors, replicas: Tensor | None = None) -> Tensor:
        """sqrt(g^T M^{-1} g), (R, N)"""
        if not self.dual:
            g = gradient(factors)
            return (torch.bmm(g, self.inverse) * g).sum(-1).sqrt()
        y = solve(self.samples.pairs(), self.samples.inner(factors))
        # |g|^2 and what is taken from it may agree in all digits but the last ones
        square = squared_norm(factors).sub_(y.square_().sum(1)).clamp_min_(0)
        return square.div_(self.ridge.unsqueeze(1)).sqrt_()

    def add(self, factors: Factors, weight: Tensor, accepted: Tensor | None = None) -> None:
        """M += w g g^T for one sample a replica (N = 1), w (R, 1, 1); g is 0 where ``accepted`` (R,) is False."""
        if self.dual and self.samples.full:
            self._go_primal()
        root = weight.sqrt()
        if self.dual:
            # sqrt(w) delta_l (x) z_{l-1}, and sqrt(w) z_{L-1}
            last = len(factors) - 1
            self._append(tuple(f * root if i % 2 == 0 or i == last else f for i, f in enumerate(factors)), accepted)
            return
        g = gradient(factors) * root
        solved = torch.bmm(g, self.inverse)
        growth = 1 + torch.bmm(g, solved.mT)
        self.inverse.baddbmm_(solved.mT / growth, solved, alpha=-1)
        self.log_determinant.add_(growth.log().flatten())

    def logdet(self) -> Tensor:
        """log det M, (R,)"""
        return self.log_determinant.clone()

    def reserve(self, count: int, fixed: bool) -> None:
        """Make room for ``count`` samples a replica, in the form that is cheaper for that many."""
        if self.dual and count > self.samples.dimension:
            self._go_primal()
        if self.dual:
            self.samples.reserve(count, fixed)

    def _append(self, factors: Factors, accepted: Tensor | None) -> None:
        y = solve(self.samples.pairs(), self.samples.inner(factors)).squeeze(2)
        # what is below the ridge is rounding: g^T M^{-1} g >= 0
        c = torch.maximum(self.ridge + squared_norm(factors).squeeze(1) - y.square().sum(1), self.ridge)
        self.samples.set_row(self.samples.append(factors, accepted), y, c.sqrt())
        self.log_determinant.add_((c / self.ridge).log())

    # What is kept must be writable outside a caller's inference mode.
    @torch.inference_mode(False)
    def _go_primal(self) -> None:
        rows = gradient(self.samples.factors())
        matrix = torch.bmm(rows.mT, rows)
        matrix.diagonal(dim1=1, dim2=2).add_(self.ridge.unsqueeze(1))
        # row by row, as it comes back from a checkpoint: another order has other last digits
        lower, failed = torch.linalg.cholesky_ex(matrix)
        # M >= ridge I, so that every pivot is at least the ridge: less is what rounding has left of it
        pivots = lower.diagonal(dim1=1, dim2=2).square()
        if not ((failed == 0).unsqueeze(1) & (pivots >= 0.5 * self.ridge.unsqueeze(1))).all():
            raise InputError(
                "The full design matrix is no longer positive definite: beside gradients this large float64 cannot "
                "hold its regularisation. Features must be of moderate size: scale them to about [-1, 1], or take a "
                "larger lam."
            )
        self.inverse = torch.cholesky_inverse(lower).contiguous()
        self.samples.clear()

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """Take on the form of what was stored."""
        take_shape(self, "inverse", state_dict.get(prefix + "inverse"))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
