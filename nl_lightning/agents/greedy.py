import torch

from nl_lightning.agents.base import NeuralAgent
from nl_lightning.agents.radii import Radius

__all__ = ["Greedy"]


class Greedy(NeuralAgent):
    """Greedy: the same network and TrainNN, and no bonus. The control of every experiment.

    The score of an arm is f; with probability ``epsilon`` a random arm is taken.
    """

    name = "Greedy"
    default_exploration = "greedy"

    def radius_terms(self) -> Radius:
        return Radius(torch.zeros_like(self.nu), torch.zeros_like(self.nu))
