"""Rounds that are looked ahead together are those that are played one by one."""

from typing import Any

import lightning as L
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nl_lightning import AGENTS, NeuralLogUCB2
from nl_lightning.agents.base import Agent, LinearAgent
from nl_lightning.agents.callbacks import Confidence, RoundCallback
from nl_lightning.core.replicas import Share
from nl_lightning.core.types import Deal, Prefix, Round, Window
from nl_lightning.designs import DiagonalDesign
from nl_lightning.environments import Synthetic
from nl_lightning.rollout.dealt import DealtBlock
from nl_lightning.rollout.loop import make_plan
from tests.support.fits import Fit


def make(name: str, replicas: int, depth: int = 2, **settings: Any) -> Agent:
    """An agent whose choices depend on the last rounds: it explores a lot, and its design matrices change quickly."""
    size = {} if issubclass(AGENTS[name], LinearAgent) else {"width": 5, "depth": depth}
    values = {"nu": 3.0, "lam": 0.05, "kappa": 4.0, "replicas": replicas, **size, **settings}
    return AGENTS[name](4, **values).double()


def deal(replicas: int, rounds: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.rand(replicas, rounds, 6, 4, generator=g, dtype=torch.float64) * 2 - 1


def ahead(agent: Agent, arms: Tensor) -> Window:
    """These rounds together, all with reward 0; the agent learns nothing of them."""
    window = max(2, arms.shape[1])
    return DealtBlock(agent, Deal(arms, torch.zeros_like(arms[..., 0])), 1, window, True).look_ahead(window)


def one_by_one(agent: Agent, arms: Tensor) -> dict[str, Tensor]:
    """Choose and learn, round after round, with the views of all of them."""
    rows = []
    for view in agent.featurize(arms).unbind():
        choice = agent.choose(view)
        agent.observe(choice, torch.zeros(agent.replicas), agent.alive)
        values = [choice.chosen(each) for each in (choice.score, choice.mean, choice.bonus)]
        rows.append((choice.arm, *values, agent.radius, agent.effective_dimension))
    names = ("arm", "score", "mean", "bonus", "radius", "effective_dimension")
    return {name: torch.stack(column, 1) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def assert_as_one_by_one(agent: Agent, twin: Agent, arms: Tensor) -> Window:
    """Both play these rounds, the agent together."""
    expected = one_by_one(twin, arms)
    before = {name: value.clone() for name, value in agent.state_dict().items() if isinstance(value, Tensor)}
    window = ahead(agent, arms)
    assert torch.equal(window.arm, expected.pop("arm"))
    for name, value in expected.items():
        torch.testing.assert_close(getattr(window, name), value, rtol=1e-12, atol=1e-12)
    for name, value in before.items():
        assert torch.equal(agent.state_dict()[name], value), f"looking ahead has changed {name}"
    agent.observe_window(window)
    agent.buffer.reserve(1000)
    twin.buffer.reserve(1000)
    for (name, mine), theirs in zip(agent.state_dict().items(), twin.state_dict().values(), strict=True):
        if isinstance(mine, Tensor) and name not in ("buffer.x", "buffer.reward"):
            torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(agent.buffer.rows()[:2], twin.buffer.rows()[:2], strict=True):
        assert torch.equal(mine, theirs)
    return window


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("name", AGENTS)
def test_as_one_by_one(name: str, replicas: int) -> None:
    agent, twin = make(name, replicas), make(name, replicas)
    checks = []
    for start in range(5):
        checks.append(assert_as_one_by_one(agent, twin, deal(replicas, 40, seed=start)).checks)
    # the scores of Greedy do not depend on what it observes in between
    assert max(checks) > 1 or name == "Greedy", "the test wants a guess that is wrong"
    assert max(checks) < 20, "a guess is right sooner than round by round"


@pytest.mark.parametrize("depth", [1, 3, 4])
def test_networks_of_other_depths(depth: int) -> None:
    agent, twin = make("NeuralLog-UCB-2", 2, depth), make("NeuralLog-UCB-2", 2, depth)
    assert_as_one_by_one(agent, twin, deal(2, 30))


@given(rounds=st.integers(1, 30), nu=st.floats(0, 100), lam=st.floats(1e-3, 10), seed=st.integers(0, 99))
def test_whatever_is_explored(rounds: int, nu: float, lam: float, seed: int) -> None:
    agent, twin = (make("NCBF-UCB", 2, nu=nu, lam=lam, seed=seed) for _ in range(2))
    window = assert_as_one_by_one(agent, twin, deal(2, rounds, seed))
    assert 1 <= window.checks <= rounds + 1


def test_only_replicas_whose_guess_was_wrong_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here some are right at once, and one after the other the rest."""
    agent, counts, prefix = make("NeuralLog-UCB-2", 8, nu=1.0, bias=False), [], Agent.prefix

    def counted(agent: Agent, observed: Tensor, *others: Any) -> Prefix:
        counts.append(len(observed))
        return prefix(agent, observed, *others)

    monkeypatch.setattr(Agent, "prefix", counted)
    assert_as_one_by_one(agent, make("NeuralLog-UCB-2", 8, nu=1.0, bias=False), deal(8, 8))
    assert counts[0] == 8
    assert counts == sorted(counts, reverse=True)
    assert 0 < counts[-1] < counts[1] < 8


@pytest.mark.parametrize("name", ["NeuralLog-UCB-2", "NeuralLog-TS-1"])
def test_a_replica_has_the_same_bits_in_any_company(name: str) -> None:
    """Which replicas are computed again beside it differs."""
    arms = deal(8, 20)
    agent = make(name, 8, nu=1.0)
    together = ahead(agent, arms)
    assert together.checks > 1
    for replica in range(0, 8, 3):
        pair = make(name, 8, nu=1.0).part(Share([replica, replica], 1, 8))
        alone = ahead(pair, arms[[replica, replica]])
        assert together.prefix is not None
        assert alone.prefix is not None
        names = ("arm", "score", "mean", "bonus", "radius", "effective_dimension")
        values = [[getattr(window, name) for name in names] for window in (together, alone)]
        for one, other in zip((*values[0], *together.prefix), (*values[1], *alone.prefix), strict=True):
            assert torch.equal(one[replica], other[0])


def test_equal_arms_have_equal_chances() -> None:
    """All arms of a round are the same one: 60 x 64 choices among six."""
    agent = make("NeuralLog-UCB-1", 60)
    arms = deal(60, 64)[:, :, :1].expand(-1, -1, 6, -1)
    chosen = ahead(agent, arms).arm.flatten().bincount(minlength=6)
    expected = 60 * 64 / 6
    # chi^2 with 5 degrees of freedom is above 20.5 once in a thousand times
    assert ((chosen - expected) ** 2 / expected).sum() < 20.5


def test_a_replica_that_diverged_does_not_learn() -> None:
    agent, twin = make("NeuralLog-TS-2", 3), make("NeuralLog-TS-2", 3)
    for one in (agent, twin):
        one.diverged_at[0], one.divergence.any_diverged = 7, True
    radius = agent.radius.clone()
    window = assert_as_one_by_one(agent, twin, deal(3, 25))
    assert agent.radius[0] == radius[0]
    assert (agent.radius > radius).tolist() == [False, True, True]
    assert agent.rounds.tolist() == [0, 25, 25]
    assert window.prefix is not None
    assert torch.equal(window.prefix.design[0, -1], agent.design.diagonal[0])


def test_diagonals_are_cumulative_sums() -> None:
    """Against a plain loop over rounds, layers and entries."""
    shapes, ridge = [(3, 2), (4, 3), (1, 4)], torch.tensor([0.5, 2.0], dtype=torch.float64)
    g = torch.Generator().manual_seed(1)
    sizes = DiagonalDesign(shapes, ridge).factor_sizes
    squares = tuple(torch.rand(2, 5, size, generator=g, dtype=torch.float64) for size in sizes)
    weight = torch.rand(2, 5, 1, generator=g, dtype=torch.float64)
    found = DiagonalDesign(shapes, ridge).prefix(squares, weight)
    for replica in range(2):
        diagonal = [float(ridge[replica])] * (3 * 2 + 4 * 3 + 4)
        for t in range(6):
            assert found[replica, t].tolist() == pytest.approx(diagonal, rel=1e-14)
            if t == 5:
                break
            delta_1, z_0, delta_2, z_1, z_2 = (square[replica, t].tolist() for square in squares)
            w = float(weight[replica, t])
            growth = [z * d * w for z in z_0 for d in delta_1] + [z * d * w for z in z_1 for d in delta_2]
            diagonal = [a + b for a, b in zip(diagonal, growth + [z * w for z in z_2], strict=True)]


# ---- when ------------------------------------------------------------------------------------------------------------


def rounds_together(agent: Agent, count: int) -> int:
    return make_plan(agent, Synthetic(), count, together=True).slots


def test_how_many_rounds_together() -> None:
    assert rounds_together(NeuralLogUCB2(20), 50) == 50
    assert rounds_together(NeuralLogUCB2(20), 256) == 64
    # no window is much shorter than the others
    assert rounds_together(NeuralLogUCB2(20), 65) == 33
    # 115,000 / (10 * 441) = 26
    assert rounds_together(NeuralLogUCB2(20, replicas=10), 50) == 25
    assert rounds_together(NeuralLogUCB2(20, width=100, replicas=3), 50) == 17
    assert rounds_together(NeuralLogUCB2(20), 12) == 12
    assert rounds_together(NeuralLogUCB2(20), 11) == 1
    assert rounds_together(NeuralLogUCB2(20, replicas=50), 50) == 1
    assert rounds_together(NeuralLogUCB2(20, design="full"), 50) == 1
    assert rounds_together(NeuralLogUCB2(20, mode="theory"), 50) == 1
    assert make_plan(NeuralLogUCB2(20), Synthetic(), 50, together=False).slots == 1


def test_a_part_of_a_run_plays_like_the_whole() -> None:
    whole = NeuralLogUCB2(20, replicas=50)
    part = whole.part(Share([0, 1], 2, 50))
    assert rounds_together(part, 50) == rounds_together(whole, 50) == 1
    assert rounds_together(NeuralLogUCB2(20, replicas=2), 50) > 1


class _ByRound(RoundCallback):
    rounds = 0

    def on_round_end(self, trainer: L.Trainer, agent: Any, played: Round) -> None:
        self.rounds += 1


class _Both(_ByRound):
    together = 0

    def on_window_end(self, trainer: L.Trainer, agent: Any, window: Window) -> None:
        self.together += window.arm.shape[1]


class _Watched(Confidence):
    """Has a new hook for rounds, and from ``Confidence`` one for windows that knows nothing of it."""

    rounds = 0

    def on_round_end(self, trainer: L.Trainer, agent: Any, played: Round) -> None:
        super().on_round_end(trainer, agent, played)
        self.rounds += 1


def test_an_inherited_hook_for_windows_does_not_stand_for_a_new_one_for_rounds(fit: Fit) -> None:
    watched = _Watched()
    assert not watched.supports_windows
    assert Confidence().supports_windows
    assert _Both().supports_windows
    fit(NeuralLogUCB2(4, width=6, update_every=20), rounds=40, callbacks=[watched])
    assert watched.rounds == 40


def test_whoever_wants_every_round_gets_it(fit: Fit) -> None:
    agents = [NeuralLogUCB2(4, width=6, update_every=20, lr=0.001) for _ in range(3)]
    both, alone, beside = _Both(), _ByRound(), _Both()
    _, together = fit(agents[0], rounds=60, callbacks=[both])
    assert (both.rounds, both.together) == (0, 60)
    _, by_round = fit(agents[1], rounds=60, callbacks=[alone])
    assert alone.rounds == 60
    fit(agents[2], rounds=60, callbacks=[beside, _ByRound()])
    assert (beside.rounds, beside.together) == (60, 0)
    assert torch.equal(together.arm, by_round.arm)
    torch.testing.assert_close(together.score, by_round.score, rtol=1e-5, atol=1e-6)
