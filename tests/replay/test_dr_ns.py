"""Agents that learn by DR-ns, against a loop over one event at a time in plain numbers."""

import math
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from nl_lightning.agents.base import Agent
from nl_lightning.agents.callbacks import RoundCallback
from nl_lightning.core.errors import InputError
from nl_lightning.core.rng import Stream, row_numbers
from nl_lightning.environments import learner_value
from nl_lightning.reporting.tables import notes, table
from nl_lightning.rollout import loop, weighted
from nl_lightning.rollout.data import BanditData
from nl_lightning.runs.checkpoints import Checkpoints
from nl_lightning.runs.directory import RunDirectory
from nl_lightning.runs.recorder import Recorder
from replay import ReplayLog
from replay.logs.reader import Log
from replay.protocol.obd_features import ObdFeatures
from replay.simulation.simulated_world import SimulatedWorld
from tests.support.fits import QUIET, Keep
from tests.support.replay_agents import learner, offered
from tests.support.replay_logs import SMALL, write_log

UNIFORM, SOFTMAX = SimulatedWorld(**SMALL), SimulatedWorld(**SMALL, policy="softmax", temperature=4.0, seed=1)
ROWS = 900


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Log]:
    path = tmp_path_factory.mktemp("logs")
    return {
        "uniform": write_log(path / "u", UNIFORM, 1100, group=300),
        "softmax": write_log(path / "s", SOFTMAX, ROWS, group=400),
    }


def learn(agent: Agent, log: Log, rounds: int = 10**6, **settings: Any) -> tuple[Agent, Keep, ReplayLog]:
    keep, data = Keep(), BanditData(ReplayLog(str(log.path), **settings), rounds)
    L.Trainer(**QUIET, enable_checkpointing=False, callbacks=[keep]).fit(agent, data)
    return agent, keep, data.environment


class Twin:
    """One replica, one event at a time. Nothing of the package's DR-ns is used, only the agent."""

    def __init__(
        self, agent: Agent, log: Log, protocol: Any, quantile: float, c_max: float, carry: bool, most: int = 10**6
    ) -> None:
        arms = log.n_items if protocol == "all" else 5
        features, u = ObdFeatures.fit(log), row_numbers(range(log.rows), 1, 0, Stream.REJECTION).squeeze(1).tolist()
        propensities = [float(p) for group in log.groups for p in log.events(group).propensity]
        self.A = self.C = 0.0
        self.clicks = self.clicks2 = 0.0
        self.c = start = min(c_max, at_quantile(propensities, quantile)) if quantile else min(propensities)
        self.moved = False
        lowest = min(propensities)
        self.unclicked = 0
        """rounds that the design matrix gets without a click"""
        self.Q: list[float] = []
        self.accepted: list[int] = []
        self.weights: list[float] = []
        for group in log.groups:
            events = log.events(group)
            shown, x = offered(events, features, protocol, arms, log)
            for i, row in enumerate(events.rows):
                if len(self.accepted) == most:
                    return
                logged, p, r = int(shown.logged[i]), float(events.propensity[i]), float(events.click[i])
                noise = agent.noise.of_rows(0, torch.tensor([row]), arms)
                choice = agent.choose(agent.featurize(x[i].unsqueeze(0), noise=noise))
                pi = self.chance(agent, choice, row, logged)
                V = pi / p * r
                self.A += self.c * V
                self.C += self.c
                self.clicks += self.c * pi / p * r
                self.clicks2 += (self.c * pi / p) ** 2 * r
                if pi > 0:
                    self.Q.append(p / pi)
                # uniform, and below pi exactly where the agent's own draw is the logged arm
                mixed = u[row] * pi if int(choice.arm) == logged else pi + u[row] * (1 - pi)
                picked = int(choice.arm) == logged
                # of every context the agent's own draw enters the design matrix for a share c of the events
                beta = min(1.0, max(0.0, self.c - lowest) / (1 - lowest))
                enters = u[row] < (self.c - (1 - p) * beta) / p if picked else u[row] >= 1 - beta
                if mixed < self.c * pi / p or (picked and pi == 0 and u[row] < self.c / p):
                    self.accepted.append(row)
                    weight = max(1.0, self.c * pi / p) if carry else 1.0
                    self.weights.append(weight)
                    learned = choice._replace(arm=torch.tensor([logged]))
                    weights = {"weight": weight, "importance": float(enters)} if carry else {}
                    agent.observe(learned, torch.tensor([r]), **weights)
                    if quantile:
                        self.c = c_after(self.Q, quantile, c_max, start)
                        self.moved |= self.c != start
                    if len(self.accepted) % agent.update_every == 0:
                        agent.train_nn()
                elif enters and carry:
                    self.unclicked += 1
                    agent.observe(choice, torch.tensor([r]), torch.tensor([False]), importance=1.0)

    @staticmethod
    def chance(agent: Agent, choice: Any, row: int, logged: int) -> float:
        if logged < 0:
            return 0.0
        means, bonuses = choice.mean[0].tolist(), choice.bonus[0].tolist()
        draws = [[0.0] * len(means)]
        if agent.exploration.stochastic:
            numbers = [agent.noise.of_rows(0, torch.tensor([row]), len(means), draw)[1] for draw in range(1, 21)]
            draws = [drawn[0].tolist() for drawn in numbers if drawn is not None]
        total = 0.0
        for normal in draws:
            score = [
                m + b * (z if agent.exploration.stochastic else 1)
                for m, b, z in zip(means, bonuses, normal, strict=True)
            ]
            best = [k for k, s in enumerate(score) if s >= max(score) - agent.tie_tolerance * abs(max(score))]
            total += (logged in best) / len(best)
        return total / len(draws)


def at_quantile(values: list[float], quantile: float) -> float:
    """The smallest number with at least that share of the numbers up to it."""
    ordered = sorted(values)
    return next(v for i, v in enumerate(ordered) if (i + 1) >= quantile * len(ordered) - 1e-9)


def c_after(values: list[float], quantile: float, c_max: float, start: float) -> float:
    """The quantile of Q, once at least ten of its numbers have a place up to the quantile's; the start before."""
    share_below = [(i + 1) < quantile * len(values) - 1e-9 for i in range(len(values))]
    return min(c_max, at_quantile(values, quantile)) if sum(share_below) >= 9 else start


@pytest.mark.parametrize("carry", [True, False])
@pytest.mark.parametrize(("quantile", "c_max"), [(0.05, 1.0), (0.3, 1.0), (0.2, 0.08), (0.0, 1.0)])
@pytest.mark.parametrize(
    ("name", "protocol"), [("Logistic-UCB-1", "all"), ("NeuralLog-TS-2", "uniform"), ("NeuralLog-UCB-2", "uniform")]
)
def test_one_by_one(
    name: str, protocol: Any, quantile: float, c_max: float, carry: bool, logs: dict[str, Log], monkeypatch: Any
) -> None:
    if quantile == 0 and carry:
        pytest.skip("weights are 1 with quantile 0, and a setting without effect is refused")
    # several blocks and windows, which must not show
    monkeypatch.setattr(loop, "EVALUATED_BYTES", 3_000_000)
    given: dict[str, Any] = (
        {"quantile": quantile} if quantile == 0 else {"quantile": quantile, "c_max": c_max, "carry_weights": carry}
    )
    agent = learner(name, update_growth=0.0)
    _, keep, environment = learn(
        agent, logs["softmax"], candidates=protocol, rejection="dr-ns", reward_model="none", **given
    )
    other = learner(name, update_growth=0.0)
    twin = Twin(other, logs["softmax"], protocol, quantile, c_max, carry and quantile > 0)
    result = environment.counts()["replicas"][0]
    assert keep.event[0].tolist() == twin.accepted
    assert len(twin.accepted) > 10
    assert twin.moved or quantile != 0.3
    assert result["matched"] == len(twin.Q)
    assert result["c"] == pytest.approx(twin.c, rel=1e-13)
    sums = result["sums"]
    for mine, expected in ((sums["A"], twin.A), (sums["C"], twin.C), (sums["clicks2"], twin.clicks2)):
        assert mine == pytest.approx(expected, rel=1e-12)
    assert result["value"] == pytest.approx(twin.A / twin.C, rel=1e-12)
    assert result["value_low"] < result["value"] < result["value_high"]
    if carry and quantile > 0:
        stored = agent.buffer.weight[0, : len(twin.weights)].tolist()
        assert stored == pytest.approx(twin.weights, rel=1e-6)
        assert max(twin.weights) > 1 or c_max < 1
        assert twin.unclicked > 10
    else:
        assert twin.unclicked == 0
        assert not agent.buffer.weighted
    torch.testing.assert_close(agent.effective_dimension, other.effective_dimension, rtol=1e-9, atol=0)
    arms = torch.rand(7, 42, dtype=torch.float64)
    torch.testing.assert_close(agent.act(arms).bonus, other.act(arms).bonus, rtol=1e-9, atol=0)


def test_a_full_design_matrix_has_room_for_rounds_without_a_click(logs: dict[str, Log]) -> None:
    """With fewer events than parameters the matrix is kept by its samples, more of them than accepted events."""
    settings: dict[str, Any] = {"design": "full", "update_growth": 0.0, "steps": 1, "width": 30, "update_every": 5}
    agent, other = (learner("NeuralLog-UCB-2", **settings) for _ in range(2))
    given: dict[str, Any] = {"candidates": "all", "rejection": "dr-ns", "quantile": 0.7, "reward_model": "none"}
    _, keep, _ = learn(agent, logs["softmax"], **given, rounds=40)
    twin = Twin(other, logs["softmax"], "all", 0.7, 1.0, True, most=40)
    assert keep.event[0].tolist() == twin.accepted
    assert twin.unclicked > 20
    assert agent.design.dual
    torch.testing.assert_close(agent.effective_dimension, other.effective_dimension, rtol=1e-9, atol=0)
    # a rule without such rounds makes room for accepted events only
    with pytest.raises(InputError, match="an earlier fit with rejection: dr-ns has added rounds without a click"):
        learn(agent, logs["uniform"], rounds=5)


class Watcher(RoundCallback):
    """Looks at the replay buffer after every round, so that it must be up to date."""

    def __init__(self) -> None:
        self.learned: list[int] = []

    def on_round_end(self, trainer: L.Trainer, agent: Agent, played: Any) -> None:
        assert played.accepted is not None
        assert not (played.accepted & (played.weight < 1)).any()
        self.learned.append(int(agent.buffer.length[1]))


def test_who_watches_sees_the_same(logs: dict[str, Log]) -> None:
    settings: dict[str, Any] = {"candidates": "all", "rejection": "dr-ns", "quantile": 0.3}
    agents = [learner("NeuralLog-TS-2", replicas=2) for _ in range(2)]
    watcher, environment = Watcher(), ReplayLog(str(logs["softmax"].path), **settings)
    flags = {**QUIET, "enable_checkpointing": False}
    L.Trainer(**flags, callbacks=[watcher]).fit(agents[0], BanditData(environment, 10**6))
    _, _, other = learn(agents[1], logs["softmax"], **settings)
    assert environment.value is not None
    assert other.value is not None
    assert np.array_equal(environment.value.sums, other.value.sums)
    assert torch.equal(*(agent.radius for agent in agents))
    assert torch.equal(*(agent.buffer.x for agent in agents))
    # rounds without a click are rounds, of which nothing is learned but in the design matrix
    assert len(watcher.learned) > watcher.learned[-1] + 10


def test_a_round_whose_click_nobody_knows() -> None:
    """M = sum_i v_i x_i x_i^T + kappa lam I, with weights v of its own, and a buffer without such rounds."""
    agent = learner("Logistic-UCB-1", replicas=2, design="full", lam=0.2, kappa=5.0)
    random = torch.Generator().manual_seed(4)
    M = [np.eye(42) * 0.2 * 5.0 for _ in range(2)]
    for t in range(6):
        choice = agent.act(torch.rand(4, 42, generator=random, dtype=torch.float64))
        counted, accepted = [[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]][t % 3], [t % 2 == 0, t < 3]
        for r in range(2):
            x = choice.x[r, 0].numpy()
            M[r] += counted[r] * np.outer(x, x)
        given = {"weight": torch.tensor([1.5, 1.0]), "importance": torch.tensor(counted)}
        agent.observe(choice, torch.tensor([1, 0]), torch.tensor(accepted), **given)
    assert agent.buffer.length.tolist() == [3, 3]
    assert agent.buffer.weight[:, :3].tolist() == [[1.5] * 3, [1.0] * 3]
    arms = torch.rand(5, 42, generator=random, dtype=torch.float64)
    bonus = agent.act(arms).bonus
    for r in range(2):
        norms = [float(np.sqrt(x @ np.linalg.inv(M[r]) @ x)) * float(agent.radius[r]) for x in arms.numpy()]
        assert bonus[r].tolist() == pytest.approx(norms, rel=1e-9)


@pytest.mark.parametrize("c", [0.01, 0.02, 0.1, 0.3, 1.0, 1.4])
def test_the_design_matrix_gets_every_arm_as_often_as_online(c: float) -> None:
    """Summed over the draw, the logged action and fine steps of u: arm a enters with c pi(a), however small p(a) is."""
    p, pi = [0.02, 0.08, 0.4, 0.5], [0.5, 0.3, 0.2, 0.0]
    settings = learner_value.LearnerSettings(c, 0.01, 2.0, True, False, 1000, 0.02)
    value = learner_value.LearnerValue(settings, 1)
    u = (np.arange(20_000) + 0.5)[None] / 20_000
    got = [0.0] * 4
    for logged in range(4):
        columns = [np.full_like(u, number) for number in (pi[logged], p[logged], 0.0, 0.0, 0.0)]
        events = learner_value.PassedEvents(np.zeros(u.shape, dtype=np.int64), *columns)
        for draw in range(4):
            picked = np.full(u.shape, draw == logged)
            rounds = value.rounds([0], picked, u, events)
            got[draw] += p[logged] * pi[draw] * float(rounds.mean())
            if draw == logged:
                assert value.chance([0], picked, u, events)[rounds > 0].all()
            if c <= 0.02:
                # nothing is cut off: what is accepted is what enters
                assert np.array_equal(value.chance([0], picked, u, events) & picked, rounds > 0)
    assert got == pytest.approx([c * share for share in pi], abs=2e-4 * max(1.0, c))


@pytest.mark.parametrize("which", ["uniform", "softmax"])
@pytest.mark.parametrize("name", ["Logistic-UCB-1", "NeuralLog-TS-1", "NeuralLog-UCB-2"])
def test_quantile_0_accepts_what_rejection_sampling_accepts(name: str, which: str, logs: dict[str, Log]) -> None:
    """Of a uniform log plain matching, of any other one the propensity correction; with the same scores."""
    rule = "match" if which == "uniform" else "propensity"
    _, plain, _ = learn(learner(name, replicas=2), logs[which], candidates="all", rejection=rule)
    _, found, environment = learn(
        learner(name, replicas=2), logs[which], candidates="all", rejection="dr-ns", quantile=0.0
    )
    assert torch.equal(plain.event, found.event)
    # other windows have other last digits
    torch.testing.assert_close(plain.score, found.score, rtol=1e-9, atol=0)
    assert torch.equal(plain.arm, found.arm)
    counted = environment.counts()["replicas"]
    assert [sum(r["rejected"].values()) + r["accepted"] for r in counted] == [r["seen"] for r in counted]


def test_a_value_does_not_depend_on_windows_blocks_and_replicas_beside_it(
    logs: dict[str, Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"candidates": "all", "rejection": "dr-ns", "quantile": 0.05}
    _, _, together = learn(learner("NeuralLog-TS-2", replicas=3), logs["softmax"], **settings)
    assert together.value is not None
    monkeypatch.setattr(loop, "EVALUATED_BYTES", 1_500_000)
    _, _, divided = learn(learner("NeuralLog-TS-2", replicas=3), logs["softmax"], **settings)
    assert divided.value is not None
    assert np.array_equal(together.value.sums, divided.value.sums)
    assert together.value.records == divided.value.records
    assert len({tuple(column) for column in together.value.sums.T}) == 3


def test_resume_is_bit_for_bit(logs: dict[str, Log], tmp_path: Path) -> None:
    def fit(where: str, **flags: Any) -> dict[str, Any]:
        run, agent = RunDirectory(tmp_path / where), learner("NeuralLog-TS-2", replicas=2)
        path = run.checkpoint if run.checkpoint.exists() else None
        data = BanditData(ReplayLog(str(logs["softmax"].path), candidates="all", rejection="dr-ns"), 10**6)
        trainer = L.Trainer(**{**QUIET, **flags}, callbacks=[Recorder(run.path), Checkpoints(run.checkpoint, every=1)])
        trainer.fit(agent, data, ckpt_path=path, weights_only=False)
        summary = run.read_summary()
        assert summary is not None
        files = {name: pq.read_table(path) for name, path in (("rounds", run.rounds), ("events", run.events))}
        stored = torch.load(run.checkpoint, weights_only=False)["BanditData"]["environment"]["values"]
        return {**summary, "seconds": 0, **files, "stored": stored}

    whole = fit("whole")
    assert fit("parts", max_steps=2)["finished"] is False
    assert fit("parts") == whole
    assert whole["events"].num_rows > 100
    row = whole["over_replicas"][0]
    assert 0 < row["value_low"] < row["value"] < row["value_high"] < 1
    told = "\n".join(notes(whole))
    assert "doubly robust estimate" in told
    assert [column.header for column in table(whole).columns][-3:] == ["value", "95% interval of the value", "diverged"]


def test_the_lowest_of_q_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Q only what a quantile can ever need is held, and the quantile is that of all."""
    random = np.random.default_rng(5)
    settings = learner_value.LearnerSettings(0.1, 0.03, 1.0, True, False, 600, 0.01)
    value, values = learner_value.LearnerValue(settings, 1), []
    for row in range(600):
        p, pi = random.uniform(0.01, 0.3), random.choice([0.0, 0.3, 1.0])
        event = learner_value.PassedEvents(
            np.array([[row]]), *(np.array([[v]]) for v in (pi, p, float(row % 7 == 0), 0.0, 0.0))
        )
        if pi:
            values.append(p / pi)
        value.add([0], event, np.array([1]), np.array([pi > 0]))
        assert value.c[0] == c_after(values, 0.03, 1.0, start=0.1)
        # the first 300 numbers have 9 up to the quantile
        assert (value.c[0] == 0.1) == (len(values) <= 300)
    assert len(values) > 300
    assert len(value.state(1)[0]["lowest"]) == math.ceil(0.03 * 600) + 1


REFUSED = [
    ({"rejection": "propensity", "quantile": 0.1}, "quantile is a setting of rejection: dr-ns"),
    ({"rejection": "dr-ns", "quantile": 1.0}, "quantile must lie in"),
    ({"rejection": "dr-ns", "quantile": 0.0, "c_max": 0.5}, "c_max has no effect with quantile 0"),
    ({"rejection": "dr-ns", "quantile": 0.0, "carry_weights": True}, "carry_weights has no effect with quantile 0"),
    ({"rejection": "dr-ns", "c_max": 0.0}, "c_max must be a number above 0"),
    ({"rejection": "dr-ns", "propensity_floor": 0.1}, "propensity_floor has no effect"),
    ({"rejection": "dr-ns", "candidates": "affinity"}, "depend on it; use candidates: uniform or all"),
    ({"rejection": "dr-ns", "reward_model": "forest"}, "reward_model must be logistic, none"),
    ({"rejection": "dr_ns"}, "rejection must be one of"),
]


@pytest.mark.parametrize(("settings", "text"), REFUSED)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], text: str, logs: dict[str, Log]) -> None:
    with pytest.raises(InputError, match=text):
        ReplayLog(str(logs["softmax"].path), **{"candidates": "all", **settings})


def test_agents_without_known_chances_or_weights_are_refused(logs: dict[str, Log]) -> None:
    agent = learner("Logistic-UCB-1")

    class Chooser(type(agent)):  # type: ignore[misc]
        def choose(self, view: Any) -> Any:
            return super().choose(view)

    class Observer(type(agent)):  # type: ignore[misc]
        def observe(self, choice: Any, reward: Any, accepted: Any = None) -> None:
            super().observe(choice, reward, accepted)

    class Weigher(type(agent)):  # type: ignore[misc]
        def observe(self, choice: Any, reward: Any, accepted: Any = None, weight: Any = None) -> None:
            super().observe(choice, reward, accepted, weight)

    for kind, text in (
        (Chooser, "chooses by a method of its own"),
        (Observer, "takes no weight"),
        (Weigher, "takes no importance"),
    ):
        with pytest.raises(InputError, match=text):
            learn(kind(42), logs["softmax"], candidates="all", rejection="dr-ns")
    with pytest.raises(InputError, match="Theory mode has no weights"):
        learn(learner("NeuralLog-UCB-1", mode="theory"), logs["softmax"], candidates="all", rejection="dr-ns")


def test_no_window_is_scored_behind_the_end(logs: dict[str, Log], monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of events is left as soon as all of them are passed, however few were accepted."""
    agent, seen = learner("Logistic-UCB-1"), []
    block, step = weighted.WeightedBlock, weighted.WeightedBlock.step

    def counted(self: weighted.WeightedBlock) -> Any:
        before = self.value.sums[1].copy()
        played = step(self)
        seen.append(bool((self.value.sums[1] > before).all()))
        return played

    monkeypatch.setattr(block, "step", counted)
    learn(agent, logs["softmax"], candidates="all", rejection="dr-ns")
    assert seen
    assert all(seen), "a step that passes no event adds nothing to C"
