"""What comes in is checked here: what was expected, what came, what to do."""

from typing import Any

import torch
from torch import Tensor

from nl_lightning.core.errors import InputError
from nl_lightning.core.types import Choice
from nl_lightning.core.whole import check_whole as check_whole
from nl_lightning.core.whole import is_number as is_number
from nl_lightning.core.whole import is_whole as is_whole
from nl_lightning.core.whole import plain as plain

__all__ = [
    "check_arms",
    "check_blocks",
    "check_finite",
    "check_observations",
    "check_replica",
    "check_reward",
    "check_same_agent",
    "check_weight",
    "check_whole",
    "is_number",
    "is_whole",
    "plain",
]


def _tensor(name: str, values: Any, device: torch.device, expected: str) -> Tensor:
    """What a user gave as a dense tensor of real numbers."""
    try:
        found = torch.as_tensor(values, device=device)
    except (TypeError, ValueError, RuntimeError, KeyError, NotImplementedError) as error:
        raise InputError(f"{name} must be {expected}, as a tensor, an array or lists; got {_shown(values)}.") from error
    if found.layout != torch.strided or found.is_nested or found.is_quantized or found.is_complex():
        raise InputError(f"{name} must be {expected}, as a dense tensor of real numbers; got {_shown(values)}.")
    return found


def _shown(values: Any) -> str:
    if isinstance(values, Tensor):
        return (
            f"a {'nested' if values.is_nested else str(values.layout).removeprefix('torch.')} tensor of {values.dtype}"
        )
    text = repr(values)
    return f"{type(values).__name__} {text}" if len(text) <= 60 else type(values).__name__


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
    arms: Any,
    mask: Any,
    replicas: int,
    dim: int,
    like: Tensor,
    blocks: int = 1,
    name: str = "arms",
    what: str = "arm",
) -> tuple[Tensor, Tensor | None]:
    """Arms are (R, K, d), or (K, d) for all replicas, with K >= 1 and finite features; they become (R, K, d) ``like``
    another tensor. A mask is boolean, (R, K) or (K,), with an arm for every replica.

    The arms come back as a copy: the reward may come after the caller has put other numbers into the tensor.
    """
    arms = _tensor(name, arms, like.device, f"numbers of shape (K, {dim}) or ({replicas}, K, {dim})")
    if arms.dim() not in (2, 3) or arms.shape[-1] != dim or (arms.dim() == 3 and arms.shape[0] != replicas):
        expected = f"({replicas}, K, {dim}) or (K, {dim})"
        raise InputError(f"{name} must have the shape {expected}, got {tuple(arms.shape)}.")
    if arms.shape[-2] == 0:
        raise InputError(f"There is no {what}: {name} has the shape {tuple(arms.shape)}.")
    arms = arms.detach().to(like.dtype, copy=True)
    check_finite(name, arms)
    check_blocks(arms, blocks)
    if arms.dim() == 2:
        arms = arms.expand(replicas, -1, -1)
    if mask is None:
        return arms, None
    mask = _tensor("mask", mask, like.device, f"booleans, one for each of the {arms.shape[1]} arms")
    if mask.dtype != torch.bool or mask.shape not in (arms.shape[:2], arms.shape[1:2]):
        expected = f"boolean of shape {tuple(arms.shape[:2])} or {tuple(arms.shape[1:2])}"
        raise InputError(f"mask must be {expected}; got {mask.dtype}, {tuple(mask.shape)}.")
    mask = mask.expand(arms.shape[:2])
    if not mask.any(1).all():
        raise InputError("mask leaves a replica no arm to choose from.")
    return arms, mask


def check_same_agent(choice: Any, owner: str, replicas: int, dim: int, columns: int) -> None:
    """A choice is learned by the agent that made it, a copy of it, or the agent of its checkpoint."""
    if not isinstance(choice, Choice):
        raise InputError(f"observe takes the Choice that act returned, got {_shown(choice)}.")
    view, expected = choice.view, (replicas, choice.score.shape[1], columns)
    if view.observation.shape != expected or view.arms.shape[-1] != dim or view.owner not in (None, owner):
        raise InputError(
            "This choice is another agent's: its algorithm, settings, seeds, features or network differ. Give it to "
            "the agent that made it."
        )


def check_replica(replica: object, replicas: int) -> None:
    """One of R replicas, by its number."""
    if not is_whole(replica, 0) or int(replica) >= replicas:  # type: ignore[call-overload]
        raise InputError(f"replica must be a whole number from 0 to {replicas - 1}, got {replica!r}.")


def check_finite(name: str, values: Tensor) -> None:
    """NaN and infinity are never repaired quietly."""
    # The sum of what is not finite is not finite, and it is had in a twentieth of the time; a sum may overflow, though.
    if not values.sum().isfinite() and not values.isfinite().all():
        place = (~values.isfinite()).nonzero()[0].tolist()
        raise InputError(
            f"{name} must be finite, got {values[tuple(place)].item()} at index {tuple(place)}; "
            "features must be clean and of moderate size."
        )


def check_weight(weight: Any, shape: Any, like: Tensor) -> Tensor:
    """Weights of observations are finite and at least 0; one number stands for all."""
    weight = _tensor("weight", weight, like.device, f"a number or numbers of shape {tuple(shape)}").to(like.dtype)
    if weight.dim() == 0:
        weight = weight.expand(shape)
    if weight.shape != shape:
        raise InputError(f"weight must have the shape {tuple(shape)}, one an observation; got {tuple(weight.shape)}.")
    if not (weight.isfinite() & (weight >= 0)).all():
        raise InputError("weight must be finite and at least 0 for every observation.")
    return weight


def check_observations(
    x: Any, reward: Any, weight: Any, replicas: int, dim: int, like: Tensor, blocks: int = 1
) -> tuple[Tensor, Tensor, Tensor | None]:
    """x is (n, d) or (R, n, d); reward, of 0 and 1, and weight are (n,) or (R, n). They become those of R replicas."""
    x, _ = check_arms(x, None, replicas, dim, like, blocks, "x", "observation")
    n = x.shape[1]

    def of_all(name: str, values: Any) -> Tensor:
        values = _tensor(name, values, like.device, f"numbers of shape ({n},) or ({replicas}, {n})")
        if tuple(values.shape) not in ((n,), (replicas, n)):
            raise InputError(f"{name} must have the shape ({n},) or ({replicas}, {n}), got {tuple(values.shape)}.")
        return values.expand(replicas, n)

    reward = of_all("reward", reward)
    known = (reward == 0) | (reward == 1)
    if not known.all():
        place = tuple((~known).nonzero()[0].tolist())
        raise InputError(f"reward must be 0 or 1 (a click), got {reward[place].item()} at index {place}.")
    if weight is not None:
        weight = check_weight(of_all("weight", weight), reward.shape, like)
    return x, reward.to(like.dtype), weight


def check_reward(reward: Any, accepted: Any, arm: Tensor) -> tuple[Tensor, Tensor | None]:
    """reward is (R,) of 0 and 1, or a plain number where R = 1; accepted None or (R,) of booleans."""
    reward = _tensor("reward", reward, arm.device, f"{len(arm)} of 0 and 1, one a replica")
    if reward.dim() == 0 and len(arm) == 1:
        reward = reward.unsqueeze(0)
    if reward.shape != arm.shape:
        raise InputError(f"reward must have the shape {tuple(arm.shape)}, one a replica; got {tuple(reward.shape)}.")
    if accepted is not None:
        accepted = _tensor("accepted", accepted, arm.device, f"{len(arm)} booleans, one a replica")
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
