"""An agent as Lightning and torch see it: the hooks of a fit and a test, and the state that checkpoints store."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import lightning as L
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor
from torch.optim import Optimizer

from nl_lightning.agents import state
from nl_lightning.agents.asking import ask, views
from nl_lightning.agents.callbacks import Confidence
from nl_lightning.agents.checkpoint_io import SafeCheckpointIO
from nl_lightning.agents.divergence import Divergence
from nl_lightning.agents.formulas import Formulas
from nl_lightning.agents.noise import ActionNoise
from nl_lightning.agents.trainer_flags import check as check_trainer
from nl_lightning.core.checkpoint import read_checkpoint, restoring
from nl_lightning.core.errors import InputError, TrainNNDiverged
from nl_lightning.core.imports import overridden
from nl_lightning.core.replicas import Share
from nl_lightning.core.types import Deal, TrainingBatch
from nl_lightning.designs import DesignMatrix
from nl_lightning.distributed.strategy import ReplicaStrategy, asked_to_stop, gathered, note_stop
from nl_lightning.models.base import RewardModel
from nl_lightning.models.optimizers import StepRule
from nl_lightning.models.training import TrainNNOptimizer

__all__ = ["SYNC_EVERY", "AgentModule"]

SYNC_EVERY = 10
"""Calls of TrainNN between two synchronisations of the processes of a fit: each waits for the slowest."""


class AgentModule(L.LightningModule):
    """The part of :class:`nl_lightning.Agent` that does not depend on what a bandit is. Subclass ``Agent``."""

    name: ClassVar[str]
    network: RewardModel
    formulas: Formulas
    design: DesignMatrix
    effective_dim_design: DesignMatrix
    radius: Tensor
    """(R,), by which an arm's norm is multiplied"""
    effective_dimension: Tensor
    """(R,), the log-determinant that the radius grows with"""
    diverged_at: Tensor
    """(R,), the round in which TrainNN diverged, 0 where it did not"""
    train_calls: Tensor
    """(R,), calls of TrainNN so far"""
    divergence: Divergence
    noise: ActionNoise
    share: Share
    step_rule: StepRule

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.fit_horizon: int | None = None
        """T of a fit"""
        self._batch: TrainingBatch | None = None
        """what the DataModule handed over for the present call of TrainNN"""

    def train_nn(self) -> None:
        """TrainNN on ``_batch``, or on the replay buffer where that is None."""
        raise NotImplementedError

    def _derive(self) -> None:
        """What follows from the settings and the precision."""
        raise NotImplementedError

    # ---- a fit ------------------------------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Refuse what the command line would; the horizon of a fit is its number of rounds."""
        check_trainer({"precision": self.trainer.precision, "max_steps": self.trainer.max_steps})
        if overridden(self, AgentModule, "configure_optimizers"):
            raise InputError(
                f"{type(self).__name__} redefines configure_optimizers, which has no effect: TrainNN takes its own "
                "gradient steps. Redefine train_nn instead."
            )
        # Lightning would do it after a checkpoint's numbers have lost half of their digits.
        if self.trainer.precision == "64-true":
            self.double()
        SafeCheckpointIO.install(self.trainer)
        if stage == "fit":
            self.fit_horizon = getattr(getattr(self.trainer, "datamodule", None), "rounds", None)

    def configure_optimizers(self) -> Optimizer:
        """Lightning's view of TrainNN: one step is one call."""
        return TrainNNOptimizer(self.network.parameters(), {"lr": self.step_rule.lr})

    def configure_callbacks(self) -> list[L.Callback]:
        """The callback that maintains design matrix and radius, unless the user brings one."""
        mine = any(isinstance(callback, Confidence) for callback in self.trainer.callbacks)  # type: ignore[attr-defined]
        return [] if mine else [Confidence()]

    def training_step(self, batch: TrainingBatch, batch_idx: int) -> None:
        """One batch is one call of TrainNN, and one optimizer step: ``trainer.global_step`` counts calls of TrainNN."""
        if batch.due:
            optimizer = cast(LightningOptimizer, self.optimizers())
            self._batch = batch
            try:
                optimizer.step(self.train_nn)
            finally:
                self._batch = None
            if self.trainer.world_size == 1 or self.trainer.global_step % SYNC_EVERY == 0:
                self.sync()

    def sync(self) -> None:
        """Processes agree to continue. One that failed or was asked to stop stops all: others would wait in vain."""
        self.divergence.settle(self.diverged_at)
        told = gathered(self.trainer, (self.divergence.failure, asked_to_stop(self.trainer)))
        failures = [failure for failure, _ in told if failure is not None]
        if len(failures) == len(told) or (failures and not self.divergence.mark):
            raise TrainNNDiverged(failures[0])
        if any(stop for _, stop in told):
            self.trainer.should_stop = True
            note_stop(self.trainer)

    def on_train_end(self) -> None:
        """All processes learn whether one of them failed."""
        self.sync()

    def teardown(self, stage: str) -> None:
        """The last hook: from here on every process has all replicas, and there is nothing to gather."""
        if isinstance(self.trainer.strategy, ReplicaStrategy):
            self.trainer.strategy.spread = False

    def test_step(self, batch: Deal, batch_idx: int) -> None:
        """The frozen agent on rounds it has not seen: mean reward and regret of a round."""
        masks = [None] * batch.arms.shape[1] if batch.mask is None else batch.mask.unbind(1)
        rounds = zip(batch.arms.unbind(1), masks, views(self, batch.arms, batch.mask), strict=True)
        choices = [ask(self, *each) for each in rounds]
        arm = torch.stack([choice.arm for choice in choices], dim=1)[: self.share.n_local].unsqueeze(2)
        for name, values in (("reward", batch.reward), ("regret", batch.regret)):
            if values is not None:
                mean = values.gather(2, arm).sum() / max(arm.numel(), 1)
                self.log(f"test/{name}", mean, batch_size=arm.numel(), sync_dist=True)

    # ---- its state --------------------------------------------------------------------------------------------------

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]
        cls, checkpoint_path: str | Path, map_location: Any = "cpu", **own: Any
    ) -> Self:
        """The agent of a checkpoint, which must be of this class. Nothing that the file names is imported or run.

        Args:
            checkpoint_path: the file, a path or an address that fsspec can open.
            map_location: device of the agent, as for ``torch.load``.
            own: settings that a checkpoint does not store because they are objects: ``design``, ``exploration``.
        """
        for name in ("hparams_file", "strict", "weights_only"):
            if own.pop(name, None) not in (None, True):
                raise InputError(
                    f"load_from_checkpoint of an agent takes no {name}: settings and the whole state come from the "
                    "checkpoint, which holds tensors and plain values only."
                )
        stored = read_checkpoint(checkpoint_path, map_location)
        agent = state.from_checkpoint(cls, checkpoint_path, stored, own)
        agent.to(stored["state_dict"]["radius"].device)
        return agent

    def part(self, share: Share) -> Self:
        """An agent of some of the replicas, as they are now; everything else is that of the whole."""
        return state.part(self, share)

    def state_of(self, part: Self) -> dict[str, Any]:
        """This agent's state, as far as it is that of a part of it."""
        return state.state_of(self, part)

    def identity(self) -> dict[str, Any]:
        """What a stored state must agree with."""
        return state.identity(self)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Like any module's, but not to MPS."""
        state.check_device(*args, **kwargs)
        return super().to(*args, **kwargs)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Move or cast. A cast is of network and buffer, all else stays in float64; what is derived follows."""
        kept = state.keeping_float64(fn, self.network.weights[0])
        exact = (self.design, self.effective_dim_design, self.formulas)
        for module in self.children():
            module._apply(kept if module in exact else fn)
        super()._apply(kept, recurse=False)
        self._derive()
        self.noise.forget()
        return self

    def get_extra_state(self) -> dict[str, Any]:
        return {"identity": self.identity(), "draws": self.noise.position}

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        self.noise.position = state["draws"]

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Like any module's, but a state that does not fit is an :class:`InputError`."""
        with restoring(self.name, self._trainer.ckpt_path if self._trainer else None):
            if not isinstance(state_dict, Mapping):
                got = type(state_dict).__name__
                raise InputError(f"load_state_dict takes what state_dict returned, a mapping; got {got}.")
            return super().load_state_dict(state_dict, strict, assign)

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, metadata: Any, strict: bool, *args: Any
    ) -> None:
        """Look at all of the state first, so that one that is refused changes nothing."""
        mine = {key.removeprefix(prefix): value for key, value in state_dict.items() if key.startswith(prefix)}
        state.check_state(self, mine, strict)
        # Rounds may have been played in inference mode, whose tensors cannot be written outside it.
        self.radius, self.effective_dimension = self.radius.clone(), self.effective_dimension.clone()
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, *args)
        self.divergence.any_diverged = bool((self.diverged_at > 0).any())
