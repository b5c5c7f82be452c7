"""Theory mode against its slow twin, the two forms of its design matrix, and what it refuses."""

import math

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nl_lightning import AGENTS, NCBFUCB, LogisticUCB1, NeuralLogUCB1, NeuralLogUCB2
from nl_lightning.agents.base import Agent
from nl_lightning.agents.radii import TheoryRadius, condition
from nl_lightning.core.errors import InputError, TrainNNDiverged
from nl_lightning.core.types import Factors
from nl_lightning.designs.adaptive import AdaptiveDesign
from nl_lightning.models.base import Descent, Observations
from nl_lightning.models.mlp import MLP
from tests.support.fits import Fit
from tests.support.paths import ROOT
from tests.support.small_agents import deal
from tests.support.theory_twin import NAMES, TheoryTwin

REPLICAS = {"kappa": [6.0, 20.0], "S": [1.0, 0.6]}
CONSTANTS = {"delta": 0.1, "C1": 0.7, "C4": 1.3, "C5": 0.6, "C6": 0.4, "C7": 0.2}


def test_the_shipped_config_trains_after_every_round() -> None:
    """As printed in the paper, to the last of its rounds."""
    config = yaml.safe_load((ROOT / "configs" / "theory.yaml").read_text())
    rounds = config["data"]["rounds"]
    assert NeuralLogUCB2(4, **config["model"]["init_args"]).schedule.calls(0, rounds) == rounds


def pair(name: str, depth: int, **settings: object) -> tuple[Agent, list[TheoryTwin]]:
    """An agent with two replicas, and their twins."""
    settings = {**CONSTANTS, "horizon": 40, **settings}
    agent = AGENTS[name](4, width=6, depth=depth, mode="theory", seed=3, **REPLICAS, **settings).double()
    twins = [
        TheoryTwin(name, agent.weights(r), kappa=REPLICAS["kappa"][r], S=REPLICAS["S"][r], **settings)  # type: ignore[arg-type]
        for r in range(2)
    ]
    return agent, twins


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("given", [{}, {"steps": 9}, {"lr": 3e-5}])
def test_agent_equals_its_twin(name: str, depth: int, given: dict[str, float]) -> None:
    """Over enough rounds for the dual form, the change to the primal, and calls of TrainNN in both."""
    agent, twins = pair(name, depth, **given)
    rounds = agent.design.samples.dimension + 8
    arms, rewards = deal(1, replicas=2, rounds=rounds)
    for t in range(rounds):
        choice = agent.act(arms[t])
        for r, twin in enumerate(twins):
            torch.testing.assert_close(choice.mean[r], twin.mean(arms[t, r]), rtol=1e-8, atol=1e-10)
            torch.testing.assert_close(choice.bonus[r], twin.bonus(arms[t, r]), rtol=1e-8, atol=1e-10)
            assert float(agent.radius[r]) == pytest.approx(float(twin.radius()), rel=1e-9)
            assert float(agent.formulas.lam[r]) == pytest.approx(float(twin.lam()), rel=1e-9)
            twin.observe(arms[t, r, choice.arm[r]], rewards[t, r])
        agent.observe(choice, rewards[t])
        for r, twin in enumerate(twins):
            assert float(agent.effective_dimension[r]) == pytest.approx(float(twin.D()), rel=1e-9)
        if t % 3 == 2:
            agent.train_nn()
            for r, twin in enumerate(twins):
                twin.train_nn()
                for mine, theirs in zip(agent.weights(r), twin.weights, strict=True):
                    torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)
    assert not agent.design.dual
    moved = max(float((a - b).abs().max()) for a, b in zip(agent.weights(0), twins[0].initial, strict=True))
    assert moved > 1e-4, "TrainNN must move the parameters, or this test says nothing of them"


def test_the_network_starts_at_zero_for_any_dim() -> None:
    agent = NeuralLogUCB1(3, width=20, depth=3, mode="theory", replicas=2).double()
    choice = agent.act(torch.randn(2, 5, 3, dtype=torch.float64))
    torch.testing.assert_close(choice.mean, torch.full_like(choice.mean, 0.5))
    assert (choice.bonus > 0).all()


def random_samples(
    shapes: list[tuple[int, int]], replicas: int, samples: int, seed: int
) -> tuple[Factors, torch.Tensor]:
    """Factors (R, N, features) of random gradients, and the gradients (R, N, p)."""
    g = torch.Generator().manual_seed(seed)
    sizes = [*(size for shape in shapes[:-1] for size in shape), shapes[-1][1]]
    factors = tuple(torch.randn(replicas, samples, size, generator=g, dtype=torch.float64) for size in sizes)
    layers = [
        torch.stack([torch.stack([torch.outer(d, z).flatten() for d, z in zip(D, Z, strict=True)]) for D, Z in pairs])
        for pairs in (list(zip(factors[2 * i], factors[2 * i + 1], strict=True)) for i in range(len(shapes) - 1))
    ]
    return factors, torch.cat([*layers, factors[-1]], dim=-1)


@given(
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    replicas=st.integers(1, 3),
    samples=st.integers(0, 30),
    seed=st.integers(0, 2**20),
)
def test_the_design_equals_dense_algebra_in_both_forms(
    sizes: list[int], replicas: int, samples: int, seed: int
) -> None:
    """Random weights and masks, a ridge that changes, the newest sample weighed again."""
    shapes = MLP([*sizes, 1], range(1)).shapes
    factors, rows = random_samples(shapes, replicas, samples + 4, seed)
    g = torch.Generator().manual_seed(seed + 1)
    ridge = torch.rand(replicas, generator=g, dtype=torch.float64) + 0.5
    design = AdaptiveDesign(shapes, ridge)
    dense = torch.zeros(replicas, rows.shape[2], rows.shape[2], dtype=torch.float64)
    newest, newest_weight = torch.zeros_like(rows[:, 0]), torch.zeros(replicas, dtype=torch.float64)
    for i in range(samples):
        weight = torch.rand(replicas, generator=g, dtype=torch.float64)
        accepted = torch.rand(replicas, generator=g) < 0.7 if i % 3 else None
        taken = torch.ones(replicas, dtype=torch.bool) if accepted is None else accepted
        design.add(tuple(f[:, i : i + 1] for f in factors), weight.view(-1, 1, 1), accepted)
        for r in range(replicas):
            if taken[r]:
                dense[r] += weight[r] * torch.outer(rows[r, i], rows[r, i])
                newest[r], newest_weight[r] = rows[r, i], weight[r]
        if i % 4 == 3:
            again, changed = torch.rand(replicas, generator=g, dtype=torch.float64), torch.rand(replicas) < 0.5
            design.reweigh(again, changed)
            for r in range(replicas):
                if changed[r]:
                    dense[r] += (again[r] - newest_weight[r]) * torch.outer(newest[r], newest[r])
                    newest_weight[r] = again[r]
        ridge = ridge + 0.1
        design.set_ridge(ridge)
    assert design.dual == (samples <= rows.shape[2])
    matrix = dense + ridge[:, None, None] * torch.eye(rows.shape[2], dtype=torch.float64)
    arms = rows[:, samples:]
    expected = (arms * torch.linalg.solve(matrix, arms.mT).mT).sum(-1).sqrt()
    torch.testing.assert_close(design.norm(tuple(f[:, samples:] for f in factors)), expected, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(design.logdet(), torch.linalg.slogdet(matrix).logabsdet, rtol=1e-8, atol=1e-8)
    v = torch.randn(replicas, rows.shape[2], generator=g, dtype=torch.float64)
    torch.testing.assert_close(design.spread(v), torch.einsum("ri,rij,rj->r", v, dense, v), rtol=1e-8, atol=1e-9)


def test_the_dual_form_equals_the_primal_on_long_runs() -> None:
    """300 samples of 100 parameters, whose matrix is far from its ridge: to 1e-8."""
    shapes = [(9, 10), (1, 10)]
    factors, _ = random_samples(shapes, 1, 300, 0)
    ridge = torch.full((1,), 1e-2, dtype=torch.float64)
    primal, dual = AdaptiveDesign(shapes, ridge), AdaptiveDesign(shapes, ridge)
    dual.samples.dimension = 10**6
    for i in range(290):
        for design in (primal, dual):
            design.add(tuple(f[:, i : i + 1] for f in factors), torch.full((1, 1, 1), 0.2, dtype=torch.float64))
    assert dual.dual
    assert not primal.dual
    dual.samples.dimension = primal.samples.dimension
    arms = tuple(f[:, 290:] for f in factors)
    torch.testing.assert_close(dual.norm(arms), primal.norm(arms), rtol=1e-8, atol=0)
    torch.testing.assert_close(dual.logdet(), primal.logdet(), rtol=1e-8, atol=0)


def test_formulas_by_hand() -> None:
    """L = 4, S = 2, delta = 4/e^2 (so that log(4/delta) = 2), C1 = 1: numbers that can be worked out."""
    one = torch.ones(1, dtype=torch.float64)
    formulas = TheoryRadius(2 * one, depth=4, delta=4 / math.e**2, C1=1.0, C=3.0)
    assert float(formulas.lam_0) == pytest.approx(8 * math.sqrt(2) * 2 * 2 / 2)
    t = torch.tensor([0])
    # 64/4 * 2 * 2 + 16 * 4/(4 lam_0) * 4
    assert float(formulas.lam(2 * one, t)) == pytest.approx(64 + 64 / (16 * math.sqrt(2)))
    # 16 sqrt(2 * 2) + 8 sqrt(4/lam_0) * 2
    iota = 32 + 16 * math.sqrt(4 / (16 * math.sqrt(2)))
    assert float(formulas.iota(2 * one, t)) == pytest.approx(iota)
    # (1 + 2 S + 4 S^2) = 21
    assert float(formulas.nu(2 * one, t)) == pytest.approx(3 * 21 * iota + 1)
    assert float(formulas.nu(2 * one, t)) == float(formulas.nu(2 * one, t + 1))
    step, count = condition(10 * one, 2 * one, width=5, depth=4, horizon=100, C4=2.0, C5=0.5)
    assert float(step) == pytest.approx(0.5 / (5 * 100 * 4 + 5 * 10))
    # 2 log((10 * 10 + 2 * 1000 * 4)/(10 * 2)) * 400/10
    assert int(count) == math.ceil(2 * math.log(8100 / 20) * 40)
    assert int(condition(10 * one, 1e9 * one, 5, 4, 100, 2.0, 0.5)[1]) == 1


def test_lam_never_falls_and_begins_at_lam_0() -> None:
    agent = NeuralLogUCB2(4, width=6, mode="theory", replicas=2, S=[1.0, 50.0])
    arms, rewards = deal(4, replicas=2, rounds=30, dtype=torch.float32)
    seen = [agent.formulas.lam.clone()]
    torch.testing.assert_close(seen[0], agent.formulas.radii.lam_0)
    for t in range(30):
        agent.observe(agent.act(arms[t]), rewards[t])
        seen.append(agent.formulas.lam.clone())
    lam = torch.stack(seen)
    assert (lam.diff(dim=0) >= 0).all()
    assert (lam[1] == lam[0]).any()
    assert (lam[-1] > lam[0]).all()


def test_errors() -> None:
    for make, expected in (
        (lambda: NCBFUCB(4, mode="theory"), "NCBF-UCB has no mode 'theory'"),
        (lambda: LogisticUCB1(4, mode="theory"), "Logistic-UCB-1 has no mode 'theory'"),
        (lambda: NeuralLogUCB2(4, width=5, mode="theory"), "width must be even, got 5"),
        (lambda: NeuralLogUCB2(4, depth=1, mode="theory"), "depth must be at least 2, got 1"),
        (lambda: NeuralLogUCB2(4, mode="theory", design="diagonal"), "design 'full' only, got 'diagonal'"),
        (lambda: NeuralLogUCB2(4, mode="theory", init="uniform"), "init 'symmetric' only, got 'uniform'"),
        (lambda: NeuralLogUCB2(4, mode="theory", nu=[0.1, 1.0]), "nu differs between replicas"),
        (lambda: NeuralLogUCB2(4, mode="theory", C5=0), "C5 must be a finite number greater than 0"),
        (lambda: NeuralLogUCB2(4, mode="theory", horizon=0), "horizon must be a whole number of at least 1"),
        (lambda: NeuralLogUCB2(4, mode="exact"), "mode must be one of practical, theory; got 'exact'"),
    ):
        with pytest.raises(InputError, match=expected):
            make()
    agent = NeuralLogUCB2(4, mode="theory")
    agent.observe(agent.act(torch.ones(2, 4)), torch.ones(1))
    with pytest.raises(InputError, match="give the agent a horizon"):
        agent.train_nn()
    NeuralLogUCB2(4, mode="theory", lr=1e-4, steps=3).train_nn()
    wild = NeuralLogUCB2(4, mode="theory", lr=1.0, steps=3)
    wild.observe(wild.act(torch.ones(2, 4)), torch.ones(1))
    with pytest.raises(TrainNNDiverged, match=r"lr \* m lam_t / 2 = .*, and descent does not contract"):
        wild.train_nn()
    far = NeuralLogUCB2(4, mode="theory", horizon=10)
    far.observe(far.act(1e6 * torch.ones(2, 4)), torch.ones(1))
    with pytest.raises(TrainNNDiverged, match=r"\(kappa = 10, S = 1, seed = 0\).*and arms x of length 1"):
        far.train_nn()
    long = NeuralLogUCB2(4, mode="theory", horizon=10**6, S=100.0)
    with pytest.raises(InputError, match="gradient steps in one call of TrainNN"):
        long.train_nn()
    for S in (1e-160, 1e160):
        with pytest.raises(InputError, match="S must lie between"):
            NeuralLogUCB2(4, mode="theory", S=S)


def step(agent: Agent, horizon: int | None) -> torch.Tensor:
    """(R,), of TrainNN"""
    return agent.formulas.descent(agent.step_rule, None, None, horizon, tuple(agent.initial_weights)).lr


def test_the_horizon_is_that_of_each_fit(fit: Fit) -> None:
    """Two fits of one agent; the steps of TrainNN after each tell its horizon."""
    agent = NeuralLogUCB2(4, width=6, mode="theory", update_every=10)
    for rounds in (20, 60):
        fit(agent, rounds=rounds)
        C = agent.constants
        expected = condition(agent.formulas.lam, agent.S, 6, 2, rounds, C.C4, C.C5)
        torch.testing.assert_close(step(agent, rounds), expected[0])
        assert agent.fit_horizon == rounds
    assert agent.horizon is None
    fixed = NeuralLogUCB2(4, width=6, mode="theory", update_every=10, horizon=500)
    fit(fixed, rounds=20)
    expected = condition(fixed.formulas.lam, fixed.S, 6, 2, 500, 1.0, 1.0)
    torch.testing.assert_close(step(fixed, fixed.horizon), expected[0])


def test_replicas_take_different_numbers_of_steps() -> None:
    """Each as if alone; who stands still moves no one, and lets no one wait for its steps."""
    network = MLP([4, 6, 1], range(3)).double()
    x = torch.randn(3, 7, 4, dtype=torch.float64)
    reward = torch.randint(2, (3, 7)).double()
    one = torch.ones(3, dtype=torch.float64)
    start = [w.detach().clone() for w in network.weights]
    lr = torch.tensor([0.01, 0.01, 0.0], dtype=torch.float64)
    weights = [w.clone() for w in start]
    plan = Descent(0.01 * one, torch.tensor([3, 8, 10**12]), one, 2.0, start)
    network.descend(weights, Observations(x, reward), plan, lr)
    for r, steps in enumerate([3, 8, 0]):
        alone = [w[r : r + 1].clone() for w in start]
        anchor = [w[r : r + 1] for w in start]
        if steps:
            plan = Descent(0.01 * one[:1], steps, one[:1], 2.0, anchor)
            network.descend(alone, Observations(x[r : r + 1], reward[r : r + 1]), plan, lr[:1])
        for mine, theirs in zip(weights, alone, strict=True):
            torch.testing.assert_close(mine[r], theirs[0], rtol=1e-12, atol=1e-14)
