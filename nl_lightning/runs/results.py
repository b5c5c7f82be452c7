"""The result of a fit with one's own Trainer, in memory: nothing is written."""

from typing import Any

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nl_lightning.agents.callbacks import RoundCallback
from nl_lightning.core.statistics import CLICK_LEVEL, LEVEL, interval, wilson
from nl_lightning.core.types import History
from nl_lightning.distributed.strategy import gathered

__all__ = ["Results"]


class Results(RoundCallback):
    """Keeps what every replica earned. Pass it to the Trainer; after the fit it has the result, and prints as it.

    A fit that resumes from a checkpoint goes on with what the checkpoint has of it.
    """

    def __init__(self) -> None:
        self._agent = ""
        self._clear()

    def _clear(self) -> None:
        self._reward = self._regret = torch.zeros(0, 0, dtype=torch.float64, device="cpu")
        self._played = torch.zeros(0, 0, dtype=torch.bool, device="cpu")

    @property
    def reward(self) -> NDArray[np.float64]:
        """(R, T), the cumulative reward of every replica after every round. It stays where a replica has ended."""
        return self._reward.cumsum(1).numpy()

    @property
    def regret(self) -> NDArray[np.float64] | None:
        """(R, T), the cumulative regret; None on a log, which does not tell it."""
        return None if self._regret.isnan().any() else self._regret.cumsum(1).numpy()

    @property
    def rounds(self) -> NDArray[np.int64]:
        """(R,), rounds that every replica played; on a log, accepted events."""
        return self._played.sum(1).numpy()

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.ckpt_path is None:
            self._clear()
        self._agent = getattr(pl_module, "name", type(pl_module).__name__)

    def on_rounds_end(self, trainer: L.Trainer, agent: Any, history: History) -> None:
        own = agent.share.n_local
        valid = torch.ones_like(history.reward, dtype=torch.bool) if history.valid is None else history.valid
        regret = torch.full_like(history.reward, torch.nan) if history.regret is None else history.regret
        columns = (valid, history.reward * valid, regret * valid if history.regret is not None else regret)
        # each process has its own replicas, and all of them get all
        mine = [column[:own].cpu() for column in columns]
        played, reward, regret = (torch.cat(parts) for parts in zip(*gathered(trainer, mine), strict=True))
        self._played = _joined(self._played, played)
        self._reward, self._regret = _joined(self._reward, reward.double()), _joined(self._regret, regret.double())

    def state_dict(self) -> dict[str, Any]:
        return {"reward": self._reward, "regret": self._regret, "played": self._played}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._reward, self._regret, self._played = (state_dict[name] for name in ("reward", "regret", "played"))

    def __str__(self) -> str:
        if not self._reward.numel():
            return "no rounds yet"
        regret, rounds = self.regret, self.rounds
        replicas = "1 replica" if len(rounds) == 1 else f"mean over {len(rounds)} replicas"
        if regret is None:
            # replicas share the log's clicks: they are as sure as one of them
            clicks, accepted = float(self.reward[:, -1].mean()), float(rounds.mean())
            low, high = wilson(clicks, accepted)
            found = f"CTR {clicks / accepted:.4f}" if accepted else "no CTR"
            ends = f"{CLICK_LEVEL:.0%} interval {low:.4f} to {high:.4f}"
            return f"{self._agent}: {found} in {accepted:,.0f} accepted events ({replicas}, {ends})"
        # in a simulation only a replica whose TrainNN diverged has fewer rounds
        alive = rounds == rounds.max()
        mean, low, high = (float(end) for end in interval(regret[alive, -1]))
        ends = "" if np.isnan(low) else f", {LEVEL:.0%} interval {low:.1f} to {high:.1f}"
        lost = "" if alive.all() else f"; {(~alive).sum()} diverged and are left out"
        return f"{self._agent}: regret {mean:.1f} after {rounds.max():,} rounds ({replicas}{ends}{lost})"


def _joined(before: Tensor, after: Tensor) -> Tensor:
    return torch.cat([before, after], dim=1) if before.numel() else after
