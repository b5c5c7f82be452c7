"""Several processes that write one log at once: one of them writes it, the others are refused."""

import json
import sys
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from nl_lightning.core.errors import InputError
from replay.logs.reader import Log
from replay.logs.writer import locked
from tests.support.obd_csv import row, write
from tests.support.paths import ROOT

PROCESSES, TIMES = 3, 8

PROGRAM = """
import json, sys
from pathlib import Path
from nl_lightning.core.errors import InputError
from replay.formats.convert import convert_log
from replay.simulation.simulate import make_log
from replay.simulation.simulated_world import SimulatedWorld

kind, here = sys.argv[1], Path(sys.argv[2])
world = SimulatedWorld(items=5, users=4)
print("ready", flush=True)
for line in sys.stdin:
    target = here / f"log-{line.strip()}"
    try:
        convert_log(here / "source", target) if kind == "convert" else make_log(target, world, 2000)
        text = ""
    except (InputError, OSError) as error:
        text = str(error) or repr(error)
    print(json.dumps(text), flush=True)
"""


@pytest.mark.parametrize("kind", ["convert", "simulate"])
def test_one_wins_and_the_others_are_refused(kind: str, tmp_path: Path) -> None:
    write(tmp_path / "source", [row(number) for number in range(2000)])
    workers = [
        Popen([sys.executable, "-c", PROGRAM, kind, tmp_path], cwd=ROOT, stdin=PIPE, stdout=PIPE, text=True)
        for _ in range(PROCESSES)
    ]
    refused = 0
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        for attempt in range(TIMES):
            for worker in workers:
                assert worker.stdin is not None
                worker.stdin.write(f"{attempt}\n")
                worker.stdin.flush()
            texts = [json.loads(worker.stdout.readline()) for worker in workers if worker.stdout]
            assert "" in texts, texts
            for text in filter(None, texts):
                refused += 1
                assert "is being written by another process" in text or "already holds a log" in text
            assert Log(tmp_path / f"log-{attempt}").rows == 2000
    finally:
        for worker in workers:
            worker.communicate()
    assert refused, "the processes did not meet"


def test_who_is_refused_leaves_the_directory_of_the_holder(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with locked(path):
        for _ in range(3):
            with pytest.raises(InputError, match="is being written by another process. Wait for it."), locked(path):
                pass
            assert path.is_dir()
    assert not path.exists(), "nothing was written"
    with locked(path):
        (path / "file").touch()
    assert (path / "file").exists()


def test_a_directory_that_is_removed_meanwhile_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder before removes it after it was opened and before it is locked."""
    path, locks = tmp_path / "log", []

    def flock(descriptor: int, operation: int) -> None:
        locks.append(descriptor)
        if len(locks) == 1:
            path.rmdir()

    monkeypatch.setattr("replay.logs.writer.flock", flock)
    with locked(path):
        assert path.is_dir()
        assert len(locks) == 2
