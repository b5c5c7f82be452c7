"""The learning half of an agent: the reward network of R replicas, its replay buffer, and TrainNN."""

from abc import ABC
from functools import partial
from typing import cast

import lightning as L
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.optim import Optimizer

from nl_lightning.agents import trainer_flags
from nl_lightning.agents.buffer import ReplayBuffer
from nl_lightning.agents.theory import Theory, doubled
from nl_lightning.core.errors import TrainNNDiverged
from nl_lightning.core.replicas import ReplicaSettings, Share, accompanied
from nl_lightning.core.types import TrainingBatch
from nl_lightning.distributed.strategy import ReplicaStrategy, asked_to_stop, gathered
from nl_lightning.models import training
from nl_lightning.models.mlp import MLP

MEET_EVERY = 10
"""Calls of TrainNN between two meetings of the processes of a fit: each waits for the slowest."""


class Learner(L.LightningModule, ABC):
    """A LightningModule whose ``training_step`` is TrainNN."""

    settings: ReplicaSettings
    share: Share
    network: MLP
    initial_weights: nn.ParameterList
    """theta_0"""
    buffer: ReplayBuffer
    theory: Theory | None
    lam: Tensor
    lr: float | None
    steps: int | None
    horizon: int | None
    """T as it was given"""
    _fit_horizon: int | None = None
    """T of a fit"""
    rounds_before: int = 0
    """the most that a replica had observed when a fit began"""
    warm_start: bool
    diverged_at: Tensor
    """(R,), the round in which TrainNN diverged, 0 where it did not"""
    _mark_divergence: bool
    _any_diverged: bool
    _failure: str | None = None
    """why this agent cannot go on: TrainNN diverged, in one replica or, where they are marked, in all"""

    @property
    def replicas(self) -> int:
        """R"""
        return len(self.settings.seeds)

    @property
    def rounds(self) -> Tensor:
        """(R,): observed rounds"""
        return self.buffer.length

    def weights(self, replica: int = 0) -> list[Tensor]:
        """[W_1, ..., W_L] of one replica, each (out, in)"""
        return [weight[replica].detach().clone() for weight in self.network.weights]

    def train_nn(self) -> None:
        """TrainNN on the buffer."""
        self._train_nn(*self.buffer.rows())
        if self._failure is not None:
            raise TrainNNDiverged(self._failure)

    @torch.no_grad()
    def _train_nn(self, x: Tensor, reward: Tensor, resting: Tensor | None = None) -> None:
        still = self.diverged_at > 0
        if resting is not None:
            still = still | resting
        whole = descent = self._descent()
        weights: list[Tensor] = list(self.network.weights)
        moving = self._moving(still) if resting is not None or self._any_diverged else None
        if moving is not None:
            if not len(moving):
                return
            # Whoever stands still takes no time: the others are trained apart.
            x, reward, descent = x[moving], reward[moving], whole.of(moving)
            weights = [weight[moving] for weight in weights]
        before = [weight.clone() for weight in weights]
        if self.theory is not None:
            x = doubled(x)
        if descent.anchor is not None or not self.warm_start:
            initial = [w if moving is None else w[moving] for w in self.initial_weights]
            for weight, start in zip(weights, initial, strict=True):
                weight.copy_(start)
        hopeless = descent.hopeless()
        loss = training.descend(weights, x, reward, descent, hopeless, self.network.blocks)
        failed = hopeless | training.has_diverged(loss, observations=x.shape[1])
        any_failed = bool(failed.any())
        if any_failed:
            for weight, old in zip(weights, before, strict=True):
                weight.copy_(torch.where(failed[:, None, None], old, weight))
        if moving is not None:
            for weight, trained in zip(self.network.weights, weights, strict=True):
                weight.index_copy_(0, moving, trained)
            failed = torch.zeros_like(still).index_fill_(0, moving[failed], True) if any_failed else failed
        if any_failed:
            self._mark_diverged(failed, whole)
        self._has_trained(~still)

    def _moving(self, still: Tensor) -> Tensor | None:
        """The numbers of the replicas that do not stand still; None where that is all of them."""
        moving = (~still).nonzero().flatten().tolist()
        if len(moving) == len(still):
            return None
        return torch.tensor(accompanied(moving, len(still)), device=still.device, dtype=torch.long)

    def _has_trained(self, replicas: Tensor) -> None:
        """What follows from new parameters of these replicas (R,)."""

    def _descent(self) -> training.Descent:
        """Step, number of steps and penalty of TrainNN."""
        if self.theory is not None:
            horizon = self._fit_horizon if self.horizon is None else self.horizon
            return self.theory.descent(self.lr, self.steps, horizon, tuple(self.initial_weights))
        lr = torch.full_like(self.lam, training.LR if self.lr is None else self.lr)
        return training.Descent(lr, training.STEPS if self.steps is None else self.steps, self.lam)

    def _mark_diverged(self, failed: Tensor, descent: training.Descent) -> None:
        """Say what is wrong; or mark the replicas that failed and let the others go on, as long as there are any."""
        replicas = failed.nonzero().flatten().tolist()
        if self._mark_divergence:
            self.diverged_at = torch.where(failed, self.rounds.clamp_min(1), self.diverged_at)
            self._any_diverged = True
            if not (self.diverged_at > 0).all():
                return
        first = replicas[0]
        # nu and lam have no effect in theory mode
        unused = () if self.theory is None else ("nu", "lam")
        settings = {name: value for name, value in self.settings.of(first).items() if name not in unused}
        listed = ", ".join(f"{name} = {value:g}" for name, value in settings.items())
        more = len({self.share.replicas[replica] for replica in replicas}) - 1
        others = f" (so did {more} other replicas)" if more else ""
        # the first one counts: until processes meet, the same replica fails again and again
        self._failure = self._failure or (
            f"TrainNN diverged in replica {self.share.replicas[first]} ({listed}) at round {int(self.rounds[first])}"
            f"{others}: {descent.why_diverged(first)}. Its parameters are those from before this call."
        )

    @property
    def alive(self) -> Tensor | None:
        """(R,): the replicas whose TrainNN did not diverge; None where all are."""
        return self.diverged_at == 0 if self._any_diverged else None

    # ---- Lightning ----------------------------------------------------------------------------------------------

    def training_step(self, batch: TrainingBatch, batch_idx: int) -> None:
        """One batch is one call of TrainNN, and one optimizer step: ``trainer.global_step`` counts calls of TrainNN."""
        if batch.due:
            optimizer = cast(LightningOptimizer, self.optimizers())
            optimizer.step(partial(self._train_nn, batch.x, batch.reward, batch.resting))
            if self.trainer.world_size == 1 or self.trainer.global_step % MEET_EVERY == 0:
                self.meet()

    def on_train_end(self) -> None:
        self.meet()

    def teardown(self, stage: str) -> None:
        """The last hook: from here on every process has all replicas, and there is nothing to gather."""
        if isinstance(self.trainer.strategy, ReplicaStrategy):
            self.trainer.strategy.spread = False

    def meet(self) -> None:
        """Processes agree to go on. Who failed or was asked to stop stops all: others would wait for it in vain."""
        if self._failure is None and self._any_diverged and bool((self.diverged_at > 0).all()):
            # so it was stored, when others could still go on
            self._failure = "TrainNN has diverged in all replicas; take a smaller lr, or other values of lam."
        told = gathered(self.trainer, (self._failure, asked_to_stop(self.trainer)))
        failures = [failure for failure, _ in told if failure is not None]
        if len(failures) == len(told) or (failures and not self._mark_divergence):
            raise TrainNNDiverged(failures[0])
        if any(stop for _, stop in told):
            self.trainer.should_stop = True

    def configure_optimizers(self) -> Optimizer:
        return training.GradientDescent(self.network.parameters(), {"lr": self.lr})

    def setup(self, stage: str) -> None:
        """Refuse what the command line would; the horizon of a fit is its number of rounds."""
        trainer_flags.check({"precision": self.trainer.precision})
        # Lightning would do it after a checkpoint's numbers have lost half of their digits.
        if self.trainer.precision == "64-true":
            self.double()
        if stage == "fit":
            self._fit_horizon = getattr(getattr(self.trainer, "datamodule", None), "rounds", None)
