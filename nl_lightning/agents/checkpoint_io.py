"""How Lightning writes and reads the checkpoints of agents: complete or absent, verified, and never as code."""

from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.trainer.states import TrainerFn

from nl_lightning.core.checkpoint import check_keys, plain, read_checkpoint, write_checkpoint

__all__ = ["SafeCheckpointIO"]

_RESUMED = ("epoch", "global_step", "loops", "callbacks", "optimizer_states", "lr_schedulers")


class SafeCheckpointIO(TorchCheckpointIO):
    """Writes tensors and plain values under another name and then renames the file; reads through ``read_checkpoint``.

    An agent puts it in the place of Lightning's own when a fit or a test begins.

    Args:
        trainer: the trainer that resumes or tests.
    """

    def __init__(self, trainer: L.Trainer) -> None:
        self.trainer = trainer

    @classmethod
    def install(cls, trainer: L.Trainer) -> None:
        """Take the place of Lightning's own; a plugin that a user has chosen stays."""
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = cls(trainer)

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        if "://" in str(path) or storage_options is not None:
            super().save_checkpoint(plain(checkpoint), path, storage_options)
        else:
            write_checkpoint(checkpoint, Path(path))

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = None) -> dict[str, Any]:
        """Read with ``weights_only=True``, whatever was asked for: an agent's checkpoint needs no more."""
        stored = read_checkpoint(path)
        check_keys(path, stored, ["state_dict", "pytorch-lightning_version"])
        if self.trainer.state.fn == TrainerFn.FITTING:
            data = type(getattr(self.trainer, "datamodule", None))
            has_state = getattr(data, "state_dict", None) not in (None, L.LightningDataModule.state_dict)
            # Lightning would begin with the first rounds where the state of the DataModule is missing.
            check_keys(path, stored, [*_RESUMED, *([data.__qualname__] if has_state else [])])
        return stored
