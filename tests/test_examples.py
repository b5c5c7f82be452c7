"""The examples run, from the table to the picture."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("example")
    command = [sys.executable, str(EXAMPLES / "own_clicks" / "example.py"), "--rows=12000", f"--directory={directory}"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=directory, check=False)
    assert run.returncode == 0, run.stderr
    assert "of the way from today to there" in run.stdout
    return directory


def test_agents_beside_the_known_truth(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "known_truth.py"), "--rows=4000", "--directory=log"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert run.returncode == 0, run.stderr
    assert "online runs" in run.stdout
    (told,) = re.findall(r"Of these 14 intervals of IPS, SNIPS and differences, (\d+) hold the truth", run.stdout)
    # the differences of 4 policies, and two intervals of 5
    assert int(told) >= 12


def test_an_agent_that_learned_from_the_table_earns_more_than_the_recommender(results: Path) -> None:
    found = pd.read_csv(results / "result.csv", index_col=0)
    assert list(found.index) == ["logged", "uniform", "NeuralLog-UCB-2"]
    true = found["true"]
    assert true["uniform"] < true["logged"] < true["NeuralLog-UCB-2"] - 0.04


def test_intervals_of_policies_that_do_not_learn_hold_the_truth(results: Path) -> None:
    found = pd.read_csv(results / "result.csv", index_col=0).loc[["logged", "uniform"]]
    assert ((found["low"] < found["true"]) & (found["true"] < found["high"])).all()


def test_there_is_a_picture(results: Path) -> None:
    assert (results / "result.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = tmp_path / "face.png"
    options = ["--rounds=60", "--seeds=2", "--rows=3000", f"--out={picture}"]
    monkeypatch.setattr(sys, "argv", ["face.py", *options])
    monkeypatch.setenv("MPLBACKEND", "agg")
    runpy.run_path(str(EXAMPLES / "face.py"), run_name="__main__")
    assert picture.read_bytes().startswith(b"\x89PNG")
