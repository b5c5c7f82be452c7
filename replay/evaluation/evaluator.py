"""Evaluate a frozen agent on a log of any length, in one pass.

An agent that does not learn gives an arm the same mean and bonus every time, and most arms of a log occur many times:
the same context and action, without a pair feature. Those are computed once and then looked up. Others are
computed when they occur.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import lightning as L
import torch
from torch import Tensor

from nl_lightning.agents.asking import ask, mean_and_bonus
from nl_lightning.agents.base import Agent
from nl_lightning.core.errors import InputError
from replay.evaluation.estimators import METRICS, Estimate, EventCounts, Totals, estimates
from replay.logs.reader import Log, RowGroup
from replay.protocol.events import CandidateEvents, ReplaySettings
from replay.protocol.features import Features

__all__ = [
    "KEPT_ARMS",
    "LOOKUP_ENTRIES",
    "SCORES_AT_ONCE",
    "WHOLE_PAIRS",
    "Evaluation",
    "FrozenAgent",
    "PolicyEvaluation",
    "batch_size",
    "batches",
    "read_ahead",
    "rejected",
]


SCORES_AT_ONCE = 2_000_000
"""Scores held in memory at a time, over all replicas."""

WHOLE_PAIRS = 16
"""Whole pair features below this can be looked up; in the Open Bandit Dataset others are rare."""

LOOKUP_ENTRIES = 32_000_000
"""Lookup is used if there are at most this many different arms."""

KEPT_ARMS = 4_000_000
"""Arms whose scores are kept, over all replicas."""

_EVENTS_AT_ONCE = 256
"""Events of an agent with a choice of its own that are evaluated at once."""

_Read = TypeVar("_Read")

_ARMS_AT_ONCE = 50_000
"""Arms whose features are held in memory at a time."""


def batch_size(setting: ReplaySettings, replicas: int) -> int:
    """Number of events per batch."""
    return max(1, SCORES_AT_ONCE // (setting.arms * replicas))


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


class FrozenAgent:
    """An agent that chooses arms and does not learn."""

    def __init__(self, agent: Agent, features: Features) -> None:
        self.agent = agent
        self.features = features.to(agent.network.weights[0])
        sizes = torch.tensor(features.radix, dtype=torch.long, device=agent.device)
        self._unknown = sizes - 1
        # a product of many columns may exceed int64
        self._contexts = math.prod(features.radix)
        entries = WHOLE_PAIRS * self._contexts * features.n_items
        self._place: Tensor | None = None
        if entries <= LOOKUP_ENTRIES and features.is_discrete:
            # Each combination of codes has a number, the last column counting fastest.
            self._strides = torch.cat([sizes, sizes.new_ones(1)]).flip(0).cumprod(0).flip(0)[1:]
            # Where (pair, context, action) stands among the known arms, -1 where it is not known. Nearly all pair
            # features are 0: in this order the entries that are looked up lie side by side.
            self._place = torch.full((entries,), -1, dtype=torch.int32, device=agent.device)
        # the score, which is the same each time, or what Thompson sampling draws it from: mean and bonus
        columns = 1 if agent.exploration.is_per_arm else 2
        self._known = torch.empty(agent.replicas, 0, columns, dtype=torch.float64, device=agent.device)
        self._count = 0

    def look_up(self, batch: CandidateEvents) -> Tensor:
        """(R, N, K, 1), the scores, or (R, N, K, 2), the means and bonuses of a Thompson agent"""
        if self._place is None:
            return self._compute_all(batch)
        context = (batch.codes * self._strides).sum(1, keepdim=True)
        pair = batch.pair[..., 0] if batch.pair.shape[-1] else batch.item.new_zeros(1, 1)
        step = pair.long()
        step_context = step.clamp(0, WHOLE_PAIRS - 1) * self._contexts + context
        key = step_context * self.features.n_items + batch.item
        place = self._place[key]
        # pair features that are no small whole numbers have no place
        special = ((pair != step) | (step >= WHOLE_PAIRS) | (step < 0)).expand_as(key)
        new = (place < 0) & ~special
        if new.any():
            self._learn_arms(batch, key, new)
            place = self._place[key]
            special = special | (place < 0)
        found = self._known[:, place.clamp_min_(0).long()]
        if special.any():
            found[:, special] = self._compute(batch, *special.nonzero(as_tuple=True))
        return found

    def _learn_arms(self, batch: CandidateEvents, key: Tensor, new: Tensor) -> None:
        """Compute the new arms of a batch, each once, as far as there is room."""
        assert self._place is not None
        event, slot = new.nonzero(as_tuple=True)
        fresh, index = key[new].unique(return_inverse=True)
        # any of the places of a key serves
        one = torch.empty_like(fresh).scatter_(0, index, torch.arange(len(index), device=index.device))
        room = KEPT_ARMS // self.agent.replicas - self._count
        fresh, one = fresh[:room], one[:room]
        stop = self._count + len(fresh)
        if stop > self._known.shape[1]:
            grown = self._known.new_empty(self.agent.replicas, 2 * stop, self._known.shape[2])
            grown[:, : self._count] = self._known[:, : self._count]
            self._known = grown
        self._known[:, self._count : stop] = self._compute(batch, event[one], slot[one])
        self._place[fresh] = torch.arange(self._count, stop, dtype=torch.int32, device=fresh.device)
        self._count = stop

    def choices(self, batch: CandidateEvents, draws: int) -> Iterator[Tensor]:
        """(R, N), the chosen arms, one tensor a draw."""
        agent = self.agent
        values = None if agent.own_choice else self._masked(self.look_up(batch), batch.mask)
        rows = batch.row.cpu()
        for draw in range(draws):
            noise = [agent.noise.of_rows(r, rows, batch.item.shape[1], draw) for r in range(agent.replicas)]
            uniform = torch.stack([u for u, _ in noise]).to(agent.lam)
            drawn = [n for _, n in noise if n is not None]
            normal = torch.stack(drawn).to(agent.lam) if drawn else None
            yield self._asked(batch, uniform, normal) if values is None else self._best(values, uniform, normal)

    def _masked(self, values: Tensor, mask: Tensor | None) -> Tensor:
        """Padding is never chosen: its score or its mean is minus infinity."""
        if mask is not None:
            values[..., 0].masked_fill_(~mask, -torch.inf)
        return values

    def unknown(self, batch: CandidateEvents) -> Tensor:
        """(N, C + M): whether a value of the context is missing or was not seen by the fit of the features."""
        return torch.cat([batch.codes == self._unknown, batch.numbers.isnan()], dim=-1)

    def _best(self, values: Tensor, uniform: Tensor, normal: Tensor | None) -> Tensor:
        """(R, N): the chosen arms, given what was looked up."""
        if values.shape[-1] == 1:
            return self.agent.best(values.squeeze(-1), uniform)
        mean, bonus = values.unbind(-1)
        return self.agent.best(self.agent.exploration.score(mean, bonus, normal), uniform, normal)

    def _asked(self, batch: CandidateEvents, uniform: Tensor, normal: Tensor | None) -> Tensor:
        """(R, N): the arms of an agent with a choice of its own, which is asked event by event."""
        agent = self.agent
        arms = batch.arms(self.features)
        shown = arms.unsqueeze(0).expand(agent.replicas, *arms.shape)
        mask = None if batch.mask is None else batch.mask.expand(agent.replicas, *batch.mask.shape)
        if "act" in agent.own_choice:
            masks: Sequence[Tensor | None] = [None] * arms.shape[0] if mask is None else mask.unbind(1)
            asked = zip(shown.unbind(1), masks, strict=True)
            return torch.stack([ask(agent, event, of_event, None).arm for event, of_event in asked], dim=1)
        parts = []
        for start in range(0, arms.shape[0], _EVENTS_AT_ONCE):
            some = slice(start, start + _EVENTS_AT_ONCE)
            noise = (uniform[:, some], None if normal is None else normal[:, some])
            views = agent.featurize(shown[:, some], None if mask is None else mask[:, some], noise=noise).unbind()
            masks = [None] * len(views) if mask is None else mask[:, some].unbind(1)
            parts += [ask(agent, view.arms, of_event, view).arm for view, of_event in zip(views, masks, strict=True)]
        return torch.stack(parts, dim=1)

    def _score(self, mean: Tensor, bonus: Tensor) -> Tensor:
        return self.agent.exploration.score(mean, bonus, None).unsqueeze(-1)

    def _compute_all(self, batch: CandidateEvents) -> Tensor:
        """(R, N, K, 1 or 2), as in ``look_up``, of all arms. What belongs to an event is computed once for its arms."""
        parts = []
        size = max(1, _ARMS_AT_ONCE // batch.item.shape[1])
        for start in range(0, len(batch.row), size):
            part = batch.slice(start, start + size)
            parts.append(self._scores(part.arms(self.features).flatten(0, 1)).unflatten(1, part.item.shape))
        return torch.cat(parts, dim=1)

    def _scores(self, arms: Tensor) -> Tensor:
        """(R, M, 1 or 2), as in ``look_up``, of arms (M, d)"""
        mean, bonus = mean_and_bonus(self.agent, arms.unsqueeze(0).expand(self.agent.replicas, -1, -1))
        return torch.stack([mean, bonus], dim=-1) if self._known.shape[2] == 2 else self._score(mean, bonus)

    def _compute(self, batch: CandidateEvents, event: Tensor, slot: Tensor) -> Tensor:
        """(R, M, 1 or 2), as in ``look_up``, of single arms (M,), given by their event and their place in it."""
        parts = []
        for start in range(0, len(event), _ARMS_AT_ONCE):
            e, k = event[start : start + _ARMS_AT_ONCE], slot[start : start + _ARMS_AT_ONCE]
            item, pair = batch.item[e, k].unsqueeze(1), batch.pair[e, k].unsqueeze(1)
            parts.append(self._scores(self.features.arms(batch.codes[e], batch.numbers[e], item, pair).squeeze(1)))
        return torch.cat(parts, dim=1) if parts else self._known[:, :0]


class PolicyEvaluation(L.LightningModule):
    """Base class: ``trainer.test`` of a policy on the batches of a log. Its only state is sums.

    Args:
        replicas: number R of replicas, each of which has estimates of its own.
        rows: number of rows of the log, or of the part of it that is evaluated.
        first_row: the first of these rows.
    """

    def __init__(self, replicas: int, rows: int, first_row: int = 0) -> None:
        super().__init__()
        self.replicas = replicas
        self.estimates = estimates(replicas, rows, first_row, totals=Totals)
        self.counts = EventCounts()

    def on_test_epoch_start(self) -> None:
        self.estimates.reset()
        self.counts.reset()

    def on_test_epoch_end(self) -> None:
        """Sum over all processes; torchmetrics keeps the results."""
        self.estimates.compute()
        self.counts.compute()

    def results(self) -> dict[str, Estimate]:
        """The estimates by name."""
        return {name: Estimate(*map(self._of_replicas, self.estimates.compute()[name])) for name in METRICS}

    def totals(self) -> dict[str, Tensor]:
        """The sums (R,) by name."""
        computed = self.estimates.compute()
        return {name: self._of_replicas(value) for name, value in computed.items() if name not in METRICS}

    def _of_replicas(self, value: Tensor) -> Tensor:
        # torchmetrics squeezes a tensor with one entry to a scalar
        return value.reshape(self.replicas)


class Evaluation(PolicyEvaluation):
    """``trainer.test`` of a frozen agent on the batches of a log.

    Args:
        agent: the agent; all of its replicas are evaluated.
        features: the features it was trained with.
        rows: number of rows of the log, or of the part of it that is evaluated.
        draws: number of Monte Carlo draws for the action probabilities of a Thompson agent.
        first_row: the first of these rows.
    """

    def __init__(self, agent: Agent, features: Features, rows: int, draws: int = 1, first_row: int = 0) -> None:
        super().__init__(agent.replicas, rows, first_row)
        self.agent, self.features, self.draws = agent, features, draws

    def on_test_start(self) -> None:
        self.frozen = FrozenAgent(self.agent, self.features)

    @torch.inference_mode()
    def test_step(self, batch: CandidateEvents, batch_idx: int) -> None:
        if not len(batch.row):
            # the shard of a process without row groups
            return
        chosen = self.frozen.choices(batch, self.draws)
        match = next(chosen) == batch.logged
        probability = match.double()
        for arm in chosen:
            probability += arm == batch.logged
        probability /= self.draws
        weight = probability / batch.propensity
        # Var(pi) of a mean over D draws, estimated by pi (1 - pi) / (D - 1)
        spread = probability * (1 - probability) / max(self.draws - 1, 1) * (batch.click / batch.propensity).square()
        self.estimates.update(batch.row, batch.click, match, batch.kept, weight, spread)
        self.counts.update(batch.logged, batch.kept, self.frozen.unknown(batch))


def rejected(evaluation: PolicyEvaluation, log: Log) -> Sequence[dict[str, Any]]:
    """For each replica the numbers of events accepted, seen and rejected, by reason."""
    totals, counts = evaluation.totals(), evaluation.counts.compute()
    seen = {int(number) for number in totals["events"]}
    if seen != {log.rows}:
        raise InputError(
            f"The log has {log.rows:,} events, but {min(seen):,} were evaluated. Do not set limit_test_batches, "
            "and use strategy='ddp' for several processes."
        )
    return [
        {
            "accepted": int(accepted),
            "seen": log.rows,
            "rejected": {
                "another arm chosen": log.rows - counts.outside - counts.corrected - int(accepted),
                "not in the candidate set": counts.outside,
                "propensity correction": counts.corrected,
            },
            "bad_rows": log.skipped,
        }
        for accepted in totals["matches"].tolist()
    ]
