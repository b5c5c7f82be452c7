"""Where an agent was fitted in this process, so that nobody judges it unawares on what it learned from."""

from typing import Any
from weakref import WeakKeyDictionary

from nl_lightning.agents.base import Agent
from nl_lightning.environments import Environment

__all__ = ["fit_begins", "fit_ended", "fits_of"]

_fits: "WeakKeyDictionary[Agent, list[Environment | dict[str, Any]]]" = WeakKeyDictionary()


def fit_begins(agent: Agent, environment: Environment) -> None:
    """Note that an agent is going to learn in an environment."""
    _fits.setdefault(agent, []).append(environment)


def fit_ended(agent: Agent, environment: Environment) -> None:
    """Keep the state of the environment, which another agent may use from now on."""
    found = _fits.get(agent, [])
    found[:] = [environment.state_dict() if each is environment else each for each in found]


def fits_of(agent: Agent) -> list[dict[str, Any]]:
    """The environments' states of all fits of an agent, the last one last. A fit that broke off counts too."""
    return [each if isinstance(each, dict) else each.state_dict() for each in _fits.get(agent, [])]
