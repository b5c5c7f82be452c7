"""The progress of an experiment: overall and by part, with the time left."""

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from nl_lightning.experiments.pool import Task, Tick

__all__ = ["Display", "duration"]


class Display:
    """Shows a bar and a line for each running part on a terminal, and elsewhere a line for each finished part.

    Args:
        tasks: number of parts.
        cost: of all of them; the time left is that of the cost left, at the speed so far.
        on_done: called with every part that has finished.
    """

    def __init__(self, tasks: int, cost: float, console: Console, on_done: Callable[[Task], None]) -> None:
        self.tasks, self.cost, self.console, self.on_done = tasks, cost, console, on_done
        self.failures: dict[str, str] = {}
        self._ended = 0
        self._spent = 0.0
        """cost of the finished parts"""
        self._costs: dict[str, float] = {}
        self._fractions: dict[str, float] = {}
        """of the running parts"""
        self._started = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[standing]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._overall = self._progress.add_task("all parts", total=1.0, standing="")
        self._lines: dict[str, TaskID] = {}

    def __enter__(self) -> "Display":
        self._progress.start()
        self._show_overall()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def expect(self, task: Task) -> None:
        """Register the cost of a part before it starts."""
        self._costs[task.name] = task.cost

    # ---- messages ---------------------------------------------------------------------------------------------

    def tick(self, name: str, tick: Tick) -> None:
        self._fractions[name] = tick.fraction
        if name not in self._lines:
            self._lines[name] = self._progress.add_task(escape(name), total=1.0, standing="")
        standing = f"{tick.stage}, round {tick.rounds}/{tick.total}"
        self._progress.update(self._lines[name], completed=tick.fraction, standing=standing)
        self._show_overall()

    def done(self, task: Task, line: str) -> None:
        self._end(task)
        # on_done may take a while and may print: the part is reported first.
        if self.console.is_terminal:
            self.console.print(f"{task.name}: {line}", highlight=False, markup=False)
        else:
            standing = f"[{self._ended}/{self.tasks}] {task.name}: {line}; {self.left()}"
            self.console.print(standing, highlight=False, markup=False, soft_wrap=True)
        self.on_done(task)

    def failed(self, task: Task, reason: str) -> None:
        self._end(task)
        self.failures[task.name] = reason
        self.console.print(f"error: {task.name}: {reason}", style="red", highlight=False, markup=False, soft_wrap=True)

    def _end(self, task: Task) -> None:
        self._ended += 1
        self._spent += task.cost
        self._fractions.pop(task.name, None)
        if task.name in self._lines:
            self._progress.remove_task(self._lines.pop(task.name))
        self._show_overall()

    def refresh(self) -> None:
        """Draw the bars now instead of at the next refresh."""
        self._progress.refresh()

    # ---- overall --------------------------------------------------------------------------------------------------

    def fraction(self) -> float:
        """The fraction of the cost of all parts that is done."""
        under_way = sum(self._costs.get(name, 0.0) * done for name, done in self._fractions.items())
        return min(1.0, (self._spent + under_way) / self.cost) if self.cost else 1.0

    def left(self) -> str:
        """The time left, assuming the speed so far."""
        done = self.fraction()
        if done <= 0.005:
            return "time left not known yet"
        return f"{duration((time.monotonic() - self._started) * (1 - done) / done)} left"

    def _show_overall(self) -> None:
        standing = f"{self._ended} of {self.tasks}, {self.left()}"
        self._progress.update(self._overall, completed=self.fraction(), standing=standing)


def duration(seconds: float) -> str:
    """Such as ``45 s``, ``12 min`` or ``3 h 20 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
