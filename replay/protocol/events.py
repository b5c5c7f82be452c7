"""Events as agents see them, and a replica's position in a log."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from replay.logs.reader import Events, Log, RowGroup
from replay.protocol.candidates import Protocol, candidates
from replay.protocol.features import Encoded, Features
from replay.protocol.rejection import correction_numbers, kept

__all__ = ["CandidateEvents", "CandidateGroup", "Groups", "LogCursor", "ReplaySettings"]


class ReplaySettings(NamedTuple):
    """How events are shown to an agent."""

    protocol: Protocol
    arms: int
    """number K of arms per event"""
    c: float | None
    """constant of the propensity correction, None without it"""
    seed: int
    draws: bool = False
    """whether events come with the uniform numbers by which agents accept them, and none is left out"""


class CandidateEvents(NamedTuple):
    """E events of a log with K arms each."""

    row: Tensor
    """(E,), the event's row in the log"""
    codes: Tensor
    """(E, C), discrete columns of the context, as ``Features`` encode them"""
    numbers: Tensor
    """(E, M), continuous columns of the context"""
    item: Tensor
    """(E, K), numbers of the actions"""
    pair: Tensor
    """(E, K, P), features of event and action together"""
    shown: Tensor
    """(E, K), False for padding; (E, 0) where nothing is padded"""
    logged: Tensor
    """(E,), the arm that is the logged action, -1 if there is none"""
    click: Tensor
    """(E,)"""
    propensity: Tensor
    """(E,)"""
    kept: Tensor
    """(E,), whether the propensity correction keeps the event"""
    uniform: Tensor
    """(E,), the number by which the propensity correction draws; (E, 0) where it has drawn already"""

    @classmethod
    def read(
        cls, log: Log, group: RowGroup, features: Features, settings: ReplaySettings
    ) -> tuple["CandidateEvents", Encoded]:
        """All events of a row group, and how their context was encoded."""
        # A process with a single torch thread also reads with a single thread.
        events = log.events(group, use_threads=torch.get_num_threads() > 1)
        return cls.show(log, group, events, features, settings)

    @classmethod
    def show(
        cls, log: Log, group: RowGroup, events: Events, features: Features, settings: ReplaySettings
    ) -> tuple["CandidateEvents", Encoded]:
        """The events of a row group, which have been read, as an agent with these features sees them."""
        arms = candidates(events, settings.protocol, settings.arms, log, settings.seed)
        encoded = features.encode(log, events, arms)
        row = torch.arange(events.rows.start, events.rows.stop, device="cpu")
        stays = kept(events, settings.c, settings.seed, group)
        click, propensity = map(torch.from_numpy, (events.click, events.propensity))
        codes, numbers, pair = encoded[:3]
        parts = (codes, numbers, arms.item, pair, arms.shown, arms.logged)
        uniform = torch.empty(len(row), 0, dtype=torch.float64, device="cpu")
        if settings.draws:
            uniform = correction_numbers(events.rows, settings.seed)
        return cls(row, *parts, click, propensity, stays, uniform), encoded

    @classmethod
    def empty(cls, log: Log, features: Features, settings: ReplaySettings) -> "CandidateEvents":
        """No events, in the shape of those of a log."""
        return cls.read(log, log.groups[0]._replace(rows=1), features, settings)[0].slice(0, 0)

    @property
    def mask(self) -> Tensor | None:
        """(E, K), False for padding; None where nothing is padded."""
        return self.shown if self.shown.shape[-1] else None

    def arms(self, features: Features) -> Tensor:
        """x (E, K, d)"""
        return features.arms(self.codes, self.numbers, self.item, self.pair)

    def slice(self, start: int, stop: int) -> "CandidateEvents":
        return CandidateEvents(*(tensor[start:stop] for tensor in self))


class CandidateGroup(NamedTuple):
    """The events of a row group that an agent may accept."""

    events: CandidateEvents
    behind: Tensor
    """(E + 2, 3): numbers of rows, of rows whose logged item is not a candidate, and of rows removed by the propensity
    correction. Entry i counts those passed together with the first i events, the last entry those of the group."""

    @property
    def bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in (*self.events, self.behind))


Groups = Callable[[int], CandidateGroup]
"""Returns a row group by its number."""


class LogCursor:
    """A replica's position in a log, and counts of the events it has passed."""

    def __init__(self, log: Log) -> None:
        self.groups = len(log.groups)
        self.go_to(0, 0, 0, [0, 0, 0])

    def go_to(self, group: int, offset: int, accepted: int, behind: Sequence[int]) -> None:
        """Move to a stored position, the result of ``state``."""
        self.group, self.offset, self.accepted = group, offset, accepted
        self.behind = list(behind)
        """passed rows, those whose logged item was not a candidate, those removed by the propensity correction"""
        seen, outside, thinned = behind
        self._recent: tuple[float, float] = (accepted, seen - outside - thinned)
        """accepted and shown events, each block counting half as much as the next one"""

    def state(self) -> tuple[int, int, int, list[int]]:
        """The position as plain numbers, the arguments of ``go_to``."""
        return self.group, self.offset, self.accepted, self.behind

    def expected(self, rounds: int, arms: int) -> int:
        """How many events this many rounds will probably take, generously. Initially one in K events is accepted;
        later the estimate follows the acceptance rate of the last events."""
        accepted, shown = self._recent
        rate = (accepted + 5) / (shown + 5 * arms)
        # Waiting times spread like the square root of their number, and if one replica needs more events, all
        # replicas are evaluated again.
        return int((rounds + 2.5 * rounds**0.5) / rate)

    def events(self, count: int, spare: int, shown: Groups) -> list[CandidateEvents]:
        """Up to ``count`` of the next events, in one part per row group. Groups without events are passed.

        Up to ``spare`` more of the last group follow, so that the last part need not be copied to be padded.
        """
        self._skip_finished(shown)
        parts, group, offset = [], self.group, self.offset
        while count > 0 and group < self.groups:
            events = shown(group).events
            part = events.slice(offset, min(offset + count + spare, len(events.row)))
            if len(part.row):
                parts.append(part)
            count -= len(part.row)
            group, offset = group + 1, 0
        return parts

    def advance(self, passed: int, accepted: int, shown: Groups) -> None:
        """Pass this many events, of which so many were accepted."""
        self.accepted += accepted
        if passed:
            before_accepted, before_shown = self._recent
            self._recent = (before_accepted / 2 + accepted, before_shown / 2 + passed)
        while passed:
            self._skip_finished(shown)
            behind = shown(self.group).behind
            step = min(passed, len(behind) - 2 - self.offset)
            self._add(behind[self.offset + step] - behind[self.offset])
            self.offset, passed = self.offset + step, passed - step

    def _skip_finished(self, shown: Groups) -> None:
        """Move to the next group that still has events; the remaining rows of the groups before it are passed."""
        while self.group < self.groups:
            behind = shown(self.group).behind
            if self.offset < len(behind) - 2:
                return
            self._add(behind[-1] - behind[self.offset])
            self.group, self.offset = self.group + 1, 0

    def _add(self, behind: Tensor) -> None:
        self.behind = [a + b for a, b in zip(self.behind, behind.tolist(), strict=True)]

    def counts(self) -> dict[str, Any]:
        """The numbers of events accepted, seen and rejected, by reason."""
        seen, outside, thinned = self.behind
        rejected = {
            "another arm chosen": seen - outside - thinned - self.accepted,
            "not in the candidate set": outside,
            "propensity correction": thinned,
        }
        return {"accepted": self.accepted, "seen": seen, "rejected": rejected}
