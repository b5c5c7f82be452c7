"""The radius that scales an arm's norm to its exploration bonus, one pure function an algorithm.

Practical mode: absolute constants and logarithms of t are absorbed by ``nu`` (the paper, appendix A). Every radius is
affine in the root of the effective dimension d, or in d itself; the two coefficients never change, so a round computes
only this:

    radius = offset + growth * sqrt(d)    or    radius = offset + growth * d

Theory mode, the paper's Algorithms 1 and 2: ``TheoryRadius`` has lam_t, iota_t and nu_t as functions of t and
D_t = logdet(sum_{i<=t} phi phi^T / (4 lam_0) + I).

Every argument and result is a tensor of shape (R,), one number a replica.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from nl_lightning.core.link import SLOPE_BOUND

__all__ = [
    "Radius",
    "TheoryRadius",
    "ada_ofu_ecolog",
    "condition",
    "logistic_ucb_1",
    "ncbf_ucb",
    "neurallog_1",
    "neurallog_2",
]


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


class TheoryRadius:
    """lam_t, iota_t, nu_t of L layers at confidence level delta; in each, t = 0 counts as t = 1.

    C is C6 for NeuralLog-UCB-1 and -TS-1, C7 for NeuralLog-UCB-2 and -TS-2.
    """

    def __init__(self, S: Tensor, depth: int, delta: float, C1: float, C: float) -> None:
        self._log_4_delta, root = math.log(4 / delta), math.sqrt(depth)
        # lam_0 = 8 sqrt(2) C1 sqrt(L) log(4/delta) / S
        self.lam_0 = 8 * math.sqrt(2) * C1 * root * self._log_4_delta / S
        self._lam = 64 / S.square(), 16 * C1**2 * depth / (S.square() * self.lam_0)
        self._iota = 8 * C1 * (depth / self.lam_0).sqrt()
        self._nu = C * (1 + root * S + depth * S.square())

    def lam(self, D: Tensor, t: Tensor) -> Tensor:
        """64/S^2 D_t log(4t^2/delta) + 16 C1^2 L/(S^2 lam_0) log^2(4t^2/delta), and at least lam_0.

        The paper says lam_0 <= lam_1. As printed it is not: at t = 1 the second term is lam_0/8 and the first one is
        small. So lam_t <- max(lam_t, lam_{t-1}) from lam_0 on; as D_t and t never fall, this is max(lam_t, lam_0).
        """
        log, (first, second) = self._log(t), self._lam
        return torch.maximum(log * (first * D + second * log), self.lam_0)

    def iota(self, D: Tensor, t: Tensor) -> Tensor:
        """16 sqrt(D_t log(4t^2/delta)) + 8 C1 sqrt(L/lam_0) log(4t^2/delta)"""
        log = self._log(t)
        return 16 * (D * log).sqrt() + self._iota * log

    def nu(self, D: Tensor, t: Tensor) -> Tensor:
        """C (1 + sqrt(L) S + L S^2) iota_t + 1

        (The lemma of Algorithm 2 prints nu2_t as a set, with the condition of the confidence set inside: a misprint.)
        """
        return self._nu * self.iota(D, t) + 1

    def _log(self, t: Tensor) -> Tensor:
        """log(4t^2/delta) with t >= 1"""
        return t.clamp_min(1).to(self.lam_0.dtype).log().mul_(2).add_(self._log_4_delta)


def condition(
    lam: Tensor, S: Tensor, width: int, depth: int, horizon: int, C4: float, C5: float
) -> tuple[Tensor, Tensor]:
    """Step and number of steps of TrainNN in the paper's Condition, for a horizon of T rounds.

    eta = C5 / (m T L + m lam_t),    J = 2 log((sqrt(T) lam_t + C4 T^1.5 L) / (lam_t S)) T L / lam_t, rounded up

    The paper prints the fraction in J upside down, which makes J negative. A large S does so as well: J is at least 1.
    """
    step = C5 / (width * (horizon * depth + lam))
    shrink = (math.sqrt(horizon) * lam + C4 * horizon**1.5 * depth) / (lam * S)
    return step, (2 * shrink.log() * horizon * depth / lam).ceil().clamp_min(1).long()
