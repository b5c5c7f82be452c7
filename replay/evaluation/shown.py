"""Batches of events as a frozen agent is asked about them."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

from replay.logs.reader import Events, Log, RowGroup
from replay.protocol.events import CandidateEvents, ReplaySettings
from replay.protocol.features import Features

__all__ = [
    "SCORES_AT_ONCE",
    "AskedEvents",
    "DrawnEvents",
    "asked_batches",
    "batch_size",
    "batches",
    "no_events",
    "read_ahead",
    "scored",
    "show",
]

SCORES_AT_ONCE = 2_000_000
"""Scores held in memory at a time, over all replicas."""

_Read = TypeVar("_Read")


class DrawnEvents(NamedTuple):
    """Events with drawn candidate sets, and with all of their candidates: a choice is one from the drawn set, and its
    chance is that over all sets that could have been drawn."""

    shown: CandidateEvents
    whole: CandidateEvents

    def slice(self, start: int, stop: int) -> "DrawnEvents":
        return DrawnEvents(self.shown.slice(start, stop), self.whole.slice(start, stop))


AskedEvents = CandidateEvents | DrawnEvents


def scored(settings: ReplaySettings, log: Log) -> ReplaySettings:
    """The settings with the arms whose scores are needed: of ``uniform``, all candidates and not only the drawn ones"""
    if settings.protocol != "uniform":
        return settings
    return settings._replace(protocol="logged" if log.schema.candidates else "all", arms=log.statistics.most_candidates)


def show(log: Log, group: RowGroup, events: Events, features: Features, settings: ReplaySettings) -> AskedEvents:
    """The events of a row group, which have been read, as an agent with these features is asked about them."""
    shown = CandidateEvents.show(log, group, events, features, settings)[0]
    whole = scored(settings, log)
    if whole is settings:
        return shown
    return DrawnEvents(shown, CandidateEvents.show(log, group, events, features, whole)[0])


def no_events(log: Log, features: Features, settings: ReplaySettings) -> AskedEvents:
    """No events, in the shape of those of a log."""
    shown = CandidateEvents.empty(log, features, settings)
    whole = scored(settings, log)
    return shown if whole is settings else DrawnEvents(shown, CandidateEvents.empty(log, features, whole))


def batch_size(settings: ReplaySettings, replicas: int) -> int:
    """Number of events per batch."""
    return max(1, SCORES_AT_ONCE // (settings.arms * replicas))


def batches(
    log: Log, features: Features, setting: ReplaySettings, replicas: int, groups: Sequence[RowGroup] | None = None
) -> Iterator[CandidateEvents]:
    """Batches of the whole log, or of some of its row groups. A group is read while the one before it is processed."""
    size = batch_size(setting, replicas)

    def read(group: RowGroup) -> CandidateEvents:
        return CandidateEvents.read(log, group, features, setting)[0]

    for whole in read_ahead(read, log.groups if groups is None else groups):
        for start in range(0, len(whole.row), size):
            yield whole.slice(start, start + size)


def asked_batches(
    log: Log, features: Features, setting: ReplaySettings, replicas: int, groups: Sequence[RowGroup] | None = None
) -> Iterator[AskedEvents]:
    """As ``batches``; where candidates are drawn, with all of them."""
    size = batch_size(scored(setting, log), replicas)

    def read(group: RowGroup) -> tuple[int, AskedEvents]:
        events = log.events(group, use_threads=torch.get_num_threads() > 1)
        return group.rows, show(log, group, events, features, setting)

    for rows, whole in read_ahead(read, log.groups if groups is None else groups):
        for start in range(0, rows, size):
            yield whole.slice(start, start + size)


def read_ahead(read: Callable[[RowGroup], _Read], groups: Sequence[RowGroup]) -> Iterator[_Read]:
    """Read each group ahead in a second thread, unless there is one thread to use and no network to wait for."""
    if torch.get_num_threads() == 1 and all(isinstance(group.file, Path) for group in groups):
        yield from map(read, groups)
        return
    with ThreadPoolExecutor(1) as reader:
        coming = deque(reader.submit(read, group) for group in groups[:1])
        for group in groups[1:]:
            ready = coming.popleft().result()
            coming.append(reader.submit(read, group))
            yield ready
        yield from (last.result() for last in coming)
