"""Checkpoints that are whole or absent."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from nl_lightning.core.files import write_beside


class BesideCheckpointIO(TorchCheckpointIO):
    """Lightning's checkpoints, written beside and renamed."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_beside(target, lambda beside: torch.save(checkpoint, beside))
