"""Several policies on one log in one pass: each row group is read once, and every policy is asked about it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import lightning as L
import pandas as pd
import torch
from lightning.pytorch.utilities import move_data_to_device
from torch import Tensor, nn

from nl_lightning.core.rejections import fate_of_events
from replay.evaluation.description import propensity_notes, replica_estimates, small_sample_note
from replay.evaluation.differences import DifferenceSums
from replay.evaluation.evaluate import TrainedAgent, describe
from replay.evaluation.evaluator import Evaluation, PolicyEvaluation, Weighed, rejected
from replay.evaluation.policies import EventBatch, LoggedPolicy, Policy, UniformPolicy
from replay.evaluation.shards import partition
from replay.evaluation.shown import SCORES_AT_ONCE, AskedEvents, batch_size, read_ahead, scored, show
from replay.logs.reader import Events, Log, RowGroup
from replay.protocol.events import ReplaySettings
from replay.protocol.rejection import kept_rows

__all__ = [
    "AgentContender",
    "Batch",
    "Comparison",
    "ComparisonData",
    "Contender",
    "GroupRead",
    "PolicyContender",
    "ProbabilityEvaluation",
]

EVENTS_AT_ONCE = 16_384
"""Most events that a policy is asked about at once."""


class GroupRead(NamedTuple):
    """What is read of a row group, once for all policies."""

    group: RowGroup
    events: Events
    frame: pd.DataFrame | None


Batch = AskedEvents | EventBatch


class Contender(ABC):
    """A policy in a comparison: what it takes from a row group, its estimates, and what is said of it."""

    evaluation: PolicyEvaluation
    size: int
    """events per batch"""
    needs_frame = False
    not_compared: str | None = None
    """why its IPS is no value of a policy, so that differences would mean nothing"""

    @abstractmethod
    def batches(self, read: GroupRead) -> Iterator[Batch]:
        """The events of a row group, ``size`` at a time."""

    @abstractmethod
    def describe(self, log: Log) -> dict[str, Any]:
        """The result as JSON: estimates and counts of each replica, and notes."""


class AgentContender(Contender):
    """A frozen agent, which is asked about the same batches as if it were alone.

    Args:
        name: what results call it.
        trained: the agent and its features.
        log: the log, or a part of one.
        settings: how events are shown to it.
        draws: Monte Carlo draws for the action probabilities of a Thompson agent.
    """

    def __init__(self, name: str, trained: TrainedAgent, log: Log, settings: ReplaySettings, draws: int) -> None:
        agent, features = trained.agent, trained.features
        self.name, self.log, self.features, self.settings = name, log, features, settings
        if settings.protocol == "affinity":
            self.not_compared = "candidates: affinity always shows the logged item; use uniform or all"
        self.size = batch_size(scored(settings, log), agent.replicas)
        draws = draws if agent.draws_choices else 1
        self.evaluation = Evaluation(agent, features, draws)

    def batches(self, read: GroupRead) -> Iterator[Batch]:
        whole = show(self.log, read.group, read.events, self.features, self.settings)
        for start in range(0, read.group.rows, self.size):
            yield whole.slice(start, start + self.size)

    def describe(self, log: Log) -> dict[str, Any]:
        assert isinstance(self.evaluation, Evaluation)
        described = describe(self.evaluation, log, self.settings)
        shared = ("log", "level", "propensity_floor", "seed")
        own = {name: value for name, value in described.items() if name not in shared}
        general = propensity_notes(log, self.settings.c)
        return {"policy": self.name, **own, "notes": [note for note in own["notes"] if note not in general]}


class PolicyContender(Contender):
    """A policy that gives probabilities.

    Args:
        policy: the policy, prepared for the log.
        log: the log, or a part of one.
        c: constant of the propensity correction, None without it.
        seed: seed of its choices and of the propensity correction.
    """

    def __init__(self, policy: Policy, log: Log, c: float | None, seed: int) -> None:
        self.policy, self.log, self.needs_frame = policy, log, policy.needs_frame
        self.size = min(EVENTS_AT_ONCE, max(1, SCORES_AT_ONCE // log.n_items))
        self.evaluation = ProbabilityEvaluation(policy, c if policy.corrected else None, seed)

    def batches(self, read: GroupRead) -> Iterator[Batch]:
        for start in range(0, read.group.rows, self.size):
            yield EventBatch(self.log, read.events, read.frame, start, min(start + self.size, read.group.rows))

    def describe(self, log: Log) -> dict[str, Any]:
        policy, results = self.policy, self.evaluation.results()
        (counts,) = rejected(self.evaluation, log)
        row: dict[str, Any] = {"replica": 0, **replica_estimates(results, 0)}
        # the true values of a simulated world
        exact = {LoggedPolicy: "logging", UniformPolicy: "uniform"}.get(type(policy))
        if exact and "world" in log.description:
            row["exact"] = log.description["world"]["ctr"][exact]
        row |= counts
        fate = fate_of_events(counts["seen"], counts["accepted"], counts["rejected"])
        # the logging policy accepts what it logged
        notes = [*policy.notes, *([f"{fate}."] if counts["accepted"] < counts["seen"] else [])]
        return {"policy": policy.name, "replicas": [row], "notes": [*notes, *small_sample_note([row])]}


class ProbabilityEvaluation(PolicyEvaluation):
    """``trainer.test`` of a policy that gives probabilities. They are exact, so there is no Monte Carlo error."""

    def __init__(self, policy: Policy, c: float | None, seed: int) -> None:
        super().__init__(1)
        self.policy, self.c, self.seed = policy, c, seed

    def weigh(self, batch: EventBatch) -> Weighed:
        decided = self.policy.decide(batch, self.seed)
        stays = kept_rows(batch.rows, batch.propensity, self.c, self.seed)
        columns = (batch.click, decided.match[None], decided.weight[None], decided.pi[None], decided.logged)
        click, match, weight, pi, logged = (torch.from_numpy(column).to(self.device) for column in columns)
        stays = stays.to(self.device)
        self.estimates.update(click, match, stays, weight, pi, torch.zeros_like(weight))
        self.counts.update(logged.long() - 1, stays, torch.zeros(0, dtype=torch.bool, device=self.device))
        return Weighed(click, weight, pi)


class _PolicyBatch:
    """A batch and the number of the policy that is asked. Lightning leaves it as it is, since it is no collection."""

    def __init__(self, policy: int, events: Batch, start: int) -> None:
        self.policy, self.events, self.start = policy, events, start


class Comparison(L.LightningModule):
    """``trainer.test`` of several policies.

    Args:
        evaluations: of each policy.
        baseline: number of the policy that others are compared with, and that is asked first about each row group.
        compared: numbers of the policies that are compared with it.
    """

    def __init__(
        self, evaluations: Sequence[PolicyEvaluation], baseline: int = 0, compared: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.evaluations = nn.ModuleList(evaluations)
        self.baseline, self.compared = baseline, list(compared)
        self.differences = nn.ModuleList([DifferenceSums(evaluations[number].replicas) for number in compared])
        self._held: list[tuple[Tensor, Tensor]] = []
        """the baseline's mean weights and probabilities (1, N) in the row group at hand"""

    def _each(self) -> Iterator[PolicyEvaluation]:
        for evaluation in self.evaluations:
            assert isinstance(evaluation, PolicyEvaluation)
            yield evaluation

    def on_test_start(self) -> None:
        for evaluation in self._each():
            evaluation.trainer = self.trainer
            evaluation.on_test_start()

    def on_test_epoch_start(self) -> None:
        for evaluation in self._each():
            evaluation.on_test_epoch_start()
        for sums in self._sums():
            sums.reset()

    def test_step(self, batch: _PolicyBatch | None, batch_idx: int) -> None:
        if batch is None:
            # the shard of a process without row groups
            return
        events = batch.events
        if not isinstance(events, EventBatch):
            events = move_data_to_device(events, self.device)
        evaluation = self.evaluations[batch.policy]
        assert isinstance(evaluation, PolicyEvaluation)
        found = evaluation.weigh(events)
        assert found is not None
        if batch.policy == self.baseline and self.compared:
            self._hold(found, batch.start)
        elif batch.policy in self.compared:
            self._pair(found, batch)

    def _hold(self, found: Weighed, start: int) -> None:
        if start == 0:
            self._held = []
        self._held.append((found.weight.mean(0, keepdim=True), found.pi.mean(0, keepdim=True)))

    def _pair(self, found: Weighed, batch: _PolicyBatch) -> None:
        """Policies may be asked about different numbers of events at once."""
        if len(self._held) > 1:
            weights, chances = zip(*self._held, strict=True)
            self._held = [(torch.cat(weights, dim=1), torch.cat(chances, dim=1))]
        weight, pi = self._held[0]
        same = slice(batch.start, batch.start + len(found.click))
        sums = self.differences[self.compared.index(batch.policy)]
        assert isinstance(sums, DifferenceSums)
        sums.update(found, weight[:, same], pi[:, same])

    def _sums(self) -> Iterator[DifferenceSums]:
        for sums in self.differences:
            assert isinstance(sums, DifferenceSums)
            yield sums

    def difference_sums(self) -> list[Tensor]:
        """Of each policy that is compared with the baseline."""
        return [sums.compute() for sums in self._sums()]

    def on_test_epoch_end(self) -> None:
        for evaluation in self._each():
            evaluation.on_test_epoch_end()
        # summed over all processes; torchmetrics keeps the results
        self.difference_sums()


class ComparisonData(L.LightningDataModule):
    """The batches of a log for a ``Comparison``, sharded over the trainer's processes."""

    def __init__(self, log: Log, contenders: Sequence[Contender], baseline: int = 0) -> None:
        super().__init__()
        self.log, self.contenders, self.baseline = log, contenders, baseline

    def test_dataloader(self) -> "_ComparisonLoader":
        rank, parts = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        shard = partition([group.rows for group in self.log.groups], parts)[rank]
        groups = [self.log.groups[number] for number in shard]
        return _ComparisonLoader(self.log, self.contenders, groups, self.baseline)


class _ComparisonLoader:
    def __init__(
        self, log: Log, contenders: Sequence[Contender], groups: Sequence[RowGroup], baseline: int = 0
    ) -> None:
        self.log, self.contenders, self.groups, self.baseline = log, contenders, groups, baseline

    def __len__(self) -> int:
        return max(1, sum(-(-group.rows // each.size) for group in self.groups for each in self.contenders))

    def __iter__(self) -> Iterator[_PolicyBatch | None]:
        if not self.groups:
            # Lightning skips its loop if there is no batch, and the other processes would wait for this one.
            yield None
        shows = any(each.needs_frame for each in self.contenders)

        def read(group: RowGroup) -> GroupRead:
            events = self.log.events(group, use_threads=torch.get_num_threads() > 1)
            return GroupRead(group, events, self.log.frame(group) if shows else None)

        # others are compared with the baseline's weights, so it is asked first
        order = sorted(range(len(self.contenders)), key=lambda number: number != self.baseline)
        for found in read_ahead(read, self.groups):
            for number in order:
                contender = self.contenders[number]
                for place, events in enumerate(contender.batches(found)):
                    yield _PolicyBatch(number, events, place * contender.size)
