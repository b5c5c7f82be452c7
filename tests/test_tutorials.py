"""The tutorials run, and what the site shows of them is what they say."""

import json
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

TUTORIALS = ROOT / "docs" / "tutorials"
NOTEBOOKS = sorted(TUTORIALS.glob("*.ipynb"))


def outputs(notebook: dict) -> list[list[str]]:
    """The kinds of output of every code cell."""
    return [
        sorted({output["output_type"] for output in cell["outputs"]})
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["clicks-to-decision", "figure-1", "own-agent"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_saved_with_its_outputs(path: Path) -> None:
    notebook = json.loads(path.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), "run `make tutorials`"
    assert sum(map(bool, outputs(notebook))) >= 4
    assert "error" not in {kind for kinds in outputs(notebook) for kind in kinds}
    assert str(ROOT) not in path.read_text(), "no path of a machine belongs on the site"


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TUTORIALS))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    from execute import execute  # type: ignore[import-not-found]

    try:
        found = execute(path, tmp_path)
    finally:
        del sys.modules["execute"]
    assert outputs(found) == outputs(json.loads(path.read_text())), "outputs are old: run `make tutorials`"
