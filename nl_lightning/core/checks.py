"""What comes in is checked here: what was expected, what came, what to do."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nl_lightning.core.errors import InputError
from nl_lightning.core.whole import check_whole as check_whole
from nl_lightning.core.whole import is_whole as is_whole

if TYPE_CHECKING:
    from nl_lightning.agents.base import Agent


def check_training_settings(
    *,
    dim: int,
    blocks: int,
    mode: str,
    design: str | None,
    init: str | None,
    on_divergence: str,
    delta: float,
    lr: float | None,
    steps: int | None,
    update_every: int,
    horizon: int | None,
    constants: Mapping[str, float],
) -> None:
    """Refuse settings of an agent that no run could use; None is what was left out."""
    check_whole(1, dim=dim, blocks=blocks, update_every=update_every)
    if blocks > 1 and dim < 2:
        raise InputError(f"With blocks an arm is features and the block's number: dim must be at least 2, got {dim}.")
    for name, whole in (("steps", steps), ("horizon", horizon)):
        if whole is not None:
            check_whole(1, **{name: whole})
    for name, text, known in (
        ("mode", mode, ["practical", "theory"]),
        ("design", design, ["diagonal", "full", None]),
        ("init", init, ["uniform", "symmetric", None]),
        ("on_divergence", on_divergence, ["auto", "stop", "mark"]),
    ):
        if text not in known:
            raise InputError(f"{name} must be one of {', '.join(filter(None, known))}; got {text!r}.")
    if not 0 < delta < 1:
        raise InputError(f"delta must lie between 0 and 1, got {delta!r}.")
    for name, number in {"lr": lr, **constants}.items():
        if number is not None and not (number > 0 and math.isfinite(number)):
            raise InputError(f"{name} must be a finite number greater than 0, got {number!r}.")


def check_theory(agent: "Agent", depth: int, width: int) -> None:
    """Refuse what theory mode has not."""
    if agent.theory_factor() is None:
        raise InputError(
            f"{agent.name} has no mode 'theory': it is that of NeuralLog-UCB-1, NeuralLog-UCB-2, NeuralLog-TS-1 and "
            "NeuralLog-TS-2. Take mode 'practical'."
        )
    if agent.blocks > 1:
        raise InputError(
            f"Theory mode takes arms as vectors, got blocks = {agent.blocks}; leave it at 1, and where an environment "
            "deals blocks, set its dense to true."
        )
    if depth < 2:
        raise InputError(f"Theory mode needs a hidden layer: depth must be at least 2, got {depth}.")
    if width % 2:
        raise InputError(
            f"Theory mode pairs the units of a layer (the symmetric start): width must be even, got {width}."
        )
    for name, given, only in (("design", agent.design_kind, "full"), ("init", agent.init, "symmetric")):
        if given != only:
            raise InputError(f"Theory mode has {name} {only!r} only, got {given!r}; leave it out.")
    for S in agent.settings.S:
        # its square and its inverse are in every formula
        if not 1e-50 < S < 1e50:
            raise InputError(f"Theory mode computes with 1/S^2 and S^2: S must lie between 1e-50 and 1e50, got {S:g}.")
    for name in ("nu", "lam"):
        if len(set(getattr(agent.settings, name))) > 1:
            raise InputError(
                f"{name} differs between replicas, but has no effect in theory mode: there it follows from S, kappa, "
                "delta and the constants C1, C6, C7."
            )


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


def check_arms(arms: Any, replicas: int, dim: int, like: Tensor, blocks: int = 1) -> Tensor:
    """Arms are (R, K, d), or (K, d) for all replicas, with K >= 1 and finite features; they become ``like`` another.

    What comes back is a copy: a reward may come when the caller has long put other numbers into its tensor.
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
    return arms


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
