"""Equal observations put together: the same loss, the same gradient, and nothing that depends on other replicas."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nl_lightning import NeuralLogUCB2
from nl_lightning.core.types import TrainingBatch
from nl_lightning.environments import Synthetic
from nl_lightning.models.base import Observations
from nl_lightning.models.merging import merged
from nl_lightning.testing import check_environment
from tests.support.fits import Fit

POOL = 6


def observations(seed: int, n: int, dim: int = 3, replicas: int = 2, pool: int = POOL) -> Observations:
    """n observations of arms from a pool of each replica, with weights of 0 to 2."""
    g = torch.Generator().manual_seed(seed)
    arms = torch.randn(replicas, pool, dim, generator=g, dtype=torch.float64)
    place = torch.randint(pool, (replicas, n), generator=g)
    x = arms.gather(1, place.unsqueeze(-1).expand(-1, -1, dim))
    reward = torch.randint(2, (replicas, n), generator=g).double()
    return Observations(x, reward, torch.randint(3, (replicas, n), generator=g).double())


def table(x: Tensor, reward: Tensor, weight: Tensor) -> dict[tuple[float, ...], tuple[float, float]]:
    """The slow twin: the sum of weights and of weighted clicks by arm."""
    found: dict[tuple[float, ...], tuple[float, float]] = {}
    for row, r, w in zip(x.tolist(), reward.tolist(), weight.tolist(), strict=True):
        total, clicks = found.get(tuple(row), (0.0, 0.0))
        found[tuple(row)] = total + w, clicks + w * r
    return {row: sums for row, sums in found.items() if sums[0]}


@given(seed=st.integers(0, 10**6), n=st.integers(1, 60), half=st.booleans(), weighted=st.booleans())
def test_weights_and_clicks_of_every_arm(seed: int, n: int, half: bool, weighted: bool) -> None:
    data = observations(seed, n)
    x, reward, weight = data.x.float() if half else data.x, data.reward, data.weight
    assert weight is not None
    found = merged(Observations(x, reward, weight if weighted else None), POOL + 1)
    assert found is not None
    assert found.weight is not None
    assert found.x.shape == (2, POOL + 1, 3)
    for r in range(2):
        given_weight = weight[r] if weighted else torch.ones(n)
        expected = table(x[r], reward[r], given_weight)
        clicks = table(found.x[r], found.reward[r], found.weight[r])
        assert clicks.keys() == expected.keys()
        for arm, sums in expected.items():
            assert clicks[arm] == pytest.approx(sums, rel=1e-15)


def test_more_different_arms_than_there_is_room_for() -> None:
    data = observations(0, 50)
    assert merged(data, POOL) is not None
    assert merged(data, POOL - 1) is None
    # one replica is enough
    mixed = observations(0, 50, replicas=1, pool=40)
    assert merged(Observations(*(torch.cat(pair) for pair in zip(data, mixed, strict=True))), POOL) is None  # type: ignore[arg-type]


def test_different_rows_with_the_same_key_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nl_lightning.models.merging._keys", lambda x: (x[..., 0] > 0).long())
    assert merged(observations(0, 50), POOL + 1) is None


SETTINGS: dict[str, dict[str, Any]] = {
    "adam": {},
    "gd": {"optimizer": "gd", "steps": 20},
    "without biases": {"bias": False},
    "linear": {"width": 1, "depth": 1},
    "theory": {"mode": "theory", "steps": 10, "lr": 1e-4},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_training_on_merged_observations(settings: dict[str, Any]) -> None:
    """Also where one replica has fewer observations than another."""
    agents = [NeuralLogUCB2(4, **{"width": 6, "depth": 2, "replicas": 2, **settings}).double() for _ in range(2)]
    data = observations(1, 40, dim=4)
    accepted = torch.arange(40) < torch.tensor([[40], [31]])
    for agent, distinct in zip(agents, (None, POOL), strict=True):
        agent.buffer.append(data.x, data.reward, accepted)
        agent._batch = TrainingBatch(*agent.buffer.rows(), None, True, distinct)
        agent.train_nn()
    before = NeuralLogUCB2(4, **{"width": 6, "depth": 2, "replicas": 2, **settings}).double().network.weights
    pairs = zip(before, *(agent.network.weights for agent in agents), strict=True)
    for start, one, other in pairs:
        assert not torch.equal(start, one)
        # Adam divides by the size of a gradient, which multiplies the last digits of one that is next to zero
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_what_is_not_a_sum_over_observations_is_not_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr("nl_lightning.agents.train_nn.train", lambda model, data, *rest: sizes.append(data.x.shape[1]))

    def network() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))

    for settings in ({}, {"batch_size": 8}, {"network": network}):
        agent = NeuralLogUCB2(4, width=6, replicas=2, **settings)  # type: ignore[arg-type]
        data = observations(1, 40, dim=4)
        agent.buffer.append(data.x, data.reward)
        agent._batch = TrainingBatch(*agent.buffer.rows(), None, True, POOL)
        agent.train_nn()
    assert sizes == [POOL + 1, 40, 40]


class Recount(Synthetic):
    """The same arms, without saying that there are few."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.distinct_arms = None


def test_a_fit_with_few_arms(fit: Fit) -> None:
    """The same weights up to rounding; and a replica's bits do not depend on the replicas beside it."""
    settings: dict[str, Any] = {"width": 8, "update_every": 20, "steps": 5, "nu": 0.1}
    few: dict[str, Any] = {"dim": 4, "arms": 4, "pool": 9}
    results = [
        fit(NeuralLogUCB2(4, replicas=3, **settings).double(), world=make(**few), rounds=100)
        for make in (Recount, Synthetic)
    ]
    (plain, rounds), (merging, again) = results
    assert rounds.arm.equal(again.arm)
    for one, other in zip(plain.network.weights, merging.network.weights, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)
    alone, _ = fit(NeuralLogUCB2(4, seed=1, **settings).double(), world=Synthetic(**few), rounds=100)
    for one, other in zip(merging.network.weights, alone.network.weights, strict=True):
        assert torch.equal(one[1:2], other)


class TooMany(Synthetic):
    """Says that there are fewer arms than it deals."""

    def __init__(self) -> None:
        super().__init__(dim=4, pool=50)
        self.distinct_arms = 3


def test_a_world_with_more_arms_than_it_says(fit: Fit) -> None:
    """TrainNN takes all observations; the conformance test names the promise."""
    agent, _ = fit(NeuralLogUCB2(4, width=4, update_every=20, steps=2), world=TooMany(), rounds=60)
    other, _ = fit(NeuralLogUCB2(4, width=4, update_every=20, steps=2), world=Recount(dim=4, pool=50), rounds=60)
    assert all(map(torch.equal, agent.network.weights, other.network.weights))
    with pytest.raises(AssertionError, match="TooMany deals [0-9]+ different arms, more than distinct_arms = 3"):
        check_environment(TooMany)
    check_environment(lambda: Synthetic(dim=4, pool=50))
