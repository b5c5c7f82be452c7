"""Starting the further processes of a machine, and ending together.

Lightning starts the same command once more for each further device of a machine; under torchrun or srun the processes
are there already. Its own watch kills what is left when one of them has failed, without a word; this one says what
happened, and gives the others time to say it themselves.
"""

import atexit
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any, final

import lightning as L
import torch.distributed
from lightning.fabric.utilities.distributed import _set_num_threads_if_needed
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from rich.console import Console

__all__ = ["GRACE", "Launcher", "end_now"]


GRACE = 10.0
"""Seconds that a process has to end by itself, once another one has failed."""

_LOOK = 0.2
"""Seconds between two looks at the other processes."""

_PARENT = "NL_LIGHTNING_PARENT"
"""The variable that tells a process which one has started it."""


@final
class Launcher(_SubprocessScriptLauncher):
    """Lightning's launcher of processes, and a watch over them: a thread of each that ends it, if it must be."""

    grace = GRACE
    """a process that meets the others often learns by itself that one is lost, and can say more of it"""

    def launch(self, function: Any, *args: Any, trainer: L.Trainer | None = None, **kwargs: Any) -> Any:
        self.cluster_environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
        self._over = threading.Event()
        watch = None
        if not self.cluster_environment.creates_processes_externally:
            os.environ[_PARENT] = str(os.getpid())
            self._call_children_scripts()
            watch = self._watch_children
        elif os.environ.get(_PARENT) == str(os.getppid()):
            watch = self._watch_parent
        if watch is not None:
            threading.Thread(target=watch, daemon=True).start()
        _set_num_threads_if_needed(num_processes=self.num_processes)
        atexit.unregister(_end_process_group)
        atexit.register(_end_process_group)
        try:
            return function(*args, **kwargs)
        finally:
            # what comes behind a fit is no longer common
            self._over.set()

    def _watch_children(self) -> None:
        while not any(child.poll() for child in self.procs):
            if self._over.wait(_LOOK):
                return
        if self._over.wait(self.grace):
            return
        self.end(wait=0)
        # the main thread may wait for the lost process just now, where no exception reaches it
        end_now("The run was stopped: another process has failed, see above. Start it again.")

    def _watch_parent(self) -> None:
        parent = os.getppid()
        while os.getppid() == parent:
            if self._over.wait(_LOOK):
                return
        # it may have been ready a little sooner
        if not self._over.wait(GRACE):
            end_now("The run was stopped: the process that had started this one is gone. Start it again.")

    def end(self, wait: float = GRACE) -> None:
        """Give the processes that were launched here some time to end, then end them; say how those ended that could
        not say it themselves."""
        stop = time.monotonic() + wait
        for process, child in enumerate(self.procs, start=1):
            name = f"process {process} of {1 + len(self.procs)}"
            try:
                code = child.wait(max(0.0, stop - time.monotonic()))
                if code < 0:
                    _say(f"{name} was killed by signal {-code} ({signal.Signals(-code).name}).")
            except subprocess.TimeoutExpired:
                _say(f"{name} did not end and is killed.")
                child.kill()


def _end_process_group() -> None:
    """Join the threads of the process group while Python is still there.

    A thread of gloo lets go of the tensors of its last operation some time after that operation has ended. If Python is
    shutting down by then, the whole process is aborted (Lightning does this for NCCL alone).
    """
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def end_now(text: str) -> None:
    """End this process from whichever thread."""
    # a progress bar hides the cursor
    Console(stderr=True).show_cursor()
    _say(text)
    os._exit(1)


def _say(text: str) -> None:
    print(f"error: {text}", file=sys.stderr, flush=True)
