"""Events of a log that are accepted by the chance of the logged arm, and not by a single draw of it: DR-ns.

An agent does not change between two events that it accepts, so the chances of many events are computed together. Those
up to the first accepted one are valid, and are passed. With weights carried, the design matrix also changes at events
that are not accepted (see ``LearnerValue.rounds``), and a step ends there as well.
"""

import inspect

import numpy as np
import torch
from torch import Tensor

from nl_lightning.agents.base import Agent
from nl_lightning.agents.exploration import Exploration
from nl_lightning.core.errors import InputError
from nl_lightning.core.imports import overridden
from nl_lightning.core.types import Deal, Round, Window
from nl_lightning.environments.learner_value import LearnerValue, PassedEvents
from nl_lightning.rollout.logged import LoggedBlock, LoggedRound, Scored

__all__ = ["DRAWS", "WeightedBlock", "check_learner", "numbers_per_event"]

DRAWS = 20
"""Monte Carlo draws for the chances of an agent whose scores are drawn, such as Thompson sampling."""


def check_learner(agent: Agent, value: LearnerValue) -> None:
    """Refuse agents whose chances are not known, and weights that an agent would not learn with."""
    name = type(agent).__name__
    if agent.own_choice:
        raise InputError(
            f"rejection: dr-ns needs the chance of every arm, and {name} chooses by a method of its own "
            f"({agent.own_choice[0]}); use rejection: propensity."
        )
    if not value.settings.carry_weights:
        return
    if agent.mode == "theory":
        raise InputError("Theory mode has no weights: set carry_weights: false for rejection: dr-ns.")
    for method, needed in (("observe", "weight"), ("observe", "importance"), ("update_confidence", "importance")):
        if overridden(agent, Agent, method):
            taken = inspect.signature(getattr(agent, method)).parameters
            if needed not in taken and not any(p.kind is p.VAR_KEYWORD for p in taken.values()):
                raise InputError(
                    f"{name}.{method} takes no {needed}, with which rejection: dr-ns carries weights; add it, or set "
                    "carry_weights: false."
                )


def draws_of(agent: Agent) -> int:
    """Monte Carlo draws of an agent's choice; 0 where its chances follow from its scores."""
    own = overridden(agent, Agent, "best") or overridden(agent.exploration, Exploration, "choose")
    return DRAWS if agent.exploration.stochastic or own else 0


def numbers_per_event(agent: Agent, arms: int) -> int:
    """Random numbers that an event needs beside those of its choice."""
    return 2 * draws_of(agent) * arms


class WeightedBlock(LoggedBlock):
    """A block whose events are accepted with probability min(1, c pi / p), and of whose rounds the design matrix gets
    those that ``LearnerValue.rounds`` says."""

    def __init__(
        self,
        agent: Agent,
        deal: Deal,
        missing: Tensor,
        stop: int,
        window: int,
        rows_follow: bool,
        value: LearnerValue,
    ) -> None:
        super().__init__(agent, deal, missing, stop, window, 1, rows_follow)
        assert deal.propensity is not None
        assert deal.uniform is not None
        self.value = value
        self._p, self._u = deal.propensity.flatten(), deal.uniform.flatten()
        self._predicted = None if deal.predicted is None else deal.predicted.flatten(0, 1)
        self._weights: list[Tensor] = []
        self._draws = draws_of(agent)
        if self._draws:
            self._drawn = self._draw(deal)
            """(R C, draws, 1 or 2, K), the normal numbers of each draw, and the uniform ones where a rule needs them"""

    def _draw(self, deal: Deal) -> Tensor:
        numbers = deal.event if deal.number is None else deal.number
        assert numbers is not None
        agent, normal = self.agent, self.agent.noise.normal
        replicas = []
        for replica, rows in zip(self.subset.listed, numbers, strict=True):
            draws = []
            # draw 0 is the agent's own choice
            for draw in range(1, self._draws + 1):
                uniform, drawn = agent.noise.of_rows(replica, rows, self.arms, draw)
                draws.append(torch.stack([uniform, drawn] if normal and drawn is not None else [uniform], dim=1))
            replicas.append(torch.stack(draws, dim=1))
        return torch.cat(replicas).to(agent.lam)

    def steps(self) -> int:
        """One, while a replica has events left and rounds to play: few events are accepted, so the next one may be far.

        What an event is accepted by is computed in NumPy in any case, so asking after every step costs nothing.
        """
        return int(((self.missing > 0) & (self._start < self._end)).any())

    def step(self) -> Round:
        """Score the next events, and pass those up to the first one that the agent gets anything from."""
        agent, window = self.agent, self.window
        event = (self._start.unsqueeze(1) + self._events).view(-1)
        torch.index_select(self._packed, 0, event, out=self._shown)
        view = self._shown_view
        score, bonus = agent.score(view, self.deal.replicas)
        arm_scores = score.view(self._shape)
        picked = agent.best(arm_scores, self._uniform, self._normal)
        logged = self._logged.index_select(0, event).view_as(picked)
        chances = self._chances(arm_scores, view.mean.view(self._shape), bonus.view(self._shape), event)
        events = self._passed_events(event, logged, chances)
        replicas = self.subset.listed
        own = (picked == logged).cpu().numpy()
        u = self._u.index_select(0, event).view(len(replicas), window).cpu().numpy()
        taken = self.value.chance(replicas, own, u, events) & (logged >= 0).cpu().numpy()
        left = (self._end - self._start).cpu().numpy()
        playing = (self.missing > 0).cpu().numpy()
        counted = self.value.rounds(replicas, own, u, events) if self.value.settings.carry_weights else taken * 1.0
        ends = (taken | (counted > 0)) & (np.arange(window) < left[:, None])
        found = ends.any(1)
        first = np.where(found, ends.argmax(1), np.minimum(left, window))
        found &= playing
        passed = np.where(playing, first + found, 0)
        # a replica that found nothing looks at any event, and takes nothing from it
        at = np.arange(len(first)), np.minimum(first, window - 1)
        accepted = found & taken[at]
        carried = np.where(accepted, np.maximum(1.0, self.value.weights(replicas, events)[at]), 1.0)
        importance = np.where(found, counted[at], 0.0)
        real = _first_of(replicas)
        self.value.add([replicas[i] for i in real], events.of(real), passed[real], accepted[real])
        return self._round(score, bonus, picked, logged, first, accepted, passed, carried, importance)

    def _round(
        self,
        score: Tensor,
        bonus: Tensor,
        picked: Tensor,
        logged: Tensor,
        first: np.ndarray,
        accepted: np.ndarray,
        passed: np.ndarray,
        carried: np.ndarray,
        importance: np.ndarray,
    ) -> Round:
        """What the step ends with: the event at ``first`` (R,), whose logged arm is learned where it is accepted.

        ``carried`` and ``importance`` (R,) are its weights in the loss and in the design matrix.
        """
        device = score.device
        place = torch.from_numpy(np.minimum(first, self.window - 1)).to(device)
        took = torch.from_numpy(accepted).to(device)
        where, found = self._start + place, self._first_scored + place
        # What is learned is the logged arm, whichever the agent's own draw was. Without a click it is the own draw that
        # the design matrix gets.
        arm = torch.where(took, logged.reshape(-1).index_select(0, found), picked.reshape(-1).index_select(0, found))
        chosen = torch.add(arm, found, alpha=self.arms)
        row = self._shown.view(-1, self._columns).index_select(0, chosen)
        weight = None
        if self.value.settings.carry_weights:
            weight = torch.from_numpy(carried).to(score)
            self._weights.append(weight)
        self.missing = self.missing.add(took, alpha=-1)
        arms = picked.reshape(-1).index_copy(0, found, arm).view_as(picked)
        scored = Scored(score, bonus, arms, found)
        scores, bonuses = (values.view(-1).index_select(0, chosen) for values in (score, bonus))
        self._last = (took, where, arm, row[:, 0], scores, bonuses)
        self._next = self._start + torch.from_numpy(passed).to(device)
        played = LoggedRound(self, took, row[:, self._head :].unsqueeze(1), where, scored)
        if weight is not None:
            played.weight = 1 + self.subset.to_all(weight - 1)
            played.importance = self.subset.to_all(torch.from_numpy(importance).to(score))
        return played

    def played(self) -> Window:
        window = super().played()
        if not self.value.settings.carry_weights:
            return window
        return window._replace(weight=1 + self.subset.to_all(torch.stack(self._weights, dim=1) - 1))

    def _passed_events(self, event: Tensor, logged: Tensor, chances: Tensor) -> PassedEvents:
        """What the value needs of each event of the window."""
        shape = logged.shape
        at = logged.clamp_min(0).unsqueeze(-1)
        pi = chances.gather(-1, at).squeeze(-1).masked_fill(logged < 0, 0)
        p, click, row = (column.index_select(0, event).view(shape) for column in (self._p, self.click, self._rows))
        expected = predicted = torch.zeros_like(pi)
        if self._predicted is not None:
            rhat = self._predicted.index_select(0, event).view(*shape, -1)
            expected, predicted = (chances * rhat).sum(-1), rhat.gather(-1, at).squeeze(-1)
        columns = [column.double().cpu().numpy() for column in (pi, p, click, expected, predicted)]
        return PassedEvents(row.cpu().numpy(), *columns)

    def _chances(self, score: Tensor, mean: Tensor, bonus: Tensor, event: Tensor) -> Tensor:
        """(R, W, K): the chance of every arm. Exact where scores are not drawn: arms that tie are equally likely."""
        agent = self.agent
        if not self._draws:
            return _shared_best(score, agent.tie_tolerance)
        numbers = self._drawn.index_select(0, event).view(*score.shape[:2], self._draws, -1, self.arms)
        uniform, normal = numbers[:, :, :, 0], numbers[:, :, :, 1] if agent.noise.normal else None
        if self._mask is not None:
            uniform = uniform * self._mask.index_select(0, event).view(*score.shape[:2], 1, -1)
        shape = uniform.shape
        drawn = agent.exploration.score(mean.unsqueeze(2).expand(shape), bonus.unsqueeze(2).expand(shape), normal)
        if overridden(agent, Agent, "best") or overridden(agent.exploration, Exploration, "choose"):
            chosen = agent.best(drawn, uniform, normal)
            return torch.nn.functional.one_hot(chosen, self.arms).double().mean(2)
        return _shared_best(drawn, agent.tie_tolerance).mean(2)


def _shared_best(score: Tensor, tolerance: float) -> Tensor:
    """(..., K): 1 for the arm with the highest score; arms that tie with it, as in ``Exploration.choose``, share."""
    highest = score.amax(-1, keepdim=True)
    best = (score >= highest.sub(highest.abs(), alpha=tolerance)).double()
    return best / best.sum(-1, keepdim=True)


def _first_of(replicas: list[int]) -> list[int]:
    """The places of the replicas, each once: a block of one replica may hold another one as padding."""
    return [place for place, replica in enumerate(replicas) if replica not in replicas[:place]]
