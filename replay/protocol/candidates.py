"""Candidate protocols: which items an event offers as arms."""

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nl_lightning.core.errors import InputError
from nl_lightning.core.rng import Stream, row_numbers
from nl_lightning.core.whole import check_whole
from nl_lightning.environments.synthetic import different
from replay.logs.obd import AFFINITY, OBD
from replay.logs.reader import Events, Log, Pairs

__all__ = [
    "PROTOCOLS",
    "Candidates",
    "Protocol",
    "candidates",
    "check_protocol",
    "default_protocol",
    "logged_only",
    "pair_values",
    "with_highest_affinity",
]


_NO_ITEM = 2**40
"""Larger than any item id."""

Protocol = Literal["logged", "all", "uniform", "affinity"]

PROTOCOLS: dict[Protocol, str] = {
    "logged": "the candidates that the log lists for the event (unbiased if the list is complete: an action that could "
    "have been shown and is not listed is never chosen)",
    "all": "all actions (unbiased)",
    "uniform": "a uniformly drawn set of the event's candidates, independent of the logged action; events whose logged "
    "action is not in it are dropped (unbiased)",
    "affinity": "the logged item and those with the user's highest affinity (the paper's protocol for the Open Bandit "
    "Dataset; the set depends on the logged item, so the CTR is that of no single policy)",
}
"""Each protocol with its meaning, for the help of commands."""


class Candidates(NamedTuple):
    """The arms of N events."""

    item: Tensor
    """(N, K), numbers of actions"""
    place: Tensor
    """(N, K), the place of an arm among the event's candidates; the action's number where all actions are candidates"""
    logged: Tensor
    """(N,), the arm that is the logged action, -1 if there is none"""
    shown: Tensor
    """(N, K), False for padding; (N, 0) where nothing is padded"""


def default_protocol(log: Log) -> Protocol:
    """The protocol for a log where none is named."""
    return "logged" if log.schema.candidates else "affinity" if log.schema == OBD else "all"


def check_protocol(protocol: Protocol, arms: int, log: Log) -> int:
    """Check a protocol and the number of arms it is given; return the number K of arms per round."""
    if protocol not in PROTOCOLS:
        raise InputError(f"candidates must be one of {', '.join(PROTOCOLS)}; got {protocol!r}.")
    listed = log.schema.candidates
    if protocol == "logged" and not listed:
        raise InputError(f"candidates: logged needs a log that lists candidates, and {log.path} lists none; use all.")
    if protocol == "all" and listed:
        raise InputError(
            f"candidates: all would choose actions that could not be shown: {log.path} lists the candidates of each "
            f"event in the column {listed}. Use logged."
        )
    if protocol == "affinity" and log.schema != OBD:
        raise InputError(
            f"candidates: affinity is the protocol of the Open Bandit Dataset, and {log.path} is another log. "
            f"Use {default_protocol(log)}."
        )
    check_whole(1, arms=arms)
    most = log.statistics.most_candidates
    if protocol in ("all", "logged"):
        return most
    if arms > most:
        raise InputError(f"A round shows {arms} items, but the log has only {most}; choose arms <= {most}.")
    return arms


def candidates(events: Events, protocol: Protocol, arms: int, log: Log, seed: int) -> Candidates:
    """The arms of each event. Random choices are a function of the seed and the event's row."""
    items = log.n_items
    n = len(events.item)
    logged_item = torch.from_numpy(events.item)
    everything = torch.empty(n, 0, dtype=torch.bool, device="cpu")
    if protocol == "all":
        item = torch.arange(items, device="cpu").expand(n, -1)
        return Candidates(item, item, logged_item, everything)
    if protocol == "logged":
        return _listed(events, arms)
    if protocol == "uniform" and events.candidates is not None:
        # of the longest list of the whole log, so that a part of the log draws the same
        longest = log.description["contents"]["candidates"][1]
        return _drawn_from_lists(events, row_numbers(events.rows, longest, seed, Stream.CANDIDATES), arms)
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
    return Candidates(item, item, logged, everything)


def logged_only(events: Events) -> Candidates:
    """The logged action alone, as the only arm (N, 1) of each event."""
    item = torch.from_numpy(events.item).unsqueeze(1)
    place = item
    if events.candidates is not None:
        owner, values = events.candidates.owner, events.candidates.values
        found = np.flatnonzero(values == events.item[owner])
        # the first place of an action; a list that lacks it was refused when the log was made
        first = found[np.unique(owner[found], return_index=True)[1]]
        begin = np.cumsum(events.candidates.length) - events.candidates.length
        place = torch.from_numpy(first - begin).unsqueeze(1)
    none = torch.empty(len(item), 0, dtype=torch.bool, device="cpu")
    return Candidates(item, place, torch.zeros_like(item[:, 0]), none)


def _listed(events: Events, arms: int) -> Candidates:
    """The candidates of each event's list, padded to ``arms`` with its first one."""
    assert events.candidates is not None
    length, values = map(torch.from_numpy, events.candidates)
    begin = length.cumsum(0) - length
    place = torch.arange(arms, device="cpu").expand(len(length), -1)
    shown = place < length.unsqueeze(1)
    place = place * shown
    item = values[begin.unsqueeze(1) + place]
    found = (item == torch.from_numpy(events.item).unsqueeze(1)) & shown
    logged = torch.where(found.any(1), found.int().argmax(1), -1)
    return Candidates(item, place, logged, shown)


def _drawn_from_lists(events: Events, uniform: Tensor, arms: int) -> Candidates:
    """Up to K different candidates of each event's list, given numbers (N, longest list); of a short list all."""
    whole = _listed(events, uniform.shape[1])
    # the first K of a random order, in which padding comes last
    order = uniform.masked_fill(~whole.shown, 2.0).argsort(1)[:, :arms]
    item, place, shown = (values.gather(1, order) for values in (whole.item, whole.place, whole.shown))
    found = (item == torch.from_numpy(events.item).unsqueeze(1)) & shown
    logged = torch.where(found.any(1), found.int().argmax(1), -1)
    return Candidates(item, place, logged, shown)


def pair_values(pairs: Pairs, events: Events, arms: Candidates, items: int) -> Tensor:
    """(N, K): a feature of (event, action) for the arms."""
    values, n = torch.from_numpy(pairs.value.values), len(events.item)
    if pairs.item is None:
        length = torch.from_numpy(pairs.value.length)
        return values[(length.cumsum(0) - length).unsqueeze(1) + arms.place]
    owner, liked = torch.from_numpy(pairs.item.owner), torch.from_numpy(pairs.item.values)
    if arms.item.shape[1] == items and arms.item.stride(0) == 0:
        # all actions, in order
        found = torch.zeros(n, items, dtype=values.dtype, device="cpu")
        found[owner, liked] = values
        return found
    pair, slot = (arms.item[owner] == liked.unsqueeze(1)).nonzero(as_tuple=True)
    found = torch.zeros(n, arms.item.shape[1], dtype=values.dtype, device="cpu")
    found[owner[pair], slot] = values[pair]
    return found


def with_highest_affinity(events: Events, arms: int) -> Tensor:
    """(N, K): the logged item, then others by descending affinity, ties by item id."""
    logged = torch.from_numpy(events.item)
    # Most users have no affinities. The others are then the first items, without the logged one.
    first = torch.arange(arms - 1, device="cpu")
    chosen = torch.cat([logged.unsqueeze(1), first + (first >= logged.unsqueeze(1))], dim=1)
    value, item = events.pair[AFFINITY]
    assert item is not None
    owner, liked, affinity = map(torch.from_numpy, (item.owner, item.values, value.values))
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
