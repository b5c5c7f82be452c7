"""Agents that learn on a log, against a loop over one event at a time."""

import shutil
from pathlib import Path
from typing import Any

import lightning as L
import pyarrow.parquet as pq
import pytest
import torch

from nl_lightning import AGENTS
from nl_lightning.agents.base import Agent, LinearAgent
from nl_lightning.agents.callbacks import RoundCallback
from nl_lightning.core.errors import InputError
from nl_lightning.core.rng import Stream, row_numbers
from nl_lightning.core.types import Round, Window
from nl_lightning.reporting import tables as report
from nl_lightning.reporting.conclusion import conclude
from nl_lightning.rollout import loop
from nl_lightning.rollout.data import BanditData
from nl_lightning.runs.checkpoints import Checkpoints
from nl_lightning.runs.directory import RunDirectory
from nl_lightning.runs.recorder import Recorder
from nl_lightning.runs.summary import CTR
from replay import ReplayLog, learning
from replay.logs.reader import Log
from replay.protocol.obd_features import ObdFeatures
from replay.simulation.simulated_world import SimulatedWorld
from tests.support import replay_twin as twin
from tests.support.fits import QUIET, Keep
from tests.support.replay_agents import learner, offered
from tests.support.replay_logs import SMALL, frame, write_log

UNIFORM, SOFTMAX = SimulatedWorld(**SMALL), SimulatedWorld(**SMALL, policy="softmax", temperature=4.0, seed=1)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Log]:
    path = tmp_path_factory.mktemp("logs")
    return {
        "uniform": write_log(path / "u", UNIFORM, 1100, group=300),
        "softmax": write_log(path / "s", SOFTMAX, 1500, group=400),
    }


def learn(agent: Agent, log: Log, rounds: int = 10**6, **settings: Any) -> tuple[Agent, Keep, ReplayLog]:
    keep, data = Keep(), BanditData(ReplayLog(str(log.path), **settings), rounds)
    L.Trainer(**QUIET, enable_checkpointing=False, callbacks=[keep]).fit(agent, data)
    return agent, keep, data.environment


def one_by_one(agent: Agent, log: Log, **settings: Any) -> tuple[list[int], dict[str, int], list[float]]:
    """Rows that one replica accepts, the rejections by reason, and the scores of what it chose."""
    protocol, arms = settings.get("candidates", "affinity"), settings.get("arms", 5)
    arms = log.n_items if protocol == "all" else arms
    features, shown, arm_features = ObdFeatures.fit(log), [], []
    for group in log.groups:
        part, x = offered(log.events(group), features, protocol, arms, log)
        shown += part.item.tolist()
        arm_features += [*x]
    events, scores, ahead = frame(log), [], {}

    def choose(e: int) -> int:
        x = arm_features[e].unsqueeze(0)
        uniform, normal = agent.noise.of_rows(0, torch.tensor([e]), arms)
        ahead["choice"] = agent.choose(agent.featurize(x, noise=(uniform, normal)))
        return shown[e][int(ahead["choice"].arm)]

    def observe(e: int) -> None:
        scores.append(float(ahead["choice"].chosen(ahead["choice"].score)))
        agent.observe(ahead["choice"], torch.tensor([events["click"][e]]))
        if agent.rounds[0] % agent.update_every == 0:
            agent.train_nn()

    correction: dict[str, Any] = {}
    if not log.statistics.uniform:
        u = row_numbers(range(log.rows), 1, 0, Stream.REJECTION).squeeze(1).numpy()
        correction = {"u": u, "c": log.statistics.propensity_low}
    accepted, rejected = twin.replay(events, choose, lambda e: shown[e], observe, **correction)
    return accepted, rejected, scores


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize(
    ("log", "settings"),
    [
        ("uniform", {}),
        ("uniform", {"candidates": "uniform", "arms": 4}),
        # half of the events are accepted, more than there are slots for in a window
        ("uniform", {"candidates": "uniform", "arms": 2}),
        ("uniform", {"candidates": "all"}),
        ("softmax", {"candidates": "uniform", "arms": 6}),
        ("softmax", {"candidates": "affinity"}),
    ],
    ids=str,
)
def test_replay_equals_one_event_at_a_time(name: str, log: str, settings: dict[str, Any], logs: dict[str, Log]) -> None:
    accepted, rejected, scores = one_by_one(slow := learner(name), logs[log], **settings)
    fast, keep, played = learn(learner(name), logs[log], **settings)
    assert len(accepted) > 20
    assert keep.event[0].tolist() == accepted
    torch.testing.assert_close(keep.score[0], torch.tensor(scores, dtype=torch.float64), rtol=1e-9, atol=1e-9)
    (counts,) = played.counts()["replicas"]
    assert counts == {"accepted": len(accepted), "seen": logs[log].rows, "rejected": rejected}
    for a, b in zip(slow.weights(), fast.weights(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(slow.radius, fast.radius, rtol=1e-9, atol=0)
    assert (slow.buffer.reward[:, :-1].sum() == fast.buffer.reward[:, :-1].sum()).all()


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("NeuralLog-UCB-2", "practical"),
        ("NeuralLog-UCB-2", "theory"),
        ("NeuralLog-TS-1", "practical"),
        ("Logistic-UCB-1", "practical"),
    ],
)
@pytest.mark.parametrize("rounds", [90, 10**6])
def test_replicas_on_one_stream_equal_single_ones(name: str, mode: str, rounds: int, logs: dict[str, Log]) -> None:
    """Also where some replicas come to the log's end before others, in the middle of a block."""
    together, keep, played = learn(learner(name, 4, mode=mode), logs["uniform"], rounds)
    lengths = together.rounds.tolist()
    assert (len(set(lengths)) > 1) == (rounds > 90)
    for replica, length in enumerate(lengths):
        alone, kept, counted = learn(learner(name, seed=replica, mode=mode), logs["uniform"], rounds)
        assert alone.rounds.tolist() == [length]
        assert keep.event[replica, :length].tolist() == kept.event[0].tolist()
        assert played.counts()["replicas"][replica] == counted.counts()["replicas"][0]
        torch.testing.assert_close(together.radius[replica], alone.radius[0], rtol=1e-9, atol=0)
        for a, b, start in zip(together.weights(replica), alone.weights(), alone.initial_weights, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)
            assert (a - start[0]).abs().max() > 1e-3, "the parameters must move, or this says nothing of TrainNN"


class _EveryRound(RoundCallback):
    """Wants to be called after every round, so that events are played match by match, and of all replicas."""

    accepted = 0

    def on_round_end(self, trainer: L.Trainer, agent: Agent, played: Round) -> None:
        assert played.accepted is not None
        assert played.choice.arm.shape == played.t.shape == played.reward.shape == (agent.replicas,)
        self.accepted += int(played.accepted.sum())


class _Both(_EveryRound):
    """Can do with windows, too, and is then told which of their slots are rounds."""

    def on_window_end(self, trainer: L.Trainer, agent: Agent, window: Window) -> None:
        assert window.filled is not None
        assert window.filled.shape == window.arm.shape == window.score.shape
        self.accepted += int(window.filled.sum())


@pytest.mark.parametrize(("replicas", "width", "together"), [(2, 20, 64), (2, 50, 0), (5, 20, 0)])
@pytest.mark.parametrize("name", AGENTS)
def test_many_events_at_once_are_those_that_match_one_by_one(
    name: str, replicas: int, width: int, together: int, logs: dict[str, Log]
) -> None:
    """Small agents play many events at once, others leave those replicas out that have none."""
    settings: dict[str, Any] = {"update_every": 50, "width": width}
    if issubclass(AGENTS[name], LinearAgent):
        together = 64
        del settings["width"]
    fast, every = learner(name, replicas, **settings), _EveryRound()
    log = ReplayLog(str(logs["uniform"].path))
    assert loop.make_plan(fast, log, 50, together=True).ahead == bool(together)
    assert not loop.make_plan(fast, log, 1, together=True).ahead
    fast, keep, played = learn(fast, logs["uniform"])
    slow, slow_keep = learner(name, replicas, **settings), Keep()
    data = BanditData(ReplayLog(str(logs["uniform"].path)), 10**6)
    L.Trainer(**QUIET, enable_checkpointing=False, callbacks=[slow_keep, every]).fit(slow, data)
    assert every.accepted == int(slow.rounds.sum())
    both, again = _Both(), learner(name, replicas, **settings)
    data_again = BanditData(ReplayLog(str(logs["uniform"].path)), 10**6)
    L.Trainer(**QUIET, enable_checkpointing=False, callbacks=[both]).fit(again, data_again)
    assert both.accepted == int(again.rounds.sum())
    assert played.counts() == data.environment.counts()
    assert torch.equal(keep.event, slow_keep.event)
    for column in ("arm", "reward", "score", "mean", "bonus", "radius", "effective_dimension"):
        torch.testing.assert_close(getattr(keep, column), getattr(slow_keep, column), rtol=1e-9, atol=1e-11)
    for mine, theirs in zip(fast.state_dict().values(), slow.state_dict().values(), strict=True):
        if isinstance(mine, torch.Tensor):
            torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("settings", [{"design": "full"}, {"mode": "theory"}])
def test_both_forms_of_exact_matrices_agree_whatever_was_observed_before(
    settings: dict[str, Any], logs: dict[str, Log]
) -> None:
    """Rounds by hand, of all replicas and of some, then a log, then another one."""

    def experienced(dimension: int | None) -> tuple[Agent, Keep]:
        agent = learner("NeuralLog-UCB-2", 3, width=4, **settings)
        for design in (agent.design, agent.effective_dim_design):
            if dimension is not None:
                # the primal form from the first sample on
                design.samples.dimension = dimension
        g = torch.Generator().manual_seed(1)
        for accepted in (None, torch.tensor([True, False, True]), None, torch.tensor([False, False, False])):
            arms = torch.rand(3, 5, 42, generator=g, dtype=torch.float64)
            agent.observe(agent.act(arms), torch.tensor([1.0, 0.0, 1.0]), accepted)
        learn(agent, logs["uniform"], rounds=45)
        _, keep, _ = learn(agent, logs["softmax"], rounds=35)
        assert agent.rounds.tolist() == [83, 82, 83]
        return agent, keep

    (dual, seen), (primal, same) = experienced(None), experienced(0)
    assert dual.design.dual
    assert not primal.design.dual
    assert (seen.event == same.event).all()
    torch.testing.assert_close(dual.radius, primal.radius, rtol=1e-9, atol=0)
    torch.testing.assert_close(seen.bonus, same.bonus, rtol=1e-7, atol=0)


@pytest.mark.parametrize("bytes_at_once", [1, 300_000])
def test_small_memory_changes_nothing(
    bytes_at_once: int, logs: dict[str, Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of a few events, and row groups that are read again and again."""
    _, whole, counted = learn(learner("NeuralLog-TS-2", 3), logs["softmax"], candidates="uniform")
    monkeypatch.setattr(loop, "EVALUATED_BYTES", bytes_at_once)
    monkeypatch.setattr(learning, "CACHE_BYTES", 1)
    _, parts, again = learn(learner("NeuralLog-TS-2", 3), logs["softmax"], candidates="uniform")
    assert (whole.event == parts.event).all()
    assert counted.counts() == again.counts()


@pytest.mark.parametrize("name", ["NeuralLog-UCB-1", "NeuralLog-TS-2"])
@pytest.mark.parametrize("stop", [1, 7])
def test_stop_and_resume_is_bit_for_bit(name: str, stop: int, logs: dict[str, Log], tmp_path: Path) -> None:
    def run(directory: Path, **flags: Any) -> None:
        run = RunDirectory(directory)
        callbacks = [Recorder(run.path), Checkpoints(run.checkpoint, every=1)]
        trainer = L.Trainer(**{**QUIET, **flags}, callbacks=callbacks)
        path = run.checkpoint if run.checkpoint.exists() else None
        data = BanditData(ReplayLog(str(logs["uniform"].path)), 10**6)
        trainer.fit(learner(name, 3), data, ckpt_path=path, weights_only=False)

    run(tmp_path / "whole")
    run(tmp_path / "parts", max_steps=stop)
    assert not RunDirectory(tmp_path / "parts").read_summary()["finished"]
    run(tmp_path / "parts")
    one, other = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "parts")
    assert pq.read_table(one.rounds).equals(pq.read_table(other.rounds))
    summaries = [run.read_summary() for run in (one, other)]
    assert summaries[0]["replicas"] == summaries[1]["replicas"]
    assert summaries[0]["finished"]
    assert summaries[1]["finished"]


def test_the_record_is_what_was_accepted(logs: dict[str, Log], tmp_path: Path) -> None:
    callbacks = [Recorder(tmp_path), Checkpoints(RunDirectory(tmp_path).checkpoint, every=1)]
    data = BanditData(ReplayLog(str(logs["uniform"].path)), 10**6)
    L.Trainer(**QUIET, callbacks=callbacks).fit(learner("NeuralLog-UCB-2", 3), data)
    rows, events = pq.read_table(tmp_path / "rounds.parquet").to_pandas(), frame(logs["uniform"])
    assert (rows["reward"] == events["click"].to_numpy()[rows["event"]]).all()
    summary = RunDirectory(tmp_path).read_summary()
    for replica, mine in rows.groupby("replica"):
        assert mine["t"].tolist() == list(range(1, len(mine) + 1))
        assert mine["event"].is_monotonic_increasing
        assert (mine["cumulative_reward"] == mine["reward"].cumsum()).all()
        counted = summary["replicas"][replica]
        assert counted["accepted"] == len(mine)
        assert counted["clicks"] == mine["reward"].sum()
        assert counted["ctr"] == pytest.approx(mine["reward"].mean(), rel=1e-12)
    (best,) = summary["over_replicas"]
    assert best["ctr"] == pytest.approx(rows["reward"].mean(), rel=1e-6)
    interval = twin.wilson(best["clicks"], best["accepted"])
    assert (best["ctr_low"], best["ctr_high"]) == pytest.approx(interval, rel=1e-9)


def test_plain_matches_on_a_log_that_is_not_uniform_must_be_asked_for(logs: dict[str, Log]) -> None:
    path = str(logs["softmax"].path)
    with pytest.raises(InputError, match="was not logged uniformly .* biased-match"):
        ReplayLog(path, rejection="match")
    _, _, biased = learn(learner("NeuralLog-UCB-2"), logs["softmax"], rejection="biased-match")
    assert biased.counts()["replicas"][0]["rejected"]["propensity correction"] == 0
    assert ReplayLog(str(logs["uniform"].path), rejection="match").setting.c is None
    with pytest.raises(InputError, match="rejection must be one of"):
        ReplayLog(path, rejection="nosuch")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="propensity_floor must lie in"):
        ReplayLog(path, propensity_floor=0.0)


def test_a_larger_floor_keeps_more_events(logs: dict[str, Log]) -> None:
    def thinned(**settings: Any) -> int:
        _, _, played = learn(learner("Logistic-UCB-1"), logs["softmax"], **settings)
        return int(played.counts()["replicas"][0]["rejected"]["propensity correction"])

    assert thinned() > thinned(propensity_floor=0.05) > thinned(propensity_floor=0.2) > 0
    assert thinned(propensity_floor=1.0) == 0


def run_in(directory: Path, agent: Agent, log: Log, **flags: Any) -> dict[str, Any]:
    """A fit with a run directory, which goes on if it is there."""
    run = RunDirectory(directory)
    settings = {key: flags.pop(key) for key in ("candidates", "propensity_floor") if key in flags}
    trainer = L.Trainer(
        **{**QUIET, **flags}, callbacks=[Recorder(directory, conclude), Checkpoints(run.checkpoint, every=1)]
    )
    path = run.checkpoint if run.checkpoint.exists() else None
    trainer.fit(agent, BanditData(ReplayLog(str(log.path), **settings), 10**6), ckpt_path=path, weights_only=False)
    return run.read_summary() or {}


def test_a_run_does_not_go_on_with_another_log(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", UNIFORM, 900)
    run_in(tmp_path / "run", learner("NeuralLog-UCB-2"), log, max_steps=2)
    shutil.rmtree(tmp_path / "log")
    other = write_log(tmp_path / "log", SimulatedWorld(**SMALL, seed=5), 900)
    with pytest.raises(InputError, match=r"is not the log that this run began with: clicks was \d+, is \d+"):
        run_in(tmp_path / "run", learner("NeuralLog-UCB-2"), other)


def test_replicas_that_accept_nothing_have_a_result(tmp_path: Path) -> None:
    """Few events of many items: some replicas meet no match, and on the shortest log nobody does."""
    few = write_log(tmp_path / "few", SimulatedWorld(items=80, users=40, ctr=0.3), 90)
    summary = run_in(tmp_path / "a", learner("NeuralLog-UCB-2", 8), few, candidates="all")
    counts = [replica["accepted"] for replica in summary["replicas"]]
    assert summary["finished"]
    assert 0 in counts
    assert max(counts) > 0
    for replica in summary["replicas"]:
        assert (replica["ctr"] is None) == (replica["accepted"] == 0)
    assert (tmp_path / "a" / "curve.png").exists()
    none = write_log(tmp_path / "none", SimulatedWorld(items=80, users=40, ctr=0.3), 2)
    summary = run_in(tmp_path / "b", learner("NeuralLog-UCB-2", 2), none, candidates="all")
    assert summary["finished"]
    assert summary["over_replicas"][0]["ctr"] is None
    assert [r["rejected"]["another arm chosen"] for r in summary["replicas"]] == [2, 2]
    assert "-" in str(report.estimate(summary["over_replicas"][0], CTR))
    assert any("0 of 2 events accepted" in note for note in report.notes(summary))


def test_what_a_propensity_floor_does_is_said(logs: dict[str, Log], tmp_path: Path) -> None:
    summary = run_in(tmp_path / "a", learner("Logistic-UCB-1"), logs["softmax"])
    (note,) = [note for note in report.notes(summary) if "keeps about" in note]
    share = float(note.split("keeps about ")[1].split("%")[0]) / 100
    counts = summary["replicas"][0]
    kept = counts["seen"] - counts["rejected"]["propensity correction"]
    assert abs(kept / counts["seen"] - share) < 4 * (share / counts["seen"]) ** 0.5
    summary = run_in(tmp_path / "b", learner("Logistic-UCB-1"), logs["softmax"], propensity_floor=0.5)
    assert any("biased towards what the log showed often" in note for note in report.notes(summary))
    summary = run_in(tmp_path / "c", learner("Logistic-UCB-1"), logs["uniform"])
    assert not any("propensity" in note for note in report.notes(summary)[1:])


def test_seen_events_end_with_the_last_accepted_one(logs: dict[str, Log]) -> None:
    _, keep, played = learn(learner("NeuralLog-TS-1", 3), logs["uniform"], rounds=37)
    for replica, counts in enumerate(played.counts()["replicas"]):
        assert counts["seen"] == int(keep.event[replica, -1]) + 1
        assert counts["accepted"] + sum(counts["rejected"].values()) == counts["seen"]


def test_a_rows_random_numbers_are_its_own() -> None:
    agent = learner("NeuralLog-TS-1", 2)
    rows = torch.tensor([0, 5, 1023, 1024, 1025, 9000, 70_001])
    some, every = agent.noise.of_rows(1, rows, 4), agent.noise.of_rows(1, torch.arange(70_002), 4)
    for a, b in zip(some, every, strict=True):
        assert (a == b[rows]).all()
    assert (some[0] != agent.noise.of_rows(0, rows, 4)[0]).any()
    assert (some[0] != agent.noise.of_rows(1, rows, 4, draw=1)[0]).any()


def test_a_replica_that_diverged_takes_no_more_events(logs: dict[str, Log]) -> None:
    agent = AGENTS["NeuralLog-UCB-2"](42, lam=[1.0, 2000.0], optimizer="gd", lr=0.002, steps=4, update_every=20)
    agent, keep, played = learn(agent, logs["uniform"])
    assert agent.diverged_at.tolist() == [0, 20]
    assert agent.rounds[1] == 20
    assert keep.blocks[0].valid is None
    assert all(block.valid is not None and not block.valid[1].any() for block in keep.blocks[1:])
    assert len(keep.t) == agent.rounds[0]
    assert played.counts()["replicas"][1]["accepted"] == 20
    assert played.counts()["replicas"][0]["seen"] == logs["uniform"].rows
