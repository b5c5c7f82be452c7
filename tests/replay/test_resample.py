"""Bootstrapped replay, against a loop over one drawn event at a time."""

from math import floor
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch

from nl_lightning import LogisticUCB1
from nl_lightning.agents.base import Agent
from nl_lightning.core.errors import InputError
from nl_lightning.core.rng import Stream, row_numbers
from nl_lightning.core.statistics import wilson
from nl_lightning.reporting.tables import notes, table
from nl_lightning.rollout.data import BanditData
from nl_lightning.runs.checkpoints import Checkpoints
from nl_lightning.runs.directory import RunDirectory
from nl_lightning.runs.recorder import Recorder
from replay import ReplayLog
from replay.logs import resampled
from replay.logs.reader import Log
from replay.protocol.obd_features import ObdFeatures
from replay.simulation.simulated_world import SimulatedWorld
from tests.support.fits import QUIET, Keep
from tests.support.replay_agents import learner, offered
from tests.support.replay_logs import SMALL, write_log

ROWS = 500


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Log]:
    path = tmp_path_factory.mktemp("logs")
    softmax = SimulatedWorld(**SMALL, policy="softmax", temperature=4.0, seed=1)
    return {
        "uniform": write_log(path / "u", SimulatedWorld(**SMALL), ROWS, group=300),
        "softmax": write_log(path / "s", softmax, ROWS, group=300),
    }


@pytest.fixture(scope="module")
def numeric(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """A uniform log with a continuous numeric feature."""
    random = np.random.default_rng(1)
    table = {
        "item": random.integers(0, 4, 300).astype(str),
        "click": random.integers(0, 2, 300),
        "age": random.normal(size=300),
    }
    schema = {"action": "item", "reward": "click", "logging": "uniform", "context": {"numeric": ["age"]}}
    return Log.from_pandas(pd.DataFrame(table), schema, tmp_path_factory.mktemp("own") / "log")


def learn(agent: Agent, log: Log, rounds: int = 10**6, **settings: Any) -> tuple[Keep, ReplayLog]:
    keep, data = Keep(), BanditData(ReplayLog(str(log.path), **settings), rounds)
    L.Trainer(**QUIET, enable_checkpointing=False, callbacks=[keep]).fit(agent, data)
    return keep, data.environment


@pytest.mark.parametrize("name", ["Logistic-UCB-1", "NeuralLog-TS-2"])
def test_one_by_one(name: str, logs: dict[str, Log]) -> None:
    log, times = logs["uniform"], 4
    keep, environment = learn(
        learner(name, replicas=2, update_growth=0.0), log, candidates="all", resample=times, rows="100:"
    )
    part = log.part("100:")
    features = ObdFeatures.fit(log)
    items, clicks, x = [], [], []
    for group in part.groups:
        events = part.events(group)
        shown, arms = offered(events, features, "all", log.n_items, part)
        items += shown.logged.tolist()
        clicks += events.click.tolist()
        x += [*arms]
    accepted: list[list[int]] = []
    for replica in range(2):
        agent = learner(name, seed=replica, update_growth=0.0)
        rows: list[int] = []
        for j in range(times * 400):
            u = float(row_numbers(range(j, j + 1), 1, replica, Stream.RESAMPLE))
            drawn = floor(u * 400)
            noise = agent.noise.of_rows(0, torch.tensor([j]), log.n_items)
            choice = agent.choose(agent.featurize(x[drawn].unsqueeze(0), noise=noise))
            if int(choice.arm) == items[drawn]:
                rows.append(100 + drawn)
                agent.observe(choice, torch.tensor([float(clicks[drawn])]))
                if len(rows) % agent.update_every == 0:
                    agent.train_nn()
        accepted.append(rows)
    for replica, rows in enumerate(accepted):
        assert keep.event[replica, : len(rows)].tolist() == rows
    counted = environment.counts()["replicas"]
    assert [r["accepted"] for r in counted] == [len(rows) for rows in accepted]
    assert [r["seen"] for r in counted] == [times * 400] * 2
    assert accepted[0] != accepted[1]
    # more rounds than one pass of the log has
    assert len(accepted[0]) > 400 / log.n_items * 2


def test_an_event_that_comes_again_has_its_own_candidates(logs: dict[str, Log]) -> None:
    """With sets drawn from 12 items, one pass can use 5/12 of the events; resampled, nearly all of them."""
    keep, _ = learn(learner("NeuralLog-TS-2"), logs["uniform"], candidates="uniform", resample=40)
    assert len(set(keep.event[0].tolist())) > 0.8 * ROWS


def test_every_event_is_drawn_about_equally_often(logs: dict[str, Log]) -> None:
    log = logs["uniform"]
    resample = resampled.Resample(log, resampled.hold(log), 3, 20)
    numbers = torch.arange(20 * ROWS)
    counts = torch.bincount(resample.row(numbers), minlength=ROWS)
    assert counts.sum() == 20 * ROWS
    # Poisson with mean 20
    assert 0.7 < float(counts.double().var()) / 20 < 1.3
    assert torch.equal(resample.row(numbers[1500:1700]), resample.row(numbers)[1500:1700])


def test_resume(logs: dict[str, Log], tmp_path: Path) -> None:
    def fit(where: str, **flags: Any) -> dict[str, Any]:
        run, agent = RunDirectory(tmp_path / where), learner("NeuralLog-TS-2", replicas=2)
        path = run.checkpoint if run.checkpoint.exists() else None
        data = BanditData(ReplayLog(str(logs["uniform"].path), candidates="all", resample=4), 10**6)
        trainer = L.Trainer(**{**QUIET, **flags}, callbacks=[Recorder(run.path), Checkpoints(run.checkpoint, every=1)])
        trainer.fit(agent, data, ckpt_path=path, weights_only=False)
        summary = run.read_summary()
        assert summary is not None
        return {**summary, "seconds": 0, "rounds.parquet": pq.read_table(run.rounds)}

    whole = fit("whole")
    assert fit("parts", max_steps=3)["finished"] is False
    assert fit("parts") == whole


def test_the_summary_says_what_a_resample_is(logs: dict[str, Log], tmp_path: Path) -> None:
    agent = learner("Logistic-UCB-1", replicas=5)
    data = BanditData(ReplayLog(str(logs["uniform"].path), candidates="all", resample=6), 10**6)
    L.Trainer(**QUIET, enable_checkpointing=False, callbacks=[Recorder(tmp_path)]).fit(agent, data)
    summary = RunDirectory(tmp_path).read_summary()
    assert summary is not None
    row = summary["over_replicas"][0]
    ctrs = [replica["ctr"] for replica in summary["replicas"]]
    assert row["quantiles"]["0.5"] == np.median(ctrs)
    assert min(ctrs) <= row["quantiles"]["0.025"] < row["quantiles"]["0.975"] <= max(ctrs)
    low, high = wilson(row["clicks"] / 6, row["accepted"] / 6)
    assert (row["ctr_low"], row["ctr_high"]) == (low, high)
    told = "\n".join(notes(summary))
    assert "Each click comes about 6 times" in told
    assert "over 5 resamples" in told
    assert "0.975" in told
    assert table(summary).row_count == 1


def test_jitter_moves_numeric_features_repeatably(numeric: Log) -> None:
    def arms(**settings: Any) -> torch.Tensor:
        environment = ReplayLog(str(numeric.path), resample=2, **settings)
        environment.prepare([0, 1], torch.zeros(1, dtype=torch.float64))
        deal = environment.next_events([10, 10], 2, 50, False)
        assert deal is not None
        return deal.arms

    plain, noisy, again = arms(), arms(jitter=0.1), arms(jitter=0.1)
    assert torch.equal(noisy, again)
    difference = (noisy - plain)[0]
    changed = difference.abs().amax((0, 1)) > 0
    assert 0 < changed.sum() < plain.shape[-1]
    assert 0.05 < float(difference[..., changed].std()) < 0.2
    assert not torch.equal(noisy[0], noisy[1])


REFUSED = [
    ("softmax", {"resample": 3}, "resample is for logs that were logged uniformly"),
    ("uniform", {"resample": 0}, "resample must be"),
    ("uniform", {"jitter": 0.1}, "jitter has no effect without resample"),
    ("uniform", {"resample": 2, "jitter": 0.0}, "jitter is a standard deviation"),
    ("uniform", {"resample": 2, "rejection": "dr-ns"}, "exclude each other"),
]


@pytest.mark.parametrize(("which", "settings", "text"), REFUSED)
def test_what_cannot_be_resampled_is_refused(
    which: str, settings: dict[str, Any], text: str, logs: dict[str, Log]
) -> None:
    with pytest.raises(InputError, match=text):
        ReplayLog(str(logs[which].path), candidates="all", **settings)


def test_jitter_without_numeric_features_is_refused(logs: dict[str, Log]) -> None:
    with pytest.raises(InputError, match="no continuous numeric column"):
        learn(LogisticUCB1(42), logs["uniform"], candidates="all", resample=2, jitter=0.1)


def test_a_log_that_is_too_large_is_refused(logs: dict[str, Log], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resampled, "HELD_BYTES", 10_000)
    with pytest.raises(InputError, match="holds it in memory"):
        ReplayLog(str(logs["uniform"].path), candidates="all", resample=2)
