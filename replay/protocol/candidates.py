"""Which arms an event shows: the candidate protocols."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from nl_lightning.core.checks import check_whole
from nl_lightning.core.errors import InputError
from nl_lightning.core.rng import Stream, row_numbers
from nl_lightning.environments.synthetic import different
from replay.logs.reader import Events

_NOBODY = 2**40
"""Larger than any item."""

Protocol = Literal["affinity", "uniform", "all"]

PROTOCOLS: dict[Protocol, str] = {
    "affinity": "the logged item and the others with the user's highest affinity (the paper's protocol; the set "
    "depends on the logged item, so the CTR is that of no single policy)",
    "uniform": "a uniformly drawn set, whatever was logged; events whose logged item is not in it are left out "
    "(unbiased)",
    "all": "all items (unbiased)",
}
"""Each protocol with its meaning."""


class Candidates(NamedTuple):
    """The arms of N events."""

    item: Tensor
    """(N, K)"""
    affinity: Tensor
    """(N, K) float32"""
    logged: Tensor
    """(N,), the arm that is the logged item, -1 where none is"""


def check_protocol(protocol: Protocol, arms: int, items: int) -> int:
    """The number K of arms a round."""
    if protocol not in PROTOCOLS:
        raise InputError(f"candidates must be one of {', '.join(PROTOCOLS)}; got {protocol!r}.")
    check_whole(1, arms=arms)
    if protocol == "all":
        return items
    if arms > items:
        raise InputError(f"A round shows {arms} items, but the log has only {items}; take arms <= {items}.")
    return arms


def candidates(events: Events, protocol: Protocol, arms: int, items: int, seed: int) -> Candidates:
    """The arms of each event; random ones are a function of the seed and the event's row."""
    n = len(events.item)
    owner, liked = events.affinity_owner, events.affinity_item
    if protocol == "all":
        affinity = torch.zeros(n, items, device="cpu")
        affinity[owner, liked] = events.affinity
        return Candidates(torch.arange(items, device="cpu").expand(n, -1), affinity, events.item)
    uniform = row_numbers(events.rows, arms, seed, Stream.CANDIDATES)
    if protocol == "uniform":
        item = different(uniform, items)
        found = item == events.item.unsqueeze(1)
        logged = torch.where(found.any(1), found.int().argmax(1), -1)
    else:
        # Column 0 is the logged item; the order that is shown is random.
        order = uniform.argsort(1)
        item = with_highest_affinity(events, arms).gather(1, order)
        logged = (order == 0).int().argmax(1)
    pair, slot = (item[owner] == liked.unsqueeze(1)).nonzero(as_tuple=True)
    affinity = torch.zeros(n, arms, device="cpu")
    affinity[owner[pair], slot] = events.affinity[pair]
    return Candidates(item, affinity, logged)


def with_highest_affinity(events: Events, arms: int) -> Tensor:
    """(N, K): the logged item, then the others by descending affinity, ties by item id."""
    logged = events.item
    # Most users like no item: the others are then the first items but for the logged one.
    first = torch.arange(arms - 1, device="cpu")
    chosen = torch.cat([logged.unsqueeze(1), first + (first >= logged.unsqueeze(1))], dim=1)
    other = events.affinity_item != logged[events.affinity_owner]
    owner, liked, affinity = events.affinity_owner[other], events.affinity_item[other], events.affinity[other]
    # by owner and descending affinity; the bits of positive floats are ordered as the floats are
    order = (owner * 2**32 - affinity.view(torch.int32)).sort(stable=True).indices
    owner, liked = owner[order], liked[order]
    rows, counts = owner.unique_consecutive(return_counts=True)
    rank = torch.arange(len(owner), device="cpu") - (counts.cumsum(0) - counts).repeat_interleave(counts)
    best = rank < arms - 1
    # items that are not taken yet are counted as if they were behind the last one
    taken = torch.full((len(rows), arms), _NOBODY, device="cpu")
    taken[:, 0] = logged[rows]
    taken[torch.arange(len(rows), device="cpu").repeat_interleave(counts)[best], rank[best] + 1] = liked[best]
    empty = taken == _NOBODY
    # the j-th of the items that nobody likes: count past those taken, in ascending order
    nth = empty.cumsum(1) - 1
    for smaller in taken.sort(dim=1).values.unbind(1):
        nth += nth >= smaller.unsqueeze(1)
    chosen[rows] = torch.where(empty, nth, taken)
    return chosen
