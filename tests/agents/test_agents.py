"""Every agent goes through the same tests: it equals its twin, batched equals single, a seed repeats."""

import copy
import itertools
import warnings

import pytest
import torch
from scipy import stats

from nl_lightning import AGENTS, LogisticUCB1, NeuralLogTS1, NeuralLogTS2, NeuralLogUCB1, NeuralLogUCB2
from nl_lightning.agents.base import Agent, LinearAgent
from tests.support.small_agents import ARMS, DIM, SETTINGS, VARIANTS, deal, make
from tests.support.twin import NAMES, Twin


def cases() -> list[tuple[str, int, str]]:
    depths = {name: (1,) if issubclass(agent, LinearAgent) else (1, 2, 3) for name, agent in AGENTS.items()}
    return [(name, depth, design) for name in AGENTS for depth in depths[name] for design in ("diagonal", "full")]


def test_the_agents_have_the_names_of_the_paper() -> None:
    assert tuple(AGENTS) == NAMES


@pytest.mark.parametrize(("name", "depth", "design"), cases())
@pytest.mark.parametrize(("start", "optimizer"), [("warm", "gd"), ("cold", "adam"), ("shrink", "adam")])
def test_agent_equals_its_twin(name: str, depth: int, design: str, start: str, optimizer: str) -> None:
    """Two replicas with different settings against two twins, over three calls of TrainNN; some observations count
    more than others."""
    training = {"lr": 0.02, "steps": 7, "start": start, "optimizer": optimizer}
    agent = make(name, depth, design=design, seed=3, **SETTINGS, **training).double()  # type: ignore[arg-type]
    twins = [
        Twin(name, agent.weights(r), **{key: values[r] for key, values in SETTINGS.items()}, design=design, **training)  # type: ignore[arg-type]
        for r in range(2)
    ]
    arms, rewards = deal(1, replicas=2, rounds=18)
    weights = torch.ones(18, 2, dtype=torch.float64)
    weights[4:] = torch.rand(14, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 3
    for t in range(18):
        choice = agent.act(arms[t])
        for r, twin in enumerate(twins):
            torch.testing.assert_close(choice.mean[r], twin.mean(arms[t, r]), rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(choice.bonus[r], twin.bonus(arms[t, r]), rtol=1e-9, atol=1e-11)
            if not agent.exploration.stochastic:
                torch.testing.assert_close(choice.score[r], choice.mean[r] + choice.bonus[r], rtol=0, atol=1e-14)
            assert choice.score[r].argmax() == choice.arm[r]
            twin.observe(arms[t, r, choice.arm[r]], rewards[t, r], float(weights[t, r]))
        agent.observe(choice, rewards[t], weight=weights[t] if t > 3 else None)
        for r, twin in enumerate(twins):
            assert float(agent.effective_dimension[r]) == pytest.approx(twin.effective_dimension(), rel=1e-9, abs=1e-11)
            assert float(agent.radius[r]) == pytest.approx(twin.radius(), rel=1e-9)
        if t % 6 == 5:
            fresh = agent.network.fresh(agent.settings.seeds, [t // 6 + 1] * 2)
            agent.train_nn()
            for r, twin in enumerate(twins):
                twin.train_nn([weight[r].double() for weight in fresh])
                for mine, theirs in zip(agent.weights(r), twin.weights, strict=True):
                    torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("name", "design"), VARIANTS)
def test_replicas_side_by_side_equal_replicas_alone(name: str, design: str) -> None:
    agents = [
        make(name, design=design, seed=5 + r, steps=20, **{key: values[r] for key, values in SETTINGS.items()}).double()
        for r in range(2)
    ]
    together = make(name, design=design, seed=5, steps=20, **SETTINGS).double()
    arms, rewards = deal(2, replicas=2, rounds=40)
    for t in range(40):
        choice = together.act(arms[t])
        together.observe(choice, rewards[t])
        for r, agent in enumerate(agents):
            alone = agent.act(arms[t, r])
            assert alone.arm[0] == choice.arm[r]
            torch.testing.assert_close(alone.score[0], choice.score[r], rtol=1e-9, atol=1e-11)
            agent.observe(alone, rewards[t, r : r + 1])
        if t % 10 == 9:
            for agent in (together, *agents):
                agent.train_nn()
    for r, agent in enumerate(agents):
        for mine, theirs in zip(agent.weights(0), together.weights(r), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("name", "design"), VARIANTS)
def test_float32_follows_float64(name: str, design: str) -> None:
    """Single precision changes the network's numbers in the seventh digit, and the decisions not at all here."""
    arms, rewards = deal(3, replicas=2, rounds=30, dtype=torch.float32)
    lr = 0.0005 if design == "theory" else 0.005
    single, double = (make(name, design=design, steps=20, lr=lr, seed=1, **SETTINGS) for _ in range(2))
    double = double.double()
    for t in range(30):
        choice, precise = single.act(arms[t]), double.act(arms[t].double())
        assert torch.equal(choice.arm, precise.arm)
        torch.testing.assert_close(choice.score, precise.score, rtol=1e-4, atol=1e-4)
        single.observe(choice, rewards[t])
        double.observe(precise, rewards[t])
        if t % 10 == 9:
            single.train_nn()
            double.train_nn()


@pytest.mark.parametrize(("name", "design"), VARIANTS)
def test_act_changes_nothing_but_the_random_draws(name: str, design: str) -> None:
    agent = make(name, design=design, replicas=2)
    arms, rewards = deal(4, replicas=2, rounds=3, dtype=torch.float32)
    agent.observe(agent.act(arms[0]), rewards[0])
    before = copy.deepcopy(agent.state_dict())
    agent.act(arms[1])
    after = agent.state_dict()
    assert after["_extra_state"].pop("draws") == before["_extra_state"].pop("draws") + 1
    same = {True: torch.equal, False: lambda a, b: a == b}
    assert all(same[isinstance(value, torch.Tensor)](after[key], value) for key, value in before.items())


@pytest.mark.parametrize(("name", "design"), VARIANTS)
def test_masked_replicas_learn_nothing(name: str, design: str) -> None:
    """A replica that accepts nothing is as new; one that accepts all is as if alone in the world."""
    lr = 1e-4 if design == "theory" else 0.01
    agent = make(name, design=design, replicas=3, steps=10, lr=lr).double()
    reference = make(name, design=design, replicas=3, steps=10, lr=lr).double()
    arms, rewards = deal(5, replicas=3, rounds=12)
    accepted = torch.tensor([True, False, True])
    for t in range(12):
        choice = agent.act(arms[t])
        agent.observe(choice, rewards[t], accepted=accepted & torch.tensor([True, True, t % 2 == 0]))
        reference.observe(reference.act(arms[t]), rewards[t])
    agent.train_nn()
    reference.train_nn()
    assert agent.rounds.tolist() == [12, 0, 6]
    assert agent.effective_dimension[1] == 0
    torch.testing.assert_close(agent.effective_dimension[0], reference.effective_dimension[0])
    for mine, theirs in zip(agent.weights(0), reference.weights(0), strict=True):
        torch.testing.assert_close(mine, theirs)
    # Without data, TrainNN is (1 - 2 lr lam)^J times the initial weights, and in theory mode it leaves them.
    shrunk = 1.0 if design == "theory" else (1 - 2 * lr * 1.0) ** 10
    for mine, initial in zip(agent.weights(1), agent.initial_weights, strict=True):
        torch.testing.assert_close(mine, initial[1] * shrunk)


def test_a_reward_that_comes_late_counts_with_the_gradient_of_its_decision() -> None:
    agent = make("NeuralLog-UCB-2", lr=0.02, steps=5).double()
    twin = Twin("NeuralLog-UCB-2", agent.weights(), nu=0.1, lam=1.0, kappa=10.0, S=1.0, lr=0.02, steps=5)
    arms, rewards = deal(6, replicas=1, rounds=3)
    first, late = agent.act(arms[0]), agent.act(arms[1])
    for choice, t in ((first, 0), (late, 1)):
        twin.observe(arms[t, 0, choice.arm[0]], rewards[t, 0])
    agent.observe(first, rewards[0])
    agent.train_nn()
    agent.observe(late, rewards[1])
    assert float(agent.effective_dimension) == pytest.approx(twin.effective_dimension(), rel=1e-10)


def test_arms_of_one_round_can_be_shown_to_all_replicas() -> None:
    agent = make("NeuralLog-UCB-1", replicas=3)
    arms, _ = deal(7, replicas=1, rounds=1, dtype=torch.float32)
    choice = agent.act(arms[0, 0])
    assert choice.arm.shape == (3,)
    assert choice.score.shape == choice.mean.shape == choice.bonus.shape == (3, ARMS)


@pytest.mark.parametrize("name", ["NeuralLog-UCB-1", "Logistic-UCB-1", "NeuralLog-TS-1"])
def test_ties_are_broken_evenly(name: str) -> None:
    """Arms 1, 3 and 4 are the same and the best; nu = 0 lets Thompson sampling tie as well."""
    agent = make(name, nu=0.0, replicas=50, seed=[7] * 50)
    agent.noise.seeds = list(range(50))
    good, bad = torch.ones(DIM), -torch.ones(DIM)
    if agent.act(torch.stack([good, bad])).mean[0].argmax() == 1:
        good, bad = bad, good
    arms = torch.stack([bad, good, bad, good, good])
    counts = torch.zeros(5)
    for _ in range(200):
        counts += torch.bincount(agent.act(arms).arm, minlength=5)
    assert counts[[0, 2]].sum() == 0
    assert stats.chisquare(counts[[1, 3, 4]].numpy()).pvalue > 1e-3


@pytest.mark.parametrize("design", ["diagonal", "full"])
@pytest.mark.parametrize("arms", [5, 9, 22])
@pytest.mark.parametrize("name", ["NeuralLog-UCB-2", "ada-OFU-ECOLog"])
def test_equal_arms_are_equal_in_every_row_of_a_matrix_product(name: str, arms: int, design: str) -> None:
    """The same arm K times gets K scores that differ in their last digits; no position may win by that."""
    g = torch.Generator().manual_seed(arms)
    agent = AGENTS[name](20, nu=0.3, replicas=20, design=design)
    counts = torch.zeros(arms)
    for _ in range(60):
        x = torch.rand(20, 1, 20, generator=g).expand(-1, arms, -1)
        choice = agent.act(x)
        agent.observe(choice, torch.randint(2, (20,), generator=g))
        counts += torch.bincount(choice.arm, minlength=arms)
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("agent_class", [NeuralLogTS1, NeuralLogTS2])
def test_thompson_draws_have_the_right_mean_and_spread(agent_class: type[Agent]) -> None:
    """20,000 draws an arm: normal around f with the bonus as standard deviation, independent between arms."""
    agent = agent_class(DIM, nu=0.5, replicas=100, seed=[0] * 100).double()
    agent.noise.seeds = list(range(100))
    arms, rewards = deal(8, replicas=1, rounds=20)
    for t in range(20):
        agent.observe(agent.act(arms[t, 0]), rewards[t].expand(100))
    agent.design.load_state_dict({k: v[:1].expand_as(v) for k, v in agent.design.state_dict().items()})
    agent.radius = agent.radius[:1].expand_as(agent.radius)
    draws = []
    for _ in range(200):
        choice = agent.act(arms[0, 0])
        draws.append((choice.score - choice.mean) / choice.bonus)
    standard = torch.cat(draws)
    for arm in range(ARMS):
        assert stats.kstest(standard[:, arm].numpy(), "norm").pvalue > 1e-3
    correlation = torch.corrcoef(standard.T) - torch.eye(ARMS)
    assert correlation.abs().max() < 4 / len(standard) ** 0.5


@pytest.mark.parametrize("name", AGENTS)
def test_a_seed_repeats_and_another_differs(name: str) -> None:
    arms, rewards = deal(9, replicas=1, rounds=40, dtype=torch.float32)

    def play(seed: int) -> list[float]:
        agent = make(name, seed=seed, steps=5)
        scores = []
        for t in range(40):
            choice = agent.act(arms[t])
            agent.observe(choice, rewards[t])
            scores += choice.score.flatten().tolist()
            if t % 10 == 9:
                agent.train_nn()
        return scores

    assert play(4) == play(4)
    assert play(4) != play(5)


def test_symmetric_start_is_zero_on_doubled_inputs() -> None:
    agent = NeuralLogUCB2(8, width=6, depth=3, init="symmetric", replicas=4)
    x = torch.rand(4, 10, 4)
    assert agent.network(torch.cat([x, x], dim=-1) / 2**0.5).abs().max() < 1e-6
    wide = NeuralLogUCB2(20, width=200, depth=3, init="symmetric", replicas=20)
    w1, w2, w3 = (weight.detach().double() for weight in wide.network.weights)
    assert w1[:, :100, 10:].abs().max() == 0
    assert float(w1[:, :100, :10].var()) == pytest.approx(4 / 200, rel=0.05)
    assert float(w2[:, 100:, 100:].var()) == pytest.approx(4 / 200, rel=0.02)
    assert float(w3[..., :100].var()) == pytest.approx(2 / 200, rel=0.1)


def test_uniform_start_fills_its_range() -> None:
    agent = NeuralLogUCB1(16, width=50, replicas=20)
    for weight, fan_in in zip(agent.network.weights, (16, 50), strict=True):
        assert stats.kstest((weight.detach() * fan_in**0.5).flatten().numpy(), "uniform", (-1, 2)).pvalue > 1e-3


def test_neural_agent_of_depth_one_is_linear() -> None:
    """On depth 1, NeuralLog-UCB-1 and Logistic-UCB-1 differ in their radius only."""
    neural, linear = make("NeuralLog-UCB-1", depth=1), LogisticUCB1(DIM, lam=1.0)
    arms, rewards = deal(14, replicas=1, rounds=10, dtype=torch.float32)
    for t in range(10):
        one, other = neural.act(arms[t]), linear.act(arms[t])
        torch.testing.assert_close(one.bonus / neural.radius, other.bonus / linear.radius)
        neural.observe(one, rewards[t])
        linear.observe(other._replace(arm=one.arm), rewards[t])
    assert [w.shape for w in neural.weights()] == [(1, DIM)]


def test_structure_of_the_settings() -> None:
    """Linear agents have no width; the W agents do not depend on kappa, as the paper's OBD table shows."""
    arms, rewards = deal(15, replicas=1, rounds=20, dtype=torch.float32)
    for name, (low, high) in itertools.product(("ada-OFU-ECOLog", "NeuralLog-UCB-2", "NeuralLog-TS-2"), [(5.0, 500.0)]):
        one, other = make(name, kappa=low), make(name, kappa=high)
        for t in range(20):
            first, second = one.act(arms[t]), other.act(arms[t])
            assert torch.equal(first.score, second.score)
            one.observe(first, rewards[t])
            other.observe(second, rewards[t])
    with pytest.warns(UserWarning, match="Logistic-UCB-1 is linear: width and depth have no effect"):
        LogisticUCB1(DIM, width=3)


def test_a_greedy_agent_says_that_nu_has_no_effect() -> None:
    for agent, settings in ((AGENTS["Greedy"], {}), (AGENTS["NeuralLog-UCB-2"], {"exploration": "greedy"})):
        with pytest.warns(UserWarning, match="has no bonus: nu has no effect"):
            agent(4, nu=3.0, **settings)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            agent(4, **settings)
