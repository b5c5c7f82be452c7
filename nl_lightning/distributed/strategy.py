"""The Lightning plugin that spreads replicas over devices and nodes: ``strategy: replica``.

Replicas are independent, so that nothing is exchanged while they learn: no gradients, no parameters. Every process has
an agent of its share of the replicas, the trainer's ``lightning_module``, while the agent that ``trainer.fit`` was
given stays whole and gets all results back at the end. A checkpoint is that of the whole agent, whoever wrote it, and
goes on with any number of processes.

    agent (R replicas) -> its part in each process -> checkpoint, result (R replicas)

Processes meet at checkpoints and every ten calls of TrainNN, to agree on whether to go on; at every call in a replay,
where replicas wait for each other, and where there are loggers to tell.
"""

import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy, Strategy, StrategyRegistry
from lightning.pytorch.trainer.states import TrainerFn, TrainerStatus
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from nl_lightning.core.errors import InputError, ProcessLost, TrainNNDiverged
from nl_lightning.core.replicas import Share, pad_singleton
from nl_lightning.distributed.launcher import GRACE, Launcher

__all__ = ["TIMEOUT", "ReplicaStrategy", "T", "asked_to_stop", "collected", "gathered", "note_stop", "share_of"]


T = TypeVar("T")

TIMEOUT = 600.0
"""Seconds that a process waits for the others."""


def gathered(trainer: L.Trainer, value: T) -> list[T]:
    """What each process of the run has, on all of them; every process must ask."""
    strategy = trainer.strategy
    return strategy.gathered(value) if isinstance(strategy, ReplicaStrategy) else [value]


def collected(trainer: L.Trainer, value: T) -> list[T]:
    """What each process has, on the first of them; nothing on the others. Every process must ask."""
    strategy = trainer.strategy
    return strategy.collected(value) if isinstance(strategy, ReplicaStrategy) else [value]


def asked_to_stop(trainer: L.Trainer) -> bool:
    """Whether this process was sent a SIGTERM, and others may not know."""
    noted = isinstance(trainer.strategy, ReplicaStrategy) and trainer.strategy.asked_to_stop
    return trainer.received_sigterm or noted


def note_stop(trainer: L.Trainer) -> None:
    """Another process was sent a SIGTERM: this one stops as if it had been."""
    if isinstance(trainer.strategy, ReplicaStrategy):
        trainer.strategy.asked_to_stop = True


class ReplicaStrategy(DDPStrategy):
    """Spreads the replicas of a bandit agent over processes, each with a device of its own.

    Args:
        timeout: seconds that a process waits for the others before it takes them for lost.
        kwargs: those of Lightning's DDPStrategy, whose launchers this is built on.
    """

    def __init__(self, timeout: float = TIMEOUT, **kwargs: Any) -> None:
        super().__init__(timeout=timedelta(seconds=timeout), **kwargs)
        self.resumes = False
        """whether this process has found a checkpoint to go on from: all must agree"""
        self.asked_to_stop = False
        self.spread = False
        """whether replicas are spread over the processes now: during a fit or a test, until its last hook"""
        self._whole: Any = None
        self._part: Any = None

    # ---- processes --------------------------------------------------------------------------------------------------

    def _configure_launcher(self) -> None:
        if self._start_method == "popen":
            assert self.cluster_environment is not None
            self._launcher = Launcher(self.cluster_environment, self.num_processes, self.num_nodes)
        else:
            super()._configure_launcher()

    def _get_process_group_backend(self) -> str:
        """What is exchanged are objects of the host, by gloo; NCCL serves Lightning's own tensors."""
        default = "cpu:gloo,cuda:nccl" if self.root_device.type == "cuda" else "gloo"
        return self._process_group_backend or default

    def setup_environment(self) -> None:
        with self._others():
            super().setup_environment()
        whole: Any = self.lightning_module
        if not hasattr(whole, "part"):
            raise InputError(f"strategy: replica spreads the replicas of a bandit agent, not a {type(whole).__name__}.")
        self.spread = True
        if len(set(self.gathered(self.resumes))) > 1:
            raise InputError(
                "Some processes see the checkpoint of this run, others do not. The run directory must lie on a file "
                "system that all nodes share."
            )
        self._whole = whole
        self._part = whole.part(share_of(whole.replicas, self.global_rank, self.world_size, self.root_device))
        self._part.trainer = whole.trainer
        self.connect(self._part)
        for callback in whole.trainer.callbacks:
            callback.log, callback.log_dict = self._part.log, self._part.log_dict
        idle = self.world_size - whole.replicas
        if idle > 0:
            rank_zero_warn(
                f"{self.world_size} devices for {whole.replicas} replicas: {idle} of them have nothing to do. "
                f"Take devices: {whole.replicas}, or more replicas."
            )

    def setup(self, trainer: L.Trainer) -> None:
        """As on a single device: the agent is not wrapped."""
        Strategy.setup(self, trainer)

    def _setup_model(self, model: nn.Module) -> nn.Module:  # type: ignore[override]
        return model

    def gathered(self, value: T) -> list[T]:
        """What each process has, on all of them."""
        if self.world_size == 1 or not self.spread:
            return [value]
        found: list[Any] = [None] * self.world_size
        with self._others():
            dist.all_gather_object(found, value)
        return found

    def collected(self, value: T) -> list[T]:
        """What each process has, on the first of them."""
        if self.world_size == 1 or not self.spread:
            return [value]
        found: list[Any] | None = [None] * self.world_size if self.is_global_zero else None
        with self._others():
            dist.gather_object(value, found)
        return found or []

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        with self._others():
            super().barrier(*args, **kwargs)

    def broadcast(self, obj: T, src: int = 0) -> T:
        with self._others():
            return super().broadcast(obj, src)

    @contextmanager
    def _others(self) -> Iterator[None]:
        """Say it in plain words when another process does not answer."""
        try:
            yield
        except RuntimeError as error:
            assert self._timeout is not None
            reason = str(error).splitlines()[0]
            raise ProcessLost(
                f"Another process of this run has ended, or did not answer within {self._timeout.total_seconds():g} "
                f"seconds ({reason}). Start the run again: it goes on from its last checkpoint."
            ) from error

    def on_train_start(self) -> None:
        """A SIGTERM is noted, and processes stop together when they meet.

        Lightning's own handler talks to the others at once, in the middle of whatever they talk about; and its loop has
        all wait for the first one before every batch, to hear of it.
        """
        if self.world_size > 1 and threading.current_thread() is threading.main_thread():
            self.asked_to_stop = False
            signal.signal(signal.SIGTERM, self._note_sigterm)
            assert self._part is not None
            self._part.trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]

    def _note_sigterm(self, number: int, frame: object) -> None:
        self.asked_to_stop = True

    def on_exception(self, exception: BaseException) -> None:
        """The process that launched the others leaves none behind."""
        # TrainNN diverges for all processes at once, and none of them is lost
        if isinstance(self.launcher, Launcher) and not isinstance(exception, TrainNNDiverged):
            # who interrupts by hand has sent all of them the signal, and wants no answer
            self.launcher.end(wait=1.0 if isinstance(exception, KeyboardInterrupt) else GRACE)

    # ---- the whole and its parts ------------------------------------------------------------------------------------

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Of the whole agent, on the first process; the others write nothing."""
        if self._whole is None or self._part is None:
            return super().lightning_module_state_dict()
        states = self.collected(_own_state(self._part))
        return _joined(states, self._whole) if states else {}

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        assert self._whole is not None
        assert self._part is not None
        _take_precision(self._whole, self._part)
        self._whole.load_state_dict(checkpoint["state_dict"], strict=strict)
        self._part.load_state_dict(self._whole.state_of(self._part))

    def teardown(self) -> None:
        part, whole = self._part, self._whole
        super().teardown()
        if part is None or whole is None:
            return
        state = part.trainer.state
        if state.fn == TrainerFn.FITTING and state.status != TrainerStatus.INTERRUPTED:
            _take_precision(whole, part)
            whole.fit_horizon = part.fit_horizon
            whole.load_state_dict(_joined(self.gathered(_own_state(part)), whole))
        self.connect(whole)
        self._part = self._whole = None


def share_of(replicas: int, process: int, processes: int, device: torch.device) -> Share:
    """The replicas of a process: as many as others have, or one more; on a CPU none is computed alone."""
    each, more = divmod(replicas, processes)
    first = process * each + min(process, more)
    own = list(range(first, first + each + (process < more)))
    kept = own or [replicas - 1]
    if device.type == "cpu":
        kept = pad_singleton(kept, replicas)
    return Share(kept, len(own), replicas)


def _own_state(part: Any) -> dict[str, Any]:
    """The state of the replicas that are a process's own, on the CPU."""
    n_local = part.share.n_local
    return {k: v[:n_local].cpu() if isinstance(v, Tensor) else v for k, v in part.state_dict().items()}


def _take_precision(agent: Any, other: Any) -> None:
    if other.network.weights[0].dtype == torch.float64:
        agent.double()


def _joined(states: Sequence[Mapping[str, Any]], whole: Any) -> dict[str, Any]:
    """The state of the whole agent, replica by replica."""
    first = states[0]
    joined = {k: torch.cat([s[k] for s in states]) if isinstance(v, Tensor) else v for k, v in first.items()}
    return joined | {"_extra_state": {**first["_extra_state"], "identity": whole.identity()}}


StrategyRegistry.register(
    "replica", ReplicaStrategy, description="Spreads the replicas of a bandit agent over devices and nodes"
)
