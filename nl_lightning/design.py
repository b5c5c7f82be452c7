"""Design matrices M = ridge I + sum_i w_i g_i g_i^T of R replicas, over the factors of the gradients g.

Three verbs: ``norm``, ``add``, ``logdet``. ``prepare`` turns a network's factors into what they take, once for as many
samples as one likes. A design computes in the precision of its ridge.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nl_lightning.networks import Factors

DesignKind = Literal["diagonal", "full"]


class DiagonalDesign(nn.Module):
    """The diagonal of M: D_j = ridge + sum_i w_i g_ij^2.

    As g_l = delta_l (x) z_{l-1}, the squares of a layer's gradient are delta_l^2 (x) z_{l-1}^2, and everything is a
    small matrix product a layer.
    """

    diagonal: Tensor
    ridge: Tensor

    def __init__(self, shapes: Sequence[tuple[int, int]], ridge: Tensor) -> None:
        super().__init__()
        self.shapes = list(shapes)
        parameters = sum(n_out * n_in for n_out, n_in in shapes)
        self.register_buffer("ridge", ridge[:, None].clone(), persistent=False)
        self.register_buffer("diagonal", self.ridge.repeat(1, parameters))
        self._view_layers()

    def prepare(self, factors: Factors) -> Factors:
        """(delta_l^2, z_{l-1}^2) a layer"""
        return tuple(factor.to(self.diagonal.dtype).square() for factor in factors)

    def norm(self, squares: Factors) -> Tensor:
        """sqrt(sum_j g_j^2 / D_j), (R, N); the sum of layer l is (delta_l^2)^T (1/D_l) z_{l-1}^2."""
        *layers, last = self._layers
        total = torch.bmm(squares[-1], last.reciprocal().mT).squeeze(-1)
        for delta, z, layer in zip(squares[::2], squares[1::2], layers, strict=False):
            total += torch.bmm(z, layer.reciprocal().mT).mul_(delta).sum(-1)
        return total.sqrt_()

    def add(self, squares: Factors, weight: Tensor | None = None) -> None:
        """D_j += w g_j^2 for one sample a replica (N = 1) with weight (R, 1, 1), or 1."""
        *layers, last = self._layers
        if weight is None:
            last += squares[-1]
        else:
            last.addcmul_(squares[-1], weight)
        for delta, z, layer in zip(squares[::2], squares[1::2], layers, strict=False):
            layer.addcmul_(delta.mT if weight is None else delta.mT * weight, z)

    def logdet(self) -> Tensor:
        """log det(M / ridge) = sum_j log(D_j / ridge), (R,)"""
        return (self.diagonal / self.ridge).log_().sum(-1)

    def _view_layers(self) -> None:
        """The diagonal as one (R, out, in) view a layer."""
        parts = self.diagonal.split([n_out * n_in for n_out, n_in in self.shapes], dim=1)
        self._layers = [part.unflatten(1, shape) for part, shape in zip(parts, self.shapes, strict=True)]

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


class FullDesign(nn.Module):
    """The whole of M, kept as its inverse and its log-determinant.

    With u = M^{-1} g and c = 1 + w g^T u (Sherman-Morrison, and the determinant lemma):
    (M + w g g^T)^{-1} = M^{-1} - (w / c) u u^T,    log det(M + w g g^T) = log det M + log c.
    """

    inverse: Tensor
    log_determinant: Tensor

    def __init__(self, shapes: Sequence[tuple[int, int]], ridge: Tensor) -> None:
        super().__init__()
        parameters = sum(n_out * n_in for n_out, n_in in shapes)
        identity = torch.eye(parameters, dtype=ridge.dtype, device=ridge.device)
        self.register_buffer("inverse", identity / ridge[:, None, None])
        self.register_buffer("log_determinant", torch.zeros_like(ridge))

    def prepare(self, factors: Factors) -> Factors:
        """The factors as they are: whole gradients are made for the arms of one round only."""
        return tuple(factor.to(self.inverse.dtype) for factor in factors)

    def norm(self, factors: Factors) -> Tensor:
        """sqrt(g^T M^{-1} g), (R, N)"""
        gradient = _gradient(factors)
        return (torch.bmm(gradient, self.inverse) * gradient).sum(-1).sqrt()

    def add(self, factors: Factors, weight: Tensor | None = None) -> None:
        """M += w g g^T for one sample a replica (N = 1) with weight (R, 1, 1), or 1."""
        gradient = _gradient(factors)
        solved = torch.bmm(gradient, self.inverse)
        product = torch.bmm(gradient, solved.mT)
        growth = 1 + (product if weight is None else product * weight)
        shrink = (1 if weight is None else weight) / growth
        self.inverse.baddbmm_(solved.mT * shrink, solved, alpha=-1)
        self.log_determinant.add_(growth.log().flatten())

    def logdet(self) -> Tensor:
        """log det(M / ridge), (R,)"""
        return self.log_determinant.clone()


def _gradient(factors: Factors) -> Tensor:
    """g (R, N, p), the layers one after the other."""
    layers = zip(factors[::2], factors[1::2], strict=False)
    hidden = [(delta.unsqueeze(-1) * z.unsqueeze(-2)).flatten(2) for delta, z in layers]
    return torch.cat([*hidden, factors[-1]], dim=-1)


DESIGNS: dict[DesignKind, type[DiagonalDesign] | type[FullDesign]] = {"diagonal": DiagonalDesign, "full": FullDesign}
