"""Several agents with one config: one table, one picture."""

import json
from pathlib import Path

import pytest
from scipy import stats

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
    before, table = shown.split("Agents, 2 seeds each")
    assert all(name in table for name in AGENTS)
    # one table, and what is said of the log is said once
    assert "┏" not in before
    for text in ("38 clicks in 10,000 events", "any single policy", "comparisons: each at 99.29%", "clicks of"):
        assert shown.count(text) == 1
    assert "An agent is better than Greedy if the whole interval of its difference lies above 0." in table
    assert table.count("│ cannot tell") == 7
    assert table.count("│ baseline") == 1
    assert "None of them can be told apart from Greedy: with 80% power these events show differences of" in table
    assert max(len(line) for line in table.splitlines() if line.startswith("│")) <= 100
    result = json.loads(Path("runs/obd-x/comparison.json").read_text())
    assert [row["agent"] for row in result] == list(AGENTS)
    assert Path("runs/obd-x/comparison.png").stat().st_size > 10_000
    for row in result:
        assert row["ctr_low"] <= row["ctr"] <= row["ctr_high"]
        assert row["baseline"] == "Greedy"
        assert (row["difference"] is None) == (row["agent"] == "Greedy")
    # a second time nothing is left to do, and the same is shown
    main(["compare", f"--config={CONFIGS / 'obd.yaml'}", "--id=x", "--model.replicas=2", *SMALL])
    again = capsys.readouterr().out
    assert again.count("This run is finished") == len(AGENTS)
    assert again.split("Agents, 2 seeds each")[1] == table


def test_regret_is_compared_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    main(["compare", H1, "--agents", "NeuralLogUCB1", "NCBF-UCB", "--id=y", *SMALL])
    result = json.loads(Path("runs/h1-y/comparison.json").read_text())
    assert [row["agent"] for row in result] == ["NCBF-UCB", "NeuralLog-UCB-1"]
    out = capsys.readouterr().out
    assert "96% interval" in out
    assert "minus NCBF-UCB" in out
    finals = [
        [replica["regret"] for replica in json.loads(Path(f"runs/h1-y/{name}/summary.json").read_text())["replicas"]]
        for name in ("NeuralLogUCB1", "NCBFUCB")
    ]
    ends = stats.ttest_rel(*finals).confidence_interval(0.96)
    assert [result[1]["difference"][end] for end in ("low", "high")] == pytest.approx([ends.low, ends.high])
    # the runs are there: another baseline is another table
    main(["compare", H1, "--agents", "NeuralLogUCB1", "NCBF-UCB", "--id=y", "--baseline=NeuralLogUCB1", *SMALL])
    assert "minus NeuralLog-UCB-1" in capsys.readouterr().out
    turned = json.loads(Path("runs/h1-y/comparison.json").read_text())[0]["difference"]
    assert [turned["low"], turned["high"]] == pytest.approx([-ends.high, -ends.low])
    wrong = ["compare", H1, "--agents", "NeuralLogUCB1", "NCBF-UCB", "--id=y", "--baseline=NeuralLogUCB2", *SMALL]
    assert "--baseline must be one of the agents, NeuralLogUCB1, NCBFUCB; got NeuralLogUCB2" in fails(wrong, capsys)


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
    table = capsys.readouterr().out.split("Agents")[1]
    assert "NeuralLog-TS-1 *" in table
    assert "* stopped before its end" in table
    assert "baseline" not in table


def test_differences_are_logged_to_wandb(capsys: pytest.CaptureFixture[str]) -> None:
    # W&B's process keeps the directory that it was started in, and so the test before it
    pytest.importorskip("wandb").teardown()
    given = [H1, f"--config={CONFIGS / 'loggers' / 'wandb.yaml'}", "--agents", "NeuralLogUCB1", "Greedy"]
    main(["compare", *given, "--id=w", *SMALL])
    (run,) = Path("runs/h1-w/wandb").glob("offline-run-*")
    assert f"upload it with: wandb sync {run}" in capsys.readouterr().out
    (table,) = run.glob("files/media/table/differences_*.table.json")
    stored = json.loads(table.read_text())
    row = dict(zip(stored["columns"], stored["data"][0], strict=True))
    assert (row["agent"], row["baseline"]) == ("NeuralLog-UCB-1", "Greedy")
    (expected,) = [
        r["difference"] for r in json.loads(Path("runs/h1-w/comparison.json").read_text()) if r["difference"]
    ]
    assert row["low"] == pytest.approx(expected["low"])


def test_compare_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["compare", "--help"])
    assert stop.value.code == 0
    assert "--agents" in capsys.readouterr().out
