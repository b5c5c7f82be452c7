"""Events of a log: every replica has its own place among them, and accepts those whose logged arm it picks."""

from typing import NamedTuple, cast

import torch
from torch import Tensor

from nl_lightning.agents.asking import ask
from nl_lightning.agents.base import Agent
from nl_lightning.core.imports import overridden
from nl_lightning.core.types import Choice, Deal, Round, View, Window
from nl_lightning.rollout.dealt import join
from nl_lightning.rollout.lookahead import first_guess, look_ahead

__all__ = ["LoggedBlock", "LoggedRound", "Scored", "Subset", "nth_places"]


_FEWEST_EVENTS = 16
"""Events that are looked ahead together. For fewer, a window takes as long; and a product of matrices over a batch of
one takes another way through a CPU's libraries."""
_SPARE_MATCHES = 2
"""Matches that a check may find beyond those of the first guess."""


class LoggedRound(Round):
    """A step through a block: its event (R,) among those of all replicas, and the round that was scored there."""

    def __init__(
        self, block: "LoggedBlock", accepted: Tensor, observed: Tensor, event: Tensor, scored: "Scored"
    ) -> None:
        super().__init__(block.subset.to_all(accepted), block.rows_follow)
        self._block, self._observed, self._event, self._scored = block, observed, event, scored
        self._missing = block.missing

    @property
    def t(self) -> Tensor:
        return self._block.subset.to_all(self._block.stop - self._missing)

    @property
    def observed(self) -> Tensor:
        return self._block.subset.to_all(self._observed)

    @property
    def choice(self) -> Choice:
        scored, to_all = self._scored, self._block.subset.to_all
        if scored.choice is not None:
            return scored.choice
        view = self._block.view_of(self._event)
        arms = view.mean.shape[1]
        score, bonus = (v.view(-1, arms).index_select(0, scored.place) for v in (scored.score, scored.bonus))
        arm = scored.arm.view(-1).index_select(0, scored.place)
        return Choice(to_all(arm), to_all(score), to_all(view.mean), to_all(bonus), self._block.view_to_all(view))

    @property
    def reward(self) -> Tensor:
        return self._block.subset.to_all(self._block.click.index_select(0, self._event))

    @property
    def regret(self) -> None:
        return None


class Scored(NamedTuple):
    """What an agent made of the last events that it looked at."""

    score: Tensor
    """(R, W K)"""
    bonus: Tensor
    """(R, W K)"""
    arm: Tensor
    """(R, W), the choice for each event"""
    place: Tensor
    """(R,), the event that the step ends at, among the R W of all replicas"""
    choice: Choice | None = None
    """the agent's own, where it chose itself"""


class LoggedBlock:
    """Events of a log, evaluated, and a cursor for every replica.

    Args:
        agent: who plays them.
        deal: (R, C, ...), of all replicas or some, with ``window`` events of padding at the end.
        missing: (R,), rounds that each replica of the agent still has to play.
        stop: number of the last round.
        window: events that are looked at in a step.
        slots: events that a replica may accept in a step; more than 1 are looked ahead.
        rows_follow: see ``Round``.
    """

    def __init__(
        self, agent: Agent, deal: Deal, missing: Tensor, stop: int, window: int, slots: int, rows_follow: bool
    ) -> None:
        assert deal.logged is not None
        assert deal.event is not None
        assert deal.length is not None
        self.agent, self.deal, self.stop, self.window, self.slots = agent, deal, stop, window, slots
        self.rows_follow = rows_follow
        self.subset = Subset(agent.replicas, deal.replicas)
        self._all_missing = missing
        self.missing = self.subset.of(missing)
        """(R,), rounds still to play, of the block's replicas"""
        replicas, padded, self.arms = deal.arms.shape[:3]
        device = deal.arms.device
        self._asks = agent.own_choice
        self._events = torch.arange(window, device=device)
        number = torch.arange(replicas, device=device)
        self._first_scored = number * window
        self._begin = number * padded
        self._end = self._begin + deal.length
        self._start = self._begin
        """(R,), where each replica stands, among the events of all"""
        self._steps: list[tuple[Tensor, ...]] = []
        self._windows: list[Window] = []
        self.click, self._logged = deal.reward[..., 0].flatten(), deal.logged.flatten()
        self._mask = None if deal.mask is None else deal.mask.flatten(0, 1)
        self._features, self._rows = deal.arms.flatten(0, 1), deal.event.flatten().to(device)
        rows = zip(self.subset.listed, deal.event if deal.number is None else deal.number, strict=True)
        noise = [agent.noise.of_rows(replica, events, self.arms) for replica, events in rows]
        uniform = torch.stack([u for u, _ in noise]).to(agent.lam)
        normal = torch.stack([n for _, n in noise if n is not None]).to(agent.lam) if agent.noise.normal else None
        view = agent.featurize(deal.arms, deal.mask, (uniform, normal), deal.replicas, packed=True)
        if view.packed is None or overridden(agent, Agent, "featurize"):
            # a view of the user's own is packed here
            first = [value for value in (view.mean, view.uniform, view.normal) if value is not None]
            view = view._replace(packed=torch.cat([torch.stack(first, dim=-1), view.observation], dim=-1))
        assert view.packed is not None
        self._columns, self._head = view.packed.shape[-1], agent.packed_head
        self._sizes = [self._head, *agent.observation_columns]
        self._packed = view.packed.flatten(0, 1).flatten(1)
        """(R C, K columns)"""
        if slots == 1:
            # The window, and its views made once: they follow what is copied into it.
            self._shown = self._packed.new_empty(replicas * window, self._packed.shape[1])
            self._shown_view = self._split(self._shown, (replicas, window * self.arms))
            self._shape = (replicas, window, self.arms)
            drawn = self._shown_view.normal
            self._uniform = self._shown_view.uniform.view(self._shape)
            self._normal = None if drawn is None else drawn.view(self._shape)
            # The last event of a window counts as found, so that a search that finds nothing ends there.
            self._match = torch.ones(replicas, window, dtype=torch.bool, device=device)

    # ---- views ------------------------------------------------------------------------------------------------------

    def _split(self, rows: Tensor, shape: tuple[int, ...]) -> View:
        """The view of packed rows, without the arms' features."""
        first, observation = rows.view(*shape, self._columns).split([self._head, self._columns - self._head], dim=-1)
        _, *factors = torch.split_with_sizes(observation, self._sizes[1:], dim=-1)
        normal = first[..., 2] if self._head == 3 else None
        return View(rows.new_empty(0), first[..., 0], tuple(factors), observation, first[..., 1], normal)

    def view_of(self, event: Tensor) -> View:
        """The view (R, K, ...) of one event (R,) a replica."""
        view = self._split(self._packed.index_select(0, event), (len(event), self.arms))
        return view._replace(arms=self._features.index_select(0, event))

    def view_to_all(self, view: View) -> View:
        """The view of the block's replicas -> of all replicas."""
        to_all = self.subset.to_all
        arms, mean, observation, uniform = map(to_all, (view.arms, view.mean, view.observation, view.uniform))
        normal = None if view.normal is None else to_all(view.normal)
        return View(arms, mean, tuple(map(to_all, view.factors)), observation, uniform, normal)

    # ---- one by one -------------------------------------------------------------------------------------------------

    def steps(self) -> int:
        """Steps that can be taken before asking again.

        A replica accepts at most one event a step and passes at least one: this many need no look in between.
        """
        if self.slots > 1:
            left = (self._end - self._start) * (self.missing > 0)
            self._passed, left = torch.stack([self._start - self._begin, left]).tolist()
            return max(left)
        return int(torch.minimum(self.missing, self._end - self._start).max())

    def step(self) -> Round:
        """Score the next events and accept the first match."""
        if self._asks:
            return self._ask()
        event = (self._start.unsqueeze(1) + self._events).view(-1)
        torch.index_select(self._packed, 0, event, out=self._shown)
        view = self._shown_view
        score, bonus = self.agent.score(view, self.deal.replicas)
        picked = self.agent.best(score.view(self._shape), self._uniform, self._normal)
        logged = self._logged.index_select(0, event).view_as(picked)
        torch.eq(picked[:, :-1], logged[:, :-1], out=self._match[:, :-1])
        first = self._match.max(1).indices
        # whoever has all its rounds accepts nothing more
        accepted = (first < self.window - 1).logical_and_(self.missing > 0)
        # the event in the block and in the window, the arm there
        where, found = self._start + first, self._first_scored + first
        arm = picked.view(-1).index_select(0, found)
        chosen = torch.add(arm, found, alpha=self.arms)
        row = self._shown.view(-1, self._columns).index_select(0, chosen)
        self.missing = self.missing.add(accepted, alpha=-1)
        scored = Scored(score, bonus, picked, found)
        scores, bonuses = (values.view(-1).index_select(0, chosen) for values in (score, bonus))
        self._last = (accepted, where, arm, row[:, 0], scores, bonuses)
        self._next = torch.minimum(where + accepted, self._end)
        return LoggedRound(self, accepted, row[:, self._head :].unsqueeze(1), where, scored)

    def _ask(self) -> Round:
        """Ask the agent itself for its choice in the next event of every replica."""
        here = self._start < self._end
        where = torch.minimum(self._start, self._end - 1).clamp_min(0)
        view = self.view_of(where)
        mask = None if self._mask is None else self._mask.index_select(0, where)
        choice = ask(self.agent, view.arms, mask, view)
        accepted = (choice.arm == self._logged.index_select(0, where)) & (self.missing > 0) & here
        passing = here & (self.missing > 0)
        self.missing = self.missing.add(accepted, alpha=-1)
        mean, score, bonus = (choice.chosen(values) for values in (choice.mean, choice.score, choice.bonus))
        self._last = (accepted, where, choice.arm, mean, score, bonus)
        self._next = self._start + passing
        scored = Scored(choice.score, choice.bonus, choice.arm, where, choice)
        return LoggedRound(self, accepted, choice.observed, where, scored)

    def record(self) -> None:
        """Keep what the last step accepted, and what came of it."""
        # Buffers by their dictionary: asked for by name, nn.Module looks for them in three places.
        state = cast(dict[str, Tensor], self.agent._buffers)
        after = (self.subset.of(state["radius"]), self.subset.of(state["effective_dimension"]))
        self._steps.append((*self._last, *after))
        self._start = self._next

    # ---- together ---------------------------------------------------------------------------------------------------

    def look_ahead(self, left: int) -> Window:
        """Score the next events of every replica, of at most ``left`` that are left, and accept their matches."""
        agent, replicas, window = self.agent, len(self._start), max(_FEWEST_EVENTS, min(self.window, left))
        rows, logged = self._next_events(window)
        view = self._split(rows, (replicas, window, self.arms))
        # not looked at, but of the right length for a choice of replicas
        view = view._replace(arms=view.mean)
        # What is behind the last match that counts is not checked. A check may find a few other matches than the guess.
        guess = first_guess(agent, view)
        number = (guess == logged).cumsum(1)
        most = (self.missing + _SPARE_MATCHES).unsqueeze(1)
        matched = torch.minimum(number[:, -1] + _SPARE_MATCHES, self.missing)
        slots, window = torch.stack([matched, (number < most).sum(1)]).amax(1).tolist()
        view, logged, guess = view.rounds(window), logged[:, :window], guess[:, :window]
        matches = _Matches(logged, self.missing, slots)
        found = look_ahead(agent, view, matches, matches.guess(guess, None))
        where, filled, _ = matches.places(found.guess)
        arm = matches.arm.gather(1, where)
        chosen = torch.add(arm, where, alpha=self.arms)
        score, mean, bonus = (values.flatten(1).gather(1, chosen) for values in (found.score, view.mean, found.bonus))
        # up to the last event that there was a slot for; a replica that misses nothing passes nothing
        accepted = filled.sum(1)
        full = accepted == matches.most.squeeze(1)
        passed = torch.where(full, where.amax(1) + 1, window).masked_fill(self.missing == 0, 0)
        radius, dimension = found.prefix.radius[:, 1:], found.prefix.effective_dimension[:, 1:]
        result = self._window(filled, self._start.unsqueeze(1) + where, arm, mean, score, bonus, radius, dimension)
        self.missing = self.missing - accepted
        self._start = torch.minimum(self._start + passed, self._end)
        self._windows.append(result)
        return result._replace(prefix=found.prefix, checks=found.checks)

    def _next_events(self, window: int) -> tuple[Tensor, Tensor]:
        """The next events of every replica: packed rows (R, W, K columns) and logged arms (R, W), -1 for padding."""
        columns, replicas = (self._packed, self._logged), len(self._passed)
        first = self._passed[0]
        if self._passed == [first] * replicas:
            # all stand at the same place, as at the beginning of a block, and nothing is copied
            rows, logged = (c.unflatten(0, (replicas, -1))[:, first : first + window] for c in columns)
        else:
            # behind a replica's last event there is padding
            event = torch.minimum(self._start.unsqueeze(1) + self._events[:window], self._end.unsqueeze(1)).flatten()
            rows, logged = (c.index_select(0, event).unflatten(0, (replicas, window)) for c in columns)
        return rows, logged

    # ---- the end ----------------------------------------------------------------------------------------------------

    def played(self) -> Window:
        """All steps of the block, of all replicas of the agent."""
        if self._windows:
            return join(self._windows)
        accepted, *columns = (torch.stack(column, dim=1) for column in zip(*self._steps, strict=True))
        return self._window(accepted, *columns)

    def passed(self) -> Tensor:
        """(R,), events of the block that each replica of the agent has passed."""
        start = self._start
        if self._steps:
            accepted, where = (torch.stack(column, dim=1) for column in list(zip(*self._steps, strict=True))[:2])
            behind_last = torch.where(accepted, where + 1, self._begin.unsqueeze(1)).amax(1)
            # who has all its rounds went on looking
            start = torch.where(self.missing > 0, start, behind_last)
        return self.subset.to_all(start - self._begin)

    def all_missing(self) -> Tensor:
        """(R,), rounds still to play, of all replicas of the agent."""
        return self.subset.put(self.missing, self._all_missing)

    def _window(self, accepted: Tensor, where: Tensor, *values: Tensor) -> Window:
        arm, mean, score, bonus, radius, dimension = values
        to_all = self.subset.to_all
        return Window(
            x=to_all(self._features[where, arm]),
            arm=to_all(arm),
            reward=to_all(self.click[where]),
            regret=None,
            score=to_all(score),
            mean=to_all(mean),
            bonus=to_all(bonus),
            radius=to_all(radius),
            effective_dimension=to_all(dimension),
            event=to_all(self._rows[where]),
            filled=to_all(accepted),
        )


class _Matches:
    """Accepts events whose logged arm is chosen. A guess is one bit an event: whether it is accepted.

    Args:
        logged: (R, W), the events' logged arms, -1 for padding.
        missing: (R,), rounds still to play.
        slots: events that a replica may accept.
    """

    def __init__(self, logged: Tensor, missing: Tensor, slots: int) -> None:
        self.logged = logged
        self.most = missing.clamp_max(slots).unsqueeze(1)
        """(R, 1), events that a replica may accept: what it misses, and what there are slots for"""
        self._nth = torch.arange(1, slots + 1, device=logged.device).repeat(len(logged), 1)
        self.arm = logged.clamp_min(0)
        """(R, W), the logged arm, 0 for padding"""

    def guess(self, arm: Tensor, replicas: Tensor | None) -> Tensor:
        match = arm == _of(self.logged, replicas)
        return match & (match.cumsum(1) <= _of(self.most, replicas))

    def observed(self, view: View, guess: Tensor, replicas: Tensor | None) -> tuple[Tensor, Tensor]:
        where, filled, number = self.places(guess)
        arm = _of(self.arm, replicas).gather(1, where)
        replica = torch.arange(len(where), device=where.device).unsqueeze(1)
        return view.observation[replica, where, arm] * filled.unsqueeze(-1), number.add(guess, alpha=-1)

    def places(self, accepted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The event (R, S) of each slot, which slots are filled, and the number (R, W) accepted up to each event."""
        number = accepted.cumsum(1)
        return *nth_places(number, self._nth[: len(number)]), number


def nth_places(number: Tensor, nth: Tensor) -> tuple[Tensor, Tensor]:
    """(R, S): where the ``nth`` (R, S) events are among W, if ``number`` (R, W) counts them up to each one, and
    whether there are so many of them. The place is 0 where there are not."""
    place = torch.searchsorted(number, nth)
    found = place < number.shape[1]
    return place.mul_(found), found


def _of(values: Tensor, replicas: Tensor | None) -> Tensor:
    return values if replicas is None else values.index_select(0, replicas)


class Subset:
    """Between all replicas of an agent and those of a block."""

    def __init__(self, count: int, replicas: Tensor | None) -> None:
        self._count, self._replicas = count, replicas
        self.listed = list(range(count)) if replicas is None else replicas.tolist()
        """the indices of the block's replicas"""

    def of(self, values: Tensor) -> Tensor:
        """Of all -> of those of the block."""
        return _of(values, self._replicas)

    def to_all(self, values: Tensor) -> Tensor:
        """Of those of the block -> of all; zero where a replica is not among them."""
        if self._replicas is None:
            return values
        return values.new_zeros(self._count, *values.shape[1:]).index_copy_(0, self._replicas, values)

    def put(self, values: Tensor, everything: Tensor) -> Tensor:
        """Those of the block put into those of all."""
        return values if self._replicas is None else everything.index_copy(0, self._replicas, values)
