"""Paths on the command line that lead nowhere: every option that takes one refuses it in one clear text."""

from collections.abc import Callable
from pathlib import Path

import pytest

from nl_lightning.cli.main import main
from replay.__main__ import main as replay
from tests.support.attacks import Attack, outcome
from tests.support.cli import H1

Run = Callable[[str], None]

READ: dict[str, Run] = {
    "--ckpt_path": lambda path: main(["test", H1, f"--ckpt_path={path}"]),
    "--resume": lambda path: main(["fit", f"--resume={path}"]),
    "PATH of report": lambda path: main(["report", path]),
    "LOG of info": lambda path: replay(["info", path]),
    "--checkpoint of evaluate": lambda path: replay(["evaluate", f"--checkpoint={path}"]),
    "SRC of convert": lambda path: replay(["convert", path, "to"]),
    "--data of reproduce": lambda path: main(["reproduce", "fig2", f"--data={path}/nosuch"]),
}
WRITTEN: dict[str, Run] = {
    "--out of tailbound": lambda path: main(["tailbound", f"--out={path}", "--rounds=2"]),
    "--out of confidence": lambda path: main(["confidence", f"--out={path}", "--rounds=2"]),
    "--out of reproduce": lambda path: main(["reproduce", "fig1", f"--out={path}"]),
    "--out of diagnose": lambda path: main(["diagnose", H1, "--rounds=2", f"--out={path}"]),
    "DST of simulate": lambda path: replay(["simulate", path, "--rows=10"]),
}


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("text")
    return tmp_path


@pytest.mark.parametrize("place", ["nosuch", ".", "file", "file/x", "x" * 300])
@pytest.mark.parametrize("option", READ)
def test_a_path_that_cannot_be_read(option: str, place: str, directory: Path) -> None:
    assert outcome(Attack(option, place, lambda _: READ[option](place)), directory) == "refused"


@pytest.mark.parametrize("place", ["file", "file/x", "x" * 300])
@pytest.mark.parametrize("option", WRITTEN)
def test_a_path_that_cannot_be_written(option: str, place: str, directory: Path) -> None:
    assert outcome(Attack(option, place, lambda _: WRITTEN[option](place)), directory) == "refused"
    assert Path("file").read_text() == "text"
