"""Rejection sampling of many events at once: a guess of which are accepted, checked until it bears itself out.

As in ``nl_lightning.ahead``: an agent's choice depends on earlier events only through the diagonals of its design
matrices, and an event that is accepted was shown with the arm that the log has. So the guess is one bit an event; given
it, the diagonals behind every accepted event are cumulative sums, and whether each event is accepted with those that
stand before it is computed for all events at once.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nl_lightning.ahead import Window
from nl_lightning.design import DiagonalDesign
from nl_lightning.environments import OnWindow
from replay.matching import Block, Played

if TYPE_CHECKING:
    from nl_lightning.agent import Agent

_EVENTS = 64
"""at once; with more a guess is right less often"""
_ENTRIES = 120_000
"""Of the diagonals of all events at once, for all replicas of a run: beyond this a guess costs more than it saves."""


def events_at_once(agent: "Agent") -> int:
    """How many events are played at once; 0 where they are better played match by match (see ``rounds_at_once``)."""
    if not isinstance(agent.design, DiagonalDesign):
        return 0
    entries = agent.share.total * agent.design.diagonal.shape[1] * _EVENTS
    return _EVENTS if entries <= _ENTRIES else 0


def play_block_ahead(agent: "Agent", block: Block, missing: Tensor, on_window: OnWindow) -> Played:
    """Accept events, ``block.window`` at a time, until every replica has its rounds or has passed the block."""
    play = _Play(agent, block)
    parts: list[tuple[Tensor, ...]] = []
    begin, end = play.first, play.first + block.length
    start = begin
    while bool(((missing > 0) & (start < end)).any()):
        window, filled, where, mean, passed = play.foresee(start, missing)
        on_window(window)
        parts.append((filled, start.unsqueeze(1) + where, window.arm, mean, *window[1:5]))
        missing = missing - filled.sum(1)
        start = torch.minimum(start + passed, end)
    columns = [torch.cat(column, dim=1) for column in zip(*parts, strict=True)]
    accepted, row, arm, means, score, bonus, radius, dimension = columns
    return Played(
        accepted=accepted,
        row=block.row.to(row.device).flatten()[row],
        reward=block.click.flatten()[row],
        x=block.arms.flatten(0, 1)[row, arm],
        arm=arm,
        score=score,
        mean=means,
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
        assert isinstance(agent.information, DiagonalDesign)
        self.design, self.information = agent.design, agent.information
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

    def foresee(self, start: Tensor, missing: Tensor) -> tuple[Window, Tensor, Tensor, Tensor, Tensor]:
        """Play the events from ``start`` (R,) on, which changes nothing.

        What comes back: (R, S) slots, of which the ``filled`` ones hold accepted events, and ``where`` in the window
        these stand; the mean of their arms; and (R,) how many events are ``passed``.
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
            observed = at_logged.gather(1, index) * filled.unsqueeze(-1)
            weight, *picked = torch.split_with_sizes(observed, agent.observation_columns, dim=-1)
            grown = self.design.cumulated(tuple(picked), weight)
            informed = self.information.cumulated(tuple(picked), agent._information_weight)
            dimension = informed.log().sum(-1)
            radius = agent._radius(dimension.mT).mT
            # the matrix in force at an event: behind so many accepted ones
            before = number - accepted.long()
            norm = self.design.norm_with(grown, squares, before)
            score, bonus = agent.score_of(mean, norm, radius.gather(1, before).unsqueeze(-1), normal)
            guess, accepted = accepted, accepted_by(score)
            right = torch.equal(guess, accepted)
        arm = logged.gather(1, where).clamp_min(0)

        def chosen(values: Tensor) -> Tensor:
            return _of_arm(values.gather(1, where.unsqueeze(-1).expand(-1, -1, values.shape[2])).unsqueeze(-1), arm)[
                ..., 0
            ]

        # up to the last event that there was a slot for; a replica that misses nothing passes nothing
        full = filled.sum(1) == most.squeeze(1)
        passed = torch.where(full, (where * filled).amax(1) + 1, window).masked_fill(missing == 0, 0)
        played = Window(
            arm,
            chosen(score),
            chosen(bonus),
            radius[:, 1:],
            dimension[:, 1:],
            (grown[:, -1], informed[:, -1]),
            checks,
        )
        return played, filled, where, chosen(mean), passed


def _of_arm(values: Tensor, arm: Tensor) -> Tensor:
    """The entries of one arm: (R, C, K, ...) and (R, C) -> (R, C, ...)"""
    index = arm[..., None, None].expand(-1, -1, 1, values.shape[-1])
    return values.gather(2, index).squeeze(2)
