"""What deals the rounds: the arms of each, and the reward of every arm."""

from nl_lightning.environments.environment import Deal, Environment
from nl_lightning.environments.synthetic import Synthetic

__all__ = ["Deal", "Environment", "Synthetic"]
