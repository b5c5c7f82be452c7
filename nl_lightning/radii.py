"""The radius that scales an arm's norm to its exploration bonus, one pure function an algorithm.

Every argument and result is a tensor of shape (R,), one number a replica. ``d`` is the effective dimension
of the observations so far. Absolute constants and logarithms of t are absorbed by ``nu`` (the paper, appendix A).
"""

from torch import Tensor

from nl_lightning.link import SLOPE_BOUND


def ncbf_ucb(nu: Tensor, lam: Tensor, kappa: Tensor, S: Tensor, d: Tensor) -> Tensor:
    """nu (kappa sqrt(d1) + S sqrt(kappa lam))"""
    return nu * (kappa * d.sqrt() + S * (kappa * lam).sqrt())


def logistic_ucb_1(nu: Tensor, lam: Tensor, kappa: Tensor, S: Tensor, d: Tensor) -> Tensor:
    """nu R sqrt(kappa) (1 + 2S) (S sqrt(lam) + d2 / sqrt(lam))"""
    return nu * SLOPE_BOUND * kappa.sqrt() * (1 + 2 * S) * (S * lam.sqrt() + d * lam.rsqrt())


def ada_ofu_ecolog(nu: Tensor, lam: Tensor, S: Tensor, d: Tensor) -> Tensor:
    """nu S (sqrt(d2) + sqrt(lam))"""
    return nu * S * (d.sqrt() + lam.sqrt())


def rho(lam: Tensor, S: Tensor, d: Tensor) -> Tensor:
    """rho = (1 + S + S^2) (sqrt(d2) + 1 / sqrt(lam)), shared by the four NeuralLog agents."""
    return (1 + S + S * S) * (d.sqrt() + lam.rsqrt())


def neurallog_ucb_1(nu: Tensor, lam: Tensor, kappa: Tensor, S: Tensor, d: Tensor) -> Tensor:
    """nu R sqrt(kappa) rho"""
    return nu * SLOPE_BOUND * kappa.sqrt() * rho(lam, S, d)


def neurallog_ts_1(nu: Tensor, lam: Tensor, kappa: Tensor, S: Tensor, d: Tensor) -> Tensor:
    """nu sqrt(kappa) rho"""
    return nu * kappa.sqrt() * rho(lam, S, d)


def neurallog_2(nu: Tensor, lam: Tensor, S: Tensor, d: Tensor) -> Tensor:
    """nu rho, of NeuralLog-UCB-2 and NeuralLog-TS-2"""
    return nu * rho(lam, S, d)
