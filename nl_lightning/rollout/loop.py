"""THE loop: score, accept, update.

A simulation accepts every round, a replay accepts events whose logged arm is chosen. Rounds are looked ahead together
where agent, design matrix and callbacks allow it, and played one by one otherwise: looking ahead by one.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import NamedTuple, cast

import torch
from torch import Tensor

from nl_lightning.agents.base import Agent
from nl_lightning.core.errors import InputError
from nl_lightning.core.imports import overridden
from nl_lightning.core.types import History, Round, Window
from nl_lightning.environments import Environment, LoggedEnvironment, Simulation
from nl_lightning.rollout.dealt import DealtBlock, join
from nl_lightning.rollout.logged import LoggedBlock, nth_places
from nl_lightning.rollout.weighted import WeightedBlock, check_learner, numbers_per_event

__all__ = ["EVALUATED_BYTES", "OnRound", "OnWindow", "Plan", "make_plan", "play"]


OnRound = Callable[[Round], None]
"""What is done after every round: design matrix and radius first of all."""
OnWindow = Callable[[Window], None]
"""The same after rounds that were looked ahead together."""

_FEWEST_ROUNDS, _MOST_ROUNDS = 12, 64
"""Rounds looked ahead together. For fewer, a guess costs more than it saves; with more, it is right less often."""
_ROUND_ENTRIES = 115_000
"""Entries of the design's states in a window, over all replicas of a run: with more, memory takes the time saved."""
_EVENTS = (256, 128)
"""Events of a log looked ahead together at most: as many as there is room for."""
_EVENT_ENTRIES = 240_000
"""Entries of the design's states at these events, over all replicas of a run: with more, a guess costs more than it
saves."""
_EVENT_ARMS = 40_000
"""Arms of all events in a window and all replicas: they are evaluated in any case, and should not be most of a
block."""
_PADDING = 16
"""Events of padding behind a block whose events are looked ahead together. A product of matrices may give its last few
rows other last digits; these rows are then padding, so that an event has the same digits in any block."""
EVALUATED_BYTES = 100_000_000
"""What the arms that are evaluated at once may take, over all replicas."""


class Plan(NamedTuple):
    """How rounds are played."""

    window: int
    """rounds or events that are looked at in a step"""
    slots: int
    """rounds that are accepted in a step at most; more than 1 are looked ahead"""
    rows_follow: bool
    """whether the loop appends rows to the replay buffer, many at once, instead of ``agent.observe``"""

    @property
    def ahead(self) -> bool:
        return self.slots > 1


def play(
    agent: Agent,
    environment: Environment,
    start: int,
    count: int,
    on_round: OnRound,
    on_window: OnWindow | None = None,
    watched: bool = False,
) -> History:
    """Play rounds start + 1, ..., start + count; fewer, if no replica can continue that far.

    With ``on_window``, rounds may be looked ahead together. ``watched`` says that somebody looks at the agent after
    every round, so that its replay buffer must be up to date.
    """
    plan = make_plan(agent, environment, count, together=on_window is not None, watched=watched)
    blocks = _Blocks(agent, environment, start, count, plan)
    played: list[Window] = []
    logged = isinstance(environment, LoggedEnvironment)
    with agent.reserve(_observations(environment, count), start) if logged else nullcontext():
        for block in blocks:
            while steps := block.steps():
                if plan.ahead:
                    assert on_window is not None
                    on_window(block.look_ahead(steps))
                    continue
                for _ in range(steps):
                    on_round(block.step())
                    block.record()
            played.append(block.played())
            if plan.rows_follow and not plan.ahead:
                agent.buffer.append(played[-1].x, played[-1].reward, played[-1].filled, played[-1].weight)
    return _history(played, start, blocks, agent)


def make_plan(agent: Agent, environment: Environment, count: int, together: bool, watched: bool = False) -> Plan:
    """How ``count`` rounds are best played, by sizes alone: the same for any number of processes.

    What a user has redefined is what runs: an agent that chooses or observes by methods of its own is asked round by
    round.
    """
    chooses = agent.own_choice
    observes = overridden(agent, Agent, "observe", "update_confidence")
    if overridden(agent, Agent, "observe_window", "prefix") and not observes:
        raise InputError(
            f"{type(agent).__name__} redefines observe_window or prefix, which are used only where rounds are looked "
            "ahead together; redefine observe instead."
        )
    # what may ask how many rounds there were gets them one by one, with the replay buffer up to date
    counts = overridden(agent, Agent, "best", "radius_at")
    alone = bool(chooses or observes or counts)
    together = together and not alone and agent.design.can_look_ahead
    rows_follow = not watched and not alone
    # Of all replicas of the run and not of those that a process has: any number of processes gives the same result.
    replicas, parameters = agent.share.total, agent.design.parameters_count
    if not isinstance(environment, LoggedEnvironment):
        most = min(_ROUND_ENTRIES // (replicas * parameters), _MOST_ROUNDS) if together else 1
        if min(most, count) < _FEWEST_ROUNDS:
            return Plan(1, 1, rows_follow)
        # as many windows as are needed, of equal length
        window = -(-count // -(-count // most))
        return Plan(window, window, rows_follow)
    arms = environment.arms
    if environment.value is not None:
        check_learner(agent, environment.value)
        together = False
    for events in _EVENTS if together and count >= _FEWEST_ROUNDS else ():
        if replicas * parameters * events <= _EVENT_ENTRIES and replicas * arms * events <= _EVENT_ARMS:
            return Plan(events, events, rows_follow)
    if chooses:
        return Plan(1, 1, rows_follow)
    # Until the first match nothing changes, so that events up to it are scored together. The norm may need whole
    # gradients; the last event of a window is not searched.
    room = EVALUATED_BYTES // (32 * agent.design.numbers_per_arm * arms * agent.replicas)
    return Plan(max(2, min(3 * arms + 2, _room(agent, arms), room)), 1, rows_follow)


def _room(agent: Agent, arms: int) -> int:
    """Events of a replica that are evaluated at once: an observation in float64, its factors in the network's
    precision, and copies of both."""
    return max(1, EVALUATED_BYTES // (32 * sum(agent.observation_columns) * arms * agent.replicas))


def _observations(environment: Environment, count: int) -> int:
    """The most observations that a design matrix can get while ``count`` rounds are played."""
    value = environment.value if isinstance(environment, LoggedEnvironment) else None
    # with weights carried, also rounds whose click nobody knows: at most one an event
    return count if value is None or not value.settings.carry_weights else count + value.settings.rows


class _Blocks:
    """The rounds of an environment, block by block."""

    def __init__(self, agent: Agent, environment: Environment, start: int, count: int, plan: Plan) -> None:
        self.agent, self.environment, self.start, self.count, self.plan = agent, environment, start, count, plan
        self.rounds = 0
        """rounds that the furthest replica has played"""

    def __iter__(self) -> Iterator[DealtBlock | LoggedBlock]:
        if isinstance(self.environment, LoggedEnvironment):
            return self._logged(self.environment)
        return self._dealt(cast(Simulation, self.environment))

    def _dealt(self, environment: Simulation) -> Iterator[DealtBlock]:
        while self.rounds < self.count and not environment.ended:
            first = self.start + self.rounds
            deal = environment.next_deal(first, self.count - self.rounds)
            yield DealtBlock(self.agent, deal, first + 1, self.plan.window, self.plan.rows_follow)
            self.rounds += deal.arms.shape[1]

    def _logged(self, environment: LoggedEnvironment) -> Iterator[LoggedBlock]:
        agent, plan, count = self.agent, self.plan, self.count
        alive = torch.ones_like(agent.diverged_at, dtype=torch.bool) if agent.alive is None else agent.alive
        environment.alive = playing = alive.tolist()
        missing = alive * count
        room, value = _room(agent, environment.arms), environment.value
        if value is not None:
            needed = max(1, numbers_per_event(agent, environment.arms))
            room = min(room, max(1, EVALUATED_BYTES // (8 * needed * agent.replicas)))
        # an agent that is asked round by round is asked for all of its replicas
        subset = not plan.ahead and plan.window > 1 and agent.design.can_take_subsets
        subset = subset and not overridden(agent, Agent, "evaluate", "featurize")
        padding = _PADDING if plan.ahead else plan.window
        wanted = missing.tolist()
        while any(wanted):
            deal = environment.next_events(wanted, padding, room, subset)
            if deal is None:
                break
            stop, window, follow = self.start + count, plan.window, plan.rows_follow
            block = (
                LoggedBlock(agent, deal, missing, stop, window, plan.slots, follow)
                if value is None
                else WeightedBlock(agent, deal, missing, stop, window, follow, value)
            )
            yield block
            missing, before = block.all_missing(), wanted
            wanted = missing.tolist()
            environment.advance(block.passed().tolist(), [b - w for b, w in zip(before, wanted, strict=True)])
            self.rounds = count - min(w for w, plays in zip(wanted, playing, strict=True) if plays)


def _history(windows: list[Window], start: int, blocks: _Blocks, agent: Agent) -> History:
    """The rounds that were played, those of every replica one after the other."""
    rounds = blocks.rounds
    t = torch.arange(start + 1, start + rounds + 1, device="cpu")
    if not windows:
        nothing = agent.lam.new_empty(agent.replicas, 0)
        return History(t, nothing.new_empty(agent.replicas, 0, agent.dim), *[nothing] * 8)
    whole = join(windows)
    names = History._fields[1:11]
    columns: dict[str, Tensor | None] = {name: getattr(whole, name) for name in names}
    filled = whole.filled
    if whole.event is None or filled is None:
        return History(t, **columns, valid=filled)  # type: ignore[arg-type]
    nth = torch.arange(1, rounds + 1, device=filled.device).repeat(len(filled), 1)
    place, valid = nth_places(filled.cumsum(1), nth)
    empty = None if bool(valid.all()) else ~valid

    def compact(values: Tensor) -> Tensor:
        of_features = values.dim() > 2
        index = place.unsqueeze(-1).expand(-1, -1, values.shape[2]) if of_features else place
        dense = values.gather(1, index)
        if empty is not None:
            dense.masked_fill_(empty.unsqueeze(-1) if of_features else empty, 0)
        return dense

    dense = {name: None if values is None else compact(values) for name, values in columns.items()}
    return History(t, **dense, valid=None if empty is None else valid)  # type: ignore[arg-type]
