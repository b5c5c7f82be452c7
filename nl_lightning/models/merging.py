"""Equal observations put together, so that TrainNN computes each different arm once.

    sum_i w_i BCE(f(x_i), r_i) = sum_x w_x BCE(f(x), r_x),   w_x = sum_{x_i=x} w_i,   r_x = sum_{x_i=x} w_i r_i / w_x

BCE(f, r) = softplus(f) - r f is linear in r: this is the same loss with the same gradient, up to rounding.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from nl_lightning.core.rng import Stream, generator
from nl_lightning.models.base import Observations

__all__ = ["merged"]

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integers with as many bytes as a floating-point number."""


def merged(data: Observations, most: int) -> Observations | None:
    """The observations x (R, n, d) with equal rows put together, (R, most, d); the rest are zeros of weight 0.

    The number of rows is always ``most``: how many a replica has must not depend on the replicas beside it. Returns
    None where a replica has more than that many different rows.
    """
    keys, order = _keys(data.x).sort(dim=1, stable=True)
    number = pad((keys[:, 1:] != keys[:, :-1]).cumsum(1), (1, 0))
    group = torch.empty_like(order).scatter_(1, order, number.clamp_max(most - 1))
    replicas, _, features = data.x.shape
    # the rows of a group are equal, so that any of them may be the one that stays
    x = data.x.new_zeros(replicas, most, features)
    x.scatter_(1, group.unsqueeze(-1).expand_as(data.x), data.x)
    # unless there are too many groups, or different rows with the same key
    columns = zip(x.unbind(-1), data.x.unbind(-1), strict=True)
    if torch.stack([(values.gather(1, group) != rows).any() for values, rows in columns]).any():
        return None
    weights = torch.ones_like(data.reward) if data.weight is None else data.weight

    def summed(values: Tensor) -> Tensor:
        return values.new_zeros(replicas, most, dtype=torch.float64).scatter_add_(1, group, values.double())

    weight, clicks = summed(weights), summed(weights * data.reward)
    reward = torch.where(weight > 0, clicks / weight, 0)
    return Observations(x, reward.to(data.reward.dtype), weight.to(data.reward.dtype))


def _keys(x: Tensor) -> Tensor:
    """Whole numbers (R, n) that are the same for equal rows, and in all likelihood different for others.

    key = sum_j c_j bits(x_j) mod 2^64 with random odd c_j: unlike sums of floating-point numbers, these do not depend
    on the order in which they are computed.
    """
    bits = _BITS[x.element_size()]
    drawn = generator(0, Stream.MERGING)
    factors = torch.randint(-(2**62), 2**62, (x.shape[-1],), generator=drawn, device="cpu") * 2 + 1
    keys = torch.zeros(x.shape[:-1], dtype=torch.int64, device=x.device)
    # column by column: no copy of all of x
    for column, factor in zip(x.unbind(-1), factors.tolist(), strict=True):
        keys.add_(column.contiguous().view(bits).long() * factor)
    return keys
