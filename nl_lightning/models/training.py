"""TrainNN: from which parameters it starts, which replicas it leaves alone, and whether it diverged.

The steps themselves are the model's: ``backward`` for fully connected layers, ``modules`` for any other network.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from nl_lightning.core.replicas import pad_singleton
from nl_lightning.models.base import Descent, Observations, RewardModel

__all__ = ["DIVERGED_LOSS", "SHRINK", "Start", "TrainNNOptimizer", "has_diverged", "kept", "train"]

Start = Literal["warm", "cold", "shrink"]
"""From the current parameters, from theta_0, or from a mean of the current ones and fresh ones."""

SHRINK, SHRINK_ROUNDS = 0.55, 4000
"""``start="shrink"`` begins with k theta + (1 - k) fresh (Ash and Adams 2020), where k = SHRINK up to SHRINK_ROUNDS
observations and rises to 1 behind them: see ``kept``."""

DIVERGED_LOSS = 1000.0
"""TrainNN has diverged when its loss is this many times that of f = 0."""


def train(
    model: RewardModel,
    data: Observations,
    descent: Descent,
    inactive: Tensor,
    some_inactive: bool,
    start: Sequence[Tensor] | None = None,
    keep: Tensor | None = None,
    seeds: Sequence[int] = (),
) -> Tensor | None:
    """TrainNN of all replicas but the ``inactive`` (R,) ones, changing the model's parameters in place.

    With ``start`` it begins there, or with ``keep`` (R,) at keep theta + (1 - keep) start. Returns the replicas (R,)
    that diverged, whose parameters are put back, or None where there are none. ``some_inactive`` says whether there may
    be inactive ones, without asking a device. ``seeds``, one a replica, are for layers that draw random numbers.
    """
    weights = model.weights
    trained: list[Tensor] = list(weights)
    moving = _active(inactive) if some_inactive else None
    if moving is not None:
        if not len(moving):
            return None
        # Inactive replicas take no time: the others are trained apart.
        data, descent = data.of(moving), descent.of(moving)
        trained = [weight[moving] for weight in trained]
        start = None if start is None else [weight[moving] for weight in start]
        keep = None if keep is None else keep[moving]
        seeds = [seeds[replica] for replica in moving.tolist()] if seeds else ()
    before = [weight.clone() for weight in trained]
    for weight, other in zip(trained, start or (), strict=False):
        if keep is None:
            weight.copy_(other)
        else:
            old, new = (share.to(weight).view(-1, *[1] * (weight.dim() - 1)) for share in (keep, 1 - keep))
            weight.mul_(old).add_(other * new)
    unstable = descent.is_unstable()
    loss = model.descend(trained, data, descent, descent.lr.masked_fill(unstable, 0), moving, seeds)
    failed = unstable | has_diverged(loss, data)
    any_failed = bool(failed.any())
    if any_failed:
        for weight, old in zip(trained, before, strict=True):
            weight.copy_(torch.where(failed.view(-1, *[1] * (weight.dim() - 1)), old, weight))
    if moving is not None:
        for weight, new in zip(weights, trained, strict=True):
            weight.index_copy_(0, moving, new)
    if not any_failed:
        return None
    return failed if moving is None else torch.zeros_like(inactive).index_fill_(0, moving[failed], True)


def kept(n: Tensor) -> Tensor:
    """(R,): the share k = 1 - (1 - SHRINK) sqrt(SHRINK_ROUNDS / n) that ``shrink`` keeps of parameters that were
    trained on n observations.

    Fresh parameters help a network out of what it learned from few observations. With many, the steps of one call do
    not reach from there to where the last call had come.
    """
    few = SHRINK_ROUNDS / n.to(torch.float64).clamp_min(SHRINK_ROUNDS)
    return 1 - (1 - SHRINK) * few.sqrt()


def _active(inactive: Tensor) -> Tensor | None:
    """The indices of the replicas that are not inactive; None where that is all of them."""
    active = (~inactive).nonzero().flatten().tolist()
    if len(active) == len(inactive):
        return None
    return torch.tensor(pad_singleton(active, len(inactive)), device=inactive.device, dtype=torch.long)


def has_diverged(loss: Tensor, data: Observations) -> Tensor:
    """Whether a loss, (R,), is not finite or far above sum_i w_i log 2, that of no network at all (f = 0)."""
    n: int | Tensor = data.x.shape[1]
    if data.weight is not None:
        n = data.weight.sum(1).clamp_min(n)
    return ~(loss <= DIVERGED_LOSS * math.log(2) * (1 + n))


class TrainNNOptimizer(Optimizer):
    """One step is the whole TrainNN, handed over as the closure.

    J calls of Lightning's optimizer hooks would cost more than the J gradient steps between them.
    """

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        closure()
