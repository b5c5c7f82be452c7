"""The reward model f(x; theta) of R replicas, as everybody else sees it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from nl_lightning.core.types import Factors
from nl_lightning.models.minibatches import Minibatches
from nl_lightning.models.optimizers import StepRule

__all__ = ["Descent", "Observations", "RewardModel", "select"]


class Observations(NamedTuple):
    """What TrainNN learns from: x (R, n, d), with blocks (x, k), and rewards (R, n)."""

    x: Tensor
    reward: Tensor
    weight: Tensor | None = None
    """(R, n), of each in the loss, 0 for rows that only fill up; None where all count once and fill with zeros"""

    def of(self, replicas: Tensor) -> "Observations":
        """Those of some replicas, by their numbers."""
        weight = None if self.weight is None else self.weight[replicas]
        return Observations(self.x[replicas], self.reward[replicas], weight)


class Descent(NamedTuple):
    """How R replicas go down, and on which loss."""

    lr: Tensor
    """(R,)"""
    steps: int | Tensor
    """J, or (R,)"""
    lam: Tensor
    """(R,), the factor of the penalty"""
    scale: float = 1.0
    """the factor of f"""
    anchor: Sequence[Tensor] | None = None
    """theta_0, where the penalty is on the distance from it"""
    rule: StepRule | None = None
    """what is done with a gradient; None is gradient descent with ``lr``"""
    batches: Minibatches | None = None
    """the samples of each step; None is all of them"""

    @property
    def plain(self) -> bool:
        """Whether steps are those of gradient descent."""
        return self.rule is None or self.rule.plain

    def of(self, replicas: Tensor) -> "Descent":
        """That of some replicas, by their numbers."""
        return self._replace(
            lr=self.lr[replicas],
            steps=self.steps if isinstance(self.steps, int) else self.steps[replicas],
            lam=self.lam[replicas],
            anchor=None if self.anchor is None else [weight[replicas] for weight in self.anchor],
            batches=None if self.batches is None else self.batches.of(replicas),
        )

    def is_unstable(self) -> Tensor:
        """(R,): theta <- (1 - 2 lr lam) theta - ... does not contract from lr lam = 1 on"""
        return self.lr * self.lam >= (1 if self.plain else float("inf"))

    def why_diverged(self, replica: int) -> str:
        """What happened, and what to change."""
        lr, lam = float(self.lr[replica]), float(self.lam[replica])
        grew = not self.plain or lr * lam < 1
        if self.anchor is not None:
            advice = f"take a smaller lr (it is {lr:g}) or, where that comes from the paper's Condition, a smaller C5"
            if grew:
                return f"the loss grew beyond all bounds; {advice}, and arms x of length 1"
            return f"lr * m lam_t / 2 = {lr * lam:g}, and descent does not contract from 1 on; {advice}"
        if grew:
            other = "a larger lam, or optimizer adam" if self.plain else "a larger lam"
            return f"the loss grew beyond all bounds; take a smaller lr (it is {lr:g}), {other}"
        return (
            f"lr * lam = {lr * lam:g}, and descent on lam |theta|^2 does not contract from 1 on; "
            f"take lam < {1 / lr:g} or lr < {1 / lam:g}, or optimizer adam"
        )


class RewardModel(nn.Module, ABC):
    """f(x; theta) of R replicas, with the gradients that design matrices need and the steps of TrainNN."""

    shapes: list[tuple[int, int]]
    """(out, in) of the layers that gradients are handed out by, see ``Factors``"""
    blocks: int
    """number of blocks that arms (x, k) stand in; 1 where arms are vectors"""
    weights: tuple[Tensor, ...]
    """theta: the parameters, each (R, ...)"""
    learns_from_padding: bool = False
    """Whether rows of zeros would change the parameters, so that observations need weights where they are padded."""
    sums_over_observations: bool = False
    """Whether equal observations may be put together, as one with the sum of their weights: layers like dropout, or
    those that look at a whole batch, would tell the difference."""
    draws: bool = False
    """Whether layers draw random numbers in TrainNN, like dropout."""

    @abstractmethod
    def factors(self, x: Tensor, replicas: Tensor | None = None) -> tuple[Tensor, Factors]:
        """f (R, N) and the factors of its gradient at x (R, N, d); of some replicas only, if given by their indices."""

    @abstractmethod
    def descend(
        self,
        weights: Sequence[Tensor],
        data: Observations,
        descent: Descent,
        lr: Tensor,
        replicas: Tensor | None,
        seeds: Sequence[int],
    ) -> Tensor:
        """Take the steps of a TrainNN, changing ``weights`` in place; returns the loss (R,) after them.

        Everything belongs to ``replicas`` (indices; None for all). ``lr`` (R,) is 0 for those that stay as they are.
        ``seeds``, one a replica, are for layers that draw random numbers, like dropout.
        """

    @abstractmethod
    def fresh(self, seeds: Sequence[int], numbers: Sequence[int]) -> list[Tensor]:
        """Parameters as at initialisation, drawn anew: a function of a replica's seed and its number."""

    @abstractmethod
    def module(self, replica: int) -> nn.Module:
        """An ordinary module (..., d) -> (...) with a copy of the parameters of one replica."""

    @abstractmethod
    def identity(self) -> Any:
        """What a stored state must agree with, as plain values."""


def select(values: Sequence[Tensor], replicas: Tensor | None) -> Sequence[Tensor]:
    """Those of some replicas (indices) of tensors (R, ...)."""
    return values if replicas is None else [value.index_select(0, replicas) for value in values]
