"""Events as agents are shown them, and where a replica stands among them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from replay.logs.reader import Group, Log
from replay.logs.schema import USER_FEATURES
from replay.protocol.candidates import Protocol, candidates
from replay.protocol.features import Features, Unseen
from replay.protocol.rejection import kept


class Setting(NamedTuple):
    """How events are shown."""

    protocol: Protocol
    arms: int
    """K"""
    c: float | None
    """constant of the propensity correction, None without it"""
    seed: int


class Shown(NamedTuple):
    """E events of a log, with K arms each."""

    row: Tensor
    """(E,)"""
    codes: Tensor
    """(E, 4), rows of the user table"""
    position: Tensor
    item: Tensor
    """(E, K)"""
    affinity: Tensor
    """(E, K)"""
    logged: Tensor
    """(E,), the arm that is the logged item, -1 where none is"""
    click: Tensor
    propensity: Tensor
    kept: Tensor
    """(E,), whether the propensity correction keeps the event"""

    @classmethod
    def of(cls, log: Log, group: Group, features: Features, setting: Setting) -> tuple["Shown", Unseen]:
        """All events of a row group."""
        events = log.events(group)
        arms = candidates(events, setting.protocol, setting.arms, log.n_items, setting.seed)
        codes, unseen = features.encode(events)
        row = torch.arange(events.rows.start, events.rows.stop, device="cpu")
        stays = kept(events, setting.c, setting.seed, group)
        return cls(row, codes, events.position, *arms, events.click, events.propensity, stays), unseen

    @classmethod
    def nothing(cls, arms: int) -> "Shown":
        """No event, with that number of arms."""
        none, no_arms = torch.empty(0, dtype=torch.long), torch.empty(0, arms)
        propensity = torch.empty(0, dtype=torch.float64)
        codes = torch.empty(0, len(USER_FEATURES), dtype=torch.long)
        return cls(none, codes, none, no_arms.long(), no_arms, none, none, propensity, none.bool())

    def slice(self, start: int, stop: int) -> "Shown":
        return Shown(*(tensor[start:stop] for tensor in self))


class ShownGroup(NamedTuple):
    """The events of a row group that somebody may accept."""

    events: Shown
    behind: Tensor
    """(E + 2, 3): rows, rows with the logged item not in the set and rows thinned, once i shown events are passed, and
    at the end of the group"""

    @property
    def bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in (*self.events, self.behind))


Groups = Callable[[int], ShownGroup]
"""A row group, by its number."""


class Place:
    """Where a replica stands in the log, and what lies behind it."""

    def __init__(self, log: Log) -> None:
        self.groups = len(log.groups)
        self.go_to(0, 0, 0, [0, 0, 0])

    def go_to(self, group: int, offset: int, accepted: int, behind: Sequence[int]) -> None:
        self.group, self.offset, self.accepted = group, offset, accepted
        self.behind = list(behind)
        """rows, rows with the logged item not in the set, rows thinned"""

    def state(self) -> tuple[int, int, int, list[int]]:
        return self.group, self.offset, self.accepted, self.behind

    def expected(self, rounds: int, arms: int) -> int:
        """Shown events that so many rounds will take, and some more: by what was accepted so far, at first one in K."""
        seen, outside, thinned = self.behind
        rate = (self.accepted + 20) / (seen - outside - thinned + 20 * arms)
        # Waiting times spread by the root of their number, and one replica that waits makes all evaluate again.
        return int((rounds + 2.5 * rounds**0.5) / rate)

    def events(self, count: int, shown: Groups) -> list[Shown]:
        """The next shown events, up to a number; groups without any are left behind."""
        self._leave_passed(shown)
        parts, group, offset = [], self.group, self.offset
        while count > 0 and group < self.groups:
            events = shown(group).events
            part = events.slice(offset, min(offset + count, len(events.row)))
            if len(part.row):
                parts.append(part)
            count -= len(part.row)
            group, offset = group + 1, 0
        return parts

    def advance(self, passed: int, shown: Groups) -> None:
        """Pass some of the shown events."""
        while passed:
            self._leave_passed(shown)
            behind = shown(self.group).behind
            step = min(passed, len(behind) - 2 - self.offset)
            self._add(behind[self.offset + step] - behind[self.offset])
            self.offset, passed = self.offset + step, passed - step

    def _leave_passed(self, shown: Groups) -> None:
        """Go on to a group that has something to show: who looks for more leaves the rest of a group behind."""
        while self.group < self.groups:
            behind = shown(self.group).behind
            if self.offset < len(behind) - 2:
                return
            self._add(behind[-1] - behind[self.offset])
            self.group, self.offset = self.group + 1, 0

    def _add(self, behind: Tensor) -> None:
        self.behind = [a + b for a, b in zip(self.behind, behind.tolist(), strict=True)]

    def counts(self) -> dict[str, Any]:
        seen, outside, thinned = self.behind
        rejected = {
            "another arm chosen": seen - outside - thinned - self.accepted,
            "not in the candidate set": outside,
            "propensity correction": thinned,
        }
        return {"accepted": self.accepted, "seen": seen, "rejected": rejected}
