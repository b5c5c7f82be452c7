"""Agents as users name them: by the paper's name, by class name, or by the import path of a class of their own."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from nl_lightning.agents import AGENTS
from nl_lightning.agents.base import Agent
from nl_lightning.core.arguments import suggest
from nl_lightning.core.errors import InputError
from nl_lightning.core.imports import import_class

__all__ = ["NamedAgent", "find_agent", "find_agents", "is_import_path", "no_agent"]


class NamedAgent(NamedTuple):
    """An agent class and what it is called."""

    kind: type[Agent]
    path: str
    """import path, as LightningCLI takes it"""

    @property
    def name(self) -> str:
        """in tables and legends"""
        return self.kind.name

    @property
    def label(self) -> str:
        """name of its run directory"""
        return self.kind.__name__


def is_import_path(text: str) -> bool:
    """Whether ``text`` has the form ``module.Class``."""
    return re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", text) is not None


def no_agent(name: str) -> str:
    """What to say of a name that no agent has."""
    classes = [kind.__name__ for kind in AGENTS.values()]
    return (
        f"there is no agent {name}.{suggest(name.rpartition('.')[2], [*classes, *AGENTS])} The agents: "
        f"{', '.join(classes)}; an agent of your own is given by its import path, such as my_module.MyAgent."
    )


def find_agent(name: str) -> NamedAgent:
    """The agent with this name in ``AGENTS``, with this class name, or at this import path."""
    for known, kind in AGENTS.items():
        if name in (known, kind.__name__):
            return NamedAgent(kind, f"{kind.__module__}.{kind.__qualname__}")
    if not is_import_path(name):
        raise InputError(no_agent(name))
    found: type[Agent] = import_class(name, Agent, "an agent")
    return NamedAgent(found, name)


def find_agents(names: Sequence[str]) -> list[NamedAgent]:
    """The agents with these names, each once. Refuses two classes that could not be told apart."""
    found = {agent.kind: agent for agent in map(find_agent, names)}
    for what in ("label", "name"):
        seen: dict[str, NamedAgent] = {}
        for agent in found.values():
            other = seen.setdefault(getattr(agent, what), agent)
            if other is not agent:
                called, change = ("class", "Rename one of the classes") if what == "label" else ("agent", "Set `name`")
                raise InputError(
                    f"{other.path} and {agent.path} are two agents with the same {called} name "
                    f"{getattr(agent, what)}, and their results could not be told apart. {change}."
                )
    return list(found.values())
