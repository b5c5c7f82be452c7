"""Fits that only a test looks at."""

from collections.abc import Callable
from typing import Any

import lightning as L
import torch

from nl_lightning.agents.base import Agent
from nl_lightning.agents.callbacks import RoundCallback
from nl_lightning.core.types import History

QUIET: dict[str, Any] = {
    "max_epochs": 1,
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
"""Trainer flags of a fit that only a test looks at."""


class Keep(RoundCallback):
    """Keeps every round of a fit."""

    def __init__(self) -> None:
        self.blocks: list[History] = []

    def on_rounds_end(self, trainer: L.Trainer, agent: Agent, history: History) -> None:
        self.blocks.append(history)

    def __getattr__(self, name: str) -> torch.Tensor:
        if name.startswith("_") or not self.__dict__.get("blocks"):
            raise AttributeError(name)
        return torch.cat([getattr(block, name) for block in self.blocks], dim=-1)


Fit = Callable[..., tuple[Agent, Keep]]
"""The fixture ``fit``."""
