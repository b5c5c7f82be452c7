"""Equal observations put together, so that TrainNN computes each different arm once.

    sum_i w_i BCE(f(x_i), r_i) = sum_x w_x BCE(f(x), r_x),   w_x = sum_{x_i=x} w_i,   r_x = sum_{x_i=x} w_i r_i / w_x

BCE(f, r) = softplus(f) - r f is linear in r: this is the same loss with the same gradient, up to rounding.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from nl_lightning.core.rng import Stream, generator
from nl_lightning.models.base import Observations

__all__ = ["AT_ONCE", "FEWEST_STEPS", "keys_of", "merged"]

FEWEST_STEPS = 10
"""Gradient steps from which merging pays: it takes as long as about five steps on all observations."""

AT_ONCE = 2**20
"""The most observations that are grouped at once, but at least those of one replica. Each takes about 50 bytes."""


def merged(data: Observations, rows: int) -> Observations | None:
    """The observations x (R, n, d) with equal rows put together, (R, rows, d); the rest are zeros of weight 0.

    The number of rows is given: how many a replica has must not depend on the replicas beside it. Returns None where a
    replica has more than that many different ones.
    """
    replicas, n = data.reward.shape
    weight = torch.ones_like(data.reward) if data.weight is None else data.weight
    few = max(1, AT_ONCE // max(n, 1))
    some = [slice(first, first + few) for first in range(0, replicas, few)]
    parts = [_merged(data.x[part], data.reward[part], weight[part], rows) for part in some]
    x, reward, total, fits = zip(*parts, strict=True)
    if not torch.stack(fits).all():
        return None
    return Observations(torch.cat(x), torch.cat(reward), torch.cat(total))


def _merged(x: Tensor, reward: Tensor, weight: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same of some replicas, and whether they fit, which is not asked yet."""
    keys, order = keys_of(x).sort(dim=1, stable=True)
    number = pad((keys[:, 1:] != keys[:, :-1]).cumsum(1), (1, 0))
    group = torch.empty_like(order).scatter_(1, order, number.clamp_max(rows - 1))
    del keys, order, number
    # the observations of a group are equal, so that any of them may be the one that stays
    kept = x.new_zeros(len(x), rows, x.shape[-1])
    kept.scatter_(1, group.unsqueeze(-1).expand_as(x), x)
    # unless there are too many groups, or different observations with the same key
    columns = zip(kept.unbind(-1), x.unbind(-1), strict=True)
    differ = torch.stack([(values.gather(1, group) != given).any() for values, given in columns]).any()

    def summed(values: Tensor) -> Tensor:
        return values.new_zeros(len(x), rows, dtype=torch.float64).scatter_add_(1, group, values.double())

    total, clicks = summed(weight), summed(weight * reward)
    share = torch.where(total > 0, clicks / total, 0)
    return kept, share.to(reward.dtype), total.to(reward.dtype), ~differ


def keys_of(x: Tensor) -> Tensor:
    """Whole numbers (R, n) that are the same for equal rows, and in all likelihood different for others.

    key = sum_j c_j b_j mod 2^64 with the bits b_j of a row as numbers of 32 bits, and random odd c_j. Unlike sums of
    floating-point numbers, these do not depend on the order in which they are computed. (Numbers of 64 bits would not
    do: those that differ in their highest bits have products that do so too.)
    """
    per_number = x.element_size() // 4
    drawn = generator(0, Stream.MERGING)
    size = (x.shape[-1] * per_number,)
    factors = iter((torch.randint(-(2**62), 2**62, size, generator=drawn, device="cpu") * 2 + 1).tolist())
    keys = torch.zeros(x.shape[:-1], dtype=torch.int64, device=x.device)
    # column by column: no copy of all of x
    for column in x.unbind(-1):
        # -0.0 becomes 0.0
        bits = (column + 0.0).view(torch.int32).unflatten(-1, (-1, per_number))
        for half in bits.unbind(-1):
            keys.add_(half.long() * next(factors))
    return keys
