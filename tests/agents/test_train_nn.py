"""When TrainNN runs, on which observations, and what is learned from observations that somebody else chose."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nl_lightning import Greedy, NeuralLogUCB2
from nl_lightning.agents.base import Agent
from nl_lightning.agents.callbacks import RoundCallback
from nl_lightning.agents.train_nn import Schedule
from nl_lightning.core.errors import InputError
from nl_lightning.core.rng import Stream, generator
from nl_lightning.core.types import TrainingBatch
from nl_lightning.models.minibatches import Minibatches
from tests.support.fits import Fit
from tests.support.small_agents import DIM, VARIANTS, deal, make
from tests.support.twin import Twin

# ---- when ------------------------------------------------------------------------------------------------------------


class Batches(RoundCallback):
    """The number of observations of every call of TrainNN."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.first: list[float] = []

    def on_train_batch_start(self, trainer: Any, agent: Any, batch: TrainingBatch, batch_idx: int) -> None:
        if batch.due:
            self.calls.append(batch.x.shape[1])
            self.first.append(float(batch.x[0, 0, 0]))


def times(schedule: Schedule, start: int, stop: int) -> list[int]:
    """The rounds after which TrainNN runs, one after the other; the last ones are cut at ``stop``."""
    found = [start]
    while found[-1] < stop:
        found.append(min(found[-1] + schedule.rounds_until_next(found[-1]), stop))
    return found[1:]


def test_the_paper_s_schedule_up_to_2000_rounds_and_geometric_behind_it() -> None:
    calls = times(Schedule(50, 0.025, None), 0, 100_000)
    assert calls[:40] == list(range(50, 2001, 50))
    assert all(later - at == int(0.025 * at) for at, later in pairwise(calls[39:-1]))
    assert calls[-1] == 100_000
    assert len(calls) < 220
    assert times(Schedule(50, 0.0, None), 0, 100_000) == list(range(50, 100_001, 50))
    assert Schedule(50, 0.025, 4000).rounds_until_next(10**6) == 100


@given(
    every=st.integers(1, 90),
    growth=st.just(0.0) | st.floats(0, 2),
    window=st.none() | st.integers(1, 900),
    rounds=st.integers(0, 3000),
    begun=st.integers(0, 500),
)
def test_calls_are_counted_without_a_list_of_them(
    every: int, growth: float, window: int | None, rounds: int, begun: int
) -> None:
    schedule = Schedule(every, growth, window)
    assert schedule.calls(begun, begun + rounds) == len(times(schedule, begun, begun + rounds))


@pytest.mark.parametrize("schedule", [Schedule(1, 0.0, None), Schedule(1, 0.025, 1000), Schedule(1, 0.025, None)])
def test_a_billion_rounds_are_counted_at_once(schedule: Schedule) -> None:
    """A log is replayed to its end by asking for more rounds than it has."""
    assert schedule.calls(0, 10**9) > 100


def test_a_fit_trains_when_the_schedule_says(fit: Fit) -> None:
    count = Batches()
    agent, rounds = fit(NeuralLogUCB2(4, update_every=10, update_growth=0.5, steps=2), rounds=120, callbacks=[count])
    assert count.calls == [10, 20, 30, 45, 67, 100]
    assert rounds.t.tolist() == list(range(1, 121))
    # a second fit goes on with the schedule
    fit(agent, rounds=40, callbacks=[again := Batches()])
    assert again.calls == []
    assert agent.rounds.tolist() == [160]


def test_shrink_keeps_more_of_what_many_observations_have_taught() -> None:
    """k theta + (1 - k) fresh with k = 0.55 up to 4,000 observations of the replica, then 1 - 0.45 sqrt(4000/n)."""
    agent = NeuralLogUCB2(
        DIM, width=3, replicas=3, start="shrink", steps=1, optimizer=lambda theta: torch.optim.SGD(theta, lr=0.0)
    ).double()
    lengths = (7, 4000, 9000)
    accepted = torch.arange(9000) < torch.tensor(lengths).unsqueeze(1)
    agent.buffer.append(torch.rand(3, 9000, DIM), torch.ones(3, 9000), accepted)
    before = [weight.clone() for weight in agent.network.weights]
    agent.train_nn()
    fresh = agent.network.fresh([0, 1, 2], [1, 1, 1])
    for old, new, found in zip(before, fresh, agent.network.weights, strict=True):
        for replica, n in enumerate(lengths):
            k = 0.55 if n <= 4000 else 1 - 0.45 * (4000 / n) ** 0.5
            expected = k * old[replica] + (1 - k) * new[replica]
            torch.testing.assert_close(found[replica], expected, rtol=1e-14, atol=1e-15)


# ---- on which --------------------------------------------------------------------------------------------------------


def test_a_window_forgets(fit: Fit) -> None:
    """TrainNN gets the newest observations only, and the design matrix is that of them, taken anew."""
    count = Batches()
    settings: dict[str, Any] = {"update_every": 10, "steps": 5, "replicas": 2, "window": 25, "nu": 0.5}
    agent, rounds = fit(NeuralLogUCB2(4, width=6, **settings).double(), rounds=60, callbacks=[count])
    assert count.calls == [10, 20, 25, 25, 25, 25]
    shown = torch.cat([block.x for block in rounds.blocks], dim=1)
    assert count.first[-1] == pytest.approx(float(shown[0, 35, 0]))
    for r in range(2):
        twin = Twin("NeuralLog-UCB-2", agent.weights(r), nu=0.5, lam=0.1, kappa=10.0, S=1.0)
        for x in shown[r, 35:60]:
            twin.observe(x, 0)
        assert float(agent.effective_dimension[r]) == pytest.approx(twin.effective_dimension(), rel=1e-9)
        assert float(agent.radius[r]) == pytest.approx(twin.radius(), rel=1e-9)
        arms = torch.rand(5, 4, dtype=torch.float64)
        torch.testing.assert_close(agent.act(arms).bonus[r], twin.bonus(arms), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("design", ["diagonal", "full"])
def test_a_window_of_a_replica_that_has_fewer_observations(design: str) -> None:
    agent = make("NeuralLog-UCB-2", design=design, replicas=2, window=4, steps=3).double()
    arms, rewards = deal(3, replicas=2, rounds=6)
    seen: list[torch.Tensor] = []
    for t in range(6):
        choice = agent.act(arms[t])
        accepted = torch.tensor([True, t < 2])
        agent.observe(choice, rewards[t], accepted=accepted)
        seen.append(choice.x[:, 0])
    agent.train_nn()
    for r, rows in ((0, seen[2:]), (1, seen[:2])):
        twin = Twin("NeuralLog-UCB-2", agent.weights(r), nu=0.1, lam=1.0, kappa=10.0, S=1.0, design=design)
        for x in rows:
            twin.observe(x[r], 0)
        assert float(agent.effective_dimension[r]) == pytest.approx(twin.effective_dimension(), rel=1e-9)


def test_with_a_window_an_ended_replica_keeps_its_radius() -> None:
    """It would have been left alone if nobody had played beside it."""
    agent = make("NeuralLog-UCB-2", replicas=2, window=4, steps=3, on_divergence="mark")
    arms, rewards = deal(3, replicas=2, rounds=7)
    for t in range(7):
        agent.observe(agent.act(arms[t]), rewards[t])
    agent.diverged_at[1] = 7
    before = agent.radius.clone()
    agent.train_nn()
    assert agent.radius[1] == before[1]
    assert agent.radius[0] != before[0]


def test_minibatches_are_drawn_evenly_and_stand_for_all_samples() -> None:
    length = torch.tensor([50, 7, 0])
    drawn = Minibatches.draw([generator(s, Stream.MINIBATCHES, 1) for s in range(3)], length, 10, 4000, torch.float64)
    assert drawn.place.shape == (4000, 3, 10)
    counts = torch.bincount(drawn.place[:, 0].flatten(), minlength=50).double()
    assert counts.numel() == 50
    assert float(((counts - 800) ** 2 / 800).sum()) < 95  # chi-square with 49 degrees of freedom: p > 1e-4
    assert (drawn.weight[0] == 5).all()
    # who has fewer takes all of them, once
    assert drawn.place[0, 1, :7].tolist() == list(range(7))
    assert drawn.weight[1].tolist() == [1.0] * 7 + [0.0] * 3
    assert (drawn.weight[2] == 0).all()


def test_a_batch_of_all_samples_is_no_minibatch_and_a_smaller_one_repeats() -> None:
    def trained(batch_size: int | None, replicas: int = 2) -> Agent:
        agent = make("NeuralLog-UCB-2", optimizer="adam", replicas=replicas, batch_size=batch_size, steps=20).double()
        arms, rewards = deal(5, replicas=2, rounds=30)
        for t in range(30):
            agent.observe(agent.act(arms[0, :replicas]), rewards[t, :replicas])
        agent.train_nn()
        return agent

    whole, all_of_them, some, again = trained(None), trained(30), trained(8), trained(8)
    for a, b, c, d in zip(*(agent.weights(1) for agent in (whole, all_of_them, some, again)), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(c, d)
        assert not torch.equal(a, c)
    for mine, theirs in zip(trained(8, replicas=1).weights(0), some.weights(0), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


def test_the_gradient_of_minibatches_is_right_on_average() -> None:
    """Gradient descent with a tiny step over many minibatches ends where full batches do, to the noise of sampling."""
    arms, rewards = deal(6, replicas=1, rounds=60)
    ends = []
    for size in (None, 6):
        agent = make("NeuralLog-UCB-2", lr=5e-6, steps=12_000, batch_size=size, lam=0.1, seed=4).double()
        start = torch.cat([w.flatten() for w in agent.weights()])
        for t in range(60):
            choice = agent.act(arms[t])
            agent.observe(choice._replace(arm=torch.zeros(1, dtype=torch.long)), rewards[t])
        agent.train_nn()
        ends.append(torch.cat([w.flatten() for w in agent.weights()]) - start)
    assert float((ends[0] - ends[1]).norm() / ends[0].norm()) < 0.05


# ---- what others chose -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(("name", "design"), [variant for variant in VARIANTS if variant[1] != "theory"])
def test_learn_is_buffer_then_training_then_design(name: str, design: str, weighted: bool) -> None:
    """Against a twin that trains first and then observes with the network it has."""
    g = torch.Generator().manual_seed(1)
    x = torch.rand(15, DIM, generator=g, dtype=torch.float64) * 2 - 1
    reward = torch.randint(2, (15,), generator=g)
    weight = torch.rand(15, generator=g, dtype=torch.float64) * 2 if weighted else None
    agent = make(name, design=design, replicas=2, steps=4).double()
    untrained = [agent.weights(r) for r in range(2)]
    agent.learn(x, reward, weight)
    assert agent.rounds.tolist() == [15, 15]
    arms = torch.rand(5, DIM, generator=g, dtype=torch.float64)
    choice = agent.act(arms)
    for r in range(2):
        twin = Twin(name, untrained[r], nu=0.1, lam=1.0, kappa=10.0, S=1.0, design=design, steps=4)
        counts = [1.0] * 15 if weight is None else weight.tolist()
        for each, click, count in zip(x, reward, counts, strict=True):
            twin.observe(each, click, count)
        twin.train_nn()
        trained = Twin(name, twin.weights, nu=0.1, lam=1.0, kappa=10.0, S=1.0, design=design)
        for each, click, count in zip(x, reward, counts, strict=True):
            trained.observe(each, click, count)
        torch.testing.assert_close(choice.mean[r], trained.mean(arms), rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(choice.bonus[r], trained.bonus(arms), rtol=1e-9, atol=1e-11)
        assert float(agent.effective_dimension[r]) == pytest.approx(trained.effective_dimension(), rel=1e-9)


class _Counted(NeuralLogUCB2):
    """Counts what its own ``update_confidence`` is told."""

    told = 0

    def update_confidence(self, observed: Any, accepted: Any = None, importance: Any = None) -> None:
        self.told += 1
        super().update_confidence(observed, accepted, importance)


@pytest.mark.parametrize("weighted", [True, False])
def test_learn_tells_an_update_confidence_of_one_s_own(weighted: bool) -> None:
    g = torch.Generator().manual_seed(3)
    x, reward = torch.rand(12, DIM, generator=g, dtype=torch.float64), torch.randint(2, (12,), generator=g)
    weight = torch.rand(12, generator=g, dtype=torch.float64) if weighted else None
    own, plain = (kind(DIM, replicas=2, steps=3).double() for kind in (_Counted, NeuralLogUCB2))
    for agent in (own, plain):
        agent.learn(x, reward, weight)
    assert own.told == 12
    torch.testing.assert_close(own.radius, plain.radius, rtol=1e-12, atol=0)
    arms = torch.rand(5, DIM, generator=g, dtype=torch.float64)
    torch.testing.assert_close(own.act(arms).bonus, plain.act(arms).bonus, rtol=1e-12, atol=0)


def test_learn_trains_whenever_the_observations_have_doubled() -> None:
    """Against a twin that observes 10, 10, 20, 40 and 15 observations and trains after each of these."""
    g = torch.Generator().manual_seed(2)
    x = torch.rand(95, DIM, generator=g, dtype=torch.float64) * 2 - 1
    reward = torch.randint(2, (95,), generator=g)
    agent = make("NeuralLog-UCB-2", steps=4, update_every=10).double()
    twin = Twin("NeuralLog-UCB-2", agent.weights(), nu=0.1, lam=1.0, kappa=10.0, S=1.0, steps=4)
    agent.learn(x, reward)
    for first, stop in ((0, 10), (10, 20), (20, 40), (40, 80), (80, 95)):
        for each, click in zip(x[first:stop], reward[first:stop], strict=True):
            twin.observe(each, click)
        twin.train_nn()
    assert agent.train_calls.tolist() == [5]
    for learned, expected in zip(agent.weights(), twin.weights, strict=True):
        torch.testing.assert_close(learned, expected, rtol=1e-9, atol=1e-11)


def test_an_agent_that_has_learned_goes_on_and_its_weights_are_stored() -> None:
    agent = NeuralLogUCB2(DIM, width=6).double()
    agent.learn(torch.rand(40, DIM), torch.randint(2, (40,)), torch.rand(40))
    again = NeuralLogUCB2(DIM, width=6).double()
    again.load_state_dict(agent.state_dict())
    for one in (agent, again):
        for t in range(100):
            one.observe(one.act(torch.full((3, DIM), t / 100)), t % 2)
        one.train_nn()
    assert all(torch.equal(a, b) for a, b in zip(agent.weights(), again.weights(), strict=True))
    assert again.buffer.weight[0, 40:140].tolist() == [1.0] * 100
    assert float(again.buffer.weight[0, 140:].abs().sum()) == 0


@pytest.mark.parametrize("bias", [False, True])
def test_large_weights_are_no_divergence(bias: bool) -> None:
    """Clicks that no network can tell apart have a loss of sum_i w_i log 2, however large the weights are."""
    agent = NeuralLogUCB2(DIM, bias=bias)
    agent.learn(torch.full((40, DIM), 0.1), torch.arange(40) % 2, torch.full((40,), 5000.0))
    assert agent.diverged_at.tolist() == [0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.rand(3, DIM + 1), torch.ones(3)), "x must have the shape"),
        ((torch.rand(3, DIM), torch.ones(4)), r"reward must have the shape \(3,\)"),
        ((torch.rand(3, DIM), torch.full((3,), 0.5)), "reward must be 0 or 1"),
        ((torch.rand(3, DIM), torch.ones(3), -torch.ones(3)), "weight must be finite and at least 0"),
        ((torch.rand(3, DIM), torch.ones(3), torch.ones(2)), "weight must have the shape"),
        ((torch.rand(0, DIM), torch.ones(0)), "There is no observation"),
    ],
)
def test_observations_that_cannot_be_used_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        NeuralLogUCB2(DIM).learn(*arguments)


def test_theory_mode_learns_from_its_own_choices_only() -> None:
    with pytest.raises(InputError, match="its own choices only"):
        NeuralLogUCB2(DIM, mode="theory", horizon=10).learn(torch.rand(3, DIM), torch.ones(3))
    agent = NeuralLogUCB2(DIM, mode="theory", horizon=10)
    with pytest.raises(InputError, match="no weights"):
        agent.observe(agent.act(torch.rand(3, DIM)), 1, weight=2.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"start": "hot"}, "start must be one of warm, cold, shrink"),
        ({"update_growth": -1.0}, "update_growth must be a finite number of at least 0"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1"),
        ({"window": 2.5}, "window must be a whole number"),
        ({"epsilon": 0.1}, "epsilon = 0.1 is for the exploration rule greedy"),
        ({"epsilon": 2.0}, "between 0 and 1"),
        ({"mode": "theory", "optimizer": "adam"}, "Theory mode has optimizer 'gd'"),
        ({"mode": "theory", "start": "warm"}, "Theory mode has optimizer 'gd' and start 'cold'"),
        ({"mode": "theory", "bias": True}, "Theory mode has no bias"),
        ({"mode": "theory", "window": 5}, "Theory mode has no window"),
    ],
)
def test_settings_without_a_meaning_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        NeuralLogUCB2(DIM, **settings)


# ---- greedy ----------------------------------------------------------------------------------------------------------


def test_epsilon_is_the_chance_of_a_random_arm() -> None:
    agent = Greedy(DIM, epsilon=0.4, replicas=100)
    agent.noise.seeds = list(range(100))
    arms = torch.rand(4, DIM, generator=torch.Generator().manual_seed(0))
    best = agent.act(arms).mean.argmax(1)
    taken = torch.stack([agent.act(arms).arm for _ in range(200)])
    share = (taken == best).double().mean()
    # 0.6 + 0.4 / 4, with a standard error of 0.0032
    assert abs(float(share) - 0.7) < 4 * 0.0032
    others = torch.stack([(taken == (best + k) % 4).double().mean() for k in (1, 2, 3)])
    assert float((others - 0.1).abs().max()) < 4 * 0.0022


def test_greedy_takes_the_best_mean_and_is_played_like_any_agent(fit: Fit) -> None:
    agent, rounds = fit(Greedy(4, replicas=2), rounds=60)
    assert (rounds.bonus == 0).all()
    assert torch.equal(rounds.score, rounds.mean)
    epsilon, _ = fit(Greedy(4, replicas=2, epsilon=0.5), rounds=60)
    assert not torch.equal(epsilon.buffer.x, agent.buffer.x)
