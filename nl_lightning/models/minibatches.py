"""Minibatches of TrainNN: which samples each gradient step takes."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Minibatches"]


class Minibatches(NamedTuple):
    """The samples that J steps take, instead of all n."""

    place: Tensor
    """(J, R, B), their numbers"""
    weight: Tensor
    """(R, B): n / B, so that sums stay those of the loss; 0 for numbers that only fill up"""

    def of(self, replicas: Tensor) -> "Minibatches":
        """Those of some replicas, by their numbers."""
        return Minibatches(self.place[:, replicas], self.weight[replicas])

    @classmethod
    def draw(
        cls, generators: Sequence[torch.Generator], length: Tensor, size: int, steps: int, dtype: torch.dtype
    ) -> "Minibatches":
        """For every step ``size`` of each replica's ``length`` (R,) samples, with replacement; one generator each.

        A replica that has no more than ``size`` samples takes all of them.
        """
        drawn = [torch.rand(steps, size, generator=g, dtype=torch.float64, device="cpu") for g in generators]
        uniform = torch.stack(drawn, dim=1).to(length.device)
        n = length.unsqueeze(1)
        place = torch.arange(size, device=length.device)
        few = n <= size
        places = torch.where(few, place, (uniform * n).long()).clamp_max((n - 1).clamp_min(0))
        weight = torch.where(few, (place < n).double(), n / size)
        return cls(places, weight.to(dtype))
