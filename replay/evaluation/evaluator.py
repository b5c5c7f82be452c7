"""Evaluate a frozen agent on a log of any length, in one pass.

An agent that does not learn gives an arm the same mean and bonus every time, and most arms of a log occur many times:
the same context and action, without a pair feature. Those are computed once and then looked up. Others are
computed when they occur.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import lightning as L
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from nl_lightning.agents.asking import ask, mean_and_bonus
from nl_lightning.agents.base import Agent
from nl_lightning.agents.probabilities import (
    best_of_all,
    best_of_random_sets,
    logged_best_of_all,
    logged_best_of_random_sets,
)
from nl_lightning.core.errors import InputError
from replay.evaluation.estimators import METRICS, Estimate, EventCounts, Totals, estimates
from replay.evaluation.shown import AskedEvents, DrawnEvents, batches
from replay.logs.reader import Log
from replay.protocol.events import CandidateEvents
from replay.protocol.features import Features

__all__ = [
    "KEPT_ARMS",
    "LOOKUP_ENTRIES",
    "WHOLE_PAIRS",
    "Evaluation",
    "FrozenAgent",
    "PolicyEvaluation",
    "Weighed",
    "batches",
    "rejected",
]

WHOLE_PAIRS = 16
"""Whole pair features below this can be looked up; in the Open Bandit Dataset others are rare."""

LOOKUP_ENTRIES = 32_000_000
"""Lookup is used if there are at most this many different arms."""

KEPT_ARMS = 4_000_000
"""Arms whose scores are kept, over all replicas."""

_EVENTS_AT_ONCE = 256
"""Events of an agent with a choice of its own that are evaluated at once."""

_ARMS_AT_ONCE = 50_000
"""Arms whose features are held in memory at a time."""


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

    def choices(self, batch: CandidateEvents, draws: int, values: Tensor | None = None) -> Iterator[Tensor]:
        """(R, N), the chosen arms, one tensor a draw. ``values`` are those of ``scored``, if they are known."""
        agent = self.agent
        values = self.scored(batch) if values is None and not agent.own_choice else values
        rows = batch.row.cpu()
        for draw in range(draws):
            noise = [agent.noise.of_rows(r, rows, batch.item.shape[1], draw) for r in range(agent.replicas)]
            uniform = torch.stack([u for u, _ in noise]).to(agent.lam)
            drawn = [n for _, n in noise if n is not None]
            normal = torch.stack(drawn).to(agent.lam) if drawn else None
            yield self._asked(batch, uniform, normal) if values is None else self._best(values, uniform, normal)

    def scored(self, batch: CandidateEvents) -> Tensor:
        """As ``look_up``. Padding is never chosen: its score or its mean is minus infinity."""
        values = self.look_up(batch)
        if batch.mask is not None:
            values[..., 0].masked_fill_(~batch.mask, -torch.inf)
        return values

    def chances(self, batch: CandidateEvents, draws: int, values: Tensor, arms: int | None = None) -> Iterator[Tensor]:
        """(R, N), the chance that the logged action is chosen, given the scores of a draw, one tensor a draw.

        With ``arms`` the choice is from as many candidates that are drawn uniformly among those of the event.
        """
        tolerance = self.agent.tie_tolerance
        for score in self._drawn_scores(batch, draws, values):
            if arms is None:
                yield logged_best_of_all(score, batch.logged, tolerance)
            else:
                yield logged_best_of_random_sets(score, batch.logged, arms, tolerance, batch.mask)

    def distributions(self, batch: CandidateEvents, draws: int, arms: int | None = None) -> Iterator[Tensor]:
        """(R, N, K), the chance of every arm, one tensor a draw; ``arms`` as in ``chances``, without padding."""
        tolerance = self.agent.tie_tolerance
        if not self.agent.decides_by_score:
            yield from (one_hot(arm, batch.item.shape[1]).double() for arm in self.choices(batch, draws))
            return
        for score in self._drawn_scores(batch, draws, self.scored(batch)):
            yield best_of_all(score, tolerance) if arms is None else best_of_random_sets(score, arms, tolerance)

    def _drawn_scores(self, batch: CandidateEvents, draws: int, values: Tensor) -> Iterator[Tensor]:
        """(R, N, K), the scores, one tensor a draw, given what ``scored`` returns."""
        agent, rows = self.agent, batch.row.cpu()
        for draw in range(draws):
            score = values[..., 0]
            if values.shape[-1] == 2:
                noise = [agent.noise.normals_of_rows(r, rows, score.shape[-1], draw) for r in range(agent.replicas)]
                drawn = [normal for normal in noise if normal is not None]
                normal = torch.stack(drawn).to(agent.lam) if drawn else None
                score = agent.exploration.score(score, values[..., 1], normal)
            yield score

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


class Weighed(NamedTuple):
    """What a policy does with N events, for R replicas."""

    click: Tensor
    """r (N,)"""
    weight: Tensor
    """w = pi / p (R, N)"""
    pi: Tensor
    """(R, N), the probability of the logged action"""


class PolicyEvaluation(L.LightningModule):
    """Base class: ``trainer.test`` of a policy on the batches of a log. Its only state is sums.

    Args:
        replicas: number R of replicas, each of which has estimates of its own.
    """

    def __init__(self, replicas: int) -> None:
        super().__init__()
        self.replicas = replicas
        self.estimates = estimates(replicas, totals=Totals)
        self.counts = EventCounts()

    def weigh(self, batch: Any) -> Weighed | None:
        """Ask the policy about some events and add them to its sums; None if there is no event."""
        raise NotImplementedError

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.weigh(batch)

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
        draws: number of Monte Carlo draws for the action probabilities of a Thompson agent.
    """

    def __init__(self, agent: Agent, features: Features, draws: int = 1) -> None:
        super().__init__(agent.replicas)
        self.agent, self.features, self.draws = agent, features, draws

    def on_test_start(self) -> None:
        self.frozen = FrozenAgent(self.agent, self.features)

    @torch.inference_mode()
    def weigh(self, batch: AskedEvents) -> Weighed | None:
        shown = batch.shown if isinstance(batch, DrawnEvents) else batch
        if not len(shown.row):
            # the shard of a process without row groups
            return None
        match, chances = self._asked(batch, shown)
        probability, squares = torch.zeros(2, *match.shape, dtype=torch.float64, device=match.device).unbind()
        for chance in chances:
            probability += chance
            squares += chance.double().square()
        probability /= self.draws
        weight = probability / shown.propensity
        # Var(pi) of a mean over D draws, estimated by (mean of squares - pi^2) / (D - 1)
        spread = (squares / self.draws - probability.square()).clamp_min(0) / max(self.draws - 1, 1)
        spread = spread * (shown.click / shown.propensity).square()
        self.estimates.update(shown.click, match, shown.kept, weight, probability, spread)
        self.counts.update(shown.logged, shown.kept, self.frozen.unknown(shown))
        return Weighed(shown.click, weight, probability)

    def _asked(self, batch: AskedEvents, shown: CandidateEvents) -> tuple[Tensor, Iterator[Tensor]]:
        """Whether the logged action is picked, m (R, N), and of each draw the chance that it is, (R, N)."""
        frozen, draws = self.frozen, self.draws
        if not self.agent.decides_by_score:
            # all that can be said is what it chose
            chosen = [arm == shown.logged for arm in frozen.choices(shown, draws)]
            return chosen[0], iter(chosen)
        values = frozen.scored(shown)
        match = next(frozen.choices(shown, 1, values)) == shown.logged
        if isinstance(batch, DrawnEvents):
            whole = batch.whole
            return match, frozen.chances(whole, draws, frozen.scored(whole), shown.item.shape[1])
        return match, frozen.chances(shown, draws, values)


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
