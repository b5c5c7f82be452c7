"""The state of an agent: what identifies it, how it moves, and agents of some of its replicas."""

import hashlib
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from nl_lightning.agents.trainer_flags import HALF_PRECISION, NO_FLOAT64
from nl_lightning.core.checkpoint import check_keys, restoring
from nl_lightning.core.checks import is_whole
from nl_lightning.core.errors import InputError
from nl_lightning.core.replicas import SETTINGS, ReplicaSettings, Share

__all__ = [
    "A",
    "check_device",
    "check_state",
    "from_checkpoint",
    "identity",
    "keeping_float64",
    "not_plain",
    "owner",
    "part",
    "state_of",
    "stored_name",
]


A = TypeVar("A")


OBJECTS = ("design", "exploration", "network", "optimizer")
"""Settings that may be objects or import paths."""


def not_plain(**settings: Any) -> list[str]:
    """Which of these settings are objects or import paths: a checkpoint stores none, users give them again."""
    return [n for n, value in settings.items() if value is not None and (not isinstance(value, str) or "." in value)]


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
        "layers": agent.network.identity(),
        "blocks": agent.network.blocks,
        "design": design if isinstance(design, str) else f"{design.__module__}.{design.__qualname__}",
        "exploration": repr(agent.exploration),
        "optimizer": agent.step_rule.identity(),
        **{name: getattr(agent.settings, name) for name in (*SETTINGS, "seeds")},
        "mode": agent.mode,
        **agent.formulas.identity(),
    }


def owner(agent: Any) -> str:
    """What an agent's choices are marked with: the same for its copies and for the agent of its checkpoint, so that
    rewards may come late; another one for other settings."""
    settings = {name: getattr(agent.settings, name) for name in (*SETTINGS, "seeds")}
    marks = [agent.name, agent.network.shapes, agent.network.blocks, agent.mode, settings]
    return hashlib.sha256(repr(marks).encode()).hexdigest()


def check_state(agent: Any, stored: Mapping[str, Any], strict: bool) -> None:
    """Refuse the state of another agent, and one with numbers that no agent has, before anything is taken on."""
    _check_identity(agent, stored.get("_extra_state"))
    mine = agent.state_dict()
    missing, unknown = ([*(one.keys() - other.keys())] for one, other in ((mine, stored), (stored, mine)))
    for names, text in ((missing, "has no"), (unknown, "has an unknown")):
        if names and strict:
            raise InputError(f"This checkpoint is not of {agent.name} as it is here: its state {text} {min(names)}.")
    for name in mine.keys() & stored.keys():
        if isinstance(mine[name], Tensor):
            _check_tensor(name, mine[name], stored[name])
    if {"buffer.x", "buffer.reward", "buffer.length"} <= stored.keys():
        rows, rewards = (stored[f"buffer.{name}"].shape[1] - 1 for name in ("x", "reward"))
        length = stored["buffer.length"]
        if rows != rewards or ((length < 0) | (length > rows)).any():
            raise InputError(f"The buffer of this checkpoint has {rows} rows, but its length is {length.tolist()}.")


_GROWING = ("buffer.", "design.", "effective_dim_design.")
_FINITE = ("network.", "initial_weights.", "design.", "effective_dim_design.", "formulas.", "buffer.", *SETTINGS)
_FINITE += ("radius", "effective_dimension")
"""What an agent computes with; buffers of a user's own may hold anything."""


def _check_tensor(name: str, mine: Tensor, stored: Any) -> None:
    """A tensor of the same shape and kind, except that buffers and designs grow; finite where it is computed with."""
    if not isinstance(stored, Tensor):
        raise InputError(f"{name} of this checkpoint must be a tensor, got a {type(stored).__name__}.")
    shapes = (mine.shape[:1], stored.shape[:1]) if name.startswith(_GROWING) else (mine.shape, stored.shape)
    floats = stored.is_floating_point() == mine.is_floating_point()
    if shapes[0] != shapes[1] or stored.dim() != mine.dim() or not floats:
        texts = [f"{tuple(tensor.shape)} of {tensor.dtype}" for tensor in (mine, stored)]
        raise InputError(f"{name} of this checkpoint must have the shape {texts[0]}, got {texts[1]}.")
    if name.startswith(_FINITE) and not stored.isfinite().all():
        raise InputError(
            f"{name} of this checkpoint holds NaN or infinite numbers, which no fit leaves behind: it is damaged. "
            "Take another copy of it, or fit the agent again."
        )


def _check_identity(agent: Any, extra: Any) -> None:
    then = extra.get("identity") if isinstance(extra, Mapping) else None
    if not isinstance(then, Mapping):
        raise InputError("This checkpoint is not of a bandit agent: it says nothing of algorithm and settings.")
    now = agent.identity()
    missing = [name for name in now if name not in then]
    if missing:
        raise InputError(
            f"This checkpoint was written by an older version of nl-lightning (it has no {missing[0]}) and cannot be "
            "loaded; fit the agent again."
        )
    for name, mine in now.items():
        if then[name] != mine:
            raise InputError(
                f"This checkpoint is of another agent: its {name} is {_short(then[name])}, here it is {_short(mine)}. "
                "Load it into an agent with the settings it was made with; parts of your own are given again."
            )
    draws = extra.get("draws")
    if not is_whole(draws, 0):
        raise InputError(f"draws of this checkpoint must be a whole number of at least 0, got {_short(draws)}.")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:76]} ..."


def from_checkpoint(
    kind: type[A], path: str | Path, stored: Mapping[str, Any], own: Mapping[str, Any], frozen: bool = False
) -> A:
    """The agent of a checkpoint that was read. ``kind`` is its class: nothing that a checkpoint names is imported.

    Args:
        kind: class of the agent.
        path: of the checkpoint, for messages.
        stored: its content.
        own: settings that it does not store because they are objects, or that replace stored ones.
        frozen: whether the agent only chooses, so that an optimiser of one's own need not be given again.
    """
    name, known = stored_name(path, stored), getattr(kind, "name", None)
    check_keys(path, stored, ["hyper_parameters"])
    state, settings = stored["state_dict"], stored["hyper_parameters"]
    if not isinstance(settings, Mapping):
        raise InputError(f"{path} is not a checkpoint of an agent: its hyper_parameters are no dict.")
    if known != name:
        raise InputError(
            f"{path} holds the agent {name!r}, but {kind.__module__}.{kind.__qualname__} is the agent {known!r}; give "
            "the class that was trained."
        )
    # a run of the command line also stores notes of Lightning's own, such as _class_path
    settings = {key: value for key, value in settings.items() if not str(key).startswith("_")} | dict(own)
    named = not_plain(**{name: settings.get(name) for name in OBJECTS if name not in own})
    if named:
        raise InputError(
            f"{path} names {settings[named[0]]!r} as its {named[0]}, which no checkpoint of ours does: nothing that a "
            f"checkpoint names is imported. If you trust it, give {named[0]} yourself."
        )
    taken = inspect.signature(kind.__init__).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values()):
        # a class with an __init__ of its own may leave settings of its base out
        settings = {key: value for key, value in settings.items() if key in taken or key in own}
    with restoring(kind.__qualname__, path):
        agent: Any = kind(**settings)
        weights = [value for key, value in state.items() if key.startswith("network.") and isinstance(value, Tensor)]
        if any(value.dtype == torch.float64 for value in weights):
            agent.double()
        if frozen:
            extra = state["_extra_state"]
            then = {**extra["identity"], "optimizer": agent.identity()["optimizer"]}
            state = {**state, "_extra_state": {**extra, "identity": then}}
        agent.load_state_dict(state)
    return agent


def stored_name(path: str | Path, stored: Mapping[str, Any]) -> str:
    """The name of the agent in a checkpoint."""
    check_keys(path, stored, ["state_dict"])
    with suppress(LookupError, TypeError):
        return str(stored["state_dict"]["_extra_state"]["identity"]["agent"])
    raise InputError(f"{path} is not a checkpoint of a bandit agent: it does not say which algorithm it is of.")


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
