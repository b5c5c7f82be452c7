"""A frozen agent over a log: one pass, whatever its length.

An agent that does not learn gives an arm the same mean and bonus each time, and most arms of a log come again and
again: the same kind of user, position and item, without affinity. Those are computed once and looked up; others are
computed as they come.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import lightning as L
import torch
from torch import Tensor

from nl_lightning.agent import Agent
from replay.candidates import Protocol, candidates
from replay.estimate import BlockSums, Estimate, estimates
from replay.features import Features
from replay.rejection import kept
from replay.stream import Group, Log

_SCORES_AT_ONCE = 2_000_000
"""Scores of arms that are held at once, over all replicas."""

_TABLE = 8_000_000
"""Entries that a table of known arms may have, over all replicas."""

_ARMS_AT_ONCE = 50_000
"""Arms whose features are held at once."""


class Batch(NamedTuple):
    """N events of a log, with the arms that they show."""

    row: Tensor
    """(N,)"""
    codes: Tensor
    """(N, 4), rows of the user table"""
    position: Tensor
    item: Tensor
    """(N, K)"""
    affinity: Tensor
    """(N, K)"""
    logged: Tensor
    """(N,), -1 where the logged item is not shown"""
    click: Tensor
    propensity: Tensor
    counts: Tensor
    """(N,), whether the propensity correction keeps the event"""


class Setting(NamedTuple):
    """How events are shown."""

    protocol: Protocol
    arms: int
    c: float | None
    """constant of the propensity correction, None without it"""
    seed: int


def batches(log: Log, features: Features, setting: Setting, replicas: int) -> Iterator[Batch]:
    """The whole log. The next row group is read while the last one is worked on."""
    size = max(1, _SCORES_AT_ONCE // (setting.arms * replicas))

    def read(group: Group) -> Batch:
        events = log.events(group)
        arms = candidates(events, setting.protocol, setting.arms, log.n_items, setting.seed)
        codes, _ = features.encode(events)
        row = torch.arange(events.rows.start, events.rows.stop)
        counts = kept(events, setting.c, setting.seed, group)
        return Batch(row, codes, events.position, *arms, events.click, events.propensity, counts)

    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(read, log.groups[0])
        for number in range(len(log.groups)):
            whole = coming.result()
            if number + 1 < len(log.groups):
                coming = reader.submit(read, log.groups[number + 1])
            for start in range(0, len(whole.row), size):
                yield Batch(*(column[start : start + size] for column in whole))


class FrozenAgent:
    """An agent that is asked which arms it would choose, and learns nothing."""

    def __init__(self, agent: Agent, features: Features) -> None:
        self.agent = agent
        self.features = features.to(agent.network.weights[0])
        sizes = [len(names) + 1 for names in features.categories]
        starts = torch.tensor([0, *map(len, features.categories)]).cumsum(0)[:-1]
        self._sizes = sizes
        self._starts = starts.to(agent.device)
        self.users = 1
        for size in sizes:
            self.users *= size
        entries = self.users * features.positions * len(features.item)
        self._table: Tensor | None = None
        if entries * agent.replicas <= _TABLE:
            # mean and bonus of each (user, position, item) without affinity, NaN where not yet known
            self._table = torch.full((agent.replicas, entries, 2), torch.nan, dtype=torch.float64, device=agent.device)
            self._known = torch.zeros(entries, dtype=torch.bool, device=agent.device)

    def mean_and_bonus(self, batch: Batch) -> Tensor:
        """(R, N, K, 2)"""
        events = torch.arange(len(batch.row), device=batch.row.device).unsqueeze(1).expand_as(batch.item)
        if self._table is None:
            found = self._compute(batch, events.reshape(-1), batch.item.reshape(-1), batch.affinity.reshape(-1))
            return found.unflatten(1, batch.item.shape)
        key = (self._user(batch.codes) * self.features.positions + batch.position - 1).unsqueeze(1)
        key = key * len(self.features.item) + batch.item
        plain = batch.affinity == 0
        new = plain & ~self._known[key]
        if new.any():
            fresh, index = key[new].unique(return_inverse=True)
            # any of the places of a new key serves
            place = torch.empty_like(fresh).scatter_(0, index, torch.arange(len(index), device=index.device))
            items = batch.item[new][place]
            self._table[:, fresh] = self._compute(batch, events[new][place], items, torch.zeros_like(items))
            self._known[fresh] = True
        found = self._table[:, key.flatten()].unflatten(1, key.shape)
        special = ~plain
        if special.any():
            found[:, special] = self._compute(batch, events[special], batch.item[special], batch.affinity[special])
        return found

    def picked(self, values: Tensor, batch: Batch, draw: int = 0) -> Tensor:
        """(R, N): the chosen arm, given means and bonuses; ``draw`` numbers repeated draws."""
        agent, arms = self.agent, batch.item.shape[1]
        rows = range(int(batch.row[0]), int(batch.row[-1]) + 1)
        numbers = [agent.noise.of_rows(replica, rows, arms, draw) for replica in range(agent.replicas)]
        uniform = torch.stack([u for u, _ in numbers]).to(values)
        mean, bonus = values.unbind(-1)
        if not agent.thompson:
            return agent.best(mean + bonus, uniform)
        normal = torch.stack([n for _, n in numbers if n is not None]).to(values)
        return agent.best(torch.addcmul(mean, bonus, normal), uniform)

    def _user(self, codes: Tensor) -> Tensor:
        """(N,): one number for the four categories; the last one of each stands for unseen and missing ones."""
        number = torch.zeros_like(codes[:, 0])
        neutral = len(self.features.user) - 1
        for size, start, code in zip(self._sizes, self._starts, codes.unbind(1), strict=True):
            number = number * size + torch.where(code == neutral, size - 1, code - start)
        return number

    def _compute(self, batch: Batch, event: Tensor, item: Tensor, affinity: Tensor) -> Tensor:
        """(R, M, 2): mean and bonus of single arms (M,)."""
        parts = []
        for start in range(0, len(event), _ARMS_AT_ONCE):
            part = slice(start, start + _ARMS_AT_ONCE)
            codes, position = batch.codes[event[part]], batch.position[event[part]]
            arms = self.features.arms(codes, position, item[part].unsqueeze(1), affinity[part].unsqueeze(1)).squeeze(1)
            pair = self.agent.mean_and_bonus(arms.unsqueeze(0).expand(self.agent.replicas, -1, -1))
            parts.append(torch.stack(pair, dim=-1))
        return torch.cat(parts, dim=1)


class Evaluation(L.LightningModule):
    """``trainer.test`` of a frozen agent on the batches of a log.

    Args:
        agent: the agent; all of its replicas are evaluated.
        features: those that it was trained with.
        rows: of the log.
        draws: Monte Carlo draws for the action probabilities of a Thompson agent.
    """

    def __init__(self, agent: Agent, features: Features, rows: int, draws: int = 1) -> None:
        super().__init__()
        self.agent, self.features, self.draws = agent, features, draws
        self.estimates = estimates(agent.replicas, rows)
        self.outside = 0
        """events whose logged item was not shown"""
        self.corrected = 0
        """events that the propensity correction left out"""

    def on_test_start(self) -> None:
        self.frozen = FrozenAgent(self.agent, self.features)

    @torch.inference_mode()
    def test_step(self, batch: Batch, batch_idx: int) -> None:
        values = self.frozen.mean_and_bonus(batch)
        match = self.frozen.picked(values, batch) == batch.logged
        probability = match.double()
        for draw in range(1, self.draws):
            probability += self.frozen.picked(values, batch, draw) == batch.logged
        probability /= self.draws
        weight = probability / batch.propensity
        # Var(pi) of a mean over D draws, estimated by pi (1 - pi) / (D - 1)
        spread = probability * (1 - probability) / max(self.draws - 1, 1) * (batch.click / batch.propensity).square()
        self.estimates.update(batch.row, batch.click, match, batch.counts, weight, spread)
        shown = batch.logged >= 0
        self.outside += int((~shown).sum())
        self.corrected += int((shown & ~batch.counts).sum())

    def results(self) -> dict[str, Estimate]:
        return {name: Estimate(*value) for name, value in self.estimates.compute().items()}


class LogLoader:
    """The batches of a log, as Lightning takes them."""

    def __init__(self, log: Log, features: Features, setting: Setting, replicas: int) -> None:
        self._arguments = (log, features, setting, replicas)

    def __iter__(self) -> Iterator[Batch]:
        return batches(*self._arguments)


def rejected(evaluation: Evaluation, log: Log) -> Sequence[dict[str, Any]]:
    """Of each replica, what became of the events."""
    match = evaluation.estimates["match"]
    assert isinstance(match, BlockSums)
    return [
        {
            "accepted": int(accepted),
            "seen": log.rows,
            "rejected": {
                "another arm chosen": log.rows - evaluation.outside - evaluation.corrected - int(accepted),
                "not in the candidate set": evaluation.outside,
                "propensity correction": evaluation.corrected,
                "bad row": log.skipped,
            },
        }
        for accepted in match.total("matches").tolist()
    ]
