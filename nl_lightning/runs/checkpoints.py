"""Checkpoints of a run: when they are written."""

from pathlib import Path
from typing import Any, cast

import lightning as L
from lightning.pytorch.callbacks import Checkpoint

from nl_lightning.agents.base import Agent
from nl_lightning.core.types import TrainingBatch

__all__ = ["Checkpoints"]


class Checkpoints(Checkpoint):
    """Saves the state after every N calls of TrainNN and after the last batch of the run or of the session.

    Args:
        path: the checkpoint file.
        every: calls of TrainNN between two checkpoints; ``trainer.global_step`` counts them.
    """

    def __init__(self, path: str | Path, every: int) -> None:
        self.path = Path(path)
        self.every = every

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: TrainingBatch, batch_idx: int
    ) -> None:
        # Lightning ends a fit after the batch in which a SIGTERM came
        stops = trainer.should_stop or trainer.received_sigterm or trainer.global_step == trainer.max_steps
        last = trainer.datamodule.finished  # type: ignore[attr-defined]
        if stops or last or (batch.due and trainer.global_step % self.every == 0):
            # Another process may have failed without this one knowing yet: no checkpoint then.
            cast(Agent, pl_module).sync()
            trainer.save_checkpoint(self.path, weights_only=False)
