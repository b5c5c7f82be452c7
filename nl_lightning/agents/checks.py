"""Settings of agents are checked here: what was expected, what came, what to do."""

import math
from collections.abc import Mapping
from typing import Any

from nl_lightning.core.checks import check_whole
from nl_lightning.core.errors import InputError
from nl_lightning.core.imports import as_new_as, overridden

__all__ = ["check_radius_defined", "check_settings", "check_theory"]


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
    update_every: int,
    horizon: int | None,
    constants: Mapping[str, float],
) -> None:
    """Refuse settings of an agent that no run could use; None is what was left out."""
    check_whole(1, dim=dim, width=width, depth=depth, blocks=blocks, update_every=update_every)
    if blocks > 1 and dim < 2:
        raise InputError(f"With blocks an arm is features and the block's number: dim must be at least 2, got {dim}.")
    for name, whole in (("steps", steps), ("horizon", horizon)):
        if whole is not None:
            check_whole(1, **{name: whole})
    for name, text, known in (
        ("mode", mode, ["practical", "theory"]),
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


def check_theory(agent: Any, exists: bool, depth: int, width: int, design_args: Mapping[str, Any] | None) -> None:
    """Refuse what theory mode does not have."""
    if not exists:
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
