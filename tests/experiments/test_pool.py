"""Tasks in this process and in workers: their order, what they tell, and what becomes of those that fail."""

import io
import os
import signal
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from rich.console import Console

from nl_lightning.core.errors import InputError
from nl_lightning.experiments import pool
from nl_lightning.experiments.display import Display, duration
from nl_lightning.experiments.pool import Stage, Tell, Tick


class Write(NamedTuple):
    """Writes down when it was done; or fails, or is killed, or sleeps."""

    name: str
    cost: float
    where: Path
    fate: str = "done"

    def run(self, tell: Tell) -> str:
        tell(Tick("final", 5, 10, 0.5))
        with (self.where / "order").open("a") as file:
            file.write(f"{self.name} {os.getpid()}\n")
        if self.fate == "mendable":
            raise InputError("take another one")
        if self.fate == "broken":
            raise ZeroDivisionError("nothing to divide by")
        if self.fate == "killed":
            # as for want of memory, while another one works
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fate == "lasts":
            # until its progress has certainly been read
            time.sleep(2)
        if self.fate == "sleeps":
            time.sleep(600)
        if self.fate == "interrupted":
            # what Lightning makes of Ctrl-C
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt:
                raise SystemExit(1)  # noqa: B904
        return f"{self.name} came out"


class Watch:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Tick]] = []
        self.came: dict[str, str] = {}
        self.failures: dict[str, str] = {}

    def tick(self, name: str, tick: Tick) -> None:
        self.told.append((name, tick))

    def done(self, task: pool.Task, line: str) -> None:
        self.came[task.name] = line

    def failed(self, task: pool.Task, reason: str) -> None:
        self.failures[task.name] = reason


def order(path: Path) -> list[str]:
    return [line.split()[0] for line in (path / "order").read_text().splitlines()]


def test_in_this_process_the_largest_come_first_and_failures_leave_the_others(tmp_path: Path) -> None:
    watch = Watch()
    first = [Write("small", 1, tmp_path), Write("large", 9, tmp_path), Write("bad", 5, tmp_path, "mendable")]
    second = [Write("later", 99, tmp_path)]
    pool.run([Stage(first), Stage(second, lambda: (tmp_path / "prepared").touch())], 1, watch)
    assert order(tmp_path) == ["large", "bad", "small", "later"]
    assert (tmp_path / "prepared").exists()
    assert watch.came == {name: f"{name} came out" for name in ("small", "large", "later")}
    assert watch.failures == {"bad": "take another one"}
    assert watch.told[0] == ("large", Tick("final", 5, 10, 0.5))


def test_a_stage_that_cannot_be_prepared_fails_as_a_whole(tmp_path: Path) -> None:
    def prepare() -> None:
        raise InputError("there is no log")

    watch = Watch()
    pool.run([Stage([Write("a", 1, tmp_path), Write("b", 1, tmp_path)], prepare)], 1, watch)
    assert watch.failures == {"a": "there is no log", "b": "there is no log"}
    # what nobody runs is not prepared
    pool.run([Stage([], prepare)], 1, watch)


def test_an_interrupt_ends_all(tmp_path: Path) -> None:
    tasks = [Write("first", 2, tmp_path, "interrupted"), Write("second", 1, tmp_path)]
    with pytest.raises(KeyboardInterrupt):
        pool.run([Stage(tasks)], 1, Watch())
    assert order(tmp_path) == ["first"]


@pytest.mark.xdist_group("processes")
def test_workers_do_the_same_and_a_failing_task_leaves_the_others(tmp_path: Path) -> None:
    watch = Watch()
    good = [Write("t0", 0, tmp_path, "lasts"), *(Write(f"t{k}", k, tmp_path) for k in range(1, 4))]
    pool.run([Stage([*good, Write("bad", 9, tmp_path, "broken")]), Stage([Write("later", 99, tmp_path)])], 2, watch)
    assert watch.came == {name: f"{name} came out" for name in ("t0", "t1", "t2", "t3", "later")}
    (reason,) = watch.failures.values()
    assert reason.startswith("Traceback")
    assert "ZeroDivisionError: nothing to divide by" in reason
    # the last message of a short task may come after its end
    told = [name for name, _ in watch.told]
    assert {"t0"} <= set(told) <= {"bad", "later", "t0", "t1", "t2", "t3"}
    assert len(told) == len(set(told))
    assert order(tmp_path)[-1] == "later"
    assert str(os.getpid()) not in (tmp_path / "order").read_text()


@pytest.mark.xdist_group("processes")
def test_a_worker_that_is_killed_does_not_hang_the_pool(tmp_path: Path) -> None:
    watch = Watch()
    tasks = [Write("killed", 9, tmp_path, "killed"), Write("sleeper", 8, tmp_path, "sleeps"), Write("c", 1, tmp_path)]
    began = time.monotonic()
    pool.run([Stage(tasks), Stage([Write("later", 1, tmp_path)])], 2, watch)
    assert time.monotonic() - began < 60
    assert watch.came == {}
    assert set(watch.failures) == {"killed", "sleeper", "c", "later"}
    assert "a worker process was killed" in watch.failures["killed"]
    assert "was under way" in watch.failures["killed"]
    assert "was not begun" in watch.failures["later"]
    for line in (tmp_path / "order").read_text().splitlines():
        with pytest.raises(ProcessLookupError):
            os.kill(int(line.split()[1]), 0)


@pytest.mark.xdist_group("processes")
def test_a_worker_that_dies_between_two_stages_ends_in_good_order(tmp_path: Path) -> None:
    watch = Watch()

    def kill_the_workers() -> None:
        for line in (tmp_path / "order").read_text().splitlines():
            os.kill(int(line.split()[1]), signal.SIGKILL)
        time.sleep(1)

    stages = [Stage([Write("a", 1, tmp_path)]), Stage([Write("b", 1, tmp_path)], kill_the_workers)]
    pool.run([*stages, Stage([Write("c", 1, tmp_path)])], 2, watch)
    assert set(watch.came) == {"a"}
    assert set(watch.failures) == {"b", "c"}
    assert all("a worker process was killed" in reason for reason in watch.failures.values())


# ---- the display -----------------------------------------------------------------------------------------------------


def test_the_time_left_is_that_of_the_cost_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("nl_lightning.experiments.display.time.monotonic", lambda: now[0])
    text, ended = io.StringIO(), []
    tasks = [Write("a", 30, tmp_path), Write("b", 60, tmp_path), Write("c", 10, tmp_path)]
    with Display(3, 100, Console(file=text, width=100), lambda task: ended.append(task.name)) as display:
        for task in tasks:
            display.expect(task)
        assert display.left() == "time left not known yet"
        now[0] = 20
        display.done(tasks[2], "came out")
        # 10 % took 20 seconds
        assert display.left() == "3 min left"
        display.tick("b", Tick("tuning", 50, 100, 0.5))
        assert display.fraction() == pytest.approx(0.4)
        assert display.left() == "30 s left"
        display.failed(tasks[0], "no [bold] luck")
        assert display.fraction() == pytest.approx(0.7)
        display.done(tasks[1], "too")
        assert display.fraction() == 1
    assert ended == ["c", "b"]
    assert display.failures == {"a": "no [bold] luck"}
    assert text.getvalue().splitlines() == [
        "[1/3] c: came out; 3 min left",
        "error: a: no [bold] luck",
        "[3/3] b: too; 0 s left",
    ]


def test_on_a_terminal_there_are_bars(tmp_path: Path) -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=120)
    task = Write("fig1 h1 NCBF-UCB", 10, tmp_path)
    with Display(1, 10, console, lambda task: None) as display:
        display.expect(task)
        display.tick(task.name, Tick("tuning", 50, 2000, 0.3))
        display.refresh()
        display.done(task, "regret 7")
    shown = text.getvalue()
    assert "all parts" in shown
    assert "tuning, round 50/2000" in shown
    assert "fig1 h1 NCBF-UCB: regret 7" in shown


def test_durations() -> None:
    assert [duration(s) for s in (0, 89, 91, 5399, 12000)] == ["0 s", "89 s", "2 min", "1 h 30 min", "3 h 20 min"]
