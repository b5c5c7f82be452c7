"""Which arms an event shows: the candidate protocols."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from nl_lightning.checks import check_whole
from nl_lightning.environments.synthetic import different
from nl_lightning.errors import InputError
from nl_lightning.randomness import Stream, row_numbers
from replay.stream import Events

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
    if protocol == "all":
        every = torch.arange(items).expand(n, -1)
        return Candidates(every, _dense_affinity(events, torch.arange(n), items), events.item)
    uniform = row_numbers(events.rows, arms, seed, Stream.CANDIDATES)
    if protocol == "uniform":
        item = different(uniform, items)
        found = item == events.item.unsqueeze(1)
        logged = torch.where(found.any(1), found.int().argmax(1), -1)
    else:
        # Column 0 is the logged item; the order that is shown is random.
        order = uniform.argsort(1)
        item = _with_highest_affinity(events, arms, items).gather(1, order)
        logged = (order == 0).int().argmax(1)
    affinity = torch.zeros(n, arms)
    rows = events.affinity_owner.unique_consecutive()
    affinity[rows] = _dense_affinity(events, rows, items).gather(1, item[rows])
    return Candidates(item, affinity, logged)


def _with_highest_affinity(events: Events, arms: int, items: int) -> Tensor:
    """(N, K): the logged item, then the others by descending affinity, ties by item id."""
    # Most users have no affinity at all: the others are then the first items but for the logged one.
    logged = events.item.unsqueeze(1)
    first = torch.arange(arms - 1).expand(len(logged), -1)
    chosen = torch.cat([logged, first + (first >= logged)], dim=1)
    rows = events.affinity_owner.unique_consecutive()
    affinity = _dense_affinity(events, rows, items)
    affinity.scatter_(1, logged[rows], torch.inf)
    chosen[rows] = affinity.sort(dim=1, descending=True, stable=True).indices[:, :arms]
    return chosen


def _dense_affinity(events: Events, rows: Tensor, items: int) -> Tensor:
    """(M, n) of some ascending rows that include every owner of an affinity."""
    dense = torch.zeros(len(rows), items)
    dense[torch.searchsorted(rows, events.affinity_owner), events.affinity_item] = events.affinity
    return dense
