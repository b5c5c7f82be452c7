"""Agents as a user may write them, and things that are no agents."""

from typing import Any

from nl_lightning import NeuralLogUCB2


class PatientUCB(NeuralLogUCB2):
    """An agent of the user's own, with a name and a setting of its own."""

    name = "Patient-UCB"

    def __init__(self, dim: int, patience: float = 1.0, **settings: Any) -> None:
        super().__init__(dim, **settings)
        self.patience = patience
        self.save_hyperparameters({"patience": patience})


class OtherUCB(NeuralLogUCB2):
    """Another agent of the user's own, which does not know the setting ``patience``."""

    name = "Other-UCB"


class Impostor(OtherUCB):
    """Has the name of another agent."""

    name = "Patient-UCB"

    def __init__(self, dim: int) -> None:
        super().__init__(dim)


class NoAgent:
    """Not an agent."""

    name = "Patient-UCB"
