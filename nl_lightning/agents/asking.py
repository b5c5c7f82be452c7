"""An agent that redefines how it chooses is asked itself, and what it answers is checked."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nl_lightning.core.checks import check_finite
from nl_lightning.core.errors import InputError
from nl_lightning.core.types import Choice, View

__all__ = ["ask", "mean_and_bonus", "views"]


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
