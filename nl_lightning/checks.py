"""What comes in is checked here: what was expected, what came, what to do."""

import math
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from nl_lightning.errors import InputError


def is_whole(value: object, least: int) -> bool:
    """Whether a value is a whole number (Python's or NumPy's, not a boolean) of at least ``least``."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def check_whole(least: int, **values: object) -> None:
    """Each of the named values is a whole number of at least ``least``."""
    for name, value in values.items():
        if not is_whole(value, least):
            raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}.")


def check_training_settings(
    *,
    dim: int,
    mode: str,
    design: str,
    init: str,
    on_divergence: str,
    delta: float,
    lr: float,
    steps: int,
    update_every: int,
) -> None:
    """Refuse settings of an agent that no run could use."""
    check_whole(1, dim=dim, steps=steps, update_every=update_every)
    for name, text, known in (
        ("mode", mode, ["practical"]),
        ("design", design, ["diagonal", "full"]),
        ("init", init, ["uniform", "symmetric"]),
        ("on_divergence", on_divergence, ["auto", "stop", "mark"]),
    ):
        if text not in known:
            raise InputError(f"{name} must be one of {', '.join(known)}; got {text!r}.")
    if not 0 < delta < 1:
        raise InputError(f"delta must lie between 0 and 1, got {delta!r}.")
    if not (lr > 0 and math.isfinite(lr)):
        raise InputError(f"lr must be a finite number greater than 0, got {lr!r}.")


def check_arms(arms: Any, replicas: int, like: Tensor) -> Tensor:
    """Arms are (R, K, d), or (K, d) for all replicas, with K >= 1 and finite features; ``like`` is (R, out, d).

    What comes back is a copy: a reward may come when the caller has long put other numbers into its tensor.
    """
    dim = like.shape[-1]
    arms = torch.as_tensor(arms)
    if arms.dim() not in (2, 3) or arms.shape[-1] != dim or (arms.dim() == 3 and arms.shape[0] != replicas):
        expected = f"({replicas}, K, {dim}) or (K, {dim})"
        raise InputError(f"arms must have the shape {expected}, got {tuple(arms.shape)}.")
    if arms.shape[-2] == 0:
        raise InputError("There is no arm to choose from: K is 0.")
    arms = arms.detach().to(like.device, like.dtype, copy=True)
    check_finite("arms", arms)
    return arms


def check_finite(name: str, values: Tensor) -> None:
    """NaN and infinity are never repaired quietly."""
    if not values.isfinite().all():
        place = (~values.isfinite()).nonzero()[0].tolist()
        raise InputError(
            f"{name} must be finite, got {values[tuple(place)].item()} at index {tuple(place)}; "
            "features must be clean and of moderate size."
        )


def check_reward(reward: Any, accepted: Any, arm: Tensor) -> tuple[Tensor, Tensor | None]:
    """reward is (R,) of 0 and 1, accepted None or (R,) of booleans."""
    reward = torch.as_tensor(reward, device=arm.device)
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
