"""Where an agent's rounds come from."""

from nl_lightning.environments.base import ChunkedSimulation, Deal, Environment, LoggedEnvironment, Simulation
from nl_lightning.environments.classification import Classification
from nl_lightning.environments.synthetic import Synthetic

__all__ = [
    "ChunkedSimulation",
    "Classification",
    "Deal",
    "Environment",
    "LoggedEnvironment",
    "Simulation",
    "Synthetic",
]
