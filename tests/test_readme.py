"""The code blocks of the README do what they say."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from nl_lightning.cli.main import main
from nl_lightning.testing import check_agent, check_design, check_environment, check_exploration
from tests.support.paths import ROOT

TEXT = (ROOT / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


def test_there_are_code_blocks() -> None:
    assert len(PYTHON) >= 3


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: re.sub(r"\W+", "-", block)[:40])
def test_python_blocks_run(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})


def test_classes_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module of the section, its commands, and its suites."""
    section = TEXT.split("## Bring your own\n")[1].split("\n## ")[0]
    module, *_ = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    (tmp_path / "mine.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    commands = re.findall(r"^python -m nl_lightning (.*)$", section, flags=re.MULTILINE)
    assert len(commands) == 3
    for number, command in enumerate(commands):
        main([*shlex.split(command), f"--run.id={number}"])
        assert (tmp_path / "runs" / "fit" / str(number) / "summary.json").exists()
    import mine  # type: ignore[import-not-found]

    try:
        check_agent(mine.Shrinking)
        check_exploration(mine.HalfBonus())
        check_design(mine.Exact)
        check_environment(mine.Coins)
    finally:
        del sys.modules["mine"]
