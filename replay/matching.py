"""Rejection sampling of a block of events: first match by first match, all replicas at once."""

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from nl_lightning.environments import OnRound
from nl_lightning.rounds import Choice, History, Round, View

if TYPE_CHECKING:
    from nl_lightning.agent import Agent


class Block(NamedTuple):
    """C events of R replicas, evaluated."""

    window: int
    length: Tensor
    """(R,), how many of them a replica has"""
    row: Tensor
    """(R, C)"""
    click: Tensor
    """(R, C)"""
    logged: Tensor
    """(R, C)"""
    arms: Tensor
    """(R, C, K, d)"""
    scored: Tensor
    """(R, C, K, ...), side by side: mean, uniform and for Thompson sampling normal numbers, factors"""
    observation: Tensor
    """(R, C, K, ...)"""
    factors: list[int]
    """their columns"""


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
    replicas, length, arms = block.scored.shape[:3]
    window, device = block.window, block.scored.device
    lane = torch.arange(replicas, device=device) * length
    ahead = torch.arange(window, device=device)
    window_lane = torch.arange(replicas, device=device) * window
    scored, observation = block.scored.flatten(0, 1).flatten(1), block.observation.flatten(0, 1)
    shown, logged, click = block.arms.flatten(0, 1), block.logged.flatten(), block.click.flatten()
    # Buffers by their dictionary: asked for by name, nn.Module looks for them in three places.
    state = cast(dict[str, Tensor], agent._buffers)
    thompson, columns = agent.thompson, [2 + agent.thompson, *block.factors]

    def split(rows: Tensor, events: int) -> tuple[Tensor, Tensor, Tensor | None, tuple[Tensor, ...]]:
        head, *factors = torch.split_with_sizes(rows.view(replicas, events * arms, -1), columns, dim=-1)
        return head[..., 0], head[..., 1], head[..., 2] if thompson else None, tuple(factors)

    offset = torch.zeros_like(block.length)
    steps: list[tuple[Tensor, ...]] = []
    choices: list[Choice] = []
    # A replica accepts one event a step at most, so these many steps need no look at how far they are.
    while needed := int(torch.where(offset < block.length, missing, 0).max()):
        for _ in range(needed):
            place = offset.unsqueeze(1) + ahead
            event = (lane.unsqueeze(1) + place.clamp_max(length - 1)).flatten()
            mean, uniform, normal, factors = split(scored.index_select(0, event), window)
            score, bonus = agent.score(mean, factors, normal)
            score, bonus = score.view(replicas, window, arms), bonus.view(replicas, window, arms)
            picked = agent.best(score, uniform.view(replicas, window, arms))
            match = picked == logged.index_select(0, event).view(replicas, window)
            match &= (place < block.length.unsqueeze(1)) & (missing > 0).unsqueeze(1)
            accepted, first = match.max(1)

            found = window_lane + first
            where = event.index_select(0, found)
            rows = scored.index_select(0, where)
            view = View(shown.index_select(0, where), *_reordered(split(rows, 1), observation.index_select(0, where)))
            choice = Choice(
                picked.gather(1, first.unsqueeze(1)).squeeze(1),
                score.flatten(0, 1).index_select(0, found),
                view.mean,
                bonus.flatten(0, 1).index_select(0, found),
                view,
            )
            reward = click.index_select(0, where)
            missing = missing - accepted.to(missing.dtype)
            on_round(Round(stop - missing, choice, reward.unsqueeze(1).expand(-1, arms), None, accepted))
            # whoever has all its rounds stays where it is
            step = torch.where(accepted, first + 1, window).where(accepted | (missing > 0), 0)
            offset = torch.minimum(offset + step, block.length)
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
        passed=offset,
        missing=missing,
    )


def _reordered(parts: tuple[Tensor, Tensor, Tensor | None, tuple[Tensor, ...]], observation: Tensor) -> tuple[Any, ...]:
    """In a view's order."""
    mean, uniform, normal, factors = parts
    return mean, factors, observation, uniform, normal


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
