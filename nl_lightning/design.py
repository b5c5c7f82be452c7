"""Design matrices M = ridge I + sum_i w_i g_i g_i^T of R replicas, over the factors of the gradients g.

Three verbs: ``norm``, ``add``, ``logdet``. ``prepare`` turns a network's factors into what the verbs take, once for as
many samples as one likes. A weight of 0 leaves a sample out. A design computes in the precision of its ridge.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from nl_lightning.networks import Factors

DesignKind = Literal["diagonal", "full"]


class DiagonalDesign(nn.Module):
    """The diagonal of M: D_j = ridge + sum_i w_i g_ij^2.

    As g_l = delta_l (x) z_{l-1}, the squares of a layer's gradient are delta_l^2 (x) z_{l-1}^2, and everything is a small
    matrix product a layer.
    """

    diagonal: Tensor

    def __init__(self, shapes: Sequence[tuple[int, int]], ridge: Tensor) -> None:
        super().__init__()
        self.shapes = list(shapes)
        parameters = sum(n_out * n_in for n_out, n_in in shapes)
        self.register_buffer("diagonal", ridge[:, None].repeat(1, parameters))
        self._layers: list[Tensor] = []
        self._layers_of: Tensor | None = None

    def prepare(self, factors: Factors) -> Factors:
        """(delta_l^2, z_{l-1}^2) a layer"""
        dtype = self.diagonal.dtype
        return tuple((delta.to(dtype).square(), z.to(dtype).square()) for delta, z in factors)

    def norm(self, squares: Factors) -> Tensor:
        """sqrt(sum_j g_j^2 / D_j), (R, N); the sum of layer l is (delta_l^2)^T (1/D_l) z_{l-1}^2."""
        total = None
        for (delta, z), layer in zip(squares, self.layers(), strict=True):
            part = torch.bmm(z, layer.reciprocal().mT).mul_(delta).sum(-1)
            total = part if total is None else total.add_(part)
        assert total is not None
        return total.sqrt_()

    def add(self, squares: Factors, weight: Tensor) -> None:
        """D_j += sum_i w_i g_ij^2 for N samples with weights (R, N)."""
        for (delta, z), layer in zip(squares, self.layers(), strict=True):
            layer.baddbmm_((delta * weight.unsqueeze(-1)).mT, z)

    def logdet(self) -> Tensor:
        """log det M = sum_j log D_j, (R,)"""
        return self.diagonal.log().sum(-1)

    def layers(self) -> list[Tensor]:
        """The diagonal as one (R, out, in) view a layer, made again when the buffer moved to another place."""
        if self._layers_of is not self.diagonal:
            parts = self.diagonal.split([n_out * n_in for n_out, n_in in self.shapes], dim=1)
            self._layers = [part.unflatten(1, shape) for part, shape in zip(parts, self.shapes, strict=True)]
            self._layers_of = self.diagonal
        return self._layers


class FullDesign(nn.Module):
    """The whole of M, kept as its inverse and its log-determinant.

    With G the rows sqrt(w_i) g_i and C = I + G M^{-1} G^T (Woodbury, and the determinant lemma):
    (M + G^T G)^{-1} = M^{-1} - M^{-1} G^T C^{-1} G M^{-1},    log det(M + G^T G) = log det M + log det C.
    """

    inverse: Tensor
    log_determinant: Tensor

    def __init__(self, shapes: Sequence[tuple[int, int]], ridge: Tensor) -> None:
        super().__init__()
        parameters = sum(n_out * n_in for n_out, n_in in shapes)
        identity = torch.eye(parameters, dtype=ridge.dtype, device=ridge.device)
        self.register_buffer("inverse", identity / ridge[:, None, None])
        self.register_buffer("log_determinant", parameters * ridge.log())

    def prepare(self, factors: Factors) -> Factors:
        """The factors as they are: whole gradients are made for the arms of one round only."""
        return tuple((delta.to(self.inverse.dtype), z.to(self.inverse.dtype)) for delta, z in factors)

    def norm(self, factors: Factors) -> Tensor:
        """sqrt(g^T M^{-1} g), (R, N)"""
        gradient = self._gradient(factors)
        return (torch.bmm(gradient, self.inverse) * gradient).sum(-1).sqrt()

    def add(self, factors: Factors, weight: Tensor) -> None:
        """M += sum_i w_i g_i g_i^T for N samples with weights (R, N)."""
        rows = self._gradient(factors) * weight.unsqueeze(-1).sqrt()
        solved = torch.bmm(rows, self.inverse)
        core = torch.bmm(solved, rows.mT)
        core.diagonal(dim1=-2, dim2=-1).add_(1)
        factor = torch.linalg.cholesky(core)
        half = torch.linalg.solve_triangular(factor, solved, upper=False)
        self.inverse.baddbmm_(half.mT, half, alpha=-1)
        self.log_determinant += 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def logdet(self) -> Tensor:
        """log det M, (R,)"""
        return self.log_determinant.clone()

    @staticmethod
    def _gradient(factors: Factors) -> Tensor:
        """g (R, N, p), the layers one after the other."""
        parts = [torch.einsum("rno,rni->rnoi", delta, z).flatten(2) for delta, z in factors]
        return torch.cat(parts, dim=-1)


DESIGNS: dict[DesignKind, type[DiagonalDesign] | type[FullDesign]] = {"diagonal": DiagonalDesign, "full": FullDesign}
