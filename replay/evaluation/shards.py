"""Shards of a log: each process reads its own row groups, and no row group is read twice."""

import heapq
from collections.abc import Iterator, Sequence

import lightning as L

from replay.evaluation.shown import AskedEvents, asked_batches, batch_size, no_events, scored
from replay.logs.reader import Log, RowGroup
from replay.protocol.events import ReplaySettings
from replay.protocol.features import Features

__all__ = ["LogData", "ShardLoader", "partition"]


def partition(rows: Sequence[int], parts: int) -> list[list[int]]:
    """Partition row groups of the given lengths into shards with about equal numbers of rows.

    Greedily, the longest group goes first, each to the shard with the fewest rows so far. Two shards differ by at most
    the longest group. If there are fewer groups than shards, some shards are empty. Within a shard, group numbers
    ascend.
    """
    shards: list[list[int]] = [[] for _ in range(parts)]
    smallest = [(0, shard) for shard in range(parts)]
    for number in sorted(range(len(rows)), key=lambda number: -rows[number]):
        load, shard = heapq.heappop(smallest)
        shards[shard].append(number)
        heapq.heappush(smallest, (load + rows[number], shard))
    return [sorted(shard) for shard in shards]


class LogData(L.LightningDataModule):
    """The events of a log for ``trainer.test`` with an ``Evaluation``, sharded over the trainer's processes.

    Args:
        log: the log.
        features: the features that the agent was trained with.
        settings: how events are shown.
        replicas: number of replicas of the agent.
    """

    def __init__(self, log: Log, features: Features, settings: ReplaySettings, replicas: int = 1) -> None:
        super().__init__()
        self.log, self.features, self.settings, self.replicas = log, features, settings, replicas

    def shards(self, parts: int) -> list[list[RowGroup]]:
        """The row groups of each process."""
        numbers = partition([group.rows for group in self.log.groups], parts)
        return [[self.log.groups[number] for number in shard] for shard in numbers]

    def test_dataloader(self) -> "ShardLoader":
        rank, parts = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        return ShardLoader(self, self.shards(parts)[rank])


class ShardLoader:
    """Iterates over the batches of some row groups, as a dataloader for Lightning."""

    def __init__(self, data: LogData, groups: Sequence[RowGroup]) -> None:
        self.data, self.groups = data, groups

    def __len__(self) -> int:
        size = batch_size(scored(self.data.settings, self.data.log), self.data.replicas)
        return max(1, sum(-(-group.rows // size) for group in self.groups))

    def __iter__(self) -> Iterator[AskedEvents]:
        data = self.data
        if not self.groups:
            # Lightning skips its loop if there is no batch, and the other processes would wait for this one at the end
            # of theirs. An empty shard is therefore one batch without events.
            yield no_events(data.log, data.features, data.settings)
        yield from asked_batches(data.log, data.features, data.settings, data.replicas, self.groups)
