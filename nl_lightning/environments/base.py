"""What agents play in: the abstract environment, and the simulation, which knows the reward of every arm."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast, final

import torch
from torch import Tensor

from nl_lightning.core.checks import check_blocks, check_finite
from nl_lightning.core.errors import InputError
from nl_lightning.core.replicas import Share
from nl_lightning.core.rng import CHUNK
from nl_lightning.core.types import Choice, History, Round
from nl_lightning.rollout.lookahead import Window, foresee, rounds_at_once

if TYPE_CHECKING:
    from nl_lightning.agents.base import Agent

OnRound = Callable[[Round], None]
"""What is done after every round: design matrix and radii first of all."""
OnWindow = Callable[[Window], None]
"""The same after rounds that were played at once."""


class Environment(ABC):
    """Where an agent's rounds come from."""

    dim: int
    """d, the numbers of an arm: its features and, with blocks, the block's number"""
    blocks: int = 1
    """K where an arm is (x, k), whose last number is the block k in which x stands; 1 where an arm is x itself"""
    knows_regret: bool
    """Whether a run is judged by its regret, or else by its rewards"""

    @abstractmethod
    def prepare(self, seeds: Sequence[int], like: Tensor, share: Share | None = None) -> None:
        """Begin anew with these replicas; arms will have the device and the precision of ``like``.

        ``share`` tells which replicas of the run they are, left out, all of them.
        """

    @abstractmethod
    def play(
        self, agent: "Agent", start: int, count: int, on_round: OnRound, on_window: OnWindow | None = None
    ) -> History:
        """Play rounds start + 1, ..., start + count; fewer, if no replica can go on so far.

        Where there is ``on_window``, rounds may be played several at once.
        """

    @property
    def ended(self) -> bool:
        """Whether no round is left for any replica."""
        return False

    def counts(self) -> dict[str, Any]:
        """What else is to be told of a run: over all replicas, and under ``replicas`` of each."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What is needed to go on, beside the number of rounds."""
        return {}

    @staticmethod
    def join(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The state of all replicas, from the own ones of each process."""
        return states[0]

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Go on from here; where rounds are functions of their number, there is nothing to do."""


class Deal(NamedTuple):
    """C rounds of R replicas with K arms each."""

    arms: Tensor
    """(R, C, K, d)"""
    reward: Tensor
    """(R, C, K), the reward that each arm would give"""
    regret: Tensor
    """(R, C, K), what choosing this arm loses against the best one, in expectation"""

    def rounds(self, start: int, stop: int) -> "Deal":
        return Deal(self.arms[:, start:stop], self.reward[:, start:stop], self.regret[:, start:stop])


@final
class _DealtRound(Round):
    """A round of a simulation: number (R,), rewards and regrets (R, K) of all arms."""

    def __init__(
        self, number: Tensor, choice: Choice, rewards: Tensor, regrets: Tensor, accepted: Tensor | None
    ) -> None:
        super().__init__(accepted, choice.observed)
        self._number, self._choice, self._rewards, self._regrets = number, choice, rewards, regrets

    @property
    def t(self) -> Tensor:
        return self._number

    @property
    def choice(self) -> Choice:
        return self._choice

    @property
    def reward(self) -> Tensor:
        return self._choice.chosen(self._rewards)

    @property
    def regret(self) -> Tensor:
        return self._choice.chosen(self._regrets)


class _Played(NamedTuple):
    """C rounds, each tensor (R, C); score, mean and bonus are those of the chosen arm."""

    arm: Tensor
    score: Tensor
    mean: Tensor
    bonus: Tensor
    radius: Tensor
    effective_dimension: Tensor


def _one_by_one(agent: "Agent", deal: Deal, t: Tensor, on_round: OnRound) -> _Played:
    """Rounds with numbers t (C,)."""
    alive, rounds = agent.alive, []
    # Buffers by their dictionary: asked for by name, nn.Module looks for them in three places.
    state = cast(dict[str, Tensor], agent._buffers)
    numbers = t.to(agent.lam.device).unsqueeze(1).expand(-1, agent.replicas).unbind(0)
    dealt = zip(agent.look_ahead(deal.arms), numbers, deal.reward.unbind(1), deal.regret.unbind(1), strict=True)
    for view, number, rewards, regrets in dealt:
        choice = agent.choose(view)
        on_round(_DealtRound(number, choice, rewards, regrets, alive))
        rounds.append((*choice[:4], state["radius"], state["effective_dimension"]))
    arm, score, mean, bonus, radius, dimension = (torch.stack(column, dim=1) for column in zip(*rounds, strict=True))
    return _Played(arm, _chosen(score, arm), _chosen(mean, arm), _chosen(bonus, arm), radius, dimension)


def _at_once(agent: "Agent", deal: Deal, together: int, on_window: OnWindow) -> _Played:
    """So many rounds together, and then the next."""
    parts = []
    for start in range(0, deal.arms.shape[1], together):
        window = foresee(agent, agent.look_at(deal.arms[:, start : start + together]), agent.alive)
        on_window(window)
        parts.append(window[:6])
    return _Played(*(torch.cat(column, dim=1) for column in zip(*parts, strict=True)))


def _chosen(values: Tensor, arm: Tensor) -> Tensor:
    """The entries of the chosen arms: (R, C, K) and (R, C) -> (R, C)"""
    return values.gather(2, arm.unsqueeze(2)).squeeze(2)


class Simulation(Environment):
    """Deals rounds 0, 1, 2, ... of R replicas as a function of the round: it has no state to keep or to lose."""

    knows_regret = True

    def __init__(self) -> None:
        self._like = torch.empty(0, device="cpu")
        self._chunks: dict[int, Deal] = {}

    def prepare(self, seeds: Sequence[int], like: Tensor, share: Share | None = None) -> None:
        self._like = like
        self._chunks = {}
        self.share = share or Share.whole(len(seeds))
        self._prepare(seeds)

    def play(
        self, agent: "Agent", start: int, count: int, on_round: OnRound, on_window: OnWindow | None = None
    ) -> History:
        deal = self.deal(start, count)
        t = torch.arange(start + 1, start + count + 1, device="cpu")
        together = 1 if on_window is None else rounds_at_once(agent, count)
        if on_window is None or together == 1:
            played = _one_by_one(agent, deal, t, on_round)
        else:
            played = _at_once(agent, deal, together, on_window)
        arm, alive = played.arm, agent.alive
        index = arm[..., None, None].expand(-1, -1, 1, self.dim)
        return History(
            t=t,
            x=deal.arms.gather(2, index).squeeze(2),
            reward=_chosen(deal.reward, arm),
            regret=_chosen(deal.regret, arm),
            **played._asdict(),
            valid=None if alive is None else alive.unsqueeze(1).expand(-1, count),
        )

    def deal(self, start: int, count: int) -> Deal:
        """Rounds start, ..., start + count - 1."""
        parts = []
        for chunk in range(start // CHUNK, (start + count - 1) // CHUNK + 1):
            first = chunk * CHUNK
            parts.append(self._chunk(chunk).rounds(max(start - first, 0), min(start + count - first, CHUNK)))
        if len(parts) == 1:
            return parts[0]
        return Deal(
            torch.cat([part.arms for part in parts], dim=1),
            torch.cat([part.reward for part in parts], dim=1),
            torch.cat([part.regret for part in parts], dim=1),
        )

    def latent(self, start: int, count: int) -> Tensor | None:
        """h of the arms of rounds start, ..., start + count - 1, (R, C, K) in float64; None where nobody knows it.

        Clicks come with probability mu(h), but h cannot be had from that: mu is 1 in floating point long before h ends.
        """
        return None

    def _chunk(self, chunk: int) -> Deal:
        if chunk not in self._chunks:
            arms, reward, regret = self._deal_chunk(chunk)
            arms = arms.to(self._like)
            # arms as the agent gets them; rewards and regrets as they are, for which nobody waits for a device
            self._check(Deal(arms, reward, regret))
            # A block of rounds may reach into the next chunk, never back behind the one before.
            self._chunks = {k: v for k, v in self._chunks.items() if k == chunk - 1}
            self._chunks[chunk] = Deal(arms, reward.to(self._like), regret.to(self._like.device))
        return self._chunks[chunk]

    def _check(self, deal: Deal) -> None:
        """What an environment deals is looked at once a chunk, not once a round."""
        shape = deal.arms.shape[:3]
        if deal.arms.dim() != 4 or deal.arms.shape[3] != self.dim or shape[2] == 0:
            raise InputError(f"An environment deals arms (R, C, K >= 1, {self.dim}), got {tuple(deal.arms.shape)}.")
        for name, values in (("rewards", deal.reward), ("regrets", deal.regret)):
            if values.shape != shape:
                raise InputError(f"An environment deals {name} {tuple(shape)}, got {tuple(values.shape)}.")
        if not ((deal.reward == 0) | (deal.reward == 1)).all():
            raise InputError("An environment's rewards must be 0 or 1 (a click).")
        check_finite("an environment's arms", deal.arms)
        check_blocks(deal.arms, self.blocks)
        check_finite("an environment's regrets", deal.regret)

    @abstractmethod
    def _prepare(self, seeds: Sequence[int]) -> None:
        """Make the problem of every replica from its seed."""

    @abstractmethod
    def _deal_chunk(self, chunk: int) -> Deal:
        """Rounds chunk * CHUNK, ..., of all replicas; the same whenever it is asked."""
