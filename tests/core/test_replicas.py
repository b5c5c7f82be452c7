"""Numbers, lists and grids become one number a replica; what cannot is refused with a reason."""

import copy

import numpy as np
import pytest
import torch
from scipy import stats

from nl_lightning import NeuralLogUCB2
from nl_lightning.core.errors import InputError
from nl_lightning.core.replicas import per_replica
from nl_lightning.core.statistics import interval, paired, rate_variance
from nl_lightning.environments import Synthetic

BASE = {"nu": 0.1, "lam": 1.0, "kappa": 10.0, "S": 1.0}


def test_numbers_of_numpy_are_numbers() -> None:
    agent = NeuralLogUCB2(np.int64(4), width=np.int32(6), replicas=np.int64(2), nu=np.float64(0.5), seed=np.int64(3))
    assert agent.settings.seeds == [3, 4]
    assert agent.settings.nu == [0.5, 0.5]


def test_one_number_for_all_replicas() -> None:
    settings = per_replica(BASE, replicas=3, seed=4, grid=None)
    assert settings.nu == [0.1] * 3
    assert settings.seeds == [4, 5, 6]
    assert not settings.compared


def test_lists_say_how_many_replicas() -> None:
    settings = per_replica({**BASE, "lam": [1.0, 2.0]}, replicas=1, seed=0, grid=None)
    assert settings.lam == [1.0, 2.0]
    assert settings.kappa == [10.0, 10.0]
    assert settings.compared
    assert settings.of(1) == {"nu": 0.1, "lam": 2.0, "kappa": 10.0, "S": 1.0, "seed": 1}


def test_grid_takes_every_combination_with_the_same_seeds() -> None:
    settings = per_replica(BASE, replicas=2, seed=7, grid={"nu": [1.0, 2.0], "lam": [3.0, 4.0]})
    assert settings.nu == [1.0] * 4 + [2.0] * 4
    assert settings.lam == [3.0, 3.0, 4.0, 4.0] * 2
    assert settings.seeds == [7, 8] * 4


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"nu": -0.1}, "nu must be .* at least 0.*got -0.1"),
        ({"lam": -1.0}, "lam must be .* greater than 0.*got -1.0"),
        ({"lam": 0.0}, "lam must be .* greater than 0"),
        ({"kappa": 3.9}, "kappa must be .* at least 4.*got 3.9"),
        ({"S": 0.0}, "S must be .* greater than 0"),
        ({"nu": float("nan")}, "nu must be a finite number"),
        ({"lam": float("inf")}, "lam must be a finite number"),
        ({"nu": "big"}, "nu must be a number or a list of numbers, got 'big'"),
        ({"nu": [1.0, 2.0], "replicas": 3}, "nu has 2 entries for 3 replicas; give one number .* or a list of 3"),
        ({"nu": [1.0, 2.0], "lam": [1.0, 2.0, 3.0]}, "nu has 2 entries for 3 replicas"),
        ({"nu": []}, "nu has 0 entries"),
        ({"seed": [1, 2], "replicas": 3}, "seed has 2 entries for 3 replicas"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"replicas": 0}, "replicas must be a whole number of at least 1"),
        ({"grid": {"lr": [0.1]}}, "grid takes lists of nu, lam, kappa, S, not of 'lr'"),
        ({"grid": {"nu": []}}, "grid: nu must be a list of at least one number"),
        ({"grid": {"nu": [1.0]}, "lam": [1.0, 2.0]}, "lam is a list and there is a grid"),
        ({"grid": {"kappa": [10.0, 2.0]}}, "kappa must be .* at least 4"),
        ({"dim": 0}, "dim must be a whole number of at least 1"),
        ({"width": 0}, "width must be a whole number of at least 1"),
        ({"depth": 0}, "depth must be a whole number of at least 1"),
        ({"steps": 0}, "steps must be"),
        ({"update_every": 0}, "update_every must be"),
        ({"lr": 0.0}, "lr must be a finite number greater than 0"),
        ({"delta": 1.0}, "delta must lie between 0 and 1"),
        ({"mode": "exact"}, "mode must be one of practical, theory; got 'exact'"),
        ({"design": "sparse"}, "design must be diagonal, full or the import path of a DesignMatrix"),
        ({"init": "zeros"}, "init must be one of uniform, symmetric"),
        ({"on_divergence": "pray"}, "on_divergence must be one of"),
        ({"init": "symmetric", "width": 5}, "dim and width must be even"),
        ({"init": "symmetric", "dim": 5}, "dim and width must be even"),
        ({"init": "symmetric", "dim": 5, "depth": 1}, "even dim"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], text: str) -> None:
    with pytest.raises(InputError, match=text):
        NeuralLogUCB2(**{"dim": 4, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"arms": 0}, "arms must be a whole number of at least 1, got 0"),
        ({"dim": 0}, "dim must be"),
        ({"pool": 3, "arms": 4}, "shows 4 different vectors, but the pool has only 3"),
        ({"function": "h7"}, "function must be one of h1, .*; got 'h7'"),
    ],
)
def test_bad_environments_are_refused(settings: dict[str, object], text: str) -> None:
    with pytest.raises(InputError, match=text):
        Synthetic(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arms", "text"),
    [
        (torch.zeros(2, 3, 5), r"arms must have the shape \(2, K, 4\) or \(K, 4\), got \(2, 3, 5\)"),
        (torch.zeros(3, 3, 4), r"got \(3, 3, 4\)"),
        (torch.zeros(4), r"got \(4,\)"),
        (torch.zeros(2, 0, 4), "There is no arm"),
        (torch.tensor([[1.0, 2.0, float("nan"), 0.0]]), r"must be finite, got nan at index \(0, 2\)"),
        (torch.tensor([[1.0, 2.0, 3.0, -float("inf")]]), r"must be finite, got -inf at index \(0, 3\)"),
        (torch.full((3, 4), 1e39, dtype=torch.float64), "must be finite, got inf"),
        (torch.full((3, 4), 3e38), "scores must be finite"),
    ],
)
def test_bad_arms_are_refused(arms: torch.Tensor, text: str) -> None:
    with pytest.raises(InputError, match=text):
        NeuralLogUCB2(4, replicas=2).act(arms)


@pytest.mark.parametrize(
    ("reward", "accepted", "text"),
    [
        (torch.tensor([0.0, 0.5]), None, "reward must be 0 or 1 .*got 0.5 in replica 1"),
        (torch.tensor([0.0, float("nan")]), None, "got nan in replica 1"),
        (torch.tensor([1.0]), None, r"reward must have the shape \(2,\), one a replica; got \(1,\)"),
        (torch.tensor([2, 0]), torch.tensor([True, False]), "got 2 in replica 0"),
        (torch.tensor([1, 0]), torch.tensor([1, 0]), "accepted must be boolean"),
        (torch.tensor([1, 0]), torch.tensor([True]), "accepted must be boolean of shape"),
    ],
)
def test_bad_rewards_are_refused_and_nothing_is_learned(
    reward: torch.Tensor, accepted: torch.Tensor | None, text: str
) -> None:
    agent = NeuralLogUCB2(4, replicas=2)
    choice = agent.act(torch.rand(3, 4))
    with pytest.raises(InputError, match=text):
        agent.observe(choice, reward, accepted)
    assert agent.rounds.tolist() == [0, 0]
    assert agent.effective_dimension.tolist() == [0.0, 0.0]


def test_the_reward_of_a_masked_replica_may_be_unknown() -> None:
    agent = NeuralLogUCB2(4, replicas=2)
    choice = agent.act(torch.rand(3, 4))
    agent.observe(choice, torch.tensor([1.0, float("nan")]), accepted=torch.tensor([True, False]))
    agent.train_nn()
    assert agent.rounds.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"nu": 0.2}, "its nu is .*0.0.*here it is .*0.2"),
        ({"width": 7}, "its layers is"),
        ({"design": "full"}, "its design is diagonal, here it is full"),
        ({"replicas": 2}, "its nu is|its seeds is"),
    ],
)
def test_a_state_of_another_agent_is_refused(other: dict[str, object], text: str) -> None:
    state = NeuralLogUCB2(4, width=6).state_dict()
    agent = NeuralLogUCB2(4, **{"width": 6, **other})  # type: ignore[arg-type]
    before = copy.deepcopy(agent.state_dict())
    with pytest.raises(InputError, match=f"another agent: {text}"):
        agent.load_state_dict(state)
    for key, value in agent.state_dict().items():
        assert torch.equal(value, before[key]) if isinstance(value, torch.Tensor) else value == before[key]


def test_a_state_of_another_algorithm_is_refused() -> None:
    from nl_lightning import NeuralLogTS2

    with pytest.raises(InputError, match="its agent is NeuralLog-UCB-2, here it is NeuralLog-TS-2"):
        NeuralLogTS2(4).load_state_dict(NeuralLogUCB2(4).state_dict())
    with pytest.raises(InputError, match="not of a bandit agent"):
        NeuralLogTS2(4).load_state_dict({"weight": torch.zeros(3)})


def test_interval_is_the_t_interval() -> None:
    values = np.random.default_rng(0).normal(size=(10, 3))
    band = interval(values)
    for column in range(3):
        low, high = stats.t.interval(0.96, 9, values[:, column].mean(), stats.sem(values[:, column]))
        assert (band.low[column], band.high[column]) == pytest.approx((low, high))
    alone = interval(values[:1])
    assert np.array_equal(alone.mean, values[0])
    assert np.isnan(alone.low).all()


@pytest.mark.parametrize(("n", "shift"), [(2, 0.0), (3, 2.0), (10, 0.3), (40, -0.1)])
def test_paired_is_the_paired_t_test(n: int, shift: float) -> None:
    draw = np.random.default_rng(n)
    a = draw.normal(size=n)
    b = a + draw.normal(scale=0.5, size=n) - shift
    found, twin = paired(a, b), stats.ttest_rel(a, b)
    ends = twin.confidence_interval(0.96)
    assert found == pytest.approx((np.mean(a - b), ends.low, ends.high, twin.pvalue, n), rel=1e-9)
    assert paired(a, b, level=0.5)[1:3] == pytest.approx(tuple(twin.confidence_interval(0.5)), rel=1e-9)
    # the other way round only signs change
    turned = paired(b, a)
    assert turned == pytest.approx((-found.mean, -found.high, -found.low, found.p, n))


def test_paired_drops_pairs_with_nan() -> None:
    nan = np.nan
    a, b = np.array([1.0, 5.0, nan, 2.0, 9.0]), np.array([0.5, nan, 3.0, 4.0, 8.0])
    assert paired(a, b) == paired(a[[0, 3, 4]], b[[0, 3, 4]])
    assert paired(a, b).n == 3


def test_paired_of_few_pairs_has_no_interval() -> None:
    one = paired(np.array([3.0]), np.array([1.0]))
    assert (one.mean, one.n) == (2.0, 1)
    assert np.isnan([one.low, one.high, one.p]).all()
    none = paired(np.array([np.nan]), np.array([1.0]))
    assert none.n == 0
    assert np.isnan(none[:4]).all()


def test_paired_of_equal_differences_is_the_sign_test() -> None:
    values = np.array([0.1, 0.7, 1.3])
    assert paired(values, values) == (0.0, 0.0, 0.0, 1.0, 3)
    # 0.1 three times has a mean that is not 0.1, and so a spread that is not 0
    found = paired(np.full(3, 0.1), np.zeros(3))
    assert (found.mean, found.n) == (0.1, 3)
    assert found.p == stats.binomtest(3, 3).pvalue
    assert np.isnan([found.low, found.high]).all()


def test_paired_with_chance_that_all_pairs_share() -> None:
    """Simulated: without it, pairs that share their chance find a difference where there is none."""
    draw = np.random.default_rng(0)
    runs, n, sd = 4000, 5, 2.0
    common, own = draw.normal(scale=sd, size=(runs, 1)), draw.normal(size=(runs, n))
    plain = [paired(row, np.zeros(n)).p <= 0.04 for row in common + own]
    aware = [paired(row, np.zeros(n), shared=sd**2).p <= 0.04 for row in common + own]
    assert np.mean(plain) > 0.3
    assert np.mean(aware) < 0.04
    # by hand: e^2 = s^2 / n + v
    d = own[0]
    error = (d.var(ddof=1) / n + 0.5) ** 0.5
    found = paired(d, np.zeros(n), shared=0.5)
    assert found.p == pytest.approx(2 * stats.t.sf(abs(d.mean()) / error, n - 1))
    assert (found.low, found.high) == pytest.approx(stats.t.interval(0.96, n - 1, d.mean(), error))
    # equal differences have no spread, but the common chance
    assert paired(np.ones(2), np.zeros(2), shared=1.0).p == pytest.approx(2 * stats.t.sf(1, 1))


def test_the_variance_of_a_rate() -> None:
    """Simulated: the mean of the estimates is near the variance of the rate, and never zero."""
    draw = np.random.default_rng(1)
    rates = draw.binomial(2000, 0.01, size=20_000) / 2000
    estimates = [rate_variance(rate, 2000) for rate in rates]
    assert np.mean(estimates) == pytest.approx(rates.var() * 22 / 20, rel=0.05)
    assert rate_variance(0.0, 100) > 0
