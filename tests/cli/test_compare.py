"""Several agents with one config: one table, one picture."""

import json
from pathlib import Path

import pytest

from nl_lightning import AGENTS
from nl_lightning.cli import compare
from nl_lightning.cli.main import main
from tests.support.cli import CONFIGS, H1, SMALL, fails


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_all_agents_on_the_bundled_log(capsys: pytest.CaptureFixture[str]) -> None:
    main(["compare", f"--config={CONFIGS / 'obd.yaml'}", "--id=x", "--model.replicas=2", *SMALL])
    shown = capsys.readouterr().out
    table = shown[shown.index("The agents, each with its best setting") :]
    assert all(name in table for name in AGENTS)
    assert "38 clicks in 10,000 events" in table
    assert "All intervals overlap: this log cannot tell which of these agents is better." in table
    assert "no single policy" in table
    result = json.loads(Path("runs/obd-x/comparison.json").read_text())
    assert [row["agent"] for row in result] == list(AGENTS)
    assert Path("runs/obd-x/comparison.png").stat().st_size > 10_000
    for row in result:
        assert row["ctr_low"] <= row["ctr"] <= row["ctr_high"]
    # a second time nothing is left to do, and the same is shown
    main(["compare", f"--config={CONFIGS / 'obd.yaml'}", "--id=x", "--model.replicas=2", *SMALL])
    again = capsys.readouterr().out
    assert again.count("This run is finished") == len(AGENTS)
    assert again[again.index("The agents, each") :] == table


def test_regret_is_compared_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    main(["compare", H1, "--agents", "NeuralLogUCB1", "NCBF-UCB", "--id=y", *SMALL])
    result = json.loads(Path("runs/h1-y/comparison.json").read_text())
    assert [row["agent"] for row in result] == ["NCBF-UCB", "NeuralLog-UCB-1"]
    assert "96% interval" in capsys.readouterr().out


def test_what_failed_is_said_and_the_others_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """lam 200 with a step of 0.01 diverges for all."""
    with pytest.raises(SystemExit) as stop:
        main(["compare", H1, "--agents", "NCBFUCB", "--id=z", *SMALL, "--model.optimizer=gd", "--model.lam=200"])
    assert stop.value.code == 1
    assert "no result for NCBF-UCB" in capsys.readouterr().err
    assert "there is no agent nosuch" in fails(["compare", H1, "--agents", "nosuch"], capsys)


def test_an_interrupt_ends_the_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    """Lightning turns Ctrl-C into an exit; the agents that are left are not begun."""
    begun = []

    def interrupted(options: list[str]) -> None:
        begun.append(options)
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise SystemExit(1)  # noqa: B904

    with pytest.raises(SystemExit) as stop:
        compare.main([f"--config={CONFIGS / 'obd.yaml'}", "--id=x"], fit=interrupted)
    assert len(begun) == 1
    assert stop.value.code == 1
    assert "--id=x" in capsys.readouterr().err


def test_runs_that_were_stopped_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    small = [*SMALL, "--model.replicas=2", "--trainer.max_steps=1"]
    main(["compare", f"--config={CONFIGS / 'obd.yaml'}", "--id=x", "--agents", "NeuralLogTS1", *small])
    table = capsys.readouterr().out.split("The agents, each")[1]
    assert "NeuralLog-TS-1 *" in table
    assert "* stopped before its end" in table
    assert "overlap" not in table


def test_compare_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["compare", "--help"])
    assert stop.value.code == 0
    assert "--agents" in capsys.readouterr().out
