"""The chance of every arm against enumeration, and what asking leaves as it was."""

from itertools import combinations

import numpy as np
import pytest
import torch

from nl_lightning import AGENTS, Greedy, NeuralLogTS2, NeuralLogUCB2
from nl_lightning.agents.probabilities import (
    best_of_all,
    best_of_random_sets,
    logged_best_of_all,
    logged_best_of_random_sets,
)
from nl_lightning.core.errors import InputError
from nl_lightning.core.types import Choice, View

TIED = [[3.0, 1.0, 3.0, 2.0, 2.0, 2.0, 0.0], [1.0] * 7, [7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]]


def enumerated(scores: list[float], arms: int) -> list[float]:
    """Set by set."""
    taken = [0.0] * len(scores)
    sets = list(combinations(range(len(scores)), arms))
    for drawn in sets:
        best = [i for i in drawn if scores[i] == max(scores[j] for j in drawn)]
        for i in best:
            taken[i] += 1 / len(best) / len(sets)
    return taken


@pytest.mark.parametrize("arms", [1, 2, 4, 7])
def test_chances_over_sets_are_those_of_enumeration(arms: int) -> None:
    expected = torch.tensor([enumerated(scores, arms) for scores in TIED], dtype=torch.float64)
    score = torch.tensor(TIED, dtype=torch.float64)
    torch.testing.assert_close(best_of_random_sets(score, arms, 1e-12), expected, rtol=1e-12, atol=1e-14)
    for item in range(7):
        logged = torch.full((3,), item)
        found = logged_best_of_random_sets(score.unsqueeze(0), logged, arms, 1e-12)[0]
        torch.testing.assert_close(found, expected[:, item], rtol=1e-12, atol=1e-14)
    assert (logged_best_of_random_sets(score, torch.tensor([-1, -1, -1]), arms, 1e-12) == 0).all()
    if arms == 7:
        torch.testing.assert_close(best_of_all(score, 1e-12), expected)


def test_events_may_have_fewer_candidates() -> None:
    """Of a list shorter than the set, all are in it; padding is never drawn."""
    lists = [[3.0, 1.0, 2.0], [2.0, 2.0, 1.0, 0.0, 5.0], [1.0, 4.0]]
    mask = torch.tensor([[place < len(each) for place in range(5)] for each in lists])
    score = torch.tensor([[*each, *[-torch.inf] * (5 - len(each))] for each in lists], dtype=torch.float64)
    for item in range(2):
        expected = [enumerated(each, min(3, len(each)))[item] for each in lists]
        found = logged_best_of_random_sets(score, torch.full((3,), item), 3, 1e-12, mask)
        assert found.tolist() == pytest.approx(expected, rel=1e-12)


def test_the_logged_arm_of_ties_has_its_share() -> None:
    score = torch.tensor(TIED, dtype=torch.float64)
    assert logged_best_of_all(score, torch.tensor([2, 4, 0]), 1e-12).tolist() == [0.5, 1 / 7, 1.0]
    assert logged_best_of_all(score, torch.tensor([1, -1, -1]), 1e-12).tolist() == [0, 0, 0]


def arms_of(n: int = 6) -> torch.Tensor:
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.mark.parametrize("name", AGENTS)
def test_probabilities_are_how_often_an_arm_is_chosen(name: str) -> None:
    agent = AGENTS[name](4, nu=0.5, replicas=2).double()
    arms = arms_of()
    arms[5] = arms[0]
    mask = torch.tensor([True, True, False, True, True, True])
    position = agent.noise.position
    chances = agent.probabilities(arms, draws=4000, mask=mask)
    assert agent.noise.position == position
    assert chances.shape == (2, 6)
    torch.testing.assert_close(chances.sum(1), torch.ones(2, dtype=torch.float64))
    assert (chances[:, 2] == 0).all()
    torch.testing.assert_close(chances[:, 0], chances[:, 5], rtol=0, atol=0.05)
    chosen = torch.stack([agent.act(arms, mask).arm for _ in range(1500)])
    often = torch.nn.functional.one_hot(chosen, 6).double().mean(0)
    assert float((often - chances).abs().max()) < 0.06
    if not agent.exploration.stochastic:
        assert set(chances.unique().tolist()) <= {0.0, 0.5, 1.0}


class Last(NeuralLogUCB2):
    """Chooses the last arm or, half of the time, the first."""

    def choose(self, view: View) -> Choice:
        choice = super().choose(view)
        last = choice.score.shape[1] - 1
        return choice._replace(arm=torch.where(view.uniform[:, 0] < 0.5, 0, last))


def test_an_own_choice_is_asked_for() -> None:
    chances = Last(4).double().probabilities(arms_of(), draws=2000)
    assert chances[0, 1:5].sum() == 0
    assert float(chances[0, 0]) == pytest.approx(0.5, abs=0.05)


def test_epsilon_greedy_is_asked_for() -> None:
    chances = Greedy(4, epsilon=0.6).double().probabilities(arms_of(), draws=3000)
    np.testing.assert_allclose(np.sort(chances[0].numpy())[:5], 0.1, atol=0.03)


def test_asking_again_gives_the_same() -> None:
    agent = NeuralLogTS2(4, nu=0.5).double()
    first = agent.probabilities(arms_of(), draws=7)
    assert torch.equal(agent.probabilities(arms_of(), draws=7), first)
    agent.act(arms_of())
    assert not torch.equal(agent.probabilities(arms_of(), draws=7), first)


def test_no_draws_are_refused() -> None:
    with pytest.raises(InputError, match="draws must be a whole number"):
        NeuralLogTS2(4).probabilities(arms_of(), draws=0)
