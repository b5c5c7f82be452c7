"""The state of an agent: what identifies it, how it moves, and agents of some of its replicas."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor

from nl_lightning.agents.trainer_flags import HALF_PRECISION, NO_FLOAT64
from nl_lightning.core.errors import InputError
from nl_lightning.core.replicas import SETTINGS, ReplicaSettings, Share

__all__ = ["A", "check_device", "check_identity", "identity", "keeping_float64", "not_plain", "part", "state_of"]


A = TypeVar("A")


def not_plain(**settings: Any) -> list[str]:
    """Which of these settings are objects or import paths: a checkpoint stores none, users give them again."""
    return [name for name, value in settings.items() if value is not None and "." in str(value)]


def part(agent: A, share: Share) -> A:
    """An agent of some of the replicas, as they are now; everything else is that of the whole."""
    whole: Any = agent
    trainer, whole._trainer = whole._trainer, None
    found = deepcopy(whole)
    whole._trainer = trainer
    found.share = share
    seeds = [whole.settings.seeds[r] for r in share.replicas]
    found.settings = ReplicaSettings(**whole.settings.part(share.replicas), seeds=seeds)
    found.noise.seeds = seeds
    # as tensors are moved or cast: what is derived from them follows
    found._apply(lambda tensor: tensor[share.replicas])
    found.divergence.any_diverged = bool((found.diverged_at > 0).any())
    return found


def state_of(whole: Any, some: Any) -> dict[str, Any]:
    """The state of the whole agent, as far as it is that of a part of it."""
    replicas = some.share.replicas
    state: dict[str, Any] = {k: v[replicas] if isinstance(v, Tensor) else v for k, v in whole.state_dict().items()}
    return state | {"_extra_state": {**state["_extra_state"], "identity": some.identity()}}


def identity(agent: Any) -> dict[str, Any]:
    """What a stored state must agree with. Classes are named as text, which is compared and never imported."""
    design = agent.design_kind
    return {
        "agent": agent.name,
        "layers": [list(shape) for shape in agent.network.shapes],
        "blocks": agent.network.blocks,
        "design": design if isinstance(design, str) else f"{design.__module__}.{design.__qualname__}",
        "exploration": repr(agent.exploration),
        **{name: getattr(agent.settings, name) for name in (*SETTINGS, "seeds")},
        "mode": agent.mode,
        **agent.formulas.identity(),
    }


def check_identity(agent: Any, stored: Mapping[str, Any] | None) -> None:
    """Refuse the state of another agent."""
    if stored is None:
        raise InputError("This checkpoint is not of a bandit agent: it says nothing of algorithm and settings.")
    then, now = stored["identity"], agent.identity()
    missing = [name for name in now if name not in then]
    if missing:
        raise InputError(
            f"This checkpoint was written by an older version of nl-lightning (it has no {missing[0]}) and cannot be "
            "loaded; fit the agent again."
        )
    for name, mine in now.items():
        if then[name] != mine:
            raise InputError(
                f"This checkpoint is of another agent: its {name} is {then[name]}, here it is {mine}. "
                "Load it into an agent with the settings it was made with; parts of your own are given again."
            )


def check_device(*args: Any, **kwargs: Any) -> None:
    """Refuse a device that has no float64."""
    device = torch._C._nn._parse_to(*args, **kwargs)[0]
    if device is not None and device.type == "mps":
        raise InputError(f"An agent cannot go to {device}: {NO_FLOAT64}. Leave it on the CPU.")


def keeping_float64(fn: Callable[[Tensor], Tensor], weight: Tensor) -> Callable[[Tensor], Tensor]:
    """``fn`` for tensors that stay in float64 when others are cast; ``weight`` is one that is cast."""
    dtype = fn(weight.detach()).dtype
    if dtype not in (torch.float32, torch.float64):
        raise InputError(f"An agent computes in float32 or float64, not in {dtype}: {HALF_PRECISION}.")

    def kept(tensor: Tensor) -> Tensor:
        moved = fn(tensor)
        return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

    return kept
