"""Settings of agents are checked here: what was expected, what came, what to do."""

import os
from collections.abc import Mapping
from typing import Any, cast

from nl_lightning.core.checks import check_whole, is_number
from nl_lightning.core.errors import InputError
from nl_lightning.core.imports import as_new_as, overridden
from nl_lightning.models.optimizers import GradientDescent

__all__ = ["check_own_network", "check_radius_defined", "check_settings", "check_size", "check_theory"]


def check_radius_defined(agent: Any, base: type) -> None:
    """An algorithm has a radius."""
    if not overridden(agent, base, "radius_terms", "radius_at"):
        name = type(agent).__name__
        raise InputError(
            f"{name} has no radius: define radius_at(dimension), which returns (..., R) for effective dimensions "
            "(..., R), or radius_terms(); or subclass one of the algorithms."
        )


def check_settings(
    *,
    dim: int,
    width: int,
    depth: int,
    blocks: int,
    mode: str,
    init: str | None,
    on_divergence: str,
    delta: float,
    lr: float | None,
    steps: int | None,
    start: str | None,
    update_every: int,
    update_growth: float,
    batch_size: int | None,
    window: int | None,
    epsilon: float,
    horizon: int | None,
    bias: bool,
    constants: Mapping[str, float],
) -> None:
    """Refuse settings of an agent that no run could use; None is what was left out."""
    check_whole(1, dim=dim, width=width, depth=depth, blocks=blocks, update_every=update_every)
    if blocks > 1 and dim < 2:
        raise InputError(f"With blocks an arm is features and the block's number: dim must be at least 2, got {dim}.")
    for name, whole in (("steps", steps), ("horizon", horizon), ("batch_size", batch_size), ("window", window)):
        if whole is not None:
            check_whole(1, **{name: whole})
    for name, text, known in (
        ("mode", mode, ["practical", "theory"]),
        ("init", init, ["uniform", "symmetric", None]),
        ("start", start, ["warm", "cold", "shrink", None]),
        ("on_divergence", on_divergence, ["auto", "stop", "mark"]),
    ):
        if text not in known:
            raise InputError(f"{name} must be one of {', '.join(filter(None, known))}; got {text!r}.")
    if not isinstance(bias, bool):
        raise InputError(f"bias must be True or False, got {bias!r:.50}.")
    if not (is_number(epsilon) and 0 <= epsilon <= 1):
        raise InputError(f"epsilon is a chance: it must lie between 0 and 1, got {epsilon!r:.50}.")
    if not (is_number(update_growth) and update_growth >= 0):
        raise InputError(f"update_growth must be a finite number of at least 0, got {update_growth!r:.50}.")
    if not (is_number(delta) and 0 < delta < 1):
        raise InputError(f"delta must lie between 0 and 1, got {delta!r:.50}.")
    for name, number in {"lr": lr, **constants}.items():
        if not (number is None and name == "lr") and not (is_number(number) and cast(float, number) > 0):
            raise InputError(f"{name} must be a finite number greater than 0, got {number!r:.50}.")


def check_size(replicas: int, inputs: int, width: int, depth: int) -> None:
    """Refuse networks that this machine cannot hold, with their initial weights and two design matrices."""
    parameters = inputs if depth == 1 else inputs * width + (depth - 2) * width**2 + width
    needed = 4 * 8 * replicas * parameters
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        raise InputError(
            f"{replicas:,} networks of {parameters:.3g} parameters and their design matrices take at least "
            f"{needed / 2**30:,.0f} GiB, and this machine has {there / 2**30:,.0f}. Take fewer replicas, or a smaller "
            "width, depth or dim."
        )


def check_own_network(agent: Any, init: str | None, bias: bool) -> None:
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
