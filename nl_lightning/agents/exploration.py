"""Exploration rules: how the score of an arm follows from its mean and its bonus, and which arm is taken.

A rule is data over one loop. To bring one of your own, subclass ``Exploration`` and give it to an agent:
``NeuralLogUCB2(dim=20, exploration=MyRule())``, or ``--model.exploration my_module.MyRule`` on the command line.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from nl_lightning.core.errors import InputError
from nl_lightning.core.imports import as_new_as, import_class

__all__ = ["RULES", "UCB", "EpsilonGreedy", "Exploration", "Greedy", "Thompson", "make_exploration"]


class Exploration(ABC):
    """How an agent explores.

    Both methods get tensors (..., K) whose last dimension are the arms of a round, and must treat rounds independently
    of each other: several rounds may be asked for at once. They must not keep state; what is random comes as numbers
    that belong to the round. Arms that a round does not have come with a mean of -inf and a uniform number of 0.
    """

    stochastic: ClassVar[bool] = False
    """Whether the rule wants standard normal numbers, so that its choice is random beyond breaking ties."""
    per_arm: ClassVar[bool] = False
    """Whether a score depends on the mean and bonus of that arm alone, so that a frozen agent may look it up."""

    @property
    def is_per_arm(self) -> bool:
        """Whether ``per_arm`` is still true: a subclass that redefines ``score`` says so again."""
        return self.per_arm and not self.stochastic and as_new_as(self, "per_arm", "score")

    @abstractmethod
    def score(self, mean: Tensor, bonus: Tensor, normal: Tensor | None) -> Tensor:
        """The scores (..., K) of arms with these means and bonuses; ``normal`` is None unless ``stochastic``."""

    def choose(self, score: Tensor, uniform: Tensor, normal: Tensor | None, tolerance: float) -> Tensor:
        """The arm (...) with the highest score; among equal ones, the one with the largest uniform number.

        Scores count as equal up to the relative ``tolerance``: a matrix product may give the same arm another last
        digit in another row.
        """
        highest = score.amax(-1, keepdim=True)
        worse = score < highest.sub(highest.abs(), alpha=tolerance)
        return uniform.masked_fill(worse, 0).argmax(-1)

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in sorted(vars(self).items()))
        return f"{type(self).__module__}.{type(self).__qualname__}({settings})"


class UCB(Exploration):
    """Optimism: score = mean + bonus."""

    per_arm = True

    def score(self, mean: Tensor, bonus: Tensor, normal: Tensor | None) -> Tensor:
        return mean + bonus


class Thompson(Exploration):
    """Thompson sampling: score ~ N(mean, bonus^2), one draw per arm and round."""

    stochastic = True

    def score(self, mean: Tensor, bonus: Tensor, normal: Tensor | None) -> Tensor:
        assert normal is not None
        return torch.addcmul(mean, bonus, normal)


class Greedy(Exploration):
    """No exploration: score = mean."""

    per_arm = True

    def score(self, mean: Tensor, bonus: Tensor, normal: Tensor | None) -> Tensor:
        return mean.clone()


class EpsilonGreedy(Greedy):
    """No bonus, but with a chance of epsilon a random arm.

    Args:
        epsilon: the chance, 0 to 1.
    """

    stochastic = True

    def __init__(self, epsilon: float = 0.1) -> None:
        if not 0 <= epsilon <= 1:
            raise InputError(f"epsilon is a chance: it must lie between 0 and 1, got {epsilon!r}.")
        self.epsilon = epsilon

    def choose(self, score: Tensor, uniform: Tensor, normal: Tensor | None, tolerance: float) -> Tensor:
        assert normal is not None
        best = super().choose(score, uniform, normal, tolerance)
        # Phi(z) of a normal number is uniform; the numbers that break ties are independent of it
        at_random = torch.special.ndtr(normal[..., 0]) < self.epsilon
        return torch.where(at_random, uniform.argmax(-1), best)


RULES: dict[str, type[Exploration]] = {"ucb": UCB, "thompson": Thompson, "greedy": Greedy}
"""The rules that have a name; any other is given by its class, an instance, or its import path."""


def make_exploration(rule: "str | Exploration | type[Exploration]", epsilon: float = 0.0) -> Exploration:
    """The rule given by its name, its import path (of a class or an instance), its class, or itself."""
    if epsilon:
        if rule != "greedy":
            raise InputError(f"epsilon = {epsilon:g} is for the exploration rule greedy; leave it out.")
        return EpsilonGreedy(epsilon)
    if isinstance(rule, Exploration):
        return rule
    known = RULES.get(rule) if isinstance(rule, str) else None
    found = known or import_class(rule, Exploration, "exploration", RULES, instances=True)
    if isinstance(found, Exploration):
        return found
    try:
        made: Exploration = found()
    except TypeError as error:
        raise InputError(
            f"exploration: {found.__name__} needs settings ({error}); give an instance, or class_path and init_args."
        ) from error
    return made
