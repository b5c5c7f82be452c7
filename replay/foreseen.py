"""Rejection sampling of many events at once: a guess of which are accepted, checked until it bears itself out.

As in ``lookahead``: an agent's choice depends on earlier events only through the diagonals of its design
matrices, and an event that is accepted was shown with the arm that the log has. So the guess is one bit an event; given
it, the diagonals behind every accepted event are cumulative sums, and whether each event is accepted with those that
stand before it is computed for all events at once.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nl_lightning.designs.diagonal import DiagonalDesign
from nl_lightning.environments import OnWindow
from nl_lightning.rollout.lookahead import FEWEST, Window
from replay.matching import Block, Played

if TYPE_CHECKING:
    from nl_lightning.agents.base import Agent

_EVENTS = 64
"""at once; with more a guess is right less often"""
_ENTRIES = 120_000
"""Of the diagonals of all events at once, for all replicas of a run: beyond this a guess costs more than it saves."""
_ARMS = 20_000
"""Of all events at once and all replicas: so many are evaluated in any case, and should not be most of a block."""


def events_at_once(agent: "Agent", arms: int, rounds: int) -> int:
    """How many events with so many arms are played at once, where so many rounds are asked for.

    0 where they are better played match by match; for all processes of a run alike (see ``rounds_at_once``).
    """
    if rounds < FEWEST or not isinstance(agent.design, DiagonalDesign):
        return 0
    replicas, parameters = agent.share.total, agent.design.diagonal.shape[1]
    few = replicas * parameters * _EVENTS <= _ENTRIES and replicas * arms * _EVENTS <= _ARMS
    return _EVENTS if few else 0


def play_block_ahead(agent: "Agent", block: Block, missing: Tensor, on_window: OnWindow) -> Played:
    """Accept events, ``block.window`` at a time, until every replica has its rounds or has passed the block."""
    play = _Play(agent, block)
    parts: list[tuple[Tensor, ...]] = []
    begin, end = play.first, play.first + block.length
    start = begin
    while bool(((missing > 0) & (start < end)).any()):
        window, filled, where, passed = play.foresee(start, missing)
        on_window(window)
        parts.append((filled, start.unsqueeze(1) + where, *window[:6]))
        missing = missing - filled.sum(1)
        start = torch.minimum(start + passed, end)
    columns = [torch.cat(column, dim=1) for column in zip(*parts, strict=True)]
    accepted, row, arm, score, mean, bonus, radius, dimension = columns
    return Played(
        accepted=accepted,
        row=block.row.to(row.device).flatten()[row],
        reward=block.click.flatten()[row],
        x=block.arms.flatten(0, 1)[row, arm],
        arm=arm,
        score=score,
        mean=mean,
        bonus=bonus,
        radius=radius,
        effective_dimension=dimension,
        passed=start - begin,
        missing=missing,
    )


class _Play:
    """A block, laid out for windows of its events."""

    def __init__(self, agent: "Agent", block: Block) -> None:
        self.agent, self.block = agent, block
        assert isinstance(agent.design, DiagonalDesign)
        self.design = agent.design
        replicas, padded = block.scored.shape[:2]
        device = block.scored.device
        self.first = torch.arange(replicas, device=device) * padded
        """(R,), where a replica's events begin among those of all"""
        self.events = block.scored.flatten(0, 1)
        self.logged = block.logged.flatten()
        self.ahead = torch.arange(block.window, device=device)
        # One event in three is more than agents accept; if not, the window ends early.
        self.slots = -(-block.window // 3)
        self.slot = torch.arange(self.slots, device=device)
        self._sizes = [2 + agent.thompson, *agent.observation_columns]

    def foresee(self, start: Tensor, missing: Tensor) -> tuple[Window, Tensor, Tensor, Tensor]:
        """Play the events from ``start`` (R,) on, which changes nothing.

        What comes back: a window of S slots, of which the ``filled`` (R, S) ones hold accepted events, ``where`` among
        the events these stand, and (R,) how many events are ``passed``.
        """
        agent, replicas, window = self.agent, len(start), len(self.ahead)
        event = (start.unsqueeze(1) + self.ahead).flatten()
        shown = self.events.index_select(0, event).unflatten(0, (replicas, window))
        logged = self.logged.index_select(0, event).view(replicas, window)
        head, _, *factors = torch.split_with_sizes(shown, self._sizes, dim=-1)
        mean, uniform = head[..., 0], head[..., 1]
        normal = head[..., 2] if agent.thompson else None
        squares = tuple(factors)
        at_logged = _of_arm(shown[..., head.shape[-1] :], logged.clamp_min(0))
        # a replica accepts what it misses, and what there are slots for
        most = missing.clamp_max(self.slots).unsqueeze(1)

        def accepted_by(score: Tensor) -> Tensor:
            match = agent.best(score, uniform) == logged
            return match & (match.cumsum(1) <= most)

        norm = self.design.norm(tuple(factor.flatten(1, 2) for factor in squares)).view_as(mean)
        accepted = accepted_by(agent.score_of(mean, norm, agent.radius[:, None, None], normal)[0])
        checks, right = 0, False
        while not right:
            checks += 1
            number = accepted.cumsum(1)
            filled = self.slot < number[:, -1:]
            # event -> slot; those that are not accepted land behind the last slot
            place = torch.where(accepted, number - 1, self.slots)
            where = place.new_zeros(replicas, self.slots + 1).scatter_(1, place, self.ahead.expand_as(place))[:, :-1]
            index = where.unsqueeze(-1).expand(-1, -1, at_logged.shape[-1])
            after = agent.confidences(at_logged.gather(1, index) * filled.unsqueeze(-1))
            # the matrix in force at an event: behind so many accepted ones
            before = number - accepted.long()
            norm = self.design.norm_with(after.design, squares, before)
            score, bonus = agent.score_of(mean, norm, after.radius.gather(1, before).unsqueeze(-1), normal)
            guess, accepted = accepted, accepted_by(score)
            right = torch.equal(guess, accepted)
        arm = logged.gather(1, where).clamp_min(0)

        def chosen(values: Tensor) -> Tensor:
            """(R, E, K) -> (R, S)"""
            return _of_arm(values.unsqueeze(-1), logged.clamp_min(0)).squeeze(-1).gather(1, where)

        # up to the last event that there was a slot for; a replica that misses nothing passes nothing
        full = filled.sum(1) == most.squeeze(1)
        passed = torch.where(full, (where * filled).amax(1) + 1, window).masked_fill(missing == 0, 0)
        radius, dimension = after.radius[:, 1:], after.effective_dimension[:, 1:]
        of_arms = chosen(score), chosen(mean), chosen(bonus)
        return Window(arm, *of_arms, radius, dimension, filled, after, checks), filled, where, passed


def _of_arm(values: Tensor, arm: Tensor) -> Tensor:
    """The entries of one arm: (R, C, K, ...) and (R, C) -> (R, C, ...)"""
    index = arm[..., None, None].expand(-1, -1, 1, values.shape[-1])
    return values.gather(2, index).squeeze(2)
