"""The exact design matrix of theory mode: all of M = ridge I + sum_i w_i g_i g_i^T, with a ridge that changes.

Another ridge changes every eigenvalue, so that no inverse can be kept and updated: what is kept is the sum, and M is
factorised (Cholesky) when it is asked. The sum has two forms, and the cheaper one is taken:

    primal, p parameters:   sum_i w_i g_i g_i^T, (p, p)
    dual, n samples:        the factors of the gradients, and their Gram matrix G_ij = g_i . g_j, (n, n)

In the dual form, with s_i = sqrt(w_i) and A = ridge I + (s s^T) * G (the matrix inversion and determinant lemmas):

    g^T M^{-1} g = (|g|^2 - k^T A^{-1} k) / ridge,   k_i = s_i g_i . g
    log det M    = log det A + (p - n) log ridge

A factorisation costs p^3 / 3 or n^3 / 3, so the dual form comes first, and the primal takes over once samples outnumber
parameters. Until then nothing is as large as p: 40,000 parameters and 500 samples are no burden.
"""

from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from nl_lightning.design import gradient
from nl_lightning.networks import Factors

_FIRST_CAPACITY = 64


@final
class AdaptiveDesign(nn.Module):
    """M of R replicas, over factors of gradients whose layers have the given shapes.

    ``norm``, ``add`` and ``logdet`` as of the other designs; ``set_ridge`` and ``reweigh`` change what was added.
    """

    ridge: Tensor
    """(R,)"""
    samples: Tensor
    """dual: (R, capacity, F), the factors of a sample side by side"""
    gram: Tensor
    """dual: (R, capacity, capacity)"""
    weight: Tensor
    """dual: (R, capacity)"""
    total: Tensor
    """primal: (R, p, p); in dual form (R, 0, 0)"""
    newest: Tensor
    """(R, 1, F), the factors of the sample that a replica added last"""
    newest_weight: Tensor
    """(R,)"""
    newest_place: Tensor
    """dual: (R,), where it stands among the samples"""

    def __init__(self, shapes: Sequence[tuple[int, int]], ridge: Tensor) -> None:
        super().__init__()
        self.dimension = sum(n_out * n_in for n_out, n_in in shapes)
        self._sizes = [*(size for shape in shapes[:-1] for size in shape), shapes[-1][1]]
        self.count = 0
        replicas, columns = len(ridge), sum(self._sizes)
        self.register_buffer("ridge", ridge.clone())
        self.register_buffer("samples", ridge.new_zeros(replicas, _FIRST_CAPACITY, columns))
        self.register_buffer("gram", ridge.new_zeros(replicas, _FIRST_CAPACITY, _FIRST_CAPACITY))
        self.register_buffer("weight", ridge.new_zeros(replicas, _FIRST_CAPACITY))
        self.register_buffer("total", ridge.new_zeros(replicas, 0, 0))
        self.register_buffer("newest", ridge.new_zeros(replicas, 1, columns))
        self.register_buffer("newest_weight", torch.zeros_like(ridge))
        self.register_buffer("newest_place", torch.zeros(replicas, dtype=torch.long, device=ridge.device))
        self._factor: Tensor | None = None

    @staticmethod
    def prepare(factor: Tensor, place: Tensor) -> None:
        """The factors as they are."""
        place.copy_(factor)

    @property
    def dual(self) -> bool:
        return self.total.shape[1] == 0

    # ---- asking -----------------------------------------------------------------------------------------------------

    def norm(self, factors: Factors) -> Tensor:
        """sqrt(g^T M^{-1} g), (R, N)"""
        lower = self._cholesky()
        if not self.dual:
            return _solve(lower, gradient(factors).mT).square_().sum(1).sqrt_()
        samples, weight = self._in_use()
        k = _inner(samples, factors).mul_(weight.sqrt().unsqueeze(2))
        own = factors[-1].square().sum(-1)
        for delta, z in zip(factors[::2], factors[1::2], strict=False):
            own += delta.square().sum(-1) * z.square().sum(-1)
        # |g|^2 and what is taken from it may agree in all digits but the last ones
        square = own.sub_(_solve(lower, k).square_().sum(1)).clamp_min_(0)
        return square.div_(self.ridge.unsqueeze(1)).sqrt_()

    def logdet(self) -> Tensor:
        """log det M, (R,)"""
        of_factor = 2 * self._cholesky().diagonal(dim1=1, dim2=2).log().sum(1)
        left = self.dimension - self.count if self.dual else 0
        return of_factor + left * self.ridge.log()

    def spread(self, vector: Tensor) -> Tensor:
        """sum_i w_i (g_i . v)^2, (R,), of v (R, p) in the order of ``design.gradient``: |v|_M^2 without ridge |v|^2."""
        if not self.dual:
            return torch.einsum("ri,rij,rj->r", vector, self.total, vector)
        samples, weight = self._in_use()
        return (torch.bmm(gradient(samples), vector.unsqueeze(2)).squeeze(2).square() * weight).sum(1)

    # ---- changing ---------------------------------------------------------------------------------------------------

    def set_ridge(self, ridge: Tensor) -> None:
        """Another ridge (R,) for the same sum."""
        self.ridge.copy_(ridge)
        self._factor = None

    def add(self, factors: Factors, weight: Tensor, accepted: Tensor | None = None) -> None:
        """M += w g g^T for one sample a replica (N = 1), w (R, 1, 1); not where ``accepted`` (R,) is False."""
        if self.dual and self.count >= self.dimension:
            self._go_primal()
        sample, flat = torch.cat(factors, dim=-1), weight.view(-1)
        if accepted is None:
            self.newest.copy_(sample)
            self.newest_weight.copy_(flat)
        else:
            # A gradient of zeros adds nothing.
            factors = tuple(factor * accepted.view(-1, 1, 1) for factor in factors)
            flat = flat * accepted
            self.newest.copy_(torch.where(accepted.view(-1, 1, 1), sample, self.newest))
            self.newest_weight.copy_(torch.where(accepted, flat, self.newest_weight))
        if self.dual:
            self._append(factors, flat, accepted)
        else:
            self._add_outer(gradient(factors), flat)
        self._factor = None

    def reweigh(self, weight: Tensor, changed: Tensor) -> None:
        """Give the sample that was added last another weight (R,), where ``changed`` (R,) is True."""
        weight = torch.where(changed, weight.to(self.newest_weight), self.newest_weight)
        if self.dual:
            self.weight.scatter_(1, self.newest_place.unsqueeze(1), weight.unsqueeze(1))
        else:
            self._add_outer(gradient(self._split(self.newest)), weight - self.newest_weight)
        self.newest_weight.copy_(weight)
        self._factor = None

    # ---- the two forms ----------------------------------------------------------------------------------------------

    def _cholesky(self) -> Tensor:
        """The lower factor of M or, in dual form, of A; until something changes, the same."""
        if self._factor is None:
            if self.dual:
                scale = self.weight[:, : self.count].sqrt()
                matrix = self.gram[:, : self.count, : self.count] * scale.unsqueeze(1) * scale.unsqueeze(2)
            else:
                matrix = self.total.clone()
            matrix.diagonal(dim1=1, dim2=2).add_(self.ridge.unsqueeze(1))
            # Where it fails there are NaN, which scores are checked for; to ask here would wait for a device.
            self._factor = torch.linalg.cholesky_ex(matrix).L
        return self._factor

    def _split(self, samples: Tensor) -> Factors:
        return torch.split_with_sizes(samples, self._sizes, dim=-1)

    def _in_use(self) -> tuple[Factors, Tensor]:
        return self._split(self.samples[:, : self.count]), self.weight[:, : self.count]

    def _append(self, factors: Factors, weight: Tensor, accepted: Tensor | None) -> None:
        if self.count == self.samples.shape[1]:
            self._grow()
        place = self.count
        self.count += 1
        self.samples[:, place : place + 1] = torch.cat(factors, dim=-1)
        self.weight[:, place] = weight
        with_all = _inner(self._in_use()[0], factors).squeeze(2)
        self.gram[:, place, : self.count] = with_all
        self.gram[:, : self.count, place] = with_all
        if accepted is None:
            self.newest_place.fill_(place)
        else:
            self.newest_place.masked_fill_(accepted, place)

    def _add_outer(self, rows: Tensor, weight: Tensor) -> None:
        """sum += w g g^T for g (R, 1, p) and w (R,)"""
        self.total.baddbmm_(rows.mT, rows * weight.view(-1, 1, 1))

    # What is kept must be writable outside a caller's inference mode.
    @torch.inference_mode(False)
    def _grow(self) -> None:
        old = self.samples.shape[1]
        capacity = min(2 * old, max(self.dimension, old + 1))
        for name, both in (("samples", False), ("weight", False), ("gram", True)):
            before = getattr(self, name)
            after = before.new_zeros(before.shape[0], capacity, *([capacity] if both else before.shape[2:]))
            after[(slice(None), slice(old), slice(old))[: 3 if both else 2]] = before
            setattr(self, name, after)

    @torch.inference_mode(False)
    def _go_primal(self) -> None:
        samples, weight = self._in_use()
        rows = gradient(samples)
        self.total = torch.bmm(rows.mT, rows * weight.unsqueeze(2))
        self.samples, self.weight = self.samples[:, :0].clone(), self.weight[:, :0].clone()
        self.gram = self.gram[:, :0, :0].clone()
        self.count, self._factor = 0, None

    # ---- state ------------------------------------------------------------------------------------------------------

    def get_extra_state(self) -> dict[str, Any]:
        return {"count": self.count}

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """Take on the form and the capacity of what was stored."""
        for name in ("samples", "gram", "weight", "total"):
            stored = state_dict.get(prefix + name)
            if stored is not None:
                setattr(self, name, getattr(self, name).new_zeros(stored.shape))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self._factor = None

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> "AdaptiveDesign":
        super()._apply(fn, *args, **kwargs)
        self._factor = None
        return self


def _solve(lower: Tensor, columns: Tensor) -> Tensor:
    """L^{-1} C for a lower triangular L (R, n, n) and C (R, n, N)"""
    return torch.linalg.solve_triangular(lower, columns, upper=False)


def _inner(left: Factors, right: Factors) -> Tensor:
    """g_i . g'_j of gradients with N and N' samples, (R, N, N'): sum_l (delta_l . delta'_l)(z_{l-1} . z'_{l-1})"""
    total = torch.bmm(left[-1], right[-1].mT)
    layers = zip(left[::2], left[1::2], right[::2], right[1::2], strict=False)
    for delta, z, other_delta, other_z in layers:
        total.addcmul_(torch.bmm(delta, other_delta.mT), torch.bmm(z, other_z.mT))
    return total
