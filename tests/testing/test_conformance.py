"""Our own classes pass the suites that users run on theirs, and classes that break a promise do not."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from nl_lightning import AGENTS, Deal, NeuralLogUCB2
from nl_lightning.agents.exploration import RULES, UCB, Exploration
from nl_lightning.core.types import Choice, Factors
from nl_lightning.designs import DESIGNS, DiagonalDesign
from nl_lightning.environments import Simulation, Synthetic
from nl_lightning.testing import check_agent, check_design, check_environment, check_exploration
from tests.support import extensions as own
from tests.support.block_environment import Signs

# ---- what passes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("design", ["diagonal", "full"])
@pytest.mark.parametrize("name", AGENTS)
def test_agents(name: str, design: str) -> None:
    check_agent(AGENTS[name], design=design)


@pytest.mark.parametrize("name", [name for name in AGENTS if name.startswith("NeuralLog")])
def test_agents_in_theory_mode(name: str) -> None:
    check_agent(AGENTS[name], mode="theory", lr=1e-5, horizon=60)


@pytest.mark.parametrize(
    "settings",
    [
        {"agent": own.RandomAgent},
        {"agent": own.FirstArm},
        {"agent": own.Pessimist},
        {"agent": own.SlowConfidence},
        {"agent": own.OwnRadius},
        {"agent": own.OwnMean},
        {"agent": own.TwiceTrained},
        {"agent": NeuralLogUCB2, "exploration": own.EpsilonGreedy()},
        {"agent": NeuralLogUCB2, "design": own.DenseDesign, "width": 5},
        {"agent": NeuralLogUCB2, "design": own.DoubledNorm},
    ],
    ids=str,
)
def test_agents_of_ones_own(settings: dict[str, Any]) -> None:
    check_agent(**settings)


@pytest.mark.parametrize("layers", [(1,), (5, 1), (5, 4, 1)])
@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("design", [*DESIGNS, own.DenseDesign])
def test_designs(design: Any, blocks: int, layers: tuple[int, ...]) -> None:
    check_design(design, layers=layers, blocks=blocks)


@pytest.mark.parametrize("rule", [*RULES, own.HalfBonus(0.3), own.EpsilonGreedy(0.5)])
def test_exploration_rules(rule: Any) -> None:
    check_exploration(rule)


@pytest.mark.parametrize("environment", [Synthetic, Signs, own.FewRounds])
def test_environments(environment: Any) -> None:
    check_environment(environment)


# ---- what does not ---------------------------------------------------------------------------------------------------


class _Forgets(DiagonalDesign):
    """Counts in an attribute that no checkpoint knows of."""

    count = 0

    def add(self, squares: Factors, weight: Tensor, accepted: Tensor | None = None) -> None:
        self.count += 1
        super().add(squares, weight / self.count, accepted)


class _Mixes(DiagonalDesign):
    def norm(self, squares: Factors, replicas: Tensor | None = None) -> Tensor:
        found = super().norm(squares, replicas)
        return found * (1 + found.mean())


class _Wide(DiagonalDesign):
    def norm(self, squares: Factors, replicas: Tensor | None = None) -> Tensor:
        return super().norm(squares, replicas).unsqueeze(-1)


class _Stale(DiagonalDesign):
    """Promises to look ahead, but its prefix states leave out the last observation."""

    supports_prefix = True

    def logdet_at(self, states: Tensor) -> Tensor:
        return super().logdet_at(states) + 1


class _NoLearning(DiagonalDesign):
    def add(self, squares: Factors, weight: Tensor, accepted: Tensor | None = None) -> None:
        pass


@pytest.mark.parametrize(
    ("design", "text"),
    [
        (_Forgets, "a loaded state must continue to the same bits"),
        (_Mixes, "must not depend on other replicas"),
        (_Wide, r"norm must return \(R, N\)"),
        (_Stale, "logdet_at must be logdet"),
        (_NoLearning, "must lower the norm in its own direction"),
    ],
)
def test_designs_that_break_a_promise(design: Any, text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        check_design(design)


class _OverRounds(Exploration):
    """Scores relative to the best of all rounds."""

    def score(self, mean: Tensor, bonus: Tensor, normal: Tensor | None) -> Tensor:
        return mean + bonus - bonus.max()


class _AnyArm(UCB):
    def choose(self, score: Tensor, uniform: Tensor, normal: Tensor | None, tolerance: float) -> Tensor:
        return torch.full(score.shape[:-1], score.shape[-1] - 1)


class _NotPerArm(Exploration):
    per_arm = True

    def score(self, mean: Tensor, bonus: Tensor, normal: Tensor | None) -> Tensor:
        return mean + bonus / bonus.sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (_OverRounds, "must treat rounds independently"),
        (_AnyArm, "has chosen an arm that a round does not have"),
        (_NotPerArm, "depends on the other arms of its round"),
    ],
)
def test_rules_that_break_a_promise(rule: Any, text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        check_exploration(rule)


class _Restless(own.FewRounds):
    """Other rounds whenever it is asked."""

    def deal(self, start: int, count: int) -> Deal:
        dealt = super().deal(start, count)
        return dealt._replace(arms=dealt.arms + torch.rand(1))


class _Crowd(own.FewRounds):
    """Rounds that depend on how many replicas there are."""

    def deal(self, start: int, count: int) -> Deal:
        dealt = super().deal(start, count)
        return dealt._replace(arms=dealt.arms * len(self.seeds))


class _Generator(Simulation):
    """Goes on with a generator that a restart does not know of."""

    dim = 2

    def reset(self, seeds: Sequence[int]) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.known: dict[int, Tensor] = {}

    def deal(self, start: int, count: int) -> Deal:
        for t in range(start, start + count):
            if t not in self.known:
                self.known[t] = torch.rand(1, 1, 3, 2, generator=self.generator)
        arms = torch.cat([self.known[t] for t in range(start, start + count)], dim=1).expand(
            len(self.seeds), -1, -1, -1
        )
        return Deal(arms, torch.zeros(arms.shape[:3]), torch.zeros(arms.shape[:3]))


class _Negative(own.FewRounds):
    def deal(self, start: int, count: int) -> Deal:
        dealt = super().deal(start, count)
        assert dealt.regret is not None
        return dealt._replace(regret=dealt.regret - 0.5)


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        (_Restless, "deals other rounds when it is asked again"),
        (_Crowd, "a replica's rounds depend on other replicas"),
        (_Generator, "deals other rounds after a restart"),
        (_Negative, "a regret is below 0"),
    ],
)
def test_environments_that_break_a_promise(environment: Any, text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        check_environment(environment)


class _ChangesWhenAsked(NeuralLogUCB2):
    def act(self, arms: Tensor, mask: Tensor | None = None) -> Choice:
        choice = super().act(arms, mask)
        self.radius = self.radius * 1.01
        return choice


class _CountsAll(NeuralLogUCB2):
    """Forgets who accepted."""

    def observe(self, choice: Choice, reward: Any, accepted: Tensor | None = None) -> None:
        super().observe(choice, reward)


class _Coupled(NeuralLogUCB2):
    def evaluate(self, arms: Tensor, replicas: Tensor | None = None) -> tuple[Tensor, Tensor, Factors]:
        mean, weight, factors = super().evaluate(arms, replicas)
        return mean + 5 * mean.mean(0), weight, factors


class _ForgetsOnResume(NeuralLogUCB2):
    count = 0

    def observe(self, choice: Choice, reward: Any, accepted: Tensor | None = None) -> None:
        self.count += 1
        super().observe(choice, reward if self.count % 2 else torch.zeros_like(reward), accepted)


class _IgnoresMasks(NeuralLogUCB2):
    def act(self, arms: Tensor, mask: Tensor | None = None) -> Choice:
        return super().act(arms)


@pytest.mark.parametrize(
    ("agent", "text"),
    [
        (_ChangesWhenAsked, "act must change nothing but random draws: radius differs"),
        (_CountsAll, "observe must count the round for replicas that accepted it"),
        (_Coupled, "a replica chooses otherwise beside other replicas"),
        (_ForgetsOnResume, "a loaded state must continue"),
        (_IgnoresMasks, "its mask excludes"),
    ],
)
def test_agents_that_break_a_promise(agent: Any, text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        check_agent(agent, nu=1.0, lam=1.0, optimizer="gd")
