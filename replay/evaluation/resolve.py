"""Which policy is meant: by a name, a function, an agent, a file."""

from collections.abc import Container, Mapping
from itertools import chain, count
from pathlib import Path
from typing import Any

from nl_lightning.agents.base import Agent
from nl_lightning.core.arguments import suggest
from nl_lightning.core.errors import InputError
from nl_lightning.core.imports import import_callable, make_current_directory_importable
from replay.evaluation.evaluate import TrainedAgent, load_trained
from replay.evaluation.learned_rows import LearnedRows
from replay.evaluation.policies import POLICIES, ColumnPolicy, FunctionPolicy, Policy
from replay.protocol.features import Features

__all__ = ["as_policies", "as_policy", "unique_name"]


def as_policies(given: Any, features: Features | None = None) -> tuple[dict[str, Policy | TrainedAgent], bool]:
    """The policies by name, and whether several were asked for."""
    if isinstance(given, Mapping):
        if not given:
            raise InputError("There is no policy to evaluate: the dict is empty.")
        return {str(name): as_policy(each, features) for name, each in given.items()}, True
    if isinstance(given, TrainedAgent) or not isinstance(given, list | tuple) or _is_pair(given):
        one = as_policy(given, features)
        return {_name(one): one}, False
    if not given:
        raise InputError("There is no policy to evaluate: the list is empty.")
    found: dict[str, Policy | TrainedAgent] = {}
    for each in given:
        one = as_policy(each, features)
        found[unique_name(_name(one), found)] = one
    return found, True


def unique_name(name: str, taken: Container[str]) -> str:
    """The name, with a number if it is taken."""
    return next(each for each in chain([name], (f"{name} ({n})" for n in count(2))) if each not in taken)


def as_policy(given: Any, features: Features | None = None) -> Policy | TrainedAgent:
    """The policy that is meant by one of the things that ``evaluate`` takes."""
    if isinstance(given, Policy | TrainedAgent):
        return given
    if _is_pair(given):
        agent, own_features = given
        return TrainedAgent(agent, own_features, learned=LearnedRows.of_agent(agent))
    if isinstance(given, Agent):
        if features is None:
            raise InputError(
                f"The agent {given.name} can only be evaluated with the features it was trained with. Give them, as "
                "evaluate(log, agent, features=features), or as a pair (agent, features), or give its checkpoint."
            )
        return TrainedAgent(given, features, learned=LearnedRows.of_agent(given))
    if isinstance(given, str):
        return _named(given)
    if isinstance(given, Path):
        return load_trained(given)
    if callable(given) and not (isinstance(given, type) and issubclass(given, Agent | Policy)):
        return FunctionPolicy(given)
    what = f"the class {given.__name__}; make an instance of it" if isinstance(given, type) else f"{given!r:.60}"
    raise InputError(f"A policy must be {_EXPECTED}; got {what}.")


_EXPECTED = (
    f"one of {', '.join(POLICIES)}, column:NAME, module:function, a function that maps a DataFrame of events to "
    "probabilities, an agent with its features, or a checkpoint"
)


def _named(text: str) -> Policy | TrainedAgent:
    if text in POLICIES:
        return POLICIES[text][0]()
    kind, _, rest = text.partition(":")
    if kind == "column":
        if not rest:
            raise InputError("column: needs the name of a column, such as column:their_choice.")
        return ColumnPolicy(rest)
    if text.endswith(".ckpt") or Path(text).is_file():
        return load_trained(Path(text))
    if not (kind and rest):
        raise InputError(f"A policy must be {_EXPECTED}; got {text!r:.60}.{suggest(text, POLICIES)}")
    make_current_directory_importable()
    found = import_callable(text, "A policy", "my_module:my_function")
    one = as_policy(found)
    if isinstance(one, FunctionPolicy):
        one.name = text
    return one


def _is_pair(given: Any) -> bool:
    """Whether it is an agent with its features."""
    if not isinstance(given, tuple) or len(given) != 2:
        return False
    return isinstance(given[0], Agent) and isinstance(given[1], Features)


def _name(policy: Policy | TrainedAgent) -> str:
    return policy.agent.name if isinstance(policy, TrainedAgent) else policy.name
