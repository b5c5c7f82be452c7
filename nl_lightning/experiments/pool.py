"""Tasks in worker processes: the largest first; a task that fails does not affect the others."""

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple, Protocol

from nl_lightning.core.errors import InputError

__all__ = ["Outcome", "Stage", "Task", "Tell", "Tick", "Watch", "cores", "reason", "run", "stuck"]


class Tick(NamedTuple):
    """The progress of a task."""

    stage: str
    """such as ``tuning`` or ``final``"""
    rounds: int
    total: int
    fraction: float
    """of the whole task's cost"""


Tell = Callable[[Tick], None]


class Task(Protocol):
    """What is run: it goes to another process, and leaves its result in files."""

    @property
    def name(self) -> str: ...

    @property
    def cost(self) -> float:
        """about its seconds"""

    def run(self, tell: Tell) -> str:
        """Do it; a line on what came out."""


class Stage(NamedTuple):
    """Tasks that may run side by side."""

    tasks: Sequence[Task]
    prepare: Callable[[], None] = lambda: None
    """called before them, once the previous stage is finished"""


class Watch(Protocol):
    """Receives the progress of tasks."""

    def tick(self, name: str, tick: Tick) -> None: ...

    def done(self, task: Task, line: str) -> None: ...

    def failed(self, task: Task, reason: str) -> None: ...


class Outcome(NamedTuple):
    """A line about the result, or the reason why there is none."""

    line: str = ""
    error: str | None = None


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(stages: Sequence[Stage], jobs: int, watch: Watch) -> None:
    """Run the tasks in ``jobs`` processes, or with one job in this process. Every task is told of to ``watch``, as done
    or as failed; the others go on. An interrupt ends all at once."""
    if jobs == 1:
        _run_here(stages, watch)
    else:
        _run_in_workers(stages, jobs, watch)


def _ready(stage: Stage, watch: Watch) -> list[Task]:
    """The tasks of a stage, the largest first, so that the last ones do not keep others waiting."""
    if not stage.tasks:
        return []
    try:
        stage.prepare()
    except Exception as error:
        for task in stage.tasks:
            watch.failed(task, reason(error))
        return []
    return sorted(stage.tasks, key=lambda task: -task.cost)


def _attempt(task: Task, tell: Tell) -> Outcome:
    try:
        return Outcome(task.run(tell))
    except SystemExit as stop:
        # Lightning turns Ctrl-C into an exit.
        if isinstance(stop.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from stop
        raise
    except Exception as error:
        return Outcome(error=reason(error))


def reason(error: BaseException) -> str:
    """The text of an error that a user can fix; for any other error also where it was raised."""
    mendable = isinstance(error, (InputError, OSError))
    return str(error) if mendable else "".join(traceback.format_exception(error)).rstrip()


def _tell(task: Task, outcome: Outcome, watch: Watch) -> None:
    if outcome.error is None:
        watch.done(task, outcome.line)
    else:
        watch.failed(task, outcome.error)


# ---- in this process -------------------------------------------------------------------------------------------------


def _run_here(stages: Sequence[Stage], watch: Watch) -> None:
    for stage in stages:
        for task in _ready(stage, watch):
            _tell(task, _attempt(task, lambda tick, name=task.name: watch.tick(name, tick)), watch)  # type: ignore[misc]


# ---- in workers ------------------------------------------------------------------------------------------------------

_PATIENCE = 0.2
"""Seconds between two checks for messages from workers."""

_ticks: Any = None
"""In a worker: the queue for its progress."""


def _begin(ticks: Any, threads: int) -> None:
    """Prepare a worker."""
    global _ticks
    _ticks = ticks
    # What it still had to tell must not keep a worker from ending.
    ticks.cancel_join_thread()
    # Lightning would go on until the next call of TrainNN, but it calls a handler that it finds.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    from nl_lightning.core import lightning_logging

    lightning_logging.silence()
    torch.set_num_threads(threads)


@contextlib.contextmanager
def _interrupts_later() -> Iterator[None]:
    """Ctrl-C reaches every process of a terminal, but it is the first one that ends the others.

    A process begins with the signals blocked that its parent has blocked, so that no worker is interrupted even while
    it imports; the first process is, as soon as this ends.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """Without it a worker would wait for tasks for ever, or hold a run directory that others want to go on with."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(task: Task) -> Outcome:
    return _attempt(task, lambda tick: _ticks.put((task.name, tick)))


def _run_in_workers(stages: Sequence[Stage], jobs: int, watch: Watch) -> None:
    context = multiprocessing.get_context("spawn")
    ticks = context.Queue()
    strangers = set(multiprocessing.active_children())
    threads = max(1, cores() // jobs)
    executor = ProcessPoolExecutor(jobs, context, _begin, (ticks, threads))
    try:
        for number, stage in enumerate(stages):
            begun: set[str] = set()
            waiting = {task.name: task for task in _ready(stage, watch)}
            try:
                with _interrupts_later():
                    futures = {executor.submit(_work, task): task for task in waiting.values()}
                for future in _as_completed(futures, ticks, watch, begun):
                    task, error = futures[future], future.exception()
                    if isinstance(error, BrokenProcessPool):
                        raise error
                    del waiting[task.name]
                    _tell(task, future.result() if error is None else Outcome(error=reason(error)), watch)
            except BrokenProcessPool:
                later = [task for other in stages[number + 1 :] for task in other.tasks]
                for task in [*waiting.values(), *later]:
                    watch.failed(task, _LOST if task.name in begun else _NOT_BEGUN)
                return
    finally:
        # They write nothing that a kill could leave half done.
        for child in set(multiprocessing.active_children()) - strangers:
            child.kill()
        _shut_down(executor)
        ticks.close()
        ticks.cancel_join_thread()


_ENOUGH = 20.0
"""Seconds that an executor may take to end when its workers have."""

stuck = False
"""Whether one did not: its thread would keep this process from ending, too."""


def _shut_down(executor: ProcessPoolExecutor) -> None:
    """Wait for its end, but not for ever: a killed worker may have held what the executor's thread waits for."""
    global stuck
    ending = threading.Thread(target=executor.shutdown, kwargs={"cancel_futures": True}, daemon=True)
    ending.start()
    ending.join(_ENOUGH)
    stuck = ending.is_alive()


_LOST = (
    "it was under way when a worker process was killed, perhaps for want of memory; with fewer --jobs less of it is "
    "needed at once."
)
_NOT_BEGUN = "it was not begun: a worker process was killed before."


def _as_completed(
    futures: dict["Future[Outcome]", Task], ticks: Any, watch: Watch, begun: set[str]
) -> Iterator["Future[Outcome]"]:
    """Yield futures as they finish, and report the progress of the others meanwhile."""
    waiting, running = set(futures), {task.name for task in futures.values()}
    while waiting:
        ended, waiting = wait(waiting, timeout=_PATIENCE, return_when=FIRST_COMPLETED)
        with contextlib.suppress(queue.Empty):
            while True:
                name, tick = ticks.get_nowait()
                begun.add(name)
                # a message may come after the end of its task
                if name in running:
                    watch.tick(name, tick)
        running -= {futures[future].name for future in ended}
        yield from sorted(ended, key=lambda future: futures[future].name)
