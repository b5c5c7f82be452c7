"""What the two modes of an agent compute differently, behind one interface: nobody asks which mode it is.

``Practical`` is the setting of the paper's experiments, ``theory.Theory`` its Algorithms 1 and 2 as printed.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nl_lightning.agents.radii import Radius
from nl_lightning.core.types import Factors
from nl_lightning.designs import DesignMatrix, make_design
from nl_lightning.models.base import Descent, RewardModel
from nl_lightning.models.optimizers import StepRule

__all__ = ["Formulas", "Practical"]


class Formulas(nn.Module, ABC):
    """The formulas of a mode. Tensors of settings are buffers, so that they move and divide with the agent."""

    unused: ClassVar[tuple[str, ...]] = ()
    """Settings without effect in this mode."""

    def derive(self, radius: Radius) -> None:
        """Take on the practical radius, whenever settings were moved or cast."""

    @abstractmethod
    def designs(self) -> tuple[DesignMatrix, DesignMatrix]:
        """The design matrix, and the matrix whose log-determinant is the effective dimension."""

    @abstractmethod
    def observation_weight(self) -> Tensor:
        """(R,), w in the effective dimension logdet(w sum g g^T + I)"""

    @abstractmethod
    def evaluate(
        self, network: RewardModel, initial: Sequence[Tensor], arms: Tensor, replicas: Tensor | None
    ) -> tuple[Tensor, Tensor, Factors]:
        """Of arms (R, N, d): f and what the score begins with, (R, N), and the factors of the gradient.

        With ``replicas`` (indices) the arms belong to these replicas only.
        """

    @abstractmethod
    def radius(self, dimension: Tensor) -> Tensor:
        """The radius at an effective dimension, (..., R)"""

    @abstractmethod
    def lam_at(self, dimension: Tensor, t: Tensor) -> Tensor:
        """The regularisation (C, R) in rounds t (C,) with effective dimensions (C, R)"""

    @abstractmethod
    def descent(
        self, rule: StepRule, lr: float | None, steps: int | None, horizon: int | None, initial: Sequence[Tensor]
    ) -> Descent:
        """Step, number of steps and penalty of TrainNN, as given or the mode's own."""

    def inputs(self, x: Tensor) -> Tensor:
        """Features (R, n, d) as the network takes them."""
        return x

    def after_observation(self, design: DesignMatrix, dimension: Tensor, accepted: Tensor | None) -> None:
        """What changes with the effective dimension (R,) after a round."""

    def after_training(self, design: DesignMatrix, weights: Sequence[Tensor], newest: Tensor, replicas: Tensor) -> None:
        """What changes when these replicas (R,) have new parameters; ``newest`` (R, 1, d) is their last observation."""

    def identity(self) -> dict[str, Any]:
        """Settings that a stored state must agree with."""
        return {}


class Practical(Formulas):
    """Gradients at the current parameters, a fixed regularisation, and radii whose constants ``nu`` absorbs.

    Args:
        network: the reward network.
        lam: (R,), factor of TrainNN's penalty.
        ridge: (R,), of the design matrix.
        weight: (R,), of an observation in the effective dimension.
        design: structure of the design matrices.
        design_args: settings of that structure.
    """

    lam: Tensor
    ridge: Tensor
    weight: Tensor

    def __init__(
        self,
        network: RewardModel,
        lam: Tensor,
        ridge: Tensor,
        weight: Tensor,
        design: str | type[DesignMatrix],
        design_args: Mapping[str, Any] | None,
    ) -> None:
        super().__init__()
        self.shapes, self.blocks = network.shapes, network.blocks
        self.design, self.design_args = design, design_args
        for name, values in (("lam", lam), ("ridge", ridge), ("weight", weight)):
            self.register_buffer(name, values, persistent=False)

    def derive(self, radius: Radius) -> None:
        self._radius = radius

    def designs(self) -> tuple[DesignMatrix, DesignMatrix]:
        ridges = (self.ridge, torch.ones_like(self.ridge))
        design, other = (make_design(self.design, self.shapes, r, self.blocks, self.design_args) for r in ridges)
        return design, other

    def observation_weight(self) -> Tensor:
        return self.weight

    def evaluate(
        self, network: RewardModel, initial: Sequence[Tensor], arms: Tensor, replicas: Tensor | None
    ) -> tuple[Tensor, Tensor, Factors]:
        f, found = network.factors(arms, replicas)
        return f, f, found

    def radius(self, dimension: Tensor) -> Tensor:
        return self._radius.at(dimension)

    def lam_at(self, dimension: Tensor, t: Tensor) -> Tensor:
        return self.lam.expand_as(dimension)

    def descent(
        self, rule: StepRule, lr: float | None, steps: int | None, horizon: int | None, initial: Sequence[Tensor]
    ) -> Descent:
        steps = rule.steps if steps is None else steps
        return Descent(torch.full_like(self.lam, rule.lr), steps, self.lam, rule=rule)
