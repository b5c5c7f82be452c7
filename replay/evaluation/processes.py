"""The processes of an evaluation: how many, started by Lightning or by the cluster, and how they end.

Lightning starts the command again for each further device of a machine; under torchrun or srun the processes are there
already. They meet once, where torchmetrics adds up their sums, so none of them must wait for one that has failed:
whoever fails says why and ends, and the others end with it.
"""

import logging
import os
import signal
import threading
import warnings
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

from nl_lightning.core.checks import check_whole
from nl_lightning.core.errors import InputError
from nl_lightning.distributed.launcher import Launcher, end_now

ACCELERATORS = ("cpu", "cuda", "gpu", "auto")
"""Lightning's names of what computes in float64."""

TIMEOUT = timedelta(minutes=30)
"""How long a process waits for the others, at the start and at the end, where none of them has visibly failed."""

_GRACE = 1.0
"""Seconds that a process has to end after another one."""

_AGAIN = "Nothing was written: start the command again."


class Processes(NamedTuple):
    """One a device, on some machines."""

    devices: int = 1
    """of each machine"""
    num_nodes: int = 1
    accelerator: str = "cpu"

    @property
    def number(self) -> int:
        return self.devices * self.num_nodes

    def check(self) -> None:
        """Refuse what cannot be, and a number other than that of the processes which are there already."""
        check_whole(1, devices=self.devices, num_nodes=self.num_nodes)
        if self.accelerator not in ACCELERATORS:
            raise InputError(f"accelerator must be one of {', '.join(ACCELERATORS)}; got {self.accelerator!r}.")
        for by, started in _started():
            if started != self.number:
                raise InputError(
                    f"{by} has started {started} processes, but --devices {self.devices} on each of --num-nodes "
                    f"{self.num_nodes} machines would be {self.number}. Give the numbers of {by}."
                )

    def trainer(self, progress: bool = False) -> L.Trainer:
        """A Trainer that tests on these devices; one device has no process group."""
        self.check()
        # Lightning's notes on hardware and its advertisements; warnings stay.
        for name in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.distributed"):
            logging.getLogger(name).setLevel(logging.WARNING)
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec.*")
        callbacks: list[L.Callback] = [RichProgressBar()] if progress else []
        several: dict[str, Any] = {}
        if self.number > 1:
            callbacks.append(_Mortal())
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
                "Take --accelerator cpu."
            )
        alone = isinstance(_environment(trainer), LightningEnvironment) and "MASTER_ADDR" not in os.environ
        if self.num_nodes > 1 and alone:
            raise InputError(
                f"--num-nodes {self.num_nodes}: this process does not know the other machines. Start it with torchrun "
                "or srun, or on each machine with MASTER_ADDR, MASTER_PORT and NODE_RANK set."
            )
        return trainer


ONE = Processes()
"""This one."""


def _started() -> Iterator[tuple[str, int]]:
    """Who has started processes before Lightning could, and how many."""
    if TorchElasticEnvironment.detect():
        yield "torchrun", int(os.environ["WORLD_SIZE"])
    # in a shell of their own users start what they like, and Lightning too goes by the name
    elif "SLURM_STEP_NUM_TASKS" in os.environ and SLURMEnvironment.job_name() not in ("bash", "interactive"):
        yield "srun", int(os.environ["SLURM_STEP_NUM_TASKS"])


def _environment(trainer: L.Trainer) -> ClusterEnvironment | None:
    return getattr(trainer.strategy, "cluster_environment", None)


@contextmanager
def ending_together(trainer: L.Trainer) -> Iterator[None]:
    """What ends a process is said in its name; what the other processes do then is the launcher's."""
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
            f"{who}: another process has ended or does not answer ({str(error).splitlines()[0]}). Its own message, "
            f"if it had one, is above. {_AGAIN}"
        ) from error


def _is_lost(error: BaseException) -> bool:
    """Whether gloo, NCCL or their store has lost a process: what they raise has no class of its own."""
    text = str(error).lower()
    signs = ("gloo", "nccl", "timeout", "timed out", "connection", "socket")
    return isinstance(error, RuntimeError) and any(sign in text for sign in signs)


class _Strategy(DDPStrategy):
    """Processes that meet once, at the end: when one of them fails, the others have nothing more to say."""

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        self._launcher = Launcher(self.cluster_environment, self.num_processes, self.num_nodes)
        self._launcher.grace = _GRACE

    def on_exception(self, exception: BaseException) -> None:
        assert isinstance(self._launcher, Launcher)
        self._launcher.end(wait=_GRACE)


class _Mortal(L.Callback):
    """SIGTERM ends a process, and its children: there is nothing to save.

    Lightning takes it for a wish to do so, and asks the other processes about it.
    """

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        def end(*_: object) -> None:
            assert isinstance(trainer.strategy.launcher, Launcher)
            trainer.strategy.launcher.end(wait=0)
            end_now(f"Process {trainer.global_rank} was told to end. {_AGAIN}")

        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, end)
