"""Methods of a user's own are tried once, before anything is computed with them: a wrong one is named by its class."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nl_lightning.agents.exploration import RULES, EpsilonGreedy, Exploration
from nl_lightning.core.errors import InputError
from nl_lightning.core.imports import overridden

__all__ = ["check_methods", "check_rule", "first_radius"]

_CALLED = {
    "radius_at": ("dimension",),
    "radius_terms": (),
    "observation_weight": (),
    "act": ("arms",),
    "choose": ("view",),
    "score": ("view",),
    "best": ("score", "uniform", "normal"),
}
"""The arguments that an agent's methods are called with."""

_RULE_CALLED = {"score": ("mean", "bonus", "normal"), "choose": ("score", "uniform", "normal", "tolerance")}
"""Those of the methods of an exploration rule."""


def check_methods(agent: Any, base: type) -> None:
    """Methods that a subclass redefines take the arguments that they are called with."""
    for name in overridden(agent, base, *_CALLED):
        _check_arguments(getattr(agent, name), f"{type(agent).__name__}.{name}", _CALLED[name])


def check_rule(rule: Exploration) -> None:
    """An exploration rule of one's own takes the arguments of a rule, and scores every arm."""
    kind = type(rule)
    if kind in RULES.values() or kind is EpsilonGreedy:
        return
    for name in overridden(rule, Exploration, *_RULE_CALLED):
        _check_arguments(getattr(rule, name), f"{kind.__name__}.{name}", _RULE_CALLED[name])
    mean = torch.zeros(2, 3, dtype=torch.float64)
    try:
        score = rule.score(mean, torch.ones_like(mean), torch.ones_like(mean) if rule.stochastic else None)
    except Exception:
        # a rule may be made for one number of arms; whatever is wrong is seen where it is used
        return
    _check_shape(score, mean, f"{kind.__name__}.score", "scores of the shape of the means")


def first_radius(agent: Any, base: type, nothing: Tensor) -> Tensor:
    """The radius (R,) of an agent that has observed nothing, (R,) zeros. It is finite, here and further on."""
    own = overridden(agent, base, "radius_at")
    radius: Tensor = agent.radius_at(nothing)
    for dimension, found in ((0, radius), (1, agent.radius_at(nothing + 1))):
        name = f"{type(agent).__name__}.radius_at"
        if own:
            _check_shape(found, nothing, name, "a radius for every number in `dimension`, so a tensor of its shape")
        if not found.isfinite().all():
            if own:
                bad = found[~found.isfinite()][0].item()
                raise InputError(
                    f"{name} must be finite for every dimension of at least 0; it is {bad} at {dimension}."
                )
            raise InputError("The radius overflows with these values of nu, lam, kappa and S; take less extreme ones.")
    return radius


def _check_arguments(method: Callable[..., Any], name: str, arguments: tuple[str, ...]) -> None:
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        wanted, taken, short = ", ".join(arguments), ", ".join(signature.parameters), name.rpartition(".")[2]
        raise InputError(
            f"{name} is called with ({wanted}), but its definition takes ({taken}). Write "
            f"`def {short}({', '.join(('self', *arguments))})`."
        ) from error


def _check_shape(given: Any, like: Tensor, name: str, expected: str) -> None:
    if not isinstance(given, Tensor) or given.shape != like.shape:
        came = f"the shape {tuple(given.shape)}" if isinstance(given, Tensor) else f"{given!r:.50}"
        raise InputError(f"{name} must return {expected} {tuple(like.shape)}; got {came}.")
