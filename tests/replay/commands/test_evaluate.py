"""``python -m replay evaluate`` with policies, checkpoints and parts of a log."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import replay
from nl_lightning.cli.main import main as nl_lightning
from replay.__main__ import main
from replay.logs.reader import Log
from replay.simulation.simulated_world import SimulatedWorld
from tests.support.launch import finish, start
from tests.support.paths import ROOT
from tests.support.policy_logs import Made, lean, make
from tests.support.replay_logs import SMALL, write_log

OWN = "import numpy as np\n\ndef first(frame):\n    return np.eye(5)[np.zeros(len(frame), int)]\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("logs") / "log", listed=True)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Log:
    return write_log(tmp_path_factory.mktemp("logs") / "log", SimulatedWorld(**SMALL), 1300, group=500)


@pytest.fixture(scope="module")
def checkpoints(simulated: Log, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs of one agent, which end before the log does."""
    runs = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        where = [f"--data.environment.log={simulated.path}", f"--run.dir={runs}", f"--run.id={seed}"]
        small = ["--model.steps=5", "--data.rounds=60", "--trainer.enable_progress_bar=false", f"--model.seed={seed}"]
        nl_lightning(["fit", f"--config={ROOT / 'configs' / 'obd.yaml'}", *where, *small])
    return [runs / "obd" / str(seed) / "checkpoints" / "last.ckpt" for seed in (0, 1)]


def fails(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", *arguments])
    assert stop.value.code == 1
    return capsys.readouterr().err


def test_several_policies_give_one_table(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["logged", "uniform", "best-fixed", "column:choice", "column:chances", "tests.support.policy_logs:lean"]
    output = tmp_path / "result.json"
    asked = [f"--policy={name}" for name in names]
    main(["evaluate", f"--log={made.log.path}", "--rows=130:", *asked, f"--output={output}"])
    result = json.loads(output.read_text())
    assert [policy["policy"] for policy in result["policies"]] == names
    expected = replay.evaluate(made.log, {**{name: name for name in names[:-1]}, names[-1]: lean}, rows="130:")
    assert result == json.loads(json.dumps(expected.to_dict()))
    shown = capsys.readouterr().out
    assert "Estimates on 300 events" in shown
    assert "best-fixed: It is cross-fitted: rows 130:280" in shown


def test_a_module_of_the_current_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by the console script, to which Python does not add the current directory."""
    log = make(tmp_path / "log").log
    (tmp_path / "mine_of_this_test.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    main(["evaluate", f"--log={log.path}", "--policy=mine_of_this_test:first", "--output=result.json"])
    monkeypatch.delitem(sys.modules, "mine_of_this_test")
    result = json.loads((tmp_path / "result.json").read_text())
    expected = replay.evaluate(log, {"mine_of_this_test:first": lambda frame: [[1, 0, 0, 0, 0]] * len(frame)})
    assert result == json.loads(json.dumps(expected.to_dict()))


def test_checkpoints_and_policies_share_a_table(
    simulated: Log, checkpoints: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [f"--checkpoint={checkpoint}" for checkpoint in checkpoints]
    common = [f"--log={simulated.path}", "--candidates=all", f"--output={tmp_path / 'x.json'}"]
    main(["evaluate", *common, *given, "--policy=logged"])
    captured = capsys.readouterr()
    result = json.loads((tmp_path / "x.json").read_text())
    names = ["logged", *(f"NeuralLog-UCB-2 {checkpoint}" for checkpoint in checkpoints)]
    assert [policy["policy"] for policy in result["policies"]] == names
    for number, option in enumerate(given):
        main(["evaluate", *common, option])
        alone = json.loads((tmp_path / "x.json").read_text())
        assert alone["replicas"] == result["policies"][1 + number]["replicas"]
    # both have learned from the log
    assert captured.err.count("WARNING: ") == captured.out.count("WARNING: ") == 2
    assert [note.startswith("WARNING") for note in result["notes"][:3]] == [True, True, False]


def test_rows_that_were_learned_from_are_warned_about(
    simulated: Log, checkpoints: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def notes(*options: str) -> tuple[list[str], str]:
        asked = [f"--log={simulated.path}", f"--checkpoint={checkpoints[0]}", f"--output={tmp_path / 'x.json'}"]
        main(["evaluate", *asked, *options])
        found: dict[str, Any] = json.loads((tmp_path / "x.json").read_text())
        return found["notes"], capsys.readouterr().err

    (first, *_), errors = notes()
    assert first in errors
    assert "NeuralLog-UCB-2 has learned from" in first
    stop = int(first.split("rows 0:")[1].split(")")[0])
    assert f"Evaluate on other rows, such as {stop}:." in first
    others, errors = notes(f"--rows={stop}:")
    assert "WARNING" not in errors + "".join(others)
    with pytest.warns(UserWarning, match=f"has learned from 1 of the {1300 - stop + 1:,} rows"):
        result = replay.evaluate(simulated, checkpoints[0], rows=f"{stop - 1}:")
    assert result.notes[0].startswith("WARNING")


def test_what_does_not_fit_is_refused(
    made: Made, simulated: Log, checkpoints: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    log = f"--log={made.log.path}"
    assert "--checkpoint is needed, or --policy" in fails([log], capsys)
    assert "--policy uniform is given twice" in fails([log, "--policy=uniform", "--policy=uniform"], capsys)
    assert "Did you mean logged?" in fails([log, "--policy=loged"], capsys)
    assert "--obp evaluates one checkpoint alone" in fails([log, "--policy=uniform", "--obp"], capsys)
    assert "rows must be like" in fails([log, "--policy=uniform", "--rows=5"], capsys)
    assert "does not have the columns" in fails([log, "--policy=logged", f"--checkpoint={checkpoints[0]}"], capsys)


@pytest.mark.xdist_group("processes")
def test_two_processes_find_what_one_finds(made: Made, tmp_path: Path) -> None:
    names = ["logged", "uniform", "best-fixed", "column:chances", "tests.support.policy_logs:lean"]
    asked = ["evaluate", f"--log={made.log.path}", *(f"--policy={name}" for name in names)]
    process = start("replay", [*asked, "--devices=2", f"--output={tmp_path / 'two.json'}"], ROOT)
    main([*asked, f"--output={tmp_path / 'one.json'}"])
    shown = finish(process)
    assert process.returncode == 0, shown
    assert shown.count(f"Result: {tmp_path}{os.sep}two.json") == 1
    one, two = (json.loads((tmp_path / name).read_text()) for name in ("one.json", "two.json"))
    assert two["notes"] == one["notes"]
    for mine, theirs in zip(one["policies"], two["policies"], strict=True):
        (expected,), (found,) = mine["replicas"], theirs["replicas"]
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name] == (pytest.approx(value, rel=1e-12) if isinstance(value, float) else value), name
