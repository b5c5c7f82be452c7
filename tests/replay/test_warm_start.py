"""What a warm start is for: an agent that learned a log of 50,000 clicks is nearly as good as the best policy."""

import sys
from pathlib import Path

import lightning as L
import numpy as np
import pytest

import replay
from nl_lightning import NeuralLogUCB2
from nl_lightning.rollout.data import BanditData
from replay.protocol.events import CandidateEvents, ReplaySettings
from tests.support.fits import QUIET

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_clicks"

ROWS, REPLICAS, FRESH = 50_000, 5, 4_000
LEARNED, REPLAYED = f"0:{ROWS * 4 // 5}", f"{ROWS * 4 // 5}:42000"


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_a_warm_started_agent_goes_nine_tenths_of_the_way_to_the_best_policy(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five agents, that is seeds of the network, on each log; the truth is that of visitors who are in no log."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import simulate

    monkeypatch.delitem(sys.modules, "simulate")
    schema = EXAMPLE / "clicks.yaml"
    log = replay.Log.from_pandas(simulate.clicks(ROWS, seed), schema, tmp_path / "log")
    environment = replay.ReplayLog(str(log.path), warm_start=LEARNED, rows=REPLAYED, rejection="biased-match")
    agent = NeuralLogUCB2(environment.dim, replicas=REPLICAS)
    L.Trainer(**QUIET, enable_checkpointing=False).fit(agent, BanditData(environment, rounds=200))
    features = environment.features
    assert features is not None

    fresh = replay.Log.from_pandas(simulate.clicks(FRESH, seed + 1000), schema, tmp_path / "fresh")
    (group,) = fresh.groups
    x, rows = fresh.frame(group)[simulate.CONTEXT].to_numpy(), np.arange(FRESH)
    events, _ = CandidateEvents.read(fresh, group, features, ReplaySettings("all", fresh.n_items, None, seed=0))
    arms = events.arms(features).float().unsqueeze(1).expand(-1, REPLICAS, -1, -1)
    chosen = np.stack([agent.act(each).arm.numpy() for each in arms])
    # the log numbers its actions, and so does the simulation
    number = np.array([simulate.OFFERS.index(name) for name in fresh.actions])
    rate = simulate.click_rate(x)
    true = np.array([rate[rows, number[chosen[:, replica]]].mean() for replica in range(REPLICAS)])
    logged, best = (simulate.logging_policy(x) * rate).sum(axis=1).mean(), rate.max(axis=1).mean()
    share = (true - logged) / (best - logged)
    assert (share >= 0.9).all(), share

    found = replay.evaluate(log, (agent, features), rows="42000:").to_pandas().xs("snips", level="estimator")
    assert len(found) == REPLICAS
    assert ((found["low"] < true) & (true < found["high"])).all(), (found, true)
