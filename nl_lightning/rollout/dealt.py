"""Rounds of a simulation: all replicas are in the same round, and every round is accepted."""

from typing import cast

import torch
from torch import Tensor

from nl_lightning.agents.asking import ask, views
from nl_lightning.agents.base import Agent
from nl_lightning.core.types import Choice, Deal, Round, View, Window, of_arm
from nl_lightning.rollout.lookahead import first_guess, look_ahead

__all__ = ["DealtBlock", "DealtRound", "join"]


class DealtRound(Round):
    """A round of a simulation: number (R,), rewards and regrets (R, K) of all arms."""

    def __init__(
        self,
        number: Tensor,
        choice: Choice,
        rewards: Tensor,
        regrets: Tensor | None,
        accepted: Tensor | None,
        rows_follow: bool,
    ) -> None:
        super().__init__(accepted, rows_follow)
        self._number, self._choice, self._rewards, self._regrets = number, choice, rewards, regrets

    @property
    def t(self) -> Tensor:
        return self._number

    @property
    def choice(self) -> Choice:
        return self._choice

    @property
    def observed(self) -> Tensor:
        return self._choice.observed

    @property
    def reward(self) -> Tensor:
        return self._choice.chosen(self._rewards)

    @property
    def regret(self) -> Tensor | None:
        return None if self._regrets is None else self._choice.chosen(self._regrets)


class DealtBlock:
    """The rounds of a deal, played by an agent.

    Args:
        agent: who plays them.
        deal: (R, C, K, ...).
        first: number of the first one, counted from 1.
        window: rounds that are looked ahead together; 1 where they are played one by one.
        rows_follow: see ``Round``.
    """

    def __init__(self, agent: Agent, deal: Deal, first: int, window: int, rows_follow: bool) -> None:
        self.agent, self.deal, self.window, self.rows_follow = agent, deal, window, rows_follow
        self.alive, self.rounds = agent.alive, deal.arms.shape[1]
        self.place = 0
        """rounds played"""
        self._steps: list[tuple[Tensor, ...]] = []
        self._windows: list[Window] = []
        if window == 1:
            self._numbers = torch.arange(first, first + self.rounds, device=agent.lam.device)
            self._views = views(agent, deal.arms, deal.mask)

    def steps(self) -> int:
        """Rounds that are left."""
        return self.rounds - self.place

    # ---- one by one -------------------------------------------------------------------------------------------------

    def step(self) -> Round:
        """Score and accept the next round."""
        deal, t = self.deal, self.place
        mask = None if deal.mask is None else deal.mask[:, t]
        self._choice = ask(self.agent, deal.arms[:, t], mask, self._views[t])
        number = self._numbers[t].expand(self.agent.replicas)
        regrets = None if deal.regret is None else deal.regret[:, t]
        return DealtRound(number, self._choice, deal.reward[:, t], regrets, self.alive, self.rows_follow)

    def record(self) -> None:
        """Keep what the last round was, and what came of it."""
        # Buffers by their dictionary: asked for by name, nn.Module looks for them in three places.
        state = cast(dict[str, Tensor], self.agent._buffers)
        self._steps.append((*self._choice[:4], state["radius"], state["effective_dimension"]))
        self.place += 1

    # ---- together ---------------------------------------------------------------------------------------------------

    def look_ahead(self, left: int) -> Window:
        """Score and accept the next rounds, of ``left`` that are left."""
        part = self.deal.rounds(self.place, self.place + min(self.window, left))
        view = self.agent.featurize(part.arms, part.mask)
        found = look_ahead(self.agent, view, self, first_guess(self.agent, view))
        of_chosen = (of_arm(values, found.guess) for values in (found.score, view.mean, found.bonus))
        radius, dimension = found.prefix.radius[:, 1:], found.prefix.effective_dimension[:, 1:]
        window = self._window(part, found.guess, *of_chosen, radius, dimension)
        self.place += part.arms.shape[1]
        self._windows.append(window)
        return window._replace(prefix=found.prefix, checks=found.checks)

    def guess(self, arm: Tensor, replicas: Tensor | None) -> Tensor:
        """The arms themselves."""
        return arm

    def observed(self, view: View, guess: Tensor, replicas: Tensor | None) -> tuple[Tensor, None]:
        """The observation of every round; replicas that have diverged choose, but do not learn."""
        found = of_arm(view.observation, guess)
        alive = self.alive if self.alive is None or replicas is None else self.alive.index_select(0, replicas)
        return found if alive is None else found * alive.view(-1, 1, 1), None

    # ---- the end ----------------------------------------------------------------------------------------------------

    def played(self) -> Window:
        """All rounds of the block."""
        if self._windows:
            return join(self._windows)
        arm, score, mean, bonus, radius, dimension = (
            torch.stack(column, dim=1) for column in zip(*self._steps, strict=True)
        )
        of_chosen = (of_arm(values, arm) for values in (score, mean, bonus))
        return self._window(self.deal, arm, *of_chosen, radius, dimension)

    def _window(self, deal: Deal, arm: Tensor, *values: Tensor) -> Window:
        score, mean, bonus, radius, dimension = values
        return Window(
            x=of_arm(deal.arms, arm),
            arm=arm,
            reward=of_arm(deal.reward, arm),
            regret=None if deal.regret is None else of_arm(deal.regret, arm),
            score=score,
            mean=mean,
            bonus=bonus,
            radius=radius,
            effective_dimension=dimension,
            event=None,
            filled=None if self.alive is None else self.alive.unsqueeze(1).expand_as(arm),
        )


def join(windows: list[Window]) -> Window:
    """Windows one after the other."""
    if len(windows) == 1:
        return windows[0]
    columns = zip(*(window[:11] for window in windows), strict=True)
    return Window(*(None if column[0] is None else torch.cat(column, dim=1) for column in columns))  # type: ignore[arg-type]
