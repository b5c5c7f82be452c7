"""What the progress bar says."""

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pandas as pd
import torch

import replay
from nl_lightning import BanditData, NeuralLogUCB2
from nl_lightning.runs.progress import standing
from nl_lightning.runs.recorder import Recorder


def test_the_click_rate_leaves_out_what_was_learned_before(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"age": random.normal(size=1500), "item": random.choice(["a", "b"], 1500)})
    frame["click"] = (random.random(1500) < 0.4).astype(int)
    schema = {"action": "item", "reward": "click", "logging": "uniform", "context": {"numeric": ["age"]}}
    replay.Log.from_pandas(frame, schema, tmp_path / "log")
    environment = replay.ReplayLog(str(tmp_path / "log"), warm_start="0:1000", rows="1000:")
    recorder, said = Recorder(tmp_path / "run"), []

    class Watch(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
            said.append((standing(trainer), recorder.clicks / torch.tensor(environment.accepted)))

    trainer = L.Trainer(
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[recorder, Watch()],
    )
    trainer.fit(NeuralLogUCB2(environment.dim, replicas=2), BanditData(environment, 100))
    assert said
    for text, rate in said:
        assert text == f"CTR {rate.mean():.4f}"
