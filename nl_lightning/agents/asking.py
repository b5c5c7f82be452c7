"""An agent that redefines how it chooses is asked itself, and what it answers is checked."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nl_lightning.agents.probabilities import best_of_all
from nl_lightning.core.checks import check_finite
from nl_lightning.core.errors import InputError
from nl_lightning.core.rng import Stream, generator
from nl_lightning.core.types import Choice, View

__all__ = ["ask", "asked_probabilities", "mean_and_bonus", "views"]

_APART = 2**40
"""Draws of an agent's own ``act`` that is asked for probabilities begin here, far from those of its choices."""


def ask(agent: Any, arms: Tensor, mask: Tensor | None, view: View | None) -> Choice:
    """The choice of an agent among arms (R, K, d), by its own ``act`` or, given their view, ``choose``."""
    own = agent.own_choice
    if "act" in own or view is None:
        choice = agent.act(arms) if mask is None else agent.act(arms, mask)
    else:
        choice = agent.choose(view)
    if own:
        _check(choice, type(agent).__name__, "act" if "act" in own else "choose", arms, mask)
    return choice  # type: ignore[no-any-return]


def views(agent: Any, arms: Tensor, mask: Tensor | None) -> Sequence[View | None]:
    """The views of rounds (R, C, K, d), one by one; None where the agent's own ``act`` makes them, and its draws."""
    return [None] * arms.shape[1] if "act" in agent.own_choice else agent.featurize(arms, mask).unbind()


@torch.no_grad()
def mean_and_bonus(agent: Any, arms: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and bonus (R, N) of arms (R, N, d), for an agent that is asked and does not learn."""
    view = agent.featurize(arms, noise=(arms.new_zeros(arms.shape[:-1]), None))
    bonus = agent.design.norm(view.factors).mul_(agent.radius.unsqueeze(1))
    check_finite("scores", view.mean + bonus)
    return view.mean, bonus


@torch.no_grad()
def asked_probabilities(agent: Any, arms: Tensor, mask: Tensor | None, draws: int) -> Tensor:
    """(R, K): the chance of every arm of (R, K, d); see ``Agent.probabilities``. The agent's random draws go on as if
    it had not been asked: the numbers are functions of its seeds and of how many it has drawn."""
    position, count = agent.noise.position, arms.shape[1]
    shape = (draws if agent.draws_choices or not agent.decides_by_score else 1, count)
    generators = [generator(seed, Stream.PROBABILITIES, position, count) for seed in agent.noise.seeds]

    def drawn(draw: Any) -> Tensor:
        numbers = [draw(*shape, generator=g, dtype=torch.float64, device="cpu") for g in generators]
        return torch.stack(numbers).to(agent.lam)

    uniform = 1 - drawn(torch.rand)
    normal = drawn(torch.randn) if agent.exploration.stochastic else None
    if agent.decides_by_score:
        mean, bonus = mean_and_bonus(agent, arms)
        if mask is not None:
            mean = mean.masked_fill(~mask, -torch.inf)
        every = mean.unsqueeze(1).expand(-1, *shape), bonus.unsqueeze(1).expand(-1, *shape)
        return best_of_all(agent.exploration.score(*every, normal), agent.tie_tolerance).mean(1)
    chosen = []
    try:
        for draw in range(shape[0]):
            agent.noise.position = _APART + position * draws + draw
            view = None
            if "act" not in agent.own_choice:
                noise = uniform[:, draw], None if normal is None else normal[:, draw]
                view = agent.featurize(arms, mask, noise=noise)
            chosen.append(ask(agent, arms, mask, view).arm)
    finally:
        agent.noise.position = position
    return torch.nn.functional.one_hot(torch.stack(chosen), count).to(agent.lam).mean(0)


def _check(choice: Any, agent: str, method: str, shown: Tensor, mask: Tensor | None) -> None:
    if not isinstance(choice, Choice):
        raise InputError(f"{agent}.{method} must return a Choice, got {type(choice).__name__}.")
    replicas, arms = shown.shape[:2]
    arm = choice.arm
    if arm.shape != (replicas,) or arm.dtype != torch.long:
        raise InputError(
            f"{agent}.{method}: arm must be int64 of shape ({replicas},), one a replica; got {arm.dtype}, "
            f"{tuple(arm.shape)}."
        )
    inside = (arm >= 0) & (arm < arms)
    if not inside.all():
        raise InputError(f"{agent}.{method}: arm must lie between 0 and {arms - 1}, got {int(arm[~inside][0])}.")
    if mask is not None and not mask.gather(1, arm.unsqueeze(1)).all():
        raise InputError(f"{agent}.{method} has chosen an arm that the round does not have.")
