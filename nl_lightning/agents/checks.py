"""Settings of agents are checked here: what was expected, what came, what to do."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn

from nl_lightning.agents.exploration import Greedy
from nl_lightning.core.checks import check_whole, is_number
from nl_lightning.core.errors import InputError
from nl_lightning.core.imports import as_new_as, overridden
from nl_lightning.models.inputs import input_size
from nl_lightning.models.optimizers import GradientDescent

__all__ = [
    "check_own_network",
    "check_radius_defined",
    "check_settings",
    "check_size",
    "check_theory",
    "warn_of_unused",
]


_OPTIONAL = ("steps", "horizon", "batch_size", "window")
"""Whole numbers that may be left out."""

_WORDS: dict[str, tuple[str | None, ...]] = {
    "mode": ("practical", "theory"),
    "init": ("uniform", "symmetric", None),
    "start": ("warm", "cold", "shrink", None),
    "on_divergence": ("auto", "stop", "mark"),
}
"""What a setting may be; None where it may be left out."""


def _positive(value: Any) -> bool:
    return is_number(value) and value > 0


_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "bias": (lambda value: value is None or isinstance(value, bool), "must be True or False"),
    "epsilon": (lambda value: is_number(value) and 0 <= value <= 1, "is a chance: it must lie between 0 and 1"),
    "update_growth": (lambda value: is_number(value) and value >= 0, "must be a finite number of at least 0"),
    "delta": (lambda value: is_number(value) and 0 < value < 1, "must lie between 0 and 1"),
    "lr": (lambda value: value is None or _positive(value), "must be a finite number greater than 0"),
    **dict.fromkeys(("C1", "C4", "C5", "C6", "C7"), (_positive, "must be a finite number greater than 0")),
}
"""Whether a value is right, and what the message says where it is not."""


def check_radius_defined(agent: Any, base: type) -> None:
    """An algorithm has a radius."""
    if not overridden(agent, base, "radius_terms", "radius_at"):
        name = type(agent).__name__
        raise InputError(
            f"{name} has no radius: define radius_at(dimension), which returns (..., R) for effective dimensions "
            "(..., R), or radius_terms(); or subclass one of the algorithms."
        )


def check_settings(**settings: Any) -> None:
    """Refuse settings of an agent that no run could use, given by their names; None is what was left out.

    What is in none of the tables above is a whole number of at least 1.
    """
    for name, value in settings.items():
        if name in _WORDS:
            if value not in _WORDS[name]:
                raise InputError(f"{name} must be one of {', '.join(filter(None, _WORDS[name]))}; got {value!r}.")
        elif name in _RANGES:
            is_right, expected = _RANGES[name]
            if not is_right(value):
                raise InputError(f"{name} {expected}, got {value!r:.50}.")
        elif not (name in _OPTIONAL and value is None):
            check_whole(1, **{name: value})
    if settings.get("blocks", 1) > 1 and settings["dim"] < 2:
        dim = settings["dim"]
        raise InputError(f"With blocks an arm is features and the block's number: dim must be at least 2, got {dim}.")


def warn_of_unused(agent: Any, network: Any, width: int, depth: int, nu: Any) -> None:
    """Say that ``width`` and ``depth``, or ``nu``, are given to an agent that has no use for them."""
    if nu is not None and isinstance(agent.exploration, Greedy):
        rank_zero_warn(f"{agent.name} has no bonus: nu has no effect.", stacklevel=5)
    if (agent.linear or network is not None) and (width, depth) != (20, 2):
        what = f"{agent.name} is linear" if agent.linear else "The network is your own"
        rank_zero_warn(f"{what}: width and depth have no effect.", stacklevel=5)


def check_size(agent: Any, network: Any, width: int, depth: int) -> None:
    """Refuse built-in networks that this machine cannot hold, with their initial weights and two design matrices."""
    if network is not None:
        return
    replicas, inputs = agent.replicas, input_size(agent.dim, agent.blocks)
    depth = 1 if agent.linear else depth
    parameters = inputs if depth == 1 else inputs * width + (depth - 2) * width**2 + width
    needed = 4 * 8 * replicas * parameters
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        raise InputError(
            f"{replicas:,} networks of {parameters:.3g} parameters and their design matrices take at least "
            f"{needed / 2**30:,.0f} GiB, and this machine has {there / 2**30:,.0f}. Take fewer replicas, or a smaller "
            "width, depth or dim."
        )


def check_own_network(agent: Any, init: str | None, bias: bool | None) -> None:
    """Refuse what a network of the user's own does not have."""
    if agent.linear:
        raise InputError(f"{agent.name} is linear: it takes no network. Take one of the neural agents.")
    for name, given in (("init", init), ("bias", bias or None)):
        if given is not None:
            raise InputError(f"{name} is for the built-in network, but you give your own; leave {name} out.")
    if agent.blocks > 1:
        raise InputError(
            f"A network of your own takes arms as vectors, got blocks = {agent.blocks}; where an environment deals "
            "blocks, set its dense to true."
        )


def check_theory(
    agent: Any,
    base: type,
    depth: int,
    width: int,
    design_args: Mapping[str, Any] | None,
    practical: Mapping[str, Any],
) -> None:
    """Refuse what theory mode does not have; ``practical`` are settings of the other mode, None where left out."""
    if not overridden(agent, base, "theory_factor"):
        raise InputError(
            f"{agent.name} has no mode 'theory': it is that of NeuralLog-UCB-1, NeuralLog-UCB-2, NeuralLog-TS-1 and "
            "NeuralLog-TS-2. Take mode 'practical'."
        )
    if not as_new_as(agent, "theory_factor", "radius_terms", "observation_weight"):
        raise InputError(
            f"{agent.name} redefines radius_terms or observation_weight, which have no effect in theory mode; redefine "
            "theory_factor or radius_at, or take mode 'practical'."
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
    for name, given in practical.items():
        if given is not None:
            raise InputError(f"Theory mode has no {name}: its TrainNN is the paper's as printed. Leave {name} out.")
    if not (type(agent.step_rule) is GradientDescent and agent.learner.start == "cold"):
        raise InputError("Theory mode has optimizer 'gd' and start 'cold' only; leave them out.")
    if design_args:
        raise InputError(f"Theory mode has a design matrix of its own, without settings; leave {design_args} out.")
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
