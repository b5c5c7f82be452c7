"""Design matrices M = ridge I + sum_i w_i g_i g_i^T of R replicas, over the factors of the gradients g.

Three verbs: ``norm``, ``add``, ``logdet``. ``prepare`` turns a network's factors into what ``norm`` and ``add`` take,
once for as many samples as one likes. A design computes in the precision of its ridge.
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

    def __init__(self, shapes: Sequence[tuple[int, int]], ridge: Tensor) -> None:
        super().__init__()
        self.shapes = list(shapes)
        parameters = sum(n_out * n_in for n_out, n_in in shapes)
        self.register_buffer("diagonal", ridge[:, None].repeat(1, parameters))
        self._view_layers()

    @staticmethod
    def prepare(factor: Tensor, place: Tensor) -> None:
        """Put delta_l^2 or z_{l-1}^2 into its place, in the design's precision."""
        place.copy_(factor).square_()

    def norm(self, squares: Factors) -> Tensor:
        """sqrt(sum_j g_j^2 / D_j), (R, N); the sum of layer l is (delta_l^2)^T (1/D_l) z_{l-1}^2.

        The last two layers meet in the same units, so that their terms are added unit by unit and summed once.
        """
        *layers, last = self._layers
        terms = squares[-1] / last
        products = [torch.bmm(z, layer.reciprocal()) for z, layer in zip(squares[1::2], layers, strict=False)]
        if products:
            terms.addcmul_(products[-1], squares[-3])
        total = terms.sum(-1)
        for product, delta in zip(products[:-1], squares[::2], strict=False):
            total += product.mul_(delta).sum(-1)
        return total.sqrt_()

    def add(self, squares: Factors, weight: Tensor) -> None:
        """D_j += w g_j^2 for one sample a replica (N = 1) with weights (R, 1, 1)."""
        *layers, last = self._layers
        last.addcmul_(squares[-1], weight)
        for delta, z, layer in zip(squares[::2], squares[1::2], layers, strict=False):
            layer.addcmul_(z.mT, delta * weight)

    def logdet(self) -> Tensor:
        """log det M = sum_j log D_j, (R,)"""
        return self._flat.log().sum(-1)

    def _view_layers(self) -> None:
        """The diagonal as one view a layer, (R, in, out) but (R, 1, in) for the last, as the products want them.

        And the diagonal itself: to ask nn.Module for a buffer takes its time.
        """
        self._flat = self.diagonal
        transposed = [(n_in, n_out) for n_out, n_in in self.shapes]
        parts = self.diagonal.split([n_out * n_in for n_out, n_in in self.shapes], dim=1)
        *hidden, last = [part.unflatten(1, shape) for part, shape in zip(parts, transposed, strict=True)]
        self._layers = [*hidden, last.mT]

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

    With u = M^{-1} g and c = 1 + g^T u (Sherman-Morrison, and the determinant lemma):
    (M + g g^T)^{-1} = M^{-1} - u u^T / c,    log det(M + g g^T) = log det M + log c.
    """

    inverse: Tensor
    log_determinant: Tensor

    def __init__(self, shapes: Sequence[tuple[int, int]], ridge: Tensor) -> None:
        super().__init__()
        parameters = sum(n_out * n_in for n_out, n_in in shapes)
        identity = torch.eye(parameters, dtype=ridge.dtype, device=ridge.device)
        self.register_buffer("inverse", identity / ridge[:, None, None])
        self.register_buffer("log_determinant", parameters * ridge.log())

    @staticmethod
    def prepare(factor: Tensor, place: Tensor) -> None:
        """The factors as they are: whole gradients are made for the arms of one round only."""
        place.copy_(factor)

    def norm(self, factors: Factors) -> Tensor:
        """sqrt(g^T M^{-1} g), (R, N)"""
        g = gradient(factors)
        return (torch.bmm(g, self.inverse) * g).sum(-1).sqrt()

    def add(self, factors: Factors, weight: Tensor) -> None:
        """M += w g g^T for one sample a replica (N = 1) with weights (R, 1, 1)."""
        g = gradient(factors) * weight.sqrt()
        solved = torch.bmm(g, self.inverse)
        growth = 1 + torch.bmm(g, solved.mT)
        self.inverse.baddbmm_(solved.mT / growth, solved, alpha=-1)
        self.log_determinant.add_(growth.log().flatten())

    def logdet(self) -> Tensor:
        """log det M, (R,)"""
        return self.log_determinant.clone()


def gradient(factors: Factors) -> Tensor:
    """g (R, N, p), the layers one after the other."""
    layers = zip(factors[::2], factors[1::2], strict=False)
    hidden = [(delta.unsqueeze(-1) * z.unsqueeze(-2)).flatten(2) for delta, z in layers]
    return torch.cat([*hidden, factors[-1]], dim=-1)


DESIGNS: dict[DesignKind, type[DiagonalDesign] | type[FullDesign]] = {"diagonal": DiagonalDesign, "full": FullDesign}
