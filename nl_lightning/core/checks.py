"""What comes in is checked here: what was expected, what came, what to do."""

from typing import Any

import torch
from torch import Tensor

from nl_lightning.core.errors import InputError
from nl_lightning.core.types import Choice
from nl_lightning.core.whole import check_whole as check_whole
from nl_lightning.core.whole import is_whole as is_whole

__all__ = ["check_arms", "check_blocks", "check_finite", "check_reward", "check_same_agent", "check_whole", "is_whole"]


def check_blocks(arms: Tensor, blocks: int) -> None:
    """The last number of an arm (x, k) is the number of a block."""
    if blocks > 1:
        k = arms[..., -1]
        known = (k == k.round()) & (k >= 0) & (k < blocks)
        if not known.all():
            raise InputError(
                f"With {blocks} blocks the last number of an arm is that of its block, 0 to {blocks - 1}; "
                f"got {k[~known][0].item():g}."
            )


def check_arms(
    arms: Any, mask: Any, replicas: int, dim: int, like: Tensor, blocks: int = 1
) -> tuple[Tensor, Tensor | None]:
    """Arms are (R, K, d), or (K, d) for all replicas, with K >= 1 and finite features; they become (R, K, d) ``like``
    another tensor. A mask is boolean, (R, K) or (K,), with an arm for every replica.

    The arms come back as a copy: the reward may come after the caller has put other numbers into the tensor.
    """
    arms = torch.as_tensor(arms, device=like.device)
    if arms.dim() not in (2, 3) or arms.shape[-1] != dim or (arms.dim() == 3 and arms.shape[0] != replicas):
        expected = f"({replicas}, K, {dim}) or (K, {dim})"
        raise InputError(f"arms must have the shape {expected}, got {tuple(arms.shape)}.")
    if arms.shape[-2] == 0:
        raise InputError("There is no arm to choose from: K is 0.")
    arms = arms.detach().to(like.dtype, copy=True)
    check_finite("arms", arms)
    check_blocks(arms, blocks)
    if arms.dim() == 2:
        arms = arms.expand(replicas, -1, -1)
    if mask is None:
        return arms, None
    mask = torch.as_tensor(mask, device=like.device)
    if mask.dtype != torch.bool or mask.shape not in (arms.shape[:2], arms.shape[1:2]):
        expected = f"boolean of shape {tuple(arms.shape[:2])} or {tuple(arms.shape[1:2])}"
        raise InputError(f"mask must be {expected}; got {mask.dtype}, {tuple(mask.shape)}.")
    mask = mask.expand(arms.shape[:2])
    if not mask.any(1).all():
        raise InputError("mask leaves a replica no arm to choose from.")
    return arms, mask


def check_same_agent(choice: Choice, replicas: int, dim: int, columns: int) -> None:
    """A choice is learned by the agent that made it."""
    expected = (replicas, choice.score.shape[1], columns)
    if choice.view.observation.shape != expected or choice.view.arms.shape[-1] != dim:
        raise InputError("This choice is another agent's: its replicas, features or network differ.")


def check_finite(name: str, values: Tensor) -> None:
    """NaN and infinity are never repaired quietly."""
    # The sum of what is not finite is not finite, and it is had in a twentieth of the time; a sum may overflow, though.
    if not values.sum().isfinite() and not values.isfinite().all():
        place = (~values.isfinite()).nonzero()[0].tolist()
        raise InputError(
            f"{name} must be finite, got {values[tuple(place)].item()} at index {tuple(place)}; "
            "features must be clean and of moderate size."
        )


def check_reward(reward: Any, accepted: Any, arm: Tensor) -> tuple[Tensor, Tensor | None]:
    """reward is (R,) of 0 and 1, or a plain number where R = 1; accepted None or (R,) of booleans."""
    reward = torch.as_tensor(reward, device=arm.device)
    if reward.dim() == 0 and len(arm) == 1:
        reward = reward.unsqueeze(0)
    if reward.shape != arm.shape:
        raise InputError(f"reward must have the shape {tuple(arm.shape)}, one a replica; got {tuple(reward.shape)}.")
    if accepted is not None:
        accepted = torch.as_tensor(accepted, device=arm.device)
        if accepted.shape != arm.shape or accepted.dtype != torch.bool:
            raise InputError(
                f"accepted must be boolean of shape {tuple(arm.shape)}; got {accepted.dtype}, {tuple(accepted.shape)}."
            )
    known = (reward == 0) | (reward == 1)
    if accepted is not None:
        # The reward of a masked replica is not looked at, so that a log may leave it unknown.
        known |= ~accepted
        reward = torch.where(accepted, reward, torch.zeros_like(reward))
    if not known.all():
        replica = int((~known).nonzero()[0])
        raise InputError(f"reward must be 0 or 1 (a click), got {reward[replica].item()} in replica {replica}.")
    return reward, accepted
