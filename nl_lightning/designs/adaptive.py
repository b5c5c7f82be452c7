"""The design matrix of theory mode: all of M = ridge I + sum_i w_i g_i g_i^T, with a ridge that changes.

Another ridge changes every eigenvalue, so that no inverse can be kept and updated: what is kept is the sum, as a matrix
or as samples with their Gram matrix, and M or A is factorised (Cholesky, p^3/3 or n^3/3) when it is asked.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nl_lightning.core.types import Factors
from nl_lightning.designs.base import DesignMatrix
from nl_lightning.designs.samples import Samples, gradient, solve, squared_norm, take_shape

__all__ = ["AdaptiveDesign"]


class AdaptiveDesign(DesignMatrix):
    """M of R replicas, over factors of gradients whose layers have the given shapes.

    ``norm``, ``add`` and ``logdet`` as of the other designs; ``set_ridge`` and ``reweigh`` change what was added.
    """

    ridge: Tensor
    """(R,)"""
    weight: Tensor
    """dual: (R, capacity), of the samples"""
    total: Tensor
    """primal: (R, p, p); in dual form (R, 0, 0)"""
    newest: Tensor
    """(R, 1, F), the factors of the sample that a replica added last"""
    newest_weight: Tensor
    """(R,)"""
    newest_place: Tensor
    """dual: (R,), where it stands among the samples"""

    def __init__(self, shapes: Sequence[tuple[int, int]], ridge: Tensor, blocks: int = 1, **settings: Any) -> None:
        super().__init__(shapes, ridge, blocks, **settings)
        # their square matrix is the Gram matrix without the weights
        self.samples = Samples(shapes, ridge, torch.zeros_like(ridge))
        self.register_buffer("ridge", ridge.clone())
        self.register_buffer("weight", torch.zeros_like(self.samples.rows[:, :, 0]))
        self.register_buffer("total", ridge.new_zeros(len(ridge), 0, 0))
        self.register_buffer("newest", ridge.new_zeros(len(ridge), 1, self.samples.rows.shape[2]))
        self.register_buffer("newest_weight", torch.zeros_like(ridge))
        self.register_buffer("newest_place", torch.zeros_like(ridge, dtype=torch.long))
        self._factor: Tensor | None = None

    @property
    def dual(self) -> bool:
        return self.total.shape[1] == 0

    # ---- asking -----------------------------------------------------------------------------------------------------

    def norm(self, factors: Factors, replicas: Tensor | None = None) -> Tensor:
        """sqrt(g^T M^{-1} g), (R, N)"""
        lower = self._cholesky()
        if not self.dual:
            return solve(lower, gradient(factors).mT).square_().sum(1).sqrt_()
        k = self.samples.inner(factors).mul_(self._weights().sqrt().unsqueeze(2))
        # |g|^2 and what is taken from it may agree in all digits but the last ones
        square = squared_norm(factors).sub_(solve(lower, k).square_().sum(1)).clamp_min_(0)
        return square.div_(self.ridge.unsqueeze(1)).sqrt_()

    def logdet(self) -> Tensor:
        """log det M, (R,)"""
        of_factor = 2 * self._cholesky().diagonal(dim1=1, dim2=2).log().sum(1)
        left = self.samples.dimension - self.samples.count if self.dual else 0
        return of_factor + left * self.ridge.log()

    def spread(self, vector: Tensor) -> Tensor:
        """sum_i w_i (g_i . v)^2, (R,), of v (R, p) in the order of ``gradient``: |v|_M^2 without ridge |v|^2."""
        if not self.dual:
            return torch.einsum("ri,rij,rj->r", vector, self.total, vector)
        inner = torch.bmm(gradient(self.samples.factors()), vector.unsqueeze(2)).squeeze(2)
        return (inner.square() * self._weights()).sum(1)

    # ---- changing ---------------------------------------------------------------------------------------------------

    def set_ridge(self, ridge: Tensor) -> None:
        """Another ridge (R,) for the same sum."""
        self.ridge.copy_(ridge)
        self._factor = None

    def add(self, factors: Factors, weight: Tensor, accepted: Tensor | None = None) -> None:
        """M += w g g^T for one sample a replica (N = 1), w (R, 1, 1); not where ``accepted`` (R,) is False."""
        if self.dual and self.samples.full:
            self._go_primal()
        sample, weight = torch.cat(factors, dim=-1), weight.view(-1)
        if accepted is None:
            self.newest.copy_(sample)
            self.newest_weight.copy_(weight)
        else:
            # A gradient of zeros adds nothing.
            factors = tuple(factor * accepted.view(-1, 1, 1) for factor in factors)
            self.newest.copy_(torch.where(accepted.view(-1, 1, 1), sample, self.newest))
            self.newest_weight.copy_(torch.where(accepted, weight, self.newest_weight))
        if self.dual:
            self._append(factors, weight, accepted)
        else:
            self._add_outer(gradient(factors), weight)
        self._factor = None

    def reweigh(self, weight: Tensor, changed: Tensor) -> None:
        """Give the sample that was added last another weight (R,), where ``changed`` (R,) is True."""
        weight = torch.where(changed, weight.to(self.newest_weight), self.newest_weight)
        if self.dual:
            self.weight.scatter_(1, self.newest_place.unsqueeze(1), weight.unsqueeze(1))
        else:
            self._add_outer(gradient(self.samples.split(self.newest)), weight - self.newest_weight)
        self.newest_weight.copy_(weight)
        self._factor = None

    def reserve(self, count: int, fixed: bool) -> None:
        """Make room for ``count`` samples a replica, in the form that is cheaper for that many."""
        if self.dual and count > self.samples.dimension:
            self._go_primal()
        if self.dual:
            self.samples.reserve(count, fixed)
            self._factor = None
            if self.weight.shape[1] < self.samples.rows.shape[1]:
                self._grow_weight()

    # ---- the two forms ----------------------------------------------------------------------------------------------

    def _weights(self) -> Tensor:
        return self.weight[:, : self.samples.count]

    def _cholesky(self) -> Tensor:
        """The lower factor of M or, in dual form, of A; until something changes, the same."""
        if self._factor is None:
            if self.dual:
                scale = self._weights().sqrt()
                matrix = self.samples.pairs() * scale.unsqueeze(1) * scale.unsqueeze(2)
            else:
                matrix = self.total.clone()
            matrix.diagonal(dim1=1, dim2=2).add_(self.ridge.unsqueeze(1))
            # Where it fails there are NaN, which scores are checked for; to ask here would wait for a device.
            self._factor = torch.linalg.cholesky_ex(matrix).L
        return self._factor

    def _append(self, factors: Factors, weight: Tensor, accepted: Tensor | None) -> None:
        place = self.samples.append(factors, accepted)
        if self.weight.shape[1] < self.samples.rows.shape[1]:
            self._grow_weight()
        self.samples.set_cross(place, self.samples.inner(factors).squeeze(2))
        if isinstance(place, int):
            self.weight[:, place] = weight
            self.newest_place.fill_(place)
        else:
            self.weight.scatter_(1, place.unsqueeze(1), weight.unsqueeze(1))
            self.newest_place.copy_(place if accepted is None else torch.where(accepted, place, self.newest_place))

    def _add_outer(self, rows: Tensor, weight: Tensor) -> None:
        """sum += w g g^T for g (R, 1, p) and w (R,)"""
        self.total.baddbmm_(rows.mT, rows * weight.view(-1, 1, 1))

    # What is kept must be writable outside a caller's inference mode.
    @torch.inference_mode(False)
    def _grow_weight(self) -> None:
        old = self.weight
        self.weight = torch.zeros_like(self.samples.rows[:, :, 0])
        self.weight[:, : old.shape[1]] = old

    @torch.inference_mode(False)
    def _go_primal(self) -> None:
        rows = gradient(self.samples.factors())
        self.total = torch.bmm(rows.mT, rows * self._weights().unsqueeze(2))
        self.samples.clear()
        self.weight, self._factor = self.weight[:, :0].clone(), None

    # ---- state ------------------------------------------------------------------------------------------------------

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """Take on the form of what was stored."""
        for name in ("weight", "total"):
            take_shape(self, name, state_dict.get(prefix + name))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self._factor = None

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> "AdaptiveDesign":
        super()._apply(fn, *args, **kwargs)
        self._factor = None
        return self
