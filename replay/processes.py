"""The processes of an evaluation: how many, started by Lightning or by the cluster, and how they end.

Lightning starts the command again for each further device of a machine; under torchrun or srun the processes are there
already. They meet once, where torchmetrics adds up their sums, so none of them must wait for one that has failed:
whoever fails says why and ends, and the others end with it.
"""

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, NoReturn

import lightning as L
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.strategies import DDPStrategy
from rich.console import Console

from nl_lightning.checks import check_whole
from nl_lightning.errors import InputError

ACCELERATORS = ("cpu", "cuda", "gpu", "auto")
"""Lightning's names of what computes in float64."""

TIMEOUT = timedelta(minutes=30)
"""How long a process waits for the others, at the start and at the end, where none of them has visibly failed."""

_LOOK = 0.2
"""Seconds between two looks at the other processes."""

_GRACE = 10.0
"""Seconds that a process has to end after another one."""

_PARENT = "NL_LIGHTNING_PARENT"
"""The variable that holds the number of the process which has started the others of its machine."""

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
            several = {"strategy": DDPStrategy(timeout=TIMEOUT), "num_nodes": self.num_nodes}
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
    """While the trainer works, no process outlives another one that has failed."""
    if trainer.world_size == 1:
        yield
        return
    # a child of this process sees by this that it is one
    os.environ.setdefault(_PARENT, str(os.getpid()))
    watch = threading.Thread(target=_watch, args=(trainer, done := threading.Event()), daemon=True)
    watch.start()
    try:
        yield
    except BaseException as error:
        if _is_lost(error):
            # if it was a child of this one, the watch finds out how it ended, and ends
            watch.join(_GRACE)
        _end_children(trainer)
        who = f"Process {trainer.global_rank} of {trainer.world_size}"
        if isinstance(error, InputError):
            raise InputError(f"{who}: {error}") from error
        if _is_lost(error):
            raise InputError(
                f"{who}: another process has ended or does not answer ({str(error).splitlines()[0]}). Its own message, "
                f"if it had one, is above. {_AGAIN}"
            ) from error
        raise
    finally:
        done.set()
        if os.environ[_PARENT] == str(os.getpid()):
            del os.environ[_PARENT]


def _is_lost(error: BaseException) -> bool:
    """Whether gloo, NCCL or their store has lost a process: what they raise has no class of its own."""
    text = str(error).lower()
    signs = ("gloo", "nccl", "timeout", "timed out", "connection", "socket")
    return isinstance(error, RuntimeError) and any(sign in text for sign in signs)


def _children(trainer: L.Trainer) -> list[Any]:
    """The processes that Lightning has started: Popen objects, of the processes 1, 2, ... of this machine."""
    return getattr(trainer.strategy.launcher, "procs", [])


def _end_children(trainer: L.Trainer) -> None:
    for child in _children(trainer):
        child.kill()


def _watch(trainer: L.Trainer, done: threading.Event) -> None:
    """End this process where a child has failed, or where this one is a child and its parent is no more.

    The main thread may wait for the other process just then, where no exception reaches it.
    """
    parent = int(os.environ[_PARENT])
    while not done.wait(_LOOK):
        for number, child in enumerate(_children(trainer), start=1):
            code = child.poll()
            if code:
                how = f"ended with code {code}, see above." if code > 0 else f"was killed ({_signal(-code)}). {_AGAIN}"
                _end(trainer, f"The evaluation was stopped: process {number} of this machine {how}")
        # the parent may have been ready a little sooner
        if parent not in (os.getpid(), os.getppid()) and not done.wait(_GRACE):
            _end(
                trainer,
                f"Process {trainer.local_rank} of this machine stopped: that which had started it is gone. {_AGAIN}",
            )


def _signal(number: int) -> str:
    if number == signal.SIGKILL:
        return "SIGKILL: by hand, or because memory ran out"
    return signal.Signals(number).name


def _end(trainer: L.Trainer, text: str) -> NoReturn:
    _end_children(trainer)
    # a progress bar hides the cursor
    Console(stderr=True).show_cursor()
    print(f"error: {text}", file=sys.stderr, flush=True)
    os._exit(1)


class _Mortal(L.Callback):
    """SIGTERM ends a process, and its children: there is nothing to save.

    Lightning takes it for a wish to do so, and asks the other processes about it.
    """

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(
                signal.SIGTERM, lambda *_: _end(trainer, f"Process {trainer.global_rank} was told to end. {_AGAIN}")
            )
