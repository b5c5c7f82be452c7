"""Methods of a user's own that are wrong: the message names the method, what it should be like and what it is."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from nl_lightning import NeuralLogUCB2
from nl_lightning.agents.exploration import UCB, Exploration
from nl_lightning.core.errors import InputError


class Length(NeuralLogUCB2):
    def radius_at(self, dimension: Tensor) -> Tensor:
        return torch.zeros(7)


class Number(NeuralLogUCB2):
    def radius_at(self, dimension: Tensor) -> Any:
        return 0.5


class NotFinite(NeuralLogUCB2):
    def radius_at(self, dimension: Tensor) -> Tensor:
        return dimension.log()


class NoArgument(NeuralLogUCB2):
    def radius_at(self) -> Tensor:  # type: ignore[override]
        return self.nu


class FewArguments(NeuralLogUCB2):
    def best(self, score: Tensor) -> Tensor:  # type: ignore[override]
        return score.argmax(-1)


class FewScoreArguments(Exploration):
    def score(self, mean: Tensor, bonus: Tensor) -> Tensor:  # type: ignore[override]
        return mean + bonus


class OneScore(Exploration):
    def score(self, mean: Tensor, bonus: Tensor, normal: Tensor | None) -> Tensor:
        return (mean + bonus).sum(-1)


class FewChooseArguments(UCB):
    def choose(self, score: Tensor) -> Tensor:  # type: ignore[override]
        return score.argmax(-1)


class FiveArms(Exploration):
    """A rule for five arms only."""

    def score(self, mean: Tensor, bonus: Tensor, normal: Tensor | None) -> Tensor:
        return mean + bonus * torch.arange(5)


@pytest.mark.parametrize(
    ("agent", "text"),
    [
        (Length, "Length.radius_at must return .* its shape (2,); got the shape (7,)."),
        (Number, "Number.radius_at must return .* its shape (2,); got 0.5."),
        (NotFinite, "NotFinite.radius_at must be finite .* it is -inf at 0."),
        (NoArgument, "NoArgument.radius_at is called with (dimension), .* takes ()."),
        (FewArguments, "FewArguments.best is called with (score, uniform, normal), .*def best(self, score, uniform, "),
    ],
)
def test_methods_of_an_agent(agent: type[NeuralLogUCB2], text: str) -> None:
    with pytest.raises(InputError, match=re.escape(text).replace(r"\.\*", ".*")):
        agent(dim=4, replicas=2)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (FewScoreArguments, "FewScoreArguments.score is called with (mean, bonus, normal), but"),
        (FewChooseArguments, "FewChooseArguments.choose is called with (score, uniform, normal, tolerance), but"),
        (OneScore, "OneScore.score must return scores of the shape of the means (2, 3); got the shape (2,)."),
    ],
)
def test_methods_of_an_exploration_rule(rule: type[Exploration], text: str) -> None:
    with pytest.raises(InputError, match=re.escape(text)):
        NeuralLogUCB2(dim=4, exploration=rule())


def test_a_rule_for_one_number_of_arms() -> None:
    agent = NeuralLogUCB2(dim=4, exploration=FiveArms())
    assert agent.act(torch.rand(5, 4)).score.shape == (1, 5)
