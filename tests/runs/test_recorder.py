"""What a recorder leaves behind, and what it hands to whoever presents the result."""

from pathlib import Path
from typing import Any

import pytest

from nl_lightning import NeuralLogUCB2
from nl_lightning.runs.directory import RunDirectory
from nl_lightning.runs.recorder import Recorder
from tests.support.fits import Fit


def small() -> NeuralLogUCB2:
    return NeuralLogUCB2(4, width=6, steps=2, update_every=20, replicas=2)


def test_without_a_conclusion_there_is_no_picture(tmp_path: Path, fit: Fit) -> None:
    fit(small(), rounds=40, callbacks=[Recorder(tmp_path / "run")])
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"rounds.parquet", "summary.json"}


def test_a_conclusion_comes_before_the_summary(tmp_path: Path, fit: Fit) -> None:
    """A run whose conclusion was cut off has no summary, and so is not taken for finished."""
    given: list[dict[str, Any]] = []

    def conclude(run: RunDirectory, summary: dict[str, Any], loggers: object) -> None:
        assert run.rounds.exists()
        assert not run.summary.exists()
        given.append(summary)

    fit(small(), rounds=40, callbacks=[Recorder(tmp_path / "run", conclude)])
    assert given == [RunDirectory(tmp_path / "run").read_summary()]

    def cut_off(*_: object) -> None:
        raise KeyError("cut off")

    with pytest.raises(KeyError, match="cut off"):
        fit(small(), rounds=40, callbacks=[Recorder(tmp_path / "other", cut_off)])
    assert RunDirectory(tmp_path / "other").read_summary() is None


def test_an_agent_is_called_by_its_own_name_or_its_class() -> None:
    class Named(NeuralLogUCB2):
        name = "my agent"

    class Inherits(NeuralLogUCB2):
        pass

    assert [kind.name for kind in (NeuralLogUCB2, Named, Inherits)] == [
        "NeuralLog-UCB-2",
        "my agent",
        "Inherits",
    ]
