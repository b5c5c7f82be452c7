"""The logistic link: mu(f) = 1 / (1 + exp(-f)), its slope, and kappa.

By exp, and not by torch's sigmoid: on a CPU that computes the last entries of a tensor in another way than the others,
so that a replica's last digits would depend on which replicas lie beside it.
"""

from torch import Tensor

__all__ = ["KAPPA_MINIMUM", "SLOPE_BOUND", "mu", "slope"]


SLOPE_BOUND = 0.25
"""R = max mu'(f), reached at f = 0."""

KAPPA_MINIMUM = 1 / SLOPE_BOUND
"""kappa >= 1 / min mu' >= 1 / R = 4."""


def mu(f: Tensor) -> Tensor:
    """mu(f) = 1 / (1 + exp(-f)), the probability of a click."""
    return (-f).exp_().add_(1).reciprocal_()


def slope(f: Tensor) -> Tensor:
    """mu'(f) = mu(f) (1 - mu(f)), the variance of a click.

    Computed as e / (1 + e)^2 with e = exp(-|f|): 1 - mu(f) would lose every digit for large f.
    """
    e = f.abs().neg_().exp_()
    return e / (1 + e).square_()
