"""Agents as a user may write them, and classes that are none."""

from typing import Any

from nl_lightning import NeuralLogUCB2


class PatientUCB(NeuralLogUCB2):
    """An agent of the user's own, with a setting of its own."""

    name = "Patient-UCB"

    def __init__(self, dim: int, patience: float = 1.0, **settings: Any) -> None:
        super().__init__(dim, **settings)
        self.patience = patience
        self.save_hyperparameters({"patience": patience})

    def radius_terms(self) -> Any:
        return super().radius_terms()


class OtherUCB(PatientUCB):
    """Another agent of the same kind."""

    name = "Other-UCB"


class Nameless:
    """No agent."""
