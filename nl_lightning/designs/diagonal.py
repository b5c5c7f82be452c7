"""Design matrices M = ridge I + sum_i w_i g_i g_i^T of R replicas, over the factors of the gradients g.

Three verbs: ``norm``, ``add``, ``logdet``. ``prepare`` turns a network's factors into what ``norm`` and ``add`` take,
once for as many samples as one likes; ``factor_sizes`` are the numbers of each of them. A design computes in the
precision of its ridge.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nl_lightning.designs.samples import Samples, gradient, solve, squared_norm, take_shape
from nl_lightning.models.inputs import dense
from nl_lightning.models.mlp import Factors

DesignKind = Literal["diagonal", "full"]


class DiagonalDesign(nn.Module):
    """The diagonal of M: D_j = ridge + sum_i w_i g_ij^2.

    As g_l = delta_l (x) z_{l-1}, the squares of a layer's gradient are delta_l^2 (x) z_{l-1}^2, and everything is a
    small matrix product a layer.
    """

    diagonal: Tensor

    def __init__(self, shapes: Sequence[tuple[int, int]], ridge: Tensor) -> None:
        super().__init__()
        self.shapes = list(shapes)
        parameters = sum(n_out * n_in for n_out, n_in in shapes)
        self.register_buffer("diagonal", ridge[:, None].repeat(1, parameters))
        self._view_layers()

    @property
    def factor_sizes(self) -> list[int]:
        return _sizes(self.shapes)

    @staticmethod
    def prepare(factors: Factors, places: Factors) -> None:
        """Put delta_l^2 and z_{l-1}^2 into their places, in the design's precision."""
        for factor, place in zip(factors, places, strict=True):
            place.copy_(factor).square_()

    def norm(self, squares: Factors) -> Tensor:
        """sqrt(sum_j g_j^2 / D_j), (R, N)"""
        return self.quadratic(squares).sqrt_()

    def quadratic(self, squares: Factors) -> Tensor:
        """sum_j g_j^2 / D_j, (R, N)"""
        return _quadratic([layer.reciprocal() for layer in self._layers], squares)

    def norm_of(self, replicas: Tensor, squares: Factors) -> Tensor:
        """The norms of some replicas, by their numbers."""
        inverse = self._flat.index_select(0, replicas).reciprocal_()
        return _quadratic(_by_layer(inverse, self.shapes), squares).sqrt_()

    def norm_with(self, diagonals: Tensor, squares: Factors, which: Tensor | None = None) -> Tensor:
        """The norms (R, C, N) of squares (R, C, N, features), those of each round with its own diagonal (R, C, p).

        Or of the diagonals (R, D, p) with that whose number is ``which``, (R, C).
        """
        replicas, rounds = squares[-1].shape[:2]
        inverse = diagonals.reciprocal().flatten(0, 1)
        if which is not None:
            first = torch.arange(replicas, device=which.device).unsqueeze(1) * diagonals.shape[1]
            inverse = inverse.index_select(0, (which + first).flatten())
        by_round = tuple(square.flatten(0, 1) for square in squares)
        return _quadratic(_by_layer(inverse, self.shapes), by_round).sqrt_().unflatten(0, (replicas, rounds))

    def cumulated(self, squares: Factors, weight: Tensor, replicas: Tensor | None = None) -> Tensor:
        """The diagonals before each of C samples (R, C, features) and after the last, (R, C + 1, p).

        D_j + sum_{i < t} w_i g_ij^2;  w is (R, C, 1) or (R, 1, 1). All may be of some ``replicas`` only, by number.
        """
        count, samples = squares[-1].shape[:2]
        sums = self._flat.new_empty(count, samples + 1, self._flat.shape[1])
        sums[:, 0] = self._flat if replicas is None else self._flat.index_select(0, replicas)
        *layers, last = _by_layer(sums[:, 1:], self.shapes)
        torch.mul(squares[-1].unsqueeze(-2), weight.unsqueeze(-1), out=last)
        for delta, z, layer in zip(squares[::2], squares[1::2], layers, strict=False):
            torch.mul(z.unsqueeze(-1), (delta * weight).unsqueeze(-2), out=layer)
        return sums.cumsum_(1)

    def add(self, squares: Factors, weight: Tensor, accepted: Tensor | None = None) -> None:
        """D_j += w g_j^2 for one sample a replica (N = 1), w (R, 1, 1); g is 0 where ``accepted`` (R,) is False."""
        *layers, last = self._layers
        last.addcmul_(squares[-1], weight)
        for delta, z, layer in zip(squares[::2], squares[1::2], layers, strict=False):
            layer.addcmul_(z.mT, delta * weight)

    def logdet(self) -> Tensor:
        """log det M = sum_j log D_j, (R,)"""
        return log_product(self._flat)

    def hold(self, count: int, fixed: bool) -> None:
        """A diagonal has no samples to make room for."""

    def take(self, diagonal: Tensor) -> None:
        """Have this diagonal, (R, p)."""
        self._flat.copy_(diagonal)

    def _view_layers(self) -> None:
        """The diagonal by layers, and itself: to ask nn.Module for a buffer takes its time."""
        self._flat = self.diagonal
        self._layers = _by_layer(self.diagonal, self.shapes)

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> "DiagonalDesign":
        super()._apply(fn, *args, **kwargs)
        self._view_layers()
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._view_layers()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._view_layers()


def log_product(values: Tensor) -> Tensor:
    """sum_j log v_j, (..., p) -> (...), of numbers from 1e-77 to 1e77.

    A logarithm takes longer than all the rest, so they are taken of products of four, which float64 can hold.
    """
    quarter = values.shape[-1] // 4
    by_four, rest = values.split([4 * quarter, values.shape[-1] - 4 * quarter], dim=-1)
    products = by_four.unflatten(-1, (4, quarter)).prod(-2, dtype=torch.float64)
    total = products.log_().sum(-1).to(values.dtype)
    return total + rest.log().sum(-1) if rest.shape[-1] else total


def _by_layer(diagonal: Tensor, shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
    """One view a layer of a diagonal (..., p): (..., in, out), but (..., 1, in) for the last, as the products want."""
    parts = diagonal.split([n_out * n_in for n_out, n_in in shapes], dim=-1)
    *hidden, last = [part.unflatten(-1, (n_in, n_out)) for part, (n_out, n_in) in zip(parts, shapes, strict=True)]
    return [*hidden, last.mT]


def _quadratic(inverse: list[Tensor], squares: Factors) -> Tensor:
    """sum_j g_j^2 / D_j, (R, N), with 1/D by layers; the sum of layer l is (delta_l^2)^T (1/D_l) z_{l-1}^2.

    The last two layers meet in the same units, so that their terms are added unit by unit and summed once.
    """
    *layers, last = inverse
    terms = squares[-1] * last
    products = [torch.bmm(z, layer) for z, layer in zip(squares[1::2], layers, strict=False)]
    if products:
        terms.addcmul_(products[-1], squares[-3])
    total = terms.sum(-1)
    for product, delta in zip(products[:-1], squares[::2], strict=False):
        total += product.mul_(delta).sum(-1)
    return total


class FullDesign(nn.Module):
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

    def __init__(self, shapes: Sequence[tuple[int, int]], ridge: Tensor, blocks: int = 1) -> None:
        super().__init__()
        self.blocks = blocks
        self.factor_sizes = _sizes(shapes)
        # sqrt(w) g; their square matrix is L
        self.samples = Samples(shapes, ridge, ridge.sqrt())
        self.register_buffer("ridge", ridge.clone())
        self.register_buffer("inverse", ridge.new_zeros(len(ridge), 0, 0))
        self.register_buffer("log_determinant", self.samples.dimension * ridge.log())

    def prepare(self, factors: Factors, places: Factors) -> None:
        """The factors as they are, but blocks as the vectors that they stand for: the matrix has all of their entries.

        Whole gradients are made for the arms of one round only.
        """
        arms = min(1, len(factors) - 1)
        for number, (factor, place) in enumerate(zip(factors, places, strict=True)):
            place.copy_(dense(factor, self.blocks) if number == arms else factor)

    @property
    def dual(self) -> bool:
        return self.inverse.shape[1] == 0

    def norm(self, factors: Factors) -> Tensor:
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

    def hold(self, count: int, fixed: bool) -> None:
        """Make room for so many samples a replica, in the form that is the cheaper one then."""
        if self.dual and count > self.samples.dimension:
            self._go_primal()
        if self.dual:
            self.samples.hold(count, fixed)

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
        self.inverse = torch.cholesky_inverse(torch.linalg.cholesky_ex(matrix).L).contiguous()
        self.samples.clear()

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """Take on the form of what was stored."""
        take_shape(self, "inverse", state_dict.get(prefix + "inverse"))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _sizes(shapes: Sequence[tuple[int, int]]) -> list[int]:
    """The numbers of each factor (delta_1, z_0, ..., z_{L-1})"""
    *hidden, last = shapes
    return [*(size for shape in hidden for size in shape), last[1]]
