"""The progress bar: the round, and the regret or CTR so far."""

from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ProgressBar
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor

from nl_lightning.core.statistics import interval
from nl_lightning.environments import LoggedEnvironment
from nl_lightning.runs.recorder import Recorder
from nl_lightning.runs.summary import CTR

__all__ = ["RoundProgressBar", "standing"]


class RoundProgressBar(ProgressBar):
    """Shows the round, the regret or CTR and the time left. It is updated after every call of TrainNN."""

    def __init__(self) -> None:
        super().__init__()
        self._enabled = True
        self._progress: Progress | None = None

    def disable(self) -> None:
        self._enabled = False

    def enable(self) -> None:
        self._enabled = True

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._enabled:
            data: Any = trainer.datamodule  # type: ignore[attr-defined]
            self._progress = Progress(
                TextColumn("round"),
                MofNCompleteColumn(),
                BarColumn(),
                TextColumn("{task.fields[standing]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("left"),
            )
            self._task = self._progress.add_task("rounds", total=data.rounds, completed=data.played, standing="")
            self._progress.start()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        if self._progress:
            data: Any = trainer.datamodule  # type: ignore[attr-defined]
            self._progress.update(self._task, completed=data.played, standing=standing(trainer))

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._stop()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._progress:
            self._progress.stop()
            self._progress = None


def _played(trainer: L.Trainer, recorder: Recorder) -> Tensor:
    """The rounds of every replica in this run: what an agent learned before does not count."""
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    if isinstance(data.environment, LoggedEnvironment):
        return torch.tensor(data.environment.accepted, device="cpu")
    return torch.full_like(recorder.clicks, data.played)


def standing(trainer: L.Trainer) -> str:
    """The regret so far, or in a replay the CTR."""
    recorder = next((c for c in trainer.callbacks if isinstance(c, Recorder)), None)  # type: ignore[attr-defined]
    if recorder is None or not recorder.recorded:
        return ""
    agent: Any = trainer.lightning_module
    own = agent.share.n_local
    alive = (agent.diverged_at[:own] == 0).cpu()
    rest = f", {int((~alive).sum())} diverged" if not alive.all() else ""
    if own < agent.share.total:
        rest += f" ({own} of {agent.share.total} replicas)"
    if not alive.any():
        # replicas of other processes continue
        return rest.removeprefix(", ")
    if recorder.measure is CTR:
        rate = recorder.clicks[alive] / _played(trainer, recorder)[:own][alive].clamp_min(1)
        return f"CTR {rate.max() if agent.settings.compared else rate.mean():.4f}{rest}"
    if agent.settings.compared:
        return f"lowest regret {recorder.cumulative[alive].min():.1f}{rest}"
    band = interval(recorder.cumulative[alive].numpy())
    spread = "" if band.high != band.high else f" +- {band.high - band.mean:.1f}"
    return f"regret {band.mean:.1f}{spread}{rest}"
