"""Equal observations put together: the same loss, the same gradient, and nothing that depends on other replicas."""

from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nl_lightning import NeuralLogUCB2
from nl_lightning.agents.base import Agent
from nl_lightning.core.errors import InputError
from nl_lightning.core.types import Choice, TrainingBatch
from nl_lightning.environments import Deal, Synthetic
from nl_lightning.models.base import Observations, RewardModel
from nl_lightning.models.merging import keys_of, merged
from nl_lightning.models.training import train
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


@given(seed=st.integers(0, 10**6), n=st.integers(1, 60), single=st.booleans(), weighted=st.booleans())
def test_weights_and_clicks_of_every_arm(seed: int, n: int, single: bool, weighted: bool) -> None:
    data = observations(seed, n)
    x, reward, weight = data.x.float() if single else data.x, data.reward, data.weight
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


ARMS: dict[str, Tensor] = {
    "signs": 1 - 2 * torch.tensor(list(product((0.0, 1.0), repeat=7))),
    "zeros and ones": torch.tensor(list(product((0.0, 1.0), repeat=7))),
    "one-hot": torch.eye(100),
    "opposite": torch.cat([torch.randn(50, 3, generator=torch.Generator().manual_seed(1)).mul(s) for s in (1, -1)]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("arms", ARMS.values(), ids=ARMS)
def test_arms_that_differ_in_few_bits_have_differentkeys_of(arms: Tensor, dtype: torch.dtype) -> None:
    assert len(keys_of(arms.to(dtype)).unique()) == len(arms)


def test_two_zeros_are_equal() -> None:
    x = torch.tensor([[[0.0, 1.0], [-0.0, 1.0]]])
    found = merged(Observations(x, torch.tensor([[1.0, 0.0]])), 1)
    assert found is not None
    assert found.reward.tolist() == [[0.5]]


def test_replicas_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that memory does not grow with replicas and observations both."""
    data = observations(0, 50, replicas=5)
    whole = merged(data, POOL + 1)
    monkeypatch.setattr("nl_lightning.models.merging.AT_ONCE", 100)
    parts = merged(data, POOL + 1)
    assert whole is not None
    assert parts is not None
    assert all(map(torch.equal, whole, parts))  # type: ignore[arg-type]


def test_different_rows_with_the_same_key_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nl_lightning.models.merging.keys_of", lambda x: (x[..., 0] > 0).long())
    assert merged(observations(0, 50), POOL + 1) is None


SETTINGS: dict[str, dict[str, Any]] = {
    "adam": {},
    "gd": {"optimizer": "gd", "steps": 20},
    "without biases": {"bias": False},
    "linear": {"width": 1, "depth": 1},
    "theory": {"mode": "theory", "steps": 10, "lr": 1e-4},
}


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The observations that each call of TrainNN takes."""
    found: list[int] = []

    def counted(model: RewardModel, data: Observations, *rest: Any) -> Tensor | None:
        found.append(data.x.shape[1])
        return train(model, data, *rest)

    monkeypatch.setattr("nl_lightning.agents.train_nn.train", counted)
    return found


@torch.no_grad()
def train_on(agent: Agent, distinct: int | None) -> None:
    """TrainNN on the replay buffer, as in a fit."""
    x, reward, weight = agent.buffer.rows()
    initial = tuple(agent.initial_weights)
    agent.learner(
        agent.network,
        initial,
        TrainingBatch(agent.formulas.inputs(x), reward, weight, None, True, distinct),
        agent.rounds,
        agent.formulas.descent(agent.step_rule, agent.lr, agent.steps, None, initial),
        agent.diverged_at > 0,
        False,
        agent.settings.seeds,
        [1] * agent.replicas,
    )


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_training_on_merged_observations(settings: dict[str, Any], sizes: list[int]) -> None:
    """Also where one replica has fewer observations than another."""
    agents = [NeuralLogUCB2(4, **{"width": 6, "depth": 2, "replicas": 2, **settings}).double() for _ in range(2)]
    data = observations(1, 40, dim=4)
    accepted = torch.arange(40) < torch.tensor([[40], [31]])
    before = [weight.clone() for weight in agents[0].network.weights]
    for agent, distinct in zip(agents, (None, POOL), strict=True):
        agent.buffer.append(data.x, data.reward, accepted)
        train_on(agent, distinct)
    assert sizes == [40, POOL + 1]
    for start, one, other in zip(before, *(agent.network.weights for agent in agents), strict=True):
        assert not torch.equal(start, one)
        # Adam divides by the size of a gradient, which multiplies the last digits of one that is next to zero
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, POOL + 1), ({"batch_size": 8}, 40), ({"network": network}, 40), ({"steps": 9}, 40)],
    ids=["as it is", "batches", "own network", "few steps"],
)
def test_where_it_pays_and_nothing_else_looks_at_observations(
    settings: dict[str, Any], expected: int, sizes: list[int]
) -> None:
    agent = NeuralLogUCB2(4, **{"width": 6, "replicas": 2} | settings)
    data = observations(1, 40, dim=4)
    agent.buffer.append(data.x, data.reward)
    train_on(agent, POOL)
    assert sizes == [expected]


# ---- in a fit --------------------------------------------------------------------------------------------------------

LEARNER: dict[str, Any] = {"width": 8, "update_every": 20, "steps": 12, "nu": 0.1}
FEW: dict[str, Any] = {"dim": 4, "arms": 4, "pool": 9}


class Uncounted(Synthetic):
    """The same arms, without saying that there are few."""

    distinct_arms = None


def test_a_fit_with_few_arms(fit: Fit, sizes: list[int]) -> None:
    """The same weights up to rounding; and a replica's bits do not depend on the replicas beside it."""
    plain, rounds = fit(NeuralLogUCB2(4, replicas=3, **LEARNER).double(), world=Uncounted(**FEW), rounds=100)
    assert sizes == [20, 40, 60, 80, 100]
    merging, again = fit(NeuralLogUCB2(4, replicas=3, **LEARNER).double(), world=Synthetic(**FEW), rounds=100)
    assert sizes[5:] == [10] * 5
    assert rounds.arm.equal(again.arm)
    for one, other in zip(plain.network.weights, merging.network.weights, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)
    alone, _ = fit(NeuralLogUCB2(4, seed=1, **LEARNER).double(), world=Synthetic(**FEW), rounds=100)
    for one, other in zip(merging.network.weights, alone.network.weights, strict=True):
        assert torch.equal(one[1:2], other)


def test_not_before_each_arm_was_seen_twice_on_average(fit: Fit, sizes: list[int]) -> None:
    fit(NeuralLogUCB2(4, **LEARNER), world=Synthetic(dim=4, pool=30), rounds=100)
    assert sizes == [20, 40, 31, 31, 31]
    sizes.clear()
    fit(NeuralLogUCB2(4, window=50, **LEARNER), world=Synthetic(dim=4, pool=30), rounds=100)
    assert sizes == [20, 40, 50, 50, 50]


def test_an_agent_that_has_learned_elsewhere_takes_all(fit: Fit, sizes: list[int]) -> None:
    """What it knows may be other arms, in one replica more than in another."""
    agent, _ = fit(NeuralLogUCB2(4, **LEARNER), world=Synthetic(**FEW), rounds=40)
    assert sizes == [10, 10]
    fit(agent, world=Synthetic(**FEW | {"seed": 5}), rounds=40)
    assert sizes == [10, 10, 60, 80]


class Jittering(NeuralLogUCB2):
    """Learns other vectors than those it was shown."""

    def observe(self, choice: Choice, reward: Any, accepted: Any = None, weight: Any = None) -> None:
        self.buffer.append(choice.x + torch.rand(choice.x.shape), reward.unsqueeze(1))


def test_an_agent_with_observations_of_its_own_takes_all(fit: Fit, sizes: list[int]) -> None:
    fit(Jittering(4, **LEARNER), world=Synthetic(**FEW), rounds=40)
    assert sizes == [20, 40]


class Moving(Synthetic):
    """Deals other arms than those of the pool."""

    def deal_chunk(self, chunk: int) -> Deal:
        deal = super().deal_chunk(chunk)
        return deal._replace(arms=deal.arms * torch.rand(deal.arms.shape[1], 1, 1, dtype=torch.float64))


class TooMany(Moving):
    """Says that there are fewer arms than it deals."""

    distinct_arms = 3


def test_a_world_with_other_arms_than_the_pool(fit: Fit, sizes: list[int]) -> None:
    fit(NeuralLogUCB2(4, **LEARNER), world=Moving(**FEW), rounds=40)
    assert sizes == [20, 40]


def test_a_world_with_more_arms_than_it_says(fit: Fit) -> None:
    with pytest.raises(
        InputError, match="at most 3 different arms .* and a replay buffer has more. Set distinct_arms to"
    ):
        fit(NeuralLogUCB2(4, **LEARNER), world=TooMany(**FEW), rounds=60)
    with pytest.raises(AssertionError, match="TooMany deals [0-9]+ different arms, more than distinct_arms = 3"):
        check_environment(lambda: TooMany(**FEW))
    check_environment(lambda: Synthetic(**FEW))


@pytest.mark.parametrize("number", [0, 2.5, "8"])
def test_a_bound_that_is_no_number(number: Any, fit: Fit) -> None:
    class Odd(Synthetic):
        distinct_arms = number

    with pytest.raises(InputError, match="distinct_arms must be a whole number"):
        fit(NeuralLogUCB2(4, **LEARNER), world=Odd(**FEW), rounds=60)
