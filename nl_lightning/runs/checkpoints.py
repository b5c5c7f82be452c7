"""Checkpoints of a run: when they are written, and how, so that none is ever half written."""

import zipfile
from pathlib import Path
from typing import Any, cast

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from nl_lightning.agents.base import Agent
from nl_lightning.core.errors import InputError
from nl_lightning.core.files import write_beside
from nl_lightning.core.types import TrainingBatch

__all__ = ["BesideCheckpointIO", "Checkpoints", "check_checkpoint"]


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
        stops = trainer.should_stop or trainer.global_step == trainer.max_steps
        last = trainer.datamodule.finished  # type: ignore[attr-defined]
        if stops or last or (batch.due and trainer.global_step % self.every == 0):
            # Another process may have failed without this one knowing yet: no checkpoint then.
            cast(Agent, pl_module).sync()
            trainer.save_checkpoint(self.path, weights_only=False)


class BesideCheckpointIO(TorchCheckpointIO):
    """Writes Lightning's checkpoints under another name and then renames them."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_beside(target, lambda beside: torch.save(checkpoint, beside))


def check_checkpoint(path: Path) -> None:
    """Raise an :class:`InputError` if ``path`` is not a complete checkpoint, which is a zip file."""
    if not path.is_file():
        raise InputError(f"There is no checkpoint {path}.")
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} is not a checkpoint, or is damaged.")
