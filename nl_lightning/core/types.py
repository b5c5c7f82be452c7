"""What passes between environment, loop, agent and TrainNN."""

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor

__all__ = [
    "Choice",
    "Deal",
    "Factors",
    "History",
    "Prefix",
    "Round",
    "TrainingBatch",
    "View",
    "WarmStartBatch",
    "Window",
    "of_arm",
]


Factors = tuple[Tensor, ...]
"""(delta_1, z_0, delta_2, z_1, ..., z_{L-1}) of shapes (R, N, features): ``zip(factors[::2], factors[1::2])`` are the
factors of all layers but the last, whose factors are delta_L = 1, left out, and ``factors[-1]``."""


class Deal(NamedTuple):
    """C rounds of R replicas with K arms each."""

    arms: Tensor
    """(R, C, K, d)"""
    reward: Tensor
    """(R, C, K), the reward that each arm would give; in a log, that of the logged arm"""
    regret: Tensor | None = None
    """(R, C, K), the expected loss of choosing this arm instead of the best one; None where nobody knows it"""
    mask: Tensor | None = None
    """(R, C, K), False for padding where a round has fewer than K arms; None where all rounds have K"""
    logged: Tensor | None = None
    """(R, C), the logged arm, -1 for padding: only an agent that picks it sees the reward; None in a simulation"""
    event: Tensor | None = None
    """(R, C), the row of the log"""
    length: Tensor | None = None
    """(R,), rounds of each replica; the rest is padding. None where all have C"""
    replicas: Tensor | None = None
    """indices of the replicas that these rounds belong to; None for all"""
    number: Tensor | None = None
    """(R, C), ascending numbers that the agent's random numbers belong to; None where these are those of ``event``"""
    propensity: Tensor | None = None
    """(R, C), with which the logged arm was chosen; where events are accepted by chances, like the next two"""
    uniform: Tensor | None = None
    """(R, C), uniform numbers in [0, 1) that decide"""
    predicted: Tensor | None = None
    """(R, C, K), the reward that a model expects of each arm; None without a model"""

    def rounds(self, start: int, stop: int) -> "Deal":
        """Rounds ``start``, ..., ``stop`` - 1 of a simulation's deal."""
        return Deal(*(None if values is None else values[:, start:stop] for values in self[:4]))  # type: ignore[arg-type]


class WarmStartBatch(NamedTuple):
    """n observations that somebody else chose, the same for all replicas."""

    x: Tensor
    """(n, d)"""
    reward: Tensor
    """(n,)"""
    weight: Tensor | None = None
    """(n,), how often each counts; None: once"""


class View(NamedTuple):
    """What an agent knows before it chooses: all that depends on the network alone, and its random numbers.

    The view of C rounds together has (R, C, K, ...) instead of (R, K, ...). An arm that a round does not have (padding)
    has a mean of -inf and a uniform number of 0: it is never chosen.
    """

    arms: Tensor
    """(R, K, d)"""
    mean: Tensor
    """(R, K), the estimate that the bonus is added to"""
    factors: Factors
    """of the gradients, prepared by the design matrix, each (R, K, features)"""
    observation: Tensor
    """(R, K, ...), the weight of an observation and then the factors, so that those of the chosen arm are picked
    together"""
    uniform: Tensor
    """(R, K), uniform in (0, 1], which break ties"""
    normal: Tensor | None
    """(R, K), standard normal, for exploration rules that draw"""
    packed: Tensor | None = None
    """(R, K, ...), side by side: mean, uniform and normal numbers, observation; only where asked for"""
    owner: str | None = None
    """``Agent.owner`` of the agent whose view it is; None where the loop has put it together"""

    def unbind(self) -> "list[View]":
        """The views of C rounds (R, C, K, ...), one by one."""
        rounds = self.arms.shape[1]
        factors = zip(*(factor.unbind(1) for factor in self.factors), strict=True)
        arms, means, observations, uniform = (
            values.unbind(1) for values in (self.arms, self.mean, self.observation, self.uniform)
        )
        normal = [None] * rounds if self.normal is None else self.normal.unbind(1)
        return list(map(View, arms, means, factors, observations, uniform, normal))

    def rounds(self, stop: int) -> "View":
        """The first ``stop`` of C rounds."""
        arms, mean, observation, uniform = (
            values[:, :stop] for values in (self.arms, self.mean, self.observation, self.uniform)
        )
        factors = tuple(factor[:, :stop] for factor in self.factors)
        return View(arms, mean, factors, observation, uniform, None if self.normal is None else self.normal[:, :stop])

    def of(self, replicas: Tensor) -> "View":
        """The view of some replicas, by their indices."""
        arms, mean, observation, uniform = (
            values.index_select(0, replicas) for values in (self.arms, self.mean, self.observation, self.uniform)
        )
        sizes = [factor.shape[-1] for factor in self.factors]
        _, *factors = observation.split([observation.shape[-1] - sum(sizes), *sizes], dim=-1)
        normal = None if self.normal is None else self.normal.index_select(0, replicas)
        return View(arms, mean, tuple(factors), observation, uniform, normal)


class Choice(NamedTuple):
    """The decision of a round, one arm per replica."""

    arm: Tensor
    """(R,), the number of the chosen arm"""
    score: Tensor
    """(R, K), the scores of all arms"""
    mean: Tensor
    """(R, K), what the bonus is added to: f or mu(f)"""
    bonus: Tensor
    """(R, K), the exploration width; for Thompson sampling the standard deviation"""
    view: View
    """what the agent computed from the arms"""

    def chosen(self, values: Tensor) -> Tensor:
        """The entry of the chosen arm: (R, K) -> (R,)"""
        return values.gather(1, self.arm.unsqueeze(1)).squeeze(1)

    @property
    def observed(self) -> Tensor:
        """(R, 1, ...), the observation of the chosen arm"""
        return of_arm(self.view.observation.unsqueeze(1), self.arm.unsqueeze(1))

    @property
    def x(self) -> Tensor:
        """(R, 1, d), the chosen arm"""
        return of_arm(self.view.arms.unsqueeze(1), self.arm.unsqueeze(1))


class TrainingBatch(NamedTuple):
    """The replay buffer as ``training_step`` gets it: x (R, n, d), reward (R, n)."""

    x: Tensor
    reward: Tensor
    weight: Tensor | None
    """(R, n), 0 for padding; None where every observation counts once"""
    inactive: Tensor | None
    """(R,), replicas that are not trained because their log has ended; None where there are none"""
    due: bool
    """False for the rounds after the last call of TrainNN, too few for another one"""
    distinct: int | None = None
    """how many distinct rows a replica's x has at most, where equal ones should be computed once; else None"""


class Round(ABC):
    """A round that was played. What callbacks seldom ask for is computed when they do."""

    def __init__(self, accepted: Tensor | None, rows_follow: bool) -> None:
        self.accepted = accepted
        """(R,), the replicas that learn from this round; None for all of them"""
        self.rows_follow = rows_follow
        """Whether the loop appends the rows of several rounds to the replay buffer together, after this one"""
        self.weight: Tensor | None = None
        """(R,), how often the observation counts, for ``observe``; None: once"""
        self.importance: Tensor | None = None
        """(R,), how often it counts in the design matrix, also where it is not ``accepted``; None: as in the loss"""

    @property
    @abstractmethod
    def t(self) -> Tensor:
        """(R,), its number, counted from 1; in a replay replicas differ"""

    @property
    @abstractmethod
    def choice(self) -> Choice:
        """The decision."""

    @property
    @abstractmethod
    def observed(self) -> Tensor:
        """(R, 1, ...), the observation of the chosen arm"""

    @property
    @abstractmethod
    def reward(self) -> Tensor:
        """(R,)"""

    @property
    @abstractmethod
    def regret(self) -> Tensor | None:
        """(R,); None where nobody knows it"""


class Prefix(NamedTuple):
    """What follows from S observations, before each of them and after the last."""

    design: Tensor
    """(R, S + 1, ...), the states of the design matrix"""
    effective_dim_design: Tensor
    """(R, S + 1, ...), those of the matrix of the effective dimension"""
    effective_dimension: Tensor
    """(R, S + 1)"""
    radius: Tensor
    """(R, S + 1)"""


class Window(NamedTuple):
    """S rounds that were played together, each tensor (R, S)."""

    x: Tensor
    """(R, S, d), the chosen arm"""
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
    event: Tensor | None
    """the row of the log"""
    filled: Tensor | None
    """False where there was no such round: in a replay replicas accept different numbers of events; None for all"""
    prefix: Prefix | None = None
    """the states between the rounds, where they were looked ahead"""
    checks: int = 0
    """how often a guess was checked"""
    weight: Tensor | None = None
    """how often each observation counts; None: once"""


class History(NamedTuple):
    """The rounds between two calls of TrainNN, each tensor (R, C)."""

    t: Tensor
    """(C,), counted from 1"""
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


def of_arm(values: Tensor, arm: Tensor) -> Tensor:
    """The entries of one arm: (R, C, K, ...) and (R, C) -> (R, C, ...)"""
    if values.dim() == 3:
        return values.gather(2, arm.unsqueeze(2)).squeeze(2)
    index = arm[..., None, None].expand(-1, -1, 1, values.shape[-1])
    return values.gather(2, index).squeeze(2)
