"""Where an agent's rounds come from."""

from nl_lightning.environments.base import Deal, Environment, OnRound, OnWindow, Simulation
from nl_lightning.environments.classification import Classification
from nl_lightning.environments.synthetic import Synthetic

__all__ = ["Classification", "Deal", "Environment", "OnRound", "OnWindow", "Simulation", "Synthetic"]
