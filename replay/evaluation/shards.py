"""A log shared out among processes: each reads row groups of its own, and no row group is read twice."""

import heapq
from collections.abc import Iterator, Sequence

import lightning as L

from replay.evaluation.evaluator import batch_size, batches
from replay.logs.reader import Group, Log
from replay.protocol.events import Setting, Shown
from replay.protocol.features import Features


def share_out(rows: Sequence[int], parts: int) -> list[list[int]]:
    """Row groups of the given lengths in ``parts`` shares of about as many rows; numbers ascend within a share.

    The longest group first, each to whoever has least so far: two shares differ by one group at most, by that of the
    longest. There may be fewer groups than shares; some are empty then.
    """
    shares: list[list[int]] = [[] for _ in range(parts)]
    least = [(0, share) for share in range(parts)]
    for number in sorted(range(len(rows)), key=lambda number: -rows[number]):
        load, share = heapq.heappop(least)
        shares[share].append(number)
        heapq.heappush(least, (load + rows[number], share))
    return [sorted(share) for share in shares]


class LogData(L.LightningDataModule):
    """The events of a log for ``trainer.test`` of an ``Evaluation``, shared out among the trainer's processes.

    Args:
        log: the log.
        features: those that the agent was trained with.
        setting: how events are shown.
        replicas: of the agent.
    """

    def __init__(self, log: Log, features: Features, setting: Setting, replicas: int = 1) -> None:
        super().__init__()
        self.log, self.features, self.setting, self.replicas = log, features, setting, replicas

    def shares(self, parts: int) -> list[list[Group]]:
        """The row groups of each process."""
        numbers = share_out([group.rows for group in self.log.groups], parts)
        return [[self.log.groups[number] for number in share] for share in numbers]

    def test_dataloader(self) -> "Share":
        rank, parts = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        return Share(self, self.shares(parts)[rank])


class Share:
    """The batches of some row groups, as Lightning takes them."""

    def __init__(self, data: LogData, groups: Sequence[Group]) -> None:
        self.data, self.groups = data, groups

    def __len__(self) -> int:
        size = batch_size(self.data.setting, self.data.replicas)
        return max(1, sum(-(-group.rows // size) for group in self.groups))

    def __iter__(self) -> Iterator[Shown]:
        data = self.data
        if not self.groups:
            # Lightning leaves its loop out where there is no batch, and the other processes would wait for this one
            # at the end of theirs: an empty share is one batch without events.
            yield Shown.nothing(data.setting.arms)
        yield from batches(data.log, data.features, data.setting, data.replicas, self.groups)
