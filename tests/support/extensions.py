"""Classes as a user would bring them."""

from typing import Any

import lightning as L
import torch
from torch import Tensor

from nl_lightning import Deal, NeuralAgent, NeuralLogUCB2, RoundCallback, Simulation
from nl_lightning.agents.exploration import Exploration
from nl_lightning.core.types import Choice, Factors, Round, View
from nl_lightning.designs import DesignMatrix, DiagonalDesign
from nl_lightning.designs.samples import gradient


class RandomAgent(NeuralAgent):
    """Picks an arm at random."""

    calls = 0

    def radius_at(self, dimension: Tensor) -> Tensor:
        return self.nu * (1 + dimension)

    def choose(self, view: View) -> Choice:
        self.calls += 1
        return super().choose(view)._replace(arm=view.uniform.argmax(-1))


class FirstArm(NeuralLogUCB2):
    """Always takes the first arm that is there."""

    calls = 0

    def act(self, arms: Tensor, mask: Tensor | None = None) -> Choice:
        self.calls += 1
        choice = super().act(arms, mask)
        there = torch.ones_like(choice.mean, dtype=torch.bool) if mask is None else mask
        return choice._replace(arm=there.int().argmax(-1))


class Pessimist(NeuralLogUCB2):
    """Subtracts the bonus."""

    calls = 0

    def score(self, view: View, replicas: Tensor | None = None) -> tuple[Tensor, Tensor]:
        self.calls += 1
        _, bonus = super().score(view, replicas)
        return view.mean - bonus, bonus


class Observer(NeuralLogUCB2):
    """Learns every second click."""

    calls = 0

    def observe(self, choice: Choice, reward: Any, accepted: Tensor | None = None) -> None:
        self.calls += 1
        # the buffer is up to date, with the rounds before this one
        assert int(self.rounds.max()) == int(self.rounds.min()) or accepted is not None
        super().observe(choice, reward if self.calls % 2 else torch.zeros_like(reward), accepted)


class SlowConfidence(NeuralLogUCB2):
    """Adds every observation twice."""

    calls = 0

    def update_confidence(self, observed: Tensor, accepted: Tensor | None = None) -> None:
        self.calls += 1
        for _ in range(2):
            super().update_confidence(observed, accepted)


class OwnRadius(NeuralLogUCB2):
    """A radius that is not affine in the root of the effective dimension."""

    def radius_at(self, dimension: Tensor) -> Tensor:
        return self.nu * (1 + dimension).log() + 0.1


class TwiceTrained(NeuralLogUCB2):
    """Calls TrainNN twice."""

    calls = 0

    def train_nn(self) -> None:
        self.calls += 1
        for _ in range(2):
            super().train_nn()


class OwnMean(NeuralLogUCB2):
    """Adds the first feature to the mean."""

    def evaluate(self, arms: Tensor, replicas: Tensor | None = None) -> tuple[Tensor, Tensor, Factors]:
        mean, weight, factors = super().evaluate(arms, replicas)
        return mean + arms[..., 0], weight, factors


class HalfBonus(Exploration):
    """mean + factor * bonus"""

    def __init__(self, factor: float = 0.5) -> None:
        self.factor = factor

    def score(self, mean: Tensor, bonus: Tensor, normal: Tensor | None) -> Tensor:
        return mean + self.factor * bonus


class EpsilonGreedy(Exploration):
    """A random arm with probability epsilon, else the best mean."""

    stochastic = True

    def __init__(self, epsilon: float = 0.2) -> None:
        self.epsilon = epsilon

    def score(self, mean: Tensor, bonus: Tensor, normal: Tensor | None) -> Tensor:
        return mean

    def choose(self, score: Tensor, uniform: Tensor, normal: Tensor | None, tolerance: float) -> Tensor:
        assert normal is not None
        explores = torch.special.ndtr(normal[..., 0]) < self.epsilon
        return torch.where(explores, uniform.argmax(-1), super().choose(score, uniform, normal, tolerance))


class DenseDesign(DesignMatrix):
    """The exact matrix, solved anew for every norm."""

    matrix: Tensor

    def __init__(self, shapes: Any, ridge: Tensor, blocks: int = 1, scale: float = 1.0) -> None:
        super().__init__(shapes, ridge, blocks)
        self.scale = scale
        eye = torch.eye(self.parameters_count, dtype=ridge.dtype, device=ridge.device)
        self.register_buffer("matrix", ridge[:, None, None] * eye)

    def norm(self, factors: Factors, replicas: Tensor | None = None) -> Tensor:
        g = gradient(factors)
        return self.scale * (g * torch.linalg.solve(self.matrix, g.mT).mT).sum(-1).clamp_min(0).sqrt()

    def add(self, factors: Factors, weight: Tensor, accepted: Tensor | None = None) -> None:
        g = gradient(factors)
        self.matrix += weight * (g.mT @ g)

    def logdet(self) -> Tensor:
        return torch.linalg.slogdet(self.matrix).logabsdet


class DoubledNorm(DiagonalDesign):
    """Redefines one method of a design that can look ahead, and says nothing of looking ahead."""

    def norm(self, squares: Factors, replicas: Tensor | None = None) -> Tensor:
        return 2 * super().norm(squares, replicas)


class FewRounds(Simulation):
    """Deals at most 23 rounds at a time, each with two to five arms."""

    dim, max_arms = 4, 5

    def deal(self, start: int, count: int) -> Deal:
        rounds = range(start, start + min(count, 23))
        dealt = [list(zip(*(self.round(seed, t) for t in rounds), strict=True)) for seed in self.seeds]
        arms, clicks, mask = (torch.stack([torch.stack(replica[column]) for replica in dealt]) for column in range(3))
        chance = torch.sigmoid(3 * arms[..., 0]).masked_fill(~mask, -1)
        return Deal(arms, clicks, chance.amax(-1, keepdim=True) - chance, mask)

    @staticmethod
    def round(seed: int, t: int) -> tuple[Tensor, Tensor, Tensor]:
        g = torch.Generator().manual_seed(100_003 * seed + t)
        arms = torch.rand(5, 4, generator=g) * 2 - 1
        clicks = (torch.rand(5, generator=g) < torch.sigmoid(3 * arms[:, 0])).float()
        return arms, clicks, torch.arange(5) < 2 + int(torch.randint(4, (1,), generator=g))


class CountRounds(RoundCallback):
    """Counts rounds, and sees the agent as it is after each."""

    def __init__(self) -> None:
        self.rounds = 0

    def on_round_end(self, trainer: L.Trainer, agent: Any, played: Round) -> None:
        self.rounds += 1
        if played.accepted is None:
            assert agent.rounds.tolist() == played.t.tolist()
