"""Attacks on a run while it goes on: names that cannot be, a full disk, a terminated process, another environment."""

import os
import re
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nl_lightning.cli.main import main
from nl_lightning.rollout.data import BanditData
from nl_lightning.runs.directory import RunDirectory
from tests.support.attacks import Attack, judge, table
from tests.support.cli import CONFIGS, H1
from tests.support.stored_runs import (
    COMMAND,
    copied,
    resume,
    resume_by_command,
    right_by_command,
    stopped,
    stopped_by_command,
    succeeds,
)

pytestmark = pytest.mark.attack

# ---- names and flags -------------------------------------------------------------------------------------------------

NAMES = {
    "300 characters": "x" * 300,
    "300 bytes": "ä" * 150,
    "NUL": "a\0b",
    "newline": "a\nb",
    "escape": "a\x1b[2Jb",
    "slash": "a/b",
    "parent": "..",
    "empty": "",
}


def names() -> Iterator[Attack]:
    for key in ("id", "name", "dir"):
        for name, value in NAMES.items():
            if key == "dir" and name in ("slash", "parent"):
                continue

            def run(directory: Path, key: str = key, value: str = value) -> None:
                where = {"dir": str(directory), "name": "name", "id": "id"} | {key: value}
                try:
                    main(["fit", H1, *COMMAND, *(f"--run.{name}={text}" for name, text in where.items())])
                finally:
                    assert not list(directory.iterdir()), "a directory was made"

            yield Attack("run directory", f"{key}, {name}", run, (f"run.{key}",))

    def no_steps(directory: Path) -> None:
        main(["fit", H1, *COMMAND, f"--run.dir={directory}", "--trainer.max_steps=0"])

    yield Attack("flags", "max_steps 0", no_steps, ("max_steps",))

    def restarted_test(directory: Path) -> None:
        checkpoint = RunDirectory(stopped_by_command()).checkpoint
        main(["test", H1, *COMMAND, f"--ckpt_path={checkpoint}", "--restart"])

    yield Attack("flags", "test --restart", restarted_test, ("--restart",))


# ---- a full disk -----------------------------------------------------------------------------------------------------


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file can grow beyond this size, as if the disk were full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def full_disk() -> Iterator[Attack]:
    """What does not fit: config.yaml, the first part, the checkpoint; and on resumption the next ones."""
    new = ["fit", H1, *COMMAND, "--run.id=x"]
    for size, file in ((100, "config.yaml"), (2600, "from-000000001.parquet"), (9000, "last.ckpt")):

        def fit(directory: Path, size: int = size) -> None:
            with largest_file(size):
                main([*new, f"--run.dir={directory}"])

        yield Attack("full disk", f"{file}, new", fit, (file, "cannot be written"))

        @succeeds
        def go_on(directory: Path, size: int = size) -> Any:
            here = copied(stopped_by_command(), directory)
            with pytest.raises(SystemExit), largest_file(size):
                resume_by_command(here)
            return resume_by_command(here)

        yield Attack("full disk", f"{file}, then room", go_on, (), right_by_command)

    def trainer(directory: Path) -> Any:
        here = copied(stopped(), directory)
        with largest_file(2000):
            return resume(here)

    yield Attack("full disk", "own Trainer", trainer, ("from-0000", "cannot be written"))


# ---- SIGTERM ---------------------------------------------------------------------------------------------------------


def terminated() -> Iterator[Attack]:
    """A SIGTERM after some rounds: the exit code says so, and the run goes on to the same end."""
    for rounds in (0, 10, 20):

        @succeeds
        def run(directory: Path, rounds: int = rounds) -> Any:
            play = BanditData.play

            def struck(self: BanditData, count: int) -> None:
                if self.played == rounds:
                    os.kill(os.getpid(), signal.SIGTERM)
                play(self, count)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(BanditData, "play", struck)
                with pytest.raises(SystemExit) as stop:
                    main(["fit", H1, *COMMAND, f"--run.dir={directory}", "--run.id=x", "--run.checkpoint_every=9"])
            assert stop.value.code == 128 + signal.SIGTERM
            return resume_by_command(directory / "h1" / "x")

        yield Attack("SIGTERM", f"after {rounds} rounds", run, (), right_by_command)


# ---- another environment ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "differing"),
    [
        ([f"--config={CONFIGS / 'h3.yaml'}"], "data.environment.init_args.function"),
        ([H1, "--data.environment.arms=3"], "data.environment.init_args.arms"),
        ([H1, "--data.rounds=30"], "data.rounds"),
    ],
)
def test_another_environment_is_said(options: list[str], differing: str) -> None:
    """It may be meant: the result is printed, with a warning that says what differs."""
    checkpoint = f"--ckpt_path={RunDirectory(stopped_by_command()).checkpoint}"
    given = [*options[:1], *COMMAND, *options[1:]]
    with pytest.warns(UserWarning, match=f"other settings of its environment; they differ in .*{re.escape(differing)}"):
        main(["test", *given, checkpoint])


@pytest.mark.filterwarnings("error:.*other settings of its environment")
def test_the_same_environment_needs_no_words() -> None:
    main(["test", H1, *COMMAND, f"--ckpt_path={RunDirectory(stopped_by_command()).checkpoint}", "--threads=1"])


@table([*names(), *full_disk(), *terminated()])
def test_refused_or_right(attack: Attack, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    judge(attack, tmp_path, record_property)
