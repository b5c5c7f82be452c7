"""The logistic link: mu(f) = 1 / (1 + exp(-f)), its slope, and kappa."""

from torch import Tensor

SLOPE_BOUND = 0.25
"""R = max mu'(f), reached at f = 0."""

KAPPA_MINIMUM = 1 / SLOPE_BOUND
"""kappa >= 1 / min mu' >= 1 / R = 4."""


def mu(f: Tensor) -> Tensor:
    """mu(f) = 1 / (1 + exp(-f)), the probability of a click."""
    return f.sigmoid()


def slope(f: Tensor) -> Tensor:
    """mu'(f) = mu(f) (1 - mu(f)), the variance of a click.

    Computed as mu(f) mu(-f): 1 - mu(f) would lose every digit for large f.
    """
    return f.sigmoid() * (-f).sigmoid()
