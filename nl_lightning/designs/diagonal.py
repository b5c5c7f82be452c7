"""The diagonal of a design matrix: what agents use unless told otherwise."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nl_lightning.core.errors import InputError
from nl_lightning.core.imports import as_new_as
from nl_lightning.core.types import Factors
from nl_lightning.designs.base import DesignMatrix

__all__ = ["DiagonalDesign", "log_product"]


class DiagonalDesign(DesignMatrix):
    """The diagonal of M: D_j = ridge + sum_i w_i g_ij^2.

    As g_l = delta_l (x) z_{l-1}, the squares of a layer's gradient are delta_l^2 (x) z_{l-1}^2, and everything is a
    small matrix product a layer.
    """

    supports_prefix = True
    supports_subset = True

    diagonal: Tensor
    """(R, p)"""

    def __init__(self, shapes: Sequence[tuple[int, int]], ridge: Tensor, blocks: int = 1, **settings: Any) -> None:
        super().__init__(shapes, ridge, blocks, **settings)
        if blocks > 1:
            raise InputError(
                f"{type(self).__name__} takes arms as vectors, got blocks = {blocks}; use 'diagonal' or 'full'."
            )
        self.register_buffer("diagonal", ridge[:, None].repeat(1, self.parameters_count))
        self._view_layers()

    @property
    def numbers_per_arm(self) -> int:
        return 1

    def prepare(self, factors: Factors, places: Factors) -> None:
        """Put delta_l^2 and z_{l-1}^2 into their places, in the design's precision."""
        for factor, place in zip(factors, places, strict=True):
            place.copy_(factor).square_()

    def norm(self, squares: Factors, replicas: Tensor | None = None) -> Tensor:
        """sqrt(sum_j g_j^2 / D_j), (R, N)"""
        if replicas is None:
            return self._squared_norm(squares).sqrt_()
        inverse = self._flat.index_select(0, replicas).reciprocal_()
        return _quadratic(_by_layer(inverse, self.shapes), squares).sqrt_()

    def _squared_norm(self, squares: Factors) -> Tensor:
        """sum_j g_j^2 / D_j, (R, N)"""
        return _quadratic([layer.reciprocal() for layer in self._layers], squares)

    def norm_at(self, states: Tensor, squares: Factors, index: Tensor | None = None) -> Tensor:
        """The norms (R, C, N) of squares (R, C, N, features), with the diagonals (R, C, p) or, by ``index`` (R, C),
        with some of (R, D, p)."""
        replicas, rounds = squares[-1].shape[:2]
        inverse = states.reciprocal().flatten(0, 1)
        if index is not None:
            first = torch.arange(replicas, device=index.device).unsqueeze(1) * states.shape[1]
            inverse = inverse.index_select(0, (index + first).flatten())
        by_round = tuple(square.flatten(0, 1) for square in squares)
        return _quadratic(_by_layer(inverse, self.shapes), by_round).sqrt_().unflatten(0, (replicas, rounds))

    def prefix(self, squares: Factors, weight: Tensor, replicas: Tensor | None = None) -> Tensor:
        """The diagonals before each of C samples (R, C, features) and after the last, (R, C + 1, p).

        D_j + sum_{i < t} w_i g_ij^2
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

    def add_many(self, squares: Factors, weight: Tensor) -> None:
        """D_j += sum_i w_i g_ij^2, w (R, N, 1): a layer's sum is a product of squares"""
        if not as_new_as(self, "add_many", "add"):
            super().add_many(squares, weight)
            return
        *layers, last = self._layers
        last.add_((squares[-1] * weight).sum(1, keepdim=True))
        for delta, z, layer in zip(squares[::2], squares[1::2], layers, strict=False):
            layer.baddbmm_(z.mT, delta * weight)

    def logdet(self) -> Tensor:
        """log det M = sum_j log D_j, (R,)"""
        return log_product(self._flat)

    def logdet_at(self, states: Tensor) -> Tensor:
        return log_product(states)

    def set_prefix(self, state: Tensor) -> None:
        self._flat.copy_(state)

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
    parts = torch.split_with_sizes(diagonal, [n_out * n_in for n_out, n_in in shapes], dim=-1)
    before = diagonal.shape[:-1]
    *hidden, last = [part.view(*before, n_in, n_out) for part, (n_out, n_in) in zip(parts, shapes, strict=True)]
    return [*hidden, last.mT]


def _quadratic(inverse: list[Tensor], squares: Factors) -> Tensor:
    """sum_j g_j^2 / D_j, (R, N), with 1/D by layers; the sum of layer l is (delta_l^2)^T (1/D_l) z_{l-1}^2.

    The last two layers meet in the same units, so that their terms are added unit by unit and summed once; the last one
    may also have a bias.
    """
    *layers, last = inverse
    terms = squares[-1] * last
    products = [torch.bmm(z, layer) for z, layer in zip(squares[1::2], layers, strict=False)]
    if products:
        terms[..., : products[-1].shape[-1]].addcmul_(products[-1], squares[-3])
    total = terms.sum(-1)
    for product, delta in zip(products[:-1], squares[::2], strict=False):
        total += product.mul_(delta).sum(-1)
    return total
