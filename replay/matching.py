"""Rejection sampling of a block of events: first match by first match, all replicas at once."""

from typing import TYPE_CHECKING, NamedTuple, cast, final

import torch
from torch import Tensor

from nl_lightning.core.types import Choice, History, Round, View
from nl_lightning.environments import OnRound

if TYPE_CHECKING:
    from nl_lightning.agents.base import Agent


class Block(NamedTuple):
    """C events of R replicas, evaluated; these may be some of the agent's."""

    replicas: Tensor | None
    """(R,), their numbers; None for all. One that is there twice is the same twice."""
    window: int
    """events that are looked at in a step; so many at the end of a replica's are nothing but padding. Match by match
    the last of them is the next step's first."""
    length: Tensor
    """(R,), how many of them a replica has"""
    row: Tensor
    """(R, C)"""
    click: Tensor
    """(R, C)"""
    logged: Tensor
    """(R, C), an arm; padding has -1, which nobody picks"""
    arms: Tensor
    """(R, C, K, d)"""
    scored: Tensor
    """(R, C, K, ...), side by side: mean, uniform and for Thompson sampling normal numbers, observation"""


class Played(NamedTuple):
    """S steps through a block, each tensor (R, S, ...): in a step a replica accepts one event or none."""

    accepted: Tensor
    row: Tensor
    reward: Tensor
    x: Tensor
    arm: Tensor
    score: Tensor
    mean: Tensor
    bonus: Tensor
    radius: Tensor
    effective_dimension: Tensor
    passed: Tensor
    """(R,), events of the block that are behind"""
    missing: Tensor
    """(R,), rounds still to play"""


@final
class _LoggedRound(Round):
    """A step through a block: where (R,) its event stands, and where its scores stand in the window."""

    def __init__(
        self, play: "_Play", accepted: Tensor, observed: Tensor, missing: Tensor, where: Tensor, found: Tensor
    ) -> None:
        super().__init__(play.some.to_all(accepted), play.some.to_all(observed))
        self._play, self._missing, self._where, self._found = play, missing, where, found
        self._score, self._bonus, self._picked = play.score, play.bonus, play.picked

    @property
    def t(self) -> Tensor:
        return self._play.some.to_all(self._play.stop - self._missing)

    @property
    def choice(self) -> Choice:
        play, to_all = self._play, self._play.some.to_all
        rows = play.arms.view(-1, play.block.arms.shape[2], play.columns).index_select(0, self._where)
        mean, factors, uniform, normal = play.split(rows)
        shown = play.shown.index_select(0, self._where)
        view = View(
            to_all(shown),
            to_all(mean),
            tuple(map(to_all, factors)),
            to_all(rows[..., play.head :]),
            to_all(uniform),
            None if normal is None else to_all(normal),
        )
        score, bonus = (v.view(-1, mean.shape[1]).index_select(0, self._found) for v in (self._score, self._bonus))
        arm = self._picked.view(-1).index_select(0, self._found)
        return Choice(to_all(arm), to_all(score), view.mean, to_all(bonus), view)

    @property
    def reward(self) -> Tensor:
        return self._play.some.to_all(self._play.click.index_select(0, self._where))

    @property
    def regret(self) -> None:
        return None


class _Play:
    """A block, laid out for steps through it, and the last window that was looked at."""

    score: Tensor
    """(R, W K)"""
    bonus: Tensor
    picked: Tensor
    """(R, W)"""

    def __init__(self, agent: "Agent", block: Block, some: "_Some", stop: int) -> None:
        self.block, self.some, self.stop = block, some, stop
        self.replicas, self.columns = len(block.scored), block.scored.shape[-1]
        self.arms, self.shown = block.scored.flatten(0, 2), block.arms.flatten(0, 1)
        self.events = block.scored.flatten(0, 1).flatten(1)
        self.logged, self.click = block.logged.flatten(), block.click.flatten()
        self.head = 2 + agent.thompson
        self._sizes = [self.head, *agent.observation_columns]

    def split(self, rows: Tensor) -> tuple[Tensor, tuple[Tensor, ...], Tensor, Tensor | None]:
        """Mean, factors, uniform and normal numbers of the arms of some events, (R, ...)."""
        first, _, *factors = torch.split_with_sizes(rows.view(self.replicas, -1, self.columns), self._sizes, dim=-1)
        return first[..., 0], tuple(factors), first[..., 1], first[..., 2] if self.head == 3 else None


def play_block(agent: "Agent", block: Block, missing: Tensor, stop: int, on_round: OnRound) -> Played:
    """Accept events, first match by first match, until every replica has its rounds or has passed the block."""
    replicas, padded, arms = block.scored.shape[:3]
    window, device = block.window, block.scored.device
    shape = (replicas, window, arms)
    number = torch.arange(replicas, device=device)
    ahead = torch.arange(window, device=device)
    first_shown, start = number * window, number * padded
    begin, end = start, start + block.length
    some = _Some(agent, block.replicas, missing)
    play = _Play(agent, block, some, stop)
    missing = some.of(missing)
    # Buffers by their dictionary: asked for by name, nn.Module looks for them in three places.
    state = cast(dict[str, Tensor], agent._buffers)
    steps: list[tuple[Tensor, ...]] = []
    # The window, and its views made once: they follow what is copied into it.
    shown = play.events.new_empty(replicas * window, play.events.shape[1])
    shown_arms = shown.view(-1, play.columns)
    mean, factors, uniform, normal = play.split(shown)
    uniform = uniform.view(shape)
    # The last event of a window counts as found, so that a search that finds nothing ends there.
    match = torch.ones(replicas, window, dtype=torch.bool, device=device)
    searched, last = match[:, :-1], window - 1
    # A replica accepts one event a step at most and passes one at least: these many steps need no look in between.
    while needed := int(torch.minimum(missing, end - start).max()):
        for _ in range(needed):
            event = (start.unsqueeze(1) + ahead).view(-1)
            torch.index_select(play.events, 0, event, out=shown)
            score, bonus = play.score, play.bonus = agent.score(mean, factors, normal, block.replicas)
            picked = play.picked = agent.best(score.view(shape), uniform)
            logged = play.logged.index_select(0, event).view_as(picked)
            torch.eq(picked[:, :-1], logged[:, :-1], out=searched)
            first = match.max(1).indices
            # whoever has all its rounds accepts nothing more
            accepted = (first < last).logical_and_(missing > 0)

            # the event in the block and in the window, the arm there
            where, found = start + first, first_shown + first
            arm = picked.view(-1).index_select(0, found)
            chosen = torch.add(arm, found, alpha=arms)
            row = shown_arms.index_select(0, chosen)
            missing = missing.add(accepted, alpha=-1)
            on_round(_LoggedRound(play, accepted, row[:, play.head :].unsqueeze(1), missing, where, found))
            values = (score.view(-1).index_select(0, chosen), bonus.view(-1).index_select(0, chosen))
            after = (some.of(state["radius"]), some.of(state["effective_dimension"]))
            steps.append((accepted, where, arm, row[:, 0], *values, *after))
            start = torch.minimum(where + accepted, end)

    columns = [torch.stack(column, dim=1) for column in zip(*steps, strict=True)]
    accepted, where, arm, means, score, bonus, radius, dimension = columns
    behind_last = torch.where(accepted, where + 1, begin.unsqueeze(1)).amax(1)
    played = Played(
        accepted=accepted,
        row=block.row.to(device).flatten()[where],
        reward=play.click[where],
        x=play.shown[where, arm],
        arm=arm,
        score=score,
        mean=means,
        bonus=bonus,
        radius=radius,
        effective_dimension=dimension,
        # who has all its rounds went on looking
        passed=torch.where(missing > 0, start, behind_last) - begin,
        missing=missing,
    )
    return Played(*map(some.to_all, played))._replace(missing=some.put(missing))


class _Some:
    """Between all replicas of an agent and those of a block."""

    def __init__(self, agent: "Agent", replicas: Tensor | None, missing: Tensor) -> None:
        self._count, self._replicas, self._missing = agent.replicas, replicas, missing

    def of(self, values: Tensor) -> Tensor:
        """Of all -> of those of the block."""
        return values if self._replicas is None else values.index_select(0, self._replicas)

    def to_all(self, values: Tensor) -> Tensor:
        """Of those of the block -> of all; zero where a replica is not among them."""
        if self._replicas is None:
            return values
        return values.new_zeros(self._count, *values.shape[1:]).index_copy_(0, self._replicas, values)

    def put(self, missing: Tensor) -> Tensor:
        """What all miss, when those of the block miss this."""
        return missing if self._replicas is None else self._missing.index_copy(0, self._replicas, missing)


def history(blocks: list[Played], start: int, rounds: int, agent: "Agent") -> History:
    """The accepted events of every replica, one behind the other: (R, rounds)."""
    if not blocks:
        nothing = agent.lam.new_empty(agent.replicas, 0)
        return History(torch.arange(0, device="cpu"), nothing.new_empty(agent.replicas, 0, agent.dim), *[nothing] * 8)
    columns = {
        name: torch.cat([getattr(block, name) for block in blocks], dim=1)
        for name in Played._fields
        if name not in ("passed", "missing")
    }
    accepted = columns.pop("accepted")
    place = torch.where(accepted, accepted.cumsum(1) - 1, rounds)

    def compact(values: Tensor) -> Tensor:
        index = place.view(*place.shape, *[1] * (values.dim() - 2)).expand_as(values)
        target = values.new_zeros(values.shape[0], rounds + 1, *values.shape[2:])
        return target.scatter_(1, index, values)[:, :rounds]

    valid = compact(accepted)
    return History(
        t=torch.arange(start + 1, start + rounds + 1, device="cpu"),
        regret=None,
        event=compact(columns.pop("row")),
        valid=None if bool(valid.all()) else valid,
        **{name: compact(values) for name, values in columns.items()},
    )
