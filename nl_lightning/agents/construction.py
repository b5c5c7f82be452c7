"""The parts of an agent that its settings make: reward network, formulas of its mode, the default of nu."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from nl_lightning.agents.checks import check_own_network
from nl_lightning.agents.formulas import Formulas, Practical
from nl_lightning.agents.theory import Theory
from nl_lightning.models.base import RewardModel
from nl_lightning.models.inputs import input_size
from nl_lightning.models.mlp import MLP, Init
from nl_lightning.models.modules import ModuleModel

__all__ = ["default_nu", "make_formulas", "make_network"]


def make_network(
    agent: Any,
    network: Callable[[], nn.Module] | nn.Module | None,
    width: int,
    depth: int,
    init: Init | None,
    bias: bool | None,
) -> RewardModel:
    """The built-in network with layers [d, m, ..., m, 1], or the user's own where ``network`` is given."""
    if network is not None:
        check_own_network(agent, init, bias)
        return ModuleModel(network, agent.dim, agent.settings.seeds)
    if bias is None:
        # the paper's networks have none
        bias = not (agent.linear or agent.mode == "theory" or agent.step_rule.plain)
    layers = [1] if agent.linear else [*[width] * (depth - 1), 1]
    # theory mode: x' = [x, x]/sqrt(2)
    inputs = input_size(agent.dim, agent.blocks) * (2 if agent.mode == "theory" else 1)
    return MLP([inputs, *layers], agent.settings.seeds, agent.init, agent.blocks, bias)


def make_formulas(agent: Any, design_args: Mapping[str, Any] | None) -> Formulas:
    """The formulas of the agent's mode."""
    factor = agent.theory_factor()
    if agent.mode == "theory" and factor is not None:
        return Theory(
            agent.network, agent.S, agent.kappa, factor, agent.variance_weighted, agent.delta, agent.constants
        )
    # W = sum mu'(f) g g^T + lam I,    V = sum g g^T + kappa lam I
    ridge = agent.lam if agent.variance_weighted else agent.kappa * agent.lam
    return Practical(agent.network, agent.lam, ridge, agent.observation_weight(), agent.design_kind, design_args)


def default_nu(network: RewardModel, scale: float) -> float:
    """scale / sqrt(p) for p parameters, to two digits."""
    parameters = sum(n_out * n_in for n_out, n_in in network.shapes)
    return float(f"{scale / parameters**0.5:.2g}")
