"""What passes between environment, agent and TrainNN in a round, and what is kept of it."""

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor

from nl_lightning.models.mlp import Factors


class View(NamedTuple):
    """What an agent has before it chooses an arm: all that depends on the network alone, and its random numbers.

    That of C rounds together has (R, C, K, ...) for (R, K, ...).
    """

    arms: Tensor
    """(R, K, d)"""
    mean: Tensor
    """(R, K), the estimate that the bonus is added to"""
    factors: Factors
    """of the gradients, prepared by the design, each (R, K, features)"""
    observation: Tensor
    """(R, K, ...), the weight of an observation and behind it the factors, so that those of the chosen arm are picked
    at once"""
    uniform: Tensor
    """(R, K), in (0, 1], which break ties"""
    normal: Tensor | None
    """(R, K), standard normal, for Thompson sampling"""

    def of(self, replicas: Tensor) -> "View":
        """That of some replicas, by their numbers."""
        arms, mean, observation, uniform = (
            values.index_select(0, replicas) for values in (self.arms, self.mean, self.observation, self.uniform)
        )
        sizes = [factor.shape[-1] for factor in self.factors]
        _, *factors = observation.split([observation.shape[-1] - sum(sizes), *sizes], dim=-1)
        normal = None if self.normal is None else self.normal.index_select(0, replicas)
        return View(arms, mean, tuple(factors), observation, uniform, normal)


class Choice(NamedTuple):
    """The decision of a round, one arm a replica."""

    arm: Tensor
    """(R,)"""
    score: Tensor
    """(R, K)"""
    mean: Tensor
    """(R, K)"""
    bonus: Tensor
    """(R, K), the exploration width; for Thompson sampling the standard deviation"""
    view: View

    def chosen(self, values: Tensor) -> Tensor:
        """The entry of the chosen arm: (R, K) -> (R,)"""
        return values.gather(1, self.arm.unsqueeze(1)).squeeze(1)

    @property
    def observed(self) -> Tensor:
        """(R, 1, ...), the observation of the chosen arm"""
        observation = self.view.observation
        return observation.gather(1, self.arm.view(-1, 1, 1).expand(-1, 1, observation.shape[-1]))


class TrainingBatch(NamedTuple):
    """The replay buffer as ``training_step`` gets it: x (R, n, d), reward (R, n)."""

    x: Tensor
    reward: Tensor
    resting: Tensor | None
    """(R,), the replicas that have no round to train after: their log has ended; None where there is none"""
    due: bool
    """False for the rounds after the last call of TrainNN, fewer than ``update_every``"""


class Round(ABC):
    """A round that was played. What callbacks seldom ask for is made when they do."""

    def __init__(self, accepted: Tensor | None, observed: Tensor) -> None:
        self.accepted = accepted
        """(R,), the replicas that learn from this round; None for all of them"""
        self.observed = observed
        """(R, 1, ...), the observation of the chosen arm"""

    @property
    @abstractmethod
    def t(self) -> Tensor:
        """(R,), its number, from 1 on; in a replay replicas differ"""

    @property
    @abstractmethod
    def choice(self) -> Choice: ...

    @property
    @abstractmethod
    def reward(self) -> Tensor:
        """(R,)"""

    @property
    @abstractmethod
    def regret(self) -> Tensor | None:
        """(R,); None where nobody knows it"""


class History(NamedTuple):
    """The rounds between two calls of TrainNN, each tensor (R, C)."""

    t: Tensor
    """(C,), from 1 on"""
    x: Tensor
    """(R, C, d), the chosen arm"""
    arm: Tensor
    reward: Tensor
    regret: Tensor | None
    """None in a replay: a log does not tell what the other arms would have given"""
    score: Tensor
    """of the chosen arm, like mean and bonus"""
    mean: Tensor
    bonus: Tensor
    radius: Tensor
    """after the round, like effective_dimension"""
    effective_dimension: Tensor
    event: Tensor | None = None
    """the row of the log"""
    valid: Tensor | None = None
    """False where a replica had no such round: it diverged, or its log had ended; None where all had"""
