"""The command ``reproduce``: what is run, what is kept, what is refused, and what is written."""

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nl_lightning.cli import reproduce as command
from nl_lightning.cli.main import main
from nl_lightning.core.errors import InputError
from nl_lightning.experiments import common, obd, paper, reproduce
from nl_lightning.experiments.obd import ReplayPart
from nl_lightning.experiments.paper import PAPER_AGENTS
from nl_lightning.experiments.parts import Part
from nl_lightning.experiments.readings import READINGS, quick
from nl_lightning.experiments.results import FigureResult
from tests.support.launch import SECONDS, finish, start

GRID = (0.1, 100.0)
SMALL = READINGS["literal"]._replace(
    seeds=2, tuning_seeds=1, horizon=60, nu=GRID, lam=GRID, replay_seeds=2, events=3000, on=(), hindsight_seeds=1
)
TWO = ("Logistic-UCB-1", "NeuralLog-UCB-2")


def run(*arguments: str, jobs: int = 1) -> None:
    main(["reproduce", *arguments, f"--jobs={jobs}"])


def fails(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        run(*arguments)
    return int(stop.value.code or 0)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Figures 1 and 4 with one panel and two agents each, figure 2 without its data. It restores the readings."""
    monkeypatch.chdir(tmp_path)
    all_readings = dict(READINGS)
    READINGS.clear()
    READINGS["literal"] = SMALL
    monkeypatch.setattr(obd, "LOGS", {"obd": obd.LOGS["obd"]})
    for name, panel in (("fig1", 0), ("fig4", 2)):
        figure = paper.FIGURES[name]
        monkeypatch.setitem(paper.FIGURES, name, figure._replace(panels=figure.panels[panel : panel + 1], agents=TWO))
    figure = paper.FIGURES["fig2"]
    panels = (figure.panels[0]._replace(environment=paper.Description("tests.support.absent_environment.Absent", {})),)
    monkeypatch.setitem(paper.FIGURES, "fig2", figure._replace(panels=panels))
    yield tmp_path
    # in their order
    READINGS.clear()
    READINGS.update(all_readings)


def stamps(path: Path) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in path.rglob("*") if file.is_file()}


# ---- what is run and written -----------------------------------------------------------------------------------------


def test_a_figure_from_the_runs_to_the_verdicts(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("fig1", "--out=out")
    shown = capsys.readouterr().out
    out = small / "out"
    for name in ("RESULTS.md", *(f"literal/fig1.{ending}" for ending in ("csv", "png", "svg", "json"))):
        assert (out / name).stat().st_size > 100
    stored = json.loads((out / "literal" / "fig1.json").read_text())
    assert stored["command"] == "python -m nl_lightning reproduce fig1 --reading literal"
    # and the control, which has only lam
    assert len(stored["tuning"]) == 2 * len(GRID) ** 2 + len(GRID)
    for row in stored["tuning"]:
        assert (row["mean"] is None) == (row["lam"] == 100)
        assert not (row["chosen"] and row["diverged"])
    assert sum(row["chosen"] for row in stored["tuning"]) == 3
    assert [(floor["panel"], floor["model"]) for floor in stored["floors"]] == [("h1", "linear"), ("h1", "network")]
    assert [control["panel"] for control in stored["controls"]] == ["h1"]
    assert any("tuned for each agent and panel on seed 1000; the final runs have seeds 0 to 1" in note
               for note in stored["notes"])  # fmt: skip
    assert "The paper's claims" in shown
    assert "NeuralLog-UCB-2 is best" in shown
    assert "[4/4] literal fig1 h1" in shown
    assert shown.count("fig1 (literal) is finished.") == 1
    assert f"Results: {Path('out/RESULTS.md')}" in shown
    assert sorted(path.name for path in (out / "runs" / "literal" / "fig1" / "h1").iterdir()) == [
        "Greedy",
        "LogisticUCB1",
        "NeuralLogUCB2",
        "hindsight.json",
    ]


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.xdist_group("processes"))])
def test_a_panel_gets_further_seeds(
    jobs: int, small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They follow once the first seeds of all agents are there; the figure is finished after them."""
    READINGS["literal"] = SMALL._replace(lam=(0.1,), most_seeds=5)
    explorers = ("NCBF-UCB", "NeuralLog-UCB-2")
    monkeypatch.setitem(paper.FIGURES, "fig1", paper.FIGURES["fig1"]._replace(agents=explorers))
    run("fig1", "--out=out", jobs=jobs)
    shown = capsys.readouterr().out
    assert shown.index("[4/7]") < shown.index("NCBF-UCB, further seeds: 5 seeds in all")
    assert shown.index("[7/7]") < shown.index("fig1 (literal) is finished.")
    stored = json.loads((small / "out" / "literal" / "fig1.json").read_text())
    (panel,) = stored["panels"]
    assert [agent["seeds"] for agent in panel["agents"]] == [[0, 1, 2, 3, 4]] * 3
    assert any(note.startswith("Seeds by panel: h1 5.") for note in stored["notes"])
    before = stamps(small / "out" / "runs" / "literal" / "fig1" / "h1")
    run("fig1", "--out=out", "--resume", jobs=jobs)
    assert "Parts: 7 finished and kept, 0 left." in capsys.readouterr().out
    assert stamps(small / "out" / "runs" / "literal" / "fig1" / "h1") == before
    # other numbers of seeds are other runs
    READINGS["literal"] = SMALL._replace(lam=(0.1,), most_seeds=9)
    assert fails("fig1", "--out=out", "--resume") == 1
    assert "most seeds was 5, is 9" in capsys.readouterr().err


def test_a_figure_is_completed_once(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Workers may have finished the last part while an earlier one is still to be told of."""
    whole = Part.run

    def run_all(self: Part, tell: Any) -> str:
        return [whole(self._replace(agent=agent), tell) for agent in (*TWO, paper.CONTROL)][-1]

    monkeypatch.setattr(Part, "run", run_all)
    run("fig1", "--out=out")
    shown = capsys.readouterr().out
    assert shown.count("fig1 (literal) is finished.") == 1
    assert shown.index("[4/4]") < shown.index("fig1 (literal) is finished.")


def test_finished_parts_are_kept_and_others_run(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("fig1", "--out=out")
    csv = (small / "out" / "literal" / "fig1.csv").read_bytes()
    before = stamps(small / "out" / "runs")
    capsys.readouterr()
    assert fails("fig1", "--out=out") == 1
    refused = capsys.readouterr().err
    assert "--resume keeps those that are finished" in refused
    assert "choose another --out" in refused
    run("fig1", "--out=out", "--resume")
    assert "Parts: 4 finished and kept, 0 left." in capsys.readouterr().out
    assert {path: stamp for path, stamp in stamps(small / "out" / "runs").items() if path.name != "plan.json"} == {
        path: stamp for path, stamp in before.items() if path.name != "plan.json"
    }
    shutil.rmtree(small / "out" / "runs" / "literal" / "fig1" / "h1" / "LogisticUCB1")
    run("fig1", "fig4", "--out=out", "--resume")
    assert "Parts: 3 finished and kept, 5 left." in capsys.readouterr().out
    assert (small / "out" / "literal" / "fig1.csv").read_bytes() == csv
    neural = small / "out" / "runs" / "literal" / "fig1" / "h1" / "NeuralLogUCB2"
    assert {path: stamp for path, stamp in before.items() if neural in path.parents} == stamps(neural)
    assert (small / "out" / "literal" / "fig4.csv").exists()


@pytest.mark.parametrize(
    ("given", "differs"),
    [
        ("--seeds=3", "seeds was 2, is 3"),
        ("--horizon=70", "horizon was 60, is 70"),
        ("--tuning-seeds=2", "tuning seeds was 1, is 2"),
        ("--quick", "nu was [0.1, 100.0], is [0.01, 1.0]"),
    ],
)
def test_parts_made_with_other_settings_are_refused(
    given: str, differs: str, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from nl_lightning.experiments import plans

    plans.store(small / "out" / "runs" / "literal", {"fig1": plans.plan("fig1", SMALL)})
    assert fails("fig1", "--out=out", "--resume", given) == 1
    assert differs in capsys.readouterr().err


def test_options_win_over_quick() -> None:
    parser = command.parser()
    asked = command.asked(parser.parse_args(["all", "--quick", "--seeds", "7", "--horizon=90"]))
    assert [reading.name for reading in asked.readings] == list(READINGS)
    for reading in asked.readings:
        expected = quick(READINGS[reading.name])._replace(
            seeds=7, replay_seeds=7, sweep_seeds=7, most_seeds=0, horizon=90
        )
        assert reading == expected
    assert asked.options == ["--quick", "--seeds", "7", "--horizon", "90"]
    assert command.asked(parser.parse_args(["all"])).readings == list(READINGS.values())
    chosen = command.asked(parser.parse_args(["all", "--reading", "vector", "--reading", "stable"])).readings
    assert [reading.name for reading in chosen] == ["stable", "vector"]


def test_a_reading_that_does_not_run_a_figure_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fails("fig3", "--reading=vector", f"--out={tmp_path / 'out'}") == 1
    assert "The readings vector do not run fig3; choose another --reading." in capsys.readouterr().err
    assert not (tmp_path / "out" / "runs").exists()


def test_readings_stand_side_by_side(small: Path) -> None:
    stable = SMALL._replace(
        name="stable", title="stable", train={"optimizer": "adam"}, shorter=False, nu=(0.1,), lam=(0.1,)
    )
    READINGS["stable"] = stable
    run("fig1", "--out=out")
    text = (small / "out" / "RESULTS.md").read_text()
    assert "| claim | where | literal | stable |" in text
    one, other = (json.loads((small / "out" / name / "fig1.json").read_text()) for name in ("literal", "stable"))
    assert [panel["name"] for panel in one["panels"]] == [panel["name"] for panel in other["panels"]]
    assert one["panels"] != other["panels"]
    assert all("lr" not in agent["settings"] for agent in other["panels"][0]["agents"])


def test_the_share_of_equal_verdicts(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("fig1", "--out=out")
    shutil.copytree(small / "out" / "literal", small / "other" / "literal")
    capsys.readouterr()
    main(["reproduce", "check", "out", "other"])
    assert "literal: 4 of 4 verdicts are the same (100.0%)" in capsys.readouterr().out
    path = small / "other" / "literal" / "fig1.json"
    stored = json.loads(path.read_text())
    stored["verdicts"][1]["verdict"] = "agrees"
    path.write_text(json.dumps(stored))
    # the literal reading is known to depend on rounding: no failure
    main(["reproduce", "check", "out", "other"])
    shown = capsys.readouterr().out
    assert "literal: 3 of 4 verdicts are the same (75.0%)" in shown
    assert "fig1 h1, NCBF-UCB is moderate: undecided, agrees" in shown
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "check", "out", "nowhere"])
    assert stop.value.code == 1
    assert "nowhere must be a directory with results" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["--seeds=0"], "--seeds"),
        (["--seeds=1001"], "at most 1000"),
        (["--jobs=0"], "--jobs"),
        (["--data=nowhere"], "--data must be a directory"),
    ],
)
def test_what_cannot_be_is_refused(
    given: Sequence[str], text: str, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "fig1", "--out=out", *given])
    assert stop.value.code == 1
    assert text in capsys.readouterr().err
    assert not (small / "out" / "runs").exists()


def test_help_helps(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "--help"])
    assert stop.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "reproduce all --quick" in shown
    assert "fig1, fig2, fig3, fig4, fig5, fig6, fixed, obd, all" in shown
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "fig9"])
    assert stop.value.code == 2


# ---- what fails ------------------------------------------------------------------------------------------------------


def test_missing_data_are_told_before_anything_runs(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fails("fig2", "--out=alone") == 1
    said = capsys.readouterr()
    assert "nothing.parquet is not here; put it there." in said.err
    assert not list((small / "alone").rglob("summary.json"))
    # beside others these run
    assert fails("fig2", "fig1", "--out=out") == 1
    said = capsys.readouterr()
    assert said.out.index("fig2 cannot be run") < said.out.index("[1/4]")
    assert "error: fig2 is missing: nothing.parquet" in said.err
    assert "fig1" not in said.err
    assert (small / "out" / "literal" / "fig1.csv").exists()


def test_a_part_that_fails_is_named_and_the_only_one_that_is_run_again(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = Part.run

    def broken(self: Part, tell: Any) -> str:
        if self.figure == "fig1" and self.agent == "NeuralLog-UCB-2":
            raise InputError("the disk is full")
        return whole(self, tell)

    with monkeypatch.context() as patch:
        patch.setattr(Part, "run", broken)
        assert fails("fig1", "fig4", "obd", "--out=out") == 1
    said = capsys.readouterr()
    # nu and lam of the replay would not be those of a reproduction in which all goes well
    assert "the replay takes nu and lam from the grids of the figures, of which parts failed" in said.out
    assert not list((small / "out" / "runs").rglob("replay-settings.json"))
    assert "error: literal fig1 h1 NeuralLog-UCB-2: the disk is full" in said.out
    assert "fig1 (literal) is missing: no result of literal fig1 h1 NeuralLog-UCB-2" in said.err
    assert "--resume" in said.err
    assert (small / "out" / "literal" / "fig4.csv").exists()
    assert not (small / "out" / "literal" / "fig1.csv").exists()
    run("fig1", "fig4", "--out=out", "--resume")
    assert "Parts: 7 finished and kept, 1 left." in capsys.readouterr().out
    assert (small / "out" / "literal" / "fig1.csv").exists()


def test_a_figure_that_cannot_be_written_leaves_the_others(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = reproduce.finish

    def broken(result: FigureResult, *args: Any) -> FigureResult:
        if result.name == "fig1":
            raise ZeroDivisionError("nothing to draw")
        return written(result, *args)

    with monkeypatch.context() as patch:
        patch.setattr(reproduce, "finish", broken)
        assert fails("fig1", "fig4", "--out=out") == 1
    said = capsys.readouterr()
    assert "fig4 (literal) is finished." in said.out
    assert "ZeroDivisionError: nothing to draw" in said.err
    run("fig1", "fig4", "--out=out", "--resume")
    assert "Parts: 8 finished and kept, 0 left." in capsys.readouterr().out


def test_an_interrupt_says_how_to_go_on(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Part, tell: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(Part, "run", interrupted)
    with pytest.raises(SystemExit) as stop:
        run("fig1", "--out=out")
    assert "python -m nl_lightning reproduce fig1 --out=out --jobs=1 --resume" in str(stop.value.code)


def _alive(session: int) -> list[int]:
    """Processes of a session."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                state, *rest = (path / "stat").read_text().rsplit(")", 1)[1].split()
                if int(rest[2]) == session and state != "Z":
                    found.append(int(path.name))
    return found


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.xdist_group("processes")
def test_killed_and_stopped_reproductions_go_on_to_the_same_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kill -9 of the command, then Ctrl-C, then to the end; no worker is left behind."""
    options = ["reproduce", "fig1", "--reading=literal", "--quick", "--seeds=2", "--horizon=60"]
    there = [*options, "--out=out", "--jobs=2"]
    runs = tmp_path / "out" / "runs" / "literal" / "fig1"

    def finals() -> int:
        return len(list(runs.glob("*/*/summary.json")))

    process = start("nl_lightning", there, tmp_path)
    _until(lambda: finals() >= 2)
    process.kill()
    _until(lambda: _alive(process.pid) == [])
    finish(process)
    kept = finals()
    assert kept < 18

    process = start("nl_lightning", [*there, "--resume"], tmp_path)
    _until(lambda: finals() > kept)
    os.killpg(process.pid, signal.SIGINT)
    said = finish(process)
    assert process.returncode == 1
    assert f"Parts: {kept} finished and kept" in said
    assert "go on with: python -m nl_lightning reproduce fig1 --reading=literal --quick" in said
    assert "Traceback" not in said
    # multiprocessing's own tracker ends a moment after the command
    _until(lambda: _alive(process.pid) == [])
    kept = finals()
    assert kept < 18

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    run(*options[1:], f"--out={tmp_path / 'out'}", "--resume")
    assert f"Parts: {kept} finished and kept" in capsys.readouterr().out
    run(*options[1:], f"--out={tmp_path / 'whole'}")
    torch.set_num_threads(threads)
    for name in ("fig1.csv", "fig1-curves.csv"):
        assert (tmp_path / "out" / "literal" / name).read_bytes() == (
            tmp_path / "whole" / "literal" / name
        ).read_bytes()


# ---- the table on the Open Bandit Dataset ----------------------------------------------------------------------------


def of(results: Sequence[FigureResult], name: str) -> FigureResult:
    return next(result for result in results if result.name == name)


def test_the_structure_of_the_table(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Linear agents do not depend on m; UCB-2, TS-2 and ada-OFU-ECOLog not on kappa; others do."""
    run("obd", "--out=out")
    results = obd.results("obd", SMALL, small / "out" / "runs" / "literal")
    assert [result.name for result in results] == ["obd-m", "obd-kappa", "obd-S"]
    assert [[panel.name for panel in result.panels] for result in results] == [
        ["m=20", "m=50", "m=100"],
        ["kappa=50", "kappa=100", "kappa=200"],
        ["S=1", "S=10", "S=100"],
    ]

    def dependent(name: str) -> set[str]:
        panels = of(results, name).panels
        return {
            agent
            for agent in PAPER_AGENTS
            if any(not np.array_equal(panels[0].of(agent).curves, panel.of(agent).curves) for panel in panels[1:])
        }

    assert not dependent("obd-m") & set(paper.LINEAR)
    assert not dependent("obd-kappa") & {"NeuralLog-UCB-2", "NeuralLog-TS-2", "ada-OFU-ECOLog"}
    for varied in ("m", "kappa", "S"):
        figure = of(results, f"obd-{varied}")
        assert any("10,000 events with 38 clicks" in note for note in figure.notes)
        for panel, value in zip(figure.panels, paper.REPLAY_VARIED[varied], strict=True):
            assert [agent.agent for agent in panel.agents] == list(PAPER_AGENTS)
            for agent in panel.agents:
                expected = {**paper.DEFAULTS[agent.agent], **paper.REPLAY_BASE, varied: value}
                if agent.agent in paper.LINEAR:
                    del expected["m"]
                assert agent.settings == expected
                assert agent.seeds == [0, 1]
                np.testing.assert_allclose(agent.final, agent.curves[:, -1] / agent.t[-1])
    # the base setting stands in all three
    for agent in PAPER_AGENTS:
        m, kappa, S = (result.panels[0].of(agent) for result in results)
        np.testing.assert_array_equal(m.curves, kappa.curves)
        np.testing.assert_array_equal(m.curves, S.curves)
    assert any("have no network" in note for note in of(results, "obd-m").notes)
    for name in ("obd-m", "obd-kappa", "obd-S"):
        assert (small / "out" / "literal" / f"{name}.png").exists()


def test_kappa_and_S_do_change_what_depends_on_them(tmp_path: Path) -> None:
    """Else the equalities above would say nothing: with more exploration the choices differ."""
    runs = tmp_path / "runs"
    runs.mkdir()
    shared = {agent: {"nu": 1.0, "lam": 1.0, "panels": []} for agent in PAPER_AGENTS}
    (runs / "replay-settings.json").write_text(json.dumps(shared))
    part = ReplayPart("obd", 20, "NeuralLog-UCB-1", SMALL, runs)
    assert part.run(lambda tick: None).startswith("CTR ")
    summary = common.finished(part.directory)
    assert summary is not None
    seen = {case: [summary["replicas"][r]["seen"] for r in part.of_case(case)] for case in obd.cases(20)}
    assert len(seen) == 5
    assert len({tuple(values) for values in seen.values()}) > 1
    assert [row["seed"] for row in summary["replicas"]] == [0, 1] * 5


def test_a_simulated_log_and_what_ends_before_the_horizon(tmp_path: Path) -> None:
    """3000 events show each of five arms equally often: some 600 are accepted, and that is said."""
    scale = SMALL._replace(horizon=2000)
    obd.prepare(["simulated"], scale, tmp_path)
    stamp = stamps(tmp_path)
    obd.prepare(["simulated"], scale, tmp_path)
    assert stamps(tmp_path) == stamp
    part = ReplayPart("simulated", None, "Logistic-UCB-1", scale, tmp_path)
    part.run(lambda tick: None)
    summary = common.finished(part.directory)
    assert summary is not None
    accepted = [row["accepted"] for row in summary["replicas"]]
    assert 300 < min(accepted) < 1200
    notes = obd.notes("simulated", "m", scale, summary["replicas"], summary, obd.read_settings(tmp_path))
    assert any(f"agents accepted {min(accepted):,} to {max(accepted):,} events" in note for note in notes)


# ---- W&B -------------------------------------------------------------------------------------------------------------


def test_wandb_has_a_run_for_every_final_run_and_one_for_the_figure(
    small: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import wandb

    begun: list[dict[str, Any]] = []
    logged: dict[str, list[str]] = {}
    init, log_artifact = wandb.init, wandb.Run.log_artifact

    def recorded(**settings: Any) -> Any:
        begun.append(settings)
        return init(**settings)

    def kept(self: Any, artifact: Any, *args: Any, **kwargs: Any) -> Any:
        logged[artifact.name] = sorted(artifact.manifest.entries)
        return log_artifact(self, artifact, *args, **kwargs)

    monkeypatch.setattr(wandb, "init", recorded)
    monkeypatch.setattr(wandb.Run, "log_artifact", kept)
    run("fig1", "--out=out", "--wandb")
    assert [(run["job_type"], run["name"], run["mode"]) for run in begun] == [
        ("literal-fig1", "h1-NeuralLog-UCB-2", "offline"),
        ("literal-fig1", "h1-Greedy", "offline"),
        ("literal-fig1", "h1-Logistic-UCB-1", "offline"),
        ("result", "literal-fig1", "offline"),
    ]
    assert len({run["group"] for run in begun}) == 1
    assert begun[0]["group"].startswith("reproduce-")
    files = logged[f"{begun[0]['group']}-literal-fig1"]
    assert files == ["fig1-curves.csv", "fig1.csv", "fig1.json", "fig1.png", "fig1.svg"]
    tables = [entry for entries in logged.values() for entry in entries if entry.endswith(".table.json")]
    assert {"finals.table.json", "verdicts.table.json", "chosen.table.json"} <= set(tables)
    assert "wandb sync" in capfd.readouterr().out
    assert len(list((small / "out" / "literal").glob("wandb/offline-run-*"))) == 1
    assert len(list((small / "out" / "runs").glob("literal/fig1/h1/*/wandb/offline-run-*"))) == 3
