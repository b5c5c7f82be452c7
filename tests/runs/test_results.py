"""The result of a fit with one's own Trainer, in memory."""

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pandas as pd

from nl_lightning import BanditData, NeuralLogUCB2, Results
from nl_lightning.environments import Synthetic
from nl_lightning.runs.checkpoints import Checkpoints
from nl_lightning.runs.recorder import Recorder
from replay.learning import ReplayLog
from tests.support.fits import QUIET
from tests.support.stored_runs import SETTINGS, log, log_agent

FLAGS: dict[str, Any] = {**QUIET, "enable_checkpointing": False}


def fitted(agent: NeuralLogUCB2, data: BanditData, directory: Path, **flags: Any) -> tuple[Results, pd.DataFrame]:
    results = Results()
    L.Trainer(**FLAGS, callbacks=[results, Recorder(directory)], **flags).fit(agent, data)
    return results, pd.read_parquet(directory / "rounds.parquet")


def test_regret_and_reward_are_those_of_the_recorder(tmp_path: Path) -> None:
    data = BanditData(Synthetic("h3", dim=4, arms=4, pool=30), rounds=40)
    results, rounds = fitted(NeuralLogUCB2(4, **SETTINGS), data, tmp_path)
    wide = rounds.pivot(index="replica", columns="t", values="cumulative_regret")
    assert results.regret is not None
    np.testing.assert_allclose(results.regret, wide.to_numpy(), rtol=1e-6)
    sums = rounds.groupby("replica")["reward"].sum()
    np.testing.assert_allclose(results.reward[:, -1], sums, rtol=1e-12)
    assert results.rounds.tolist() == [40, 40]
    assert f"NeuralLog-UCB-2: regret {wide[40].mean():.1f} after 40 rounds (mean over 2 replicas, 96%" in str(results)


def test_on_a_log_there_is_a_ctr_and_no_regret(tmp_path: Path) -> None:
    results, rounds = fitted(log_agent(), BanditData(ReplayLog(str(log())), 40), tmp_path)
    assert results.regret is None
    np.testing.assert_array_equal(results.reward[:, -1], rounds.groupby("replica")["reward"].sum())
    assert results.rounds.tolist() == rounds.groupby("replica").size().tolist()
    rate = rounds["reward"].sum() / len(rounds)
    assert f"CTR {rate:.4f} in {len(rounds) / 2:,.0f} accepted events (mean over 2 replicas, 95% interval" in str(
        results
    )


def test_a_second_fit_begins_anew_and_a_resumed_one_goes_on(tmp_path: Path) -> None:
    def agent() -> NeuralLogUCB2:
        return NeuralLogUCB2(4, **SETTINGS)

    def data() -> BanditData:
        return BanditData(Synthetic("h3", dim=4, arms=4, pool=30), rounds=40)

    whole = Results()
    assert str(whole) == "no rounds yet"
    for _ in range(2):
        L.Trainer(**FLAGS, callbacks=[whole]).fit(agent(), data())
    assert whole.reward.shape == (2, 40)
    half, rest = Results(), Results()
    stored = tmp_path / "half.ckpt"
    L.Trainer(**QUIET, callbacks=[half, Checkpoints(stored, 1)], max_steps=2).fit(agent(), data())
    assert half.reward.shape == (2, 20)
    L.Trainer(**FLAGS, callbacks=[rest]).fit(agent(), data(), ckpt_path=stored)
    np.testing.assert_array_equal(rest.reward, whole.reward)
    np.testing.assert_array_equal(rest.regret, whole.regret)


def test_replicas_that_diverged_are_left_out_and_said() -> None:
    settings = {**SETTINGS, "optimizer": "gd", "lam": [0.1, 300.0], "steps": 200}
    results = Results()
    data = BanditData(Synthetic("h3", dim=4, arms=4, pool=30), rounds=40)
    L.Trainer(**FLAGS, callbacks=[results]).fit(NeuralLogUCB2(4, **settings), data)
    assert results.rounds[1] < results.rounds[0] == 40
    assert results.regret is not None
    assert f"regret {results.regret[0, -1]:.1f} after 40 rounds" in str(results)
    assert "1 diverged and are left out" in str(results)
