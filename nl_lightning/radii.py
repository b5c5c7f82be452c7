"""The radius that scales an arm's norm to its exploration bonus, one pure function an algorithm.

Absolute constants and logarithms of t are absorbed by ``nu`` (the paper, appendix A). Every radius is affine in the
root of the effective dimension d, or in d itself; the two coefficients never change, so a round computes only this:

    radius = offset + growth * sqrt(d)    or    radius = offset + growth * d

Every argument and result is a tensor of shape (R,), one number a replica.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from nl_lightning.link import SLOPE_BOUND


class Radius(NamedTuple):
    """The coefficients of a radius."""

    offset: Tensor
    growth: Tensor
    of_root: bool = True
    """Whether it grows with sqrt(d), or with d"""

    def at(self, d: Tensor) -> Tensor:
        """The radius at effective dimension d."""
        return torch.addcmul(self.offset, self.growth, d.sqrt() if self.of_root else d)


def ncbf_ucb(nu: Tensor, lam: Tensor, kappa: Tensor, S: Tensor) -> Radius:
    """nu (kappa sqrt(d1) + S sqrt(kappa lam))"""
    return Radius(offset=nu * S * (kappa * lam).sqrt(), growth=nu * kappa)


def logistic_ucb_1(nu: Tensor, lam: Tensor, kappa: Tensor, S: Tensor) -> Radius:
    """nu R sqrt(kappa) (1 + 2S) (S sqrt(lam) + d2 / sqrt(lam))"""
    factor = nu * SLOPE_BOUND * kappa.sqrt() * (1 + 2 * S)
    return Radius(offset=factor * S * lam.sqrt(), growth=factor / lam.sqrt(), of_root=False)


def ada_ofu_ecolog(nu: Tensor, lam: Tensor, S: Tensor) -> Radius:
    """nu S (sqrt(d2) + sqrt(lam))"""
    return Radius(offset=nu * S * lam.sqrt(), growth=nu * S)


def neurallog_1(nu: Tensor, lam: Tensor, kappa: Tensor, S: Tensor) -> Radius:
    """nu sqrt(kappa) rho, of NeuralLog-TS-1; NeuralLog-UCB-1 has R nu for nu"""
    return neurallog_2(nu * kappa.sqrt(), lam, S)


def neurallog_2(nu: Tensor, lam: Tensor, S: Tensor) -> Radius:
    """nu rho, rho = (1 + S + S^2) (sqrt(d2) + 1 / sqrt(lam)), of NeuralLog-UCB-2 and NeuralLog-TS-2"""
    factor = nu * (1 + S + S * S)
    return Radius(offset=factor / lam.sqrt(), growth=factor)
