"""Candidate protocols: which items an event offers as arms."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from nl_lightning.core.errors import InputError
from nl_lightning.core.rng import Stream, row_numbers
from nl_lightning.core.whole import check_whole
from nl_lightning.environments.synthetic import different
from replay.logs.reader import Events

__all__ = ["PROTOCOLS", "Candidates", "Protocol", "candidates", "check_protocol", "with_highest_affinity"]


_NO_ITEM = 2**40
"""Larger than any item id."""

Protocol = Literal["affinity", "uniform", "all"]

PROTOCOLS: dict[Protocol, str] = {
    "affinity": "the logged item and those with the user's highest affinity (the paper's protocol; the set depends on "
    "the logged item, so the CTR is that of no single policy)",
    "uniform": "a uniformly drawn set, independent of the logged item; events whose logged item is not in it are "
    "dropped (unbiased)",
    "all": "all items (unbiased)",
}
"""Each protocol with its meaning, for the help of commands."""


class Candidates(NamedTuple):
    """The arms of N events."""

    item: Tensor
    """(N, K)"""
    affinity: Tensor
    """(N, K) float32"""
    logged: Tensor
    """(N,), the arm that is the logged item, -1 if there is none"""


def check_protocol(protocol: Protocol, arms: int, items: int) -> int:
    """Check a protocol and the number of arms it is given; return the number K of arms per round."""
    if protocol not in PROTOCOLS:
        raise InputError(f"candidates must be one of {', '.join(PROTOCOLS)}; got {protocol!r}.")
    check_whole(1, arms=arms)
    if protocol == "all":
        return items
    if arms > items:
        raise InputError(f"A round shows {arms} items, but the log has only {items}; choose arms <= {items}.")
    return arms


def candidates(events: Events, protocol: Protocol, arms: int, items: int, seed: int) -> Candidates:
    """The arms of each event. Random choices are a function of the seed and the event's row."""
    n = len(events.item)
    logged_item, values = torch.from_numpy(events.item), torch.from_numpy(events.affinity)
    owner, liked = torch.from_numpy(events.affinity_owner), torch.from_numpy(events.affinity_item)
    if protocol == "all":
        affinity = torch.zeros(n, items, device="cpu")
        affinity[owner, liked] = values
        return Candidates(torch.arange(items, device="cpu").expand(n, -1), affinity, logged_item)
    uniform = row_numbers(events.rows, arms, seed, Stream.CANDIDATES)
    if protocol == "uniform":
        item = different(uniform, items)
        found = item == logged_item.unsqueeze(1)
        logged = torch.where(found.any(1), found.int().argmax(1), -1)
    else:
        # Column 0 is the logged item; the arms are shown in random order.
        order = uniform.argsort(1)
        item = with_highest_affinity(events, arms).gather(1, order)
        logged = (order == 0).int().argmax(1)
    pair, slot = (item[owner] == liked.unsqueeze(1)).nonzero(as_tuple=True)
    affinity = torch.zeros(n, arms, device="cpu")
    affinity[owner[pair], slot] = values[pair]
    return Candidates(item, affinity, logged)


def with_highest_affinity(events: Events, arms: int) -> Tensor:
    """(N, K): the logged item, then others by descending affinity, ties by item id."""
    logged = torch.from_numpy(events.item)
    # Most users have no affinities. The others are then the first items, without the logged one.
    first = torch.arange(arms - 1, device="cpu")
    chosen = torch.cat([logged.unsqueeze(1), first + (first >= logged.unsqueeze(1))], dim=1)
    entries = (events.affinity_owner, events.affinity_item, events.affinity)
    owner, liked, affinity = (torch.from_numpy(column) for column in entries)
    other = liked != logged[owner]
    owner, liked, affinity = owner[other], liked[other], affinity[other]
    # Sort by owner, then by descending affinity. The bit patterns of positive floats are ordered like the floats.
    order = (owner * 2**32 - affinity.view(torch.int32)).sort(stable=True).indices
    owner, liked = owner[order], liked[order]
    rows, counts = owner.unique_consecutive(return_counts=True)
    rank = torch.arange(len(owner), device="cpu") - (counts.cumsum(0) - counts).repeat_interleave(counts)
    best = rank < arms - 1
    # Slots that are still empty hold a number above every item.
    taken = torch.full((len(rows), arms), _NO_ITEM, device="cpu")
    taken[:, 0] = logged[rows]
    taken[torch.arange(len(rows), device="cpu").repeat_interleave(counts)[best], rank[best] + 1] = liked[best]
    empty = taken == _NO_ITEM
    # Fill them with the first items that are not taken: the j-th of these, counting past the taken ones in order.
    nth = empty.cumsum(1) - 1
    for smaller in taken.sort(dim=1).values.unbind(1):
        nth += nth >= smaller.unsqueeze(1)
    chosen[rows] = torch.where(empty, nth, taken)
    return chosen
