"""The processes of an evaluation: how many there are, who starts them, and how they end.

Lightning starts the command again for each further device of a machine; torchrun and srun start all processes
themselves. The processes synchronise once, when torchmetrics adds up their sums. None of them may wait for a process
that has failed: a process that fails reports why and ends, and the others end with it.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import lightning as L
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.strategies import DDPStrategy

from nl_lightning.core import lightning_logging
from nl_lightning.core.errors import InputError
from nl_lightning.core.whole import check_whole
from nl_lightning.distributed.launcher import Launcher, end_now

__all__ = ["ACCELERATORS", "ONE", "TIMEOUT", "Processes", "ending_together"]


ACCELERATORS = ("cpu", "cuda", "gpu", "auto")
"""Lightning's names of the accelerators that support float64."""

TIMEOUT = timedelta(minutes=30)
"""How long a process waits for the others at the start and at the end, if none of them is known to have failed."""

_GRACE = 1.0
"""Seconds that the other processes are given to end after one has failed."""

_AGAIN = "Nothing was written: start the command again."


class Processes(NamedTuple):
    """The devices to evaluate on, with one process per device."""

    devices: int = 1
    """number of devices on each machine"""
    num_nodes: int = 1
    """number of machines"""
    accelerator: str = "cpu"

    @property
    def number(self) -> int:
        return self.devices * self.num_nodes

    def check(self) -> None:
        """Raise an InputError for impossible numbers, or if another number of processes has been started already."""
        check_whole(1, devices=self.devices, num_nodes=self.num_nodes)
        if self.accelerator not in ACCELERATORS:
            raise InputError(f"accelerator must be one of {', '.join(ACCELERATORS)}; got {self.accelerator!r}.")
        for by, started in _started():
            if started != self.number:
                raise InputError(
                    f"{by} has started {started} processes, but --devices {self.devices} on each of --num-nodes "
                    f"{self.num_nodes} machines would be {self.number}. Give the same numbers as {by}."
                )

    def trainer(self, progress: bool = False) -> L.Trainer:
        """A Trainer for these devices. With one device there is no process group."""
        self.check()
        lightning_logging.silence()
        callbacks: list[L.Callback] = [RichProgressBar()] if progress else []
        several: dict[str, Any] = {}
        if self.number > 1:
            callbacks.append(_EndOnSigterm())
            several = {"strategy": _Strategy(timeout=TIMEOUT), "num_nodes": self.num_nodes}
        try:
            trainer = L.Trainer(
                accelerator=self.accelerator,
                devices=self.devices,
                **several,
                logger=False,
                enable_checkpointing=False,
                enable_model_summary=False,
                enable_progress_bar=progress,
                callbacks=callbacks,
            )
        except (MisconfigurationException, ValueError, RuntimeError) as error:
            raise InputError(f"--accelerator {self.accelerator} --devices {self.devices}: {error}") from error
        if trainer.strategy.root_device.type not in ("cpu", "cuda"):
            raise InputError(
                f"--accelerator {self.accelerator} is {trainer.strategy.root_device.type} here, which has no float64. "
                "Use --accelerator cpu."
            )
        alone = isinstance(_environment(trainer), LightningEnvironment) and "MASTER_ADDR" not in os.environ
        if self.num_nodes > 1 and alone:
            raise InputError(
                f"--num-nodes {self.num_nodes}: this process does not know the other machines. Start it with torchrun "
                "or srun, or on each machine with MASTER_ADDR, MASTER_PORT and NODE_RANK set."
            )
        return trainer


ONE = Processes()
"""Only the current process."""


def _started() -> Iterator[tuple[str, int]]:
    """The launcher that has started the processes instead of Lightning, if any, and their number."""
    if TorchElasticEnvironment.detect():
        yield "torchrun", int(os.environ["WORLD_SIZE"])
    # In an interactive shell users start what they like. Lightning recognises one by its name as well.
    elif "SLURM_STEP_NUM_TASKS" in os.environ and SLURMEnvironment.job_name() not in ("bash", "interactive"):
        yield "srun", int(os.environ["SLURM_STEP_NUM_TASKS"])


def _environment(trainer: L.Trainer) -> ClusterEnvironment | None:
    return getattr(trainer.strategy, "cluster_environment", None)


@contextmanager
def ending_together(trainer: L.Trainer) -> Iterator[None]:
    """Add the number of the process to its errors. The launcher ends the other processes."""
    if trainer.world_size == 1:
        yield
        return
    who = f"Process {trainer.global_rank} of {trainer.world_size}"
    try:
        yield
    except InputError as error:
        raise InputError(f"{who}: {error}") from error
    except RuntimeError as error:
        if not _is_lost(error):
            raise
        raise InputError(
            f"{who}: another process has ended or does not respond ({str(error).splitlines()[0]}). Its own message, "
            f"if it had one, is above. {_AGAIN}"
        ) from error


def _is_lost(error: BaseException) -> bool:
    """Whether gloo, NCCL or their store has lost a process; their errors have no class of their own."""
    text = str(error).lower()
    signs = ("gloo", "nccl", "timeout", "timed out", "connection", "socket")
    return isinstance(error, RuntimeError) and any(sign in text for sign in signs)


class _Strategy(DDPStrategy):
    """DDP without training: when one process fails, the others end as well."""

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        self._launcher = Launcher(self.cluster_environment, self.num_processes, self.num_nodes)
        self._launcher.grace = _GRACE

    def on_exception(self, exception: BaseException) -> None:
        assert isinstance(self._launcher, Launcher)
        self._launcher.end(wait=_GRACE)


class _EndOnSigterm(L.Callback):
    """Makes SIGTERM end the process and its children at once.

    Lightning would take it as a request to save a checkpoint and would consult the other processes first.
    """

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        def end(*_: object) -> None:
            assert isinstance(trainer.strategy.launcher, Launcher)
            trainer.strategy.launcher.end(wait=0)
            end_now(f"Process {trainer.global_rank} was told to end. {_AGAIN}")

        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, end)
