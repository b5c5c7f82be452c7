"""Rejection sampling of a block of events: first match by first match, all replicas at once."""

from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor

from nl_lightning.environments import OnRound
from nl_lightning.rounds import Choice, History, Round, View

if TYPE_CHECKING:
    from nl_lightning.agent import Agent


class Block(NamedTuple):
    """C events of R replicas, evaluated."""

    window: int
    """events that are looked at in a step; so many at the end of a replica's are nothing but padding"""
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


def play_block(agent: "Agent", block: Block, missing: Tensor, stop: int, on_round: OnRound) -> Played:
    """Accept events, first match by first match, until every replica has its rounds or has passed the block."""
    replicas, padded, arms = block.scored.shape[:3]
    window, device = block.window, block.scored.device
    shape = (replicas, window, arms)
    number = torch.arange(replicas, device=device)
    ahead = torch.arange(window, device=device)
    first_shown, start = number * window, number * padded
    begin, end = start, start + block.length
    scored, shown = block.scored.flatten(0, 1).flatten(1), block.arms.flatten(0, 1)
    logged, click = block.logged.flatten(), block.click.flatten()
    # Buffers by their dictionary: asked for by name, nn.Module looks for them in three places.
    state = cast(dict[str, Tensor], agent._buffers)
    head = 2 + agent.thompson
    columns = [head, *agent.observation_columns]

    def split(rows: Tensor) -> tuple[Tensor, tuple[Tensor, ...], Tensor, Tensor | None]:
        """mean, factors, uniform and normal numbers of some events."""
        first, _, *factors = torch.split_with_sizes(rows.view(replicas, -1, sum(columns)), columns, dim=-1)
        return first[..., 0], tuple(factors), first[..., 1], first[..., 2] if head == 3 else None

    steps: list[tuple[Tensor, ...]] = []
    choices: list[Choice] = []
    # A replica accepts one event a step at most, so these many steps need no look at how far they are.
    while needed := int(torch.where(start < end, missing, 0).max()):
        for _ in range(needed):
            event = (start.unsqueeze(1) + ahead).view(-1)
            mean, factors, uniform, normal = split(scored.index_select(0, event))
            score, bonus = agent.score(mean, factors, normal)
            picked = agent.best(score.view(shape), uniform.view(shape))
            # whoever has all its rounds accepts nothing more, and stays where it is
            active = missing > 0
            match = (picked == logged.index_select(0, event).view_as(picked)).logical_and_(active.unsqueeze(1))
            accepted, first = match.max(1)

            where, found = start + first, first_shown + first
            rows = scored.index_select(0, where)
            mean, factors, uniform, normal = split(rows)
            observation = rows.view(replicas, arms, -1)[..., head:]
            view = View(shown.index_select(0, where), mean, factors, observation, uniform, normal)
            arm, *values = (v.view(replicas * window, -1).index_select(0, found) for v in (picked, score, bonus))
            choice = Choice(arm.squeeze(1), values[0], mean, values[1], view)
            reward = click.index_select(0, where)
            missing = missing.add(accepted, alpha=-1)
            on_round(Round(stop - missing, choice, reward.unsqueeze(1).expand(-1, arms), None, accepted))
            step = torch.where(accepted, first + 1, window).mul_(active)
            start = torch.minimum(start + step, end)
            steps.append((accepted, where, reward, state["radius"], state["effective_dimension"]))
            choices.append(choice)

    accepted, where, reward, radius, dimension = (torch.stack(column, dim=1) for column in zip(*steps, strict=True))
    arm = torch.stack([choice.arm for choice in choices], dim=1)

    def chosen(values: list[Tensor]) -> Tensor:
        return torch.stack(values, dim=1).gather(2, arm.unsqueeze(2)).squeeze(2)

    return Played(
        accepted=accepted,
        row=block.row.to(device).flatten()[where],
        reward=reward,
        x=shown[where, arm],
        arm=arm,
        score=chosen([choice.score for choice in choices]),
        mean=chosen([choice.mean for choice in choices]),
        bonus=chosen([choice.bonus for choice in choices]),
        radius=radius,
        effective_dimension=dimension,
        passed=start - begin,
        missing=missing,
    )


def history(blocks: list[Played], start: int, rounds: int, agent: "Agent") -> History:
    """The accepted events of every replica, one behind the other: (R, rounds)."""
    if not blocks:
        nothing = torch.empty(agent.replicas, 0)
        return History(torch.arange(0), torch.empty(agent.replicas, 0, agent.dim), *[nothing] * 8)
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
        t=torch.arange(start + 1, start + rounds + 1),
        regret=None,
        event=compact(columns.pop("row")),
        valid=None if bool(valid.all()) else valid,
        **{name: compact(values) for name, values in columns.items()},
    )
