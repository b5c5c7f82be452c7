"""One agent in one panel: the grid search, what it chooses, and the final run."""

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from nl_lightning.agents import NCBFUCB, NeuralLogUCB2
from nl_lightning.cli.main import main
from nl_lightning.core.errors import InputError, TrainNNDiverged
from nl_lightning.experiments import common, fits, paper, parts, shared
from nl_lightning.experiments.parts import Part
from nl_lightning.experiments.pool import Tick
from nl_lightning.experiments.readings import READINGS, Reading
from nl_lightning.experiments.results import AgentResult
from tests.support.fits import Fit

SMALL = READINGS["literal"]._replace(seeds=2, tuning_seeds=2, horizon=100, nu=(0.1, 100.0), lam=(0.1, 100.0))
STABLE = READINGS["stable"]._replace(seeds=2, tuning_seeds=1, horizon=60, nu=(0.01,), lam=(0.1, 1.0), sweep_seeds=2)
GRID = SMALL.nu
"""lam = 100 diverges at the first call of TrainNN: lr * lam >= 1."""

SEARCH = "tuning-lr=0.01"

Made = Callable[..., Part]


@pytest.fixture
def part(tmp_path: Path) -> Made:
    def make(agent: str = "NeuralLog-UCB-2", reading: Reading = SMALL, root: str = "runs") -> Part:
        return Part("fig1", paper.FIGURES["fig1"].panels[0], agent, reading, tmp_path / root)

    return make


def quiet(tick: Tick) -> None:
    """Nobody wants to know."""


def test_the_grid_chooses_as_a_plain_loop_over_settings_and_seeds(part: Made, fit: Fit) -> None:
    """Every setting and seed alone; those that diverge are out."""
    made = part()
    made.run(quiet)
    means, lost = {}, {}
    for nu in GRID:
        for lam in GRID:
            regrets = []
            for seed in (1000, 1001):
                agent = NeuralLogUCB2(dim=20, nu=nu, lam=lam, kappa=10.0, S=1.0, seed=seed, optimizer="gd", lr=0.01)
                try:
                    regrets.append(float(fit(agent, rounds=100, arms=5, pool=2500)[1].regret.sum()))
                except TrainNNDiverged:
                    continue
            means[nu, lam], lost[nu, lam] = np.mean(regrets) if regrets else None, 2 - len(regrets)
    rows = made.tuning_rows()
    assert [(row["nu"], row["lam"]) for row in rows] == [(nu, lam) for nu in GRID for lam in GRID]
    for row in rows:
        cell = row["nu"], row["lam"]
        assert row["diverged"] == lost[cell]
        assert row["seeds"] == 2
        assert row["mean"] == (None if means[cell] is None else pytest.approx(means[cell], rel=1e-6))
    safe = {cell: mean for cell, mean in means.items() if not lost[cell]}
    best = min(safe, key=lambda cell: safe[cell])
    assert [(row["nu"], row["lam"]) for row in rows if row["chosen"]] == [best]
    assert {row["diverged"] for row in rows} == {0, 2}
    result = made.result()
    assert (result.settings["nu"], result.settings["lam"]) == best
    assert result.settings == {"nu": best[0], "lam": best[1], "lr": 0.01, "kappa": 10.0, "S": 1.0, "m": 20}
    for seed in (0, 1):
        agent = NeuralLogUCB2(dim=20, nu=best[0], lam=best[1], seed=seed, optimizer="gd", lr=0.01)
        alone = fit(agent, rounds=100, arms=5, pool=2500)[1].regret.sum()
        assert result.final[seed] == pytest.approx(float(alone), rel=1e-6)
        assert result.curves[seed, -1] == pytest.approx(result.final[seed])


def test_tuned_on_seeds_that_the_final_run_does_not_use(part: Made) -> None:
    made = part("Logistic-UCB-1")
    made.run(quiet)
    searched, final = (
        json.loads((made.directory / where / "summary.json").read_text())["replicas"] for where in (SEARCH, ".")
    )
    assert {row["seed"] for row in searched} == {1000, 1001}
    assert [row["seed"] for row in final] == made.result().seeds == [0, 1]
    assert len(searched) == 2 * len(GRID) ** 2
    assert "m" not in made.result().settings


def test_the_files_of_a_part(part: Made) -> None:
    """Of the grid only what it came to; of the final run all, so that it can be shown and repeated."""
    made = part("Logistic-UCB-1")
    assert not made.finished
    line = made.run(quiet)
    assert made.finished
    assert line.startswith("regret ")
    assert sorted(path.name for path in (made.directory / SEARCH).iterdir()) == [
        "config.yaml",
        "summary.json",
    ]
    assert {"config.yaml", "summary.json", "rounds.parquet", "checkpoints"} <= {
        p.name for p in made.directory.iterdir()
    }
    assert not (made.directory / "curve.png").exists()
    before = {path: path.stat().st_mtime_ns for path in made.directory.rglob("*") if path.is_file()}
    assert made.run(quiet) == line
    assert before == {path: path.stat().st_mtime_ns for path in made.directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("agent", ["NeuralLog-TS-1", "ada-OFU-ECOLog"])
def test_a_run_is_repeated_by_its_config(
    agent: str, part: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = part(agent)
    made.run(quiet)
    main(["fit", f"--config={made.directory / 'config.yaml'}", f"--run.dir={tmp_path}", "--run.name=x", "--run.id=y"])
    mine, again = (pd.read_parquet(path / "rounds.parquet") for path in (made.directory, tmp_path / "x" / "y"))
    pd.testing.assert_frame_equal(mine, again)
    capsys.readouterr()
    main(["fit", f"--resume={made.directory}"])
    assert "This run is finished" in capsys.readouterr().out
    # a grid as well
    config = yaml.safe_load((made.directory / SEARCH / "config.yaml").read_text())
    assert config["model"]["init_args"]["grid"] == {"nu": [0.1, 100.0], "lam": [0.1, 100.0]}
    main(
        [
            "fit",
            f"--config={made.directory / SEARCH / 'config.yaml'}",
            f"--run.dir={tmp_path}",
            "--run.name=g",
        ]
    )
    (summary,) = (tmp_path / "g").glob("*/summary.json")
    searched = json.loads((made.directory / SEARCH / "summary.json").read_text())
    assert json.loads(summary.read_text())["over_replicas"] == searched["over_replicas"]


class Stopped(Exception):
    """A stand-in for a kill."""


def stop_at(stage: str, rounds: int) -> Callable[[Tick], None]:
    def tell(tick: Tick) -> None:
        if (tick.stage, tick.rounds) == (stage, rounds):
            raise Stopped

    return tell


def same(one: AgentResult, other: AgentResult) -> None:
    for mine, others in zip(one, other, strict=True):
        np.testing.assert_equal(mine, others)


@pytest.mark.parametrize("stage", ["tuning", "final"])
def test_a_part_that_was_cut_off_goes_on_to_the_same_result(
    stage: str, part: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a checkpoint after every ten calls of TrainNN
    monkeypatch.setitem(paper.LITERAL, "update_every", 5)
    monkeypatch.setitem(paper.LITERAL, "steps", 5)
    whole, cut = part("NeuralLog-TS-2", root="whole"), part("NeuralLog-TS-2", root="cut")
    whole.run(quiet)
    with pytest.raises(Stopped):
        cut.run(stop_at(stage, 70))
    where = cut.directory / SEARCH if stage == "tuning" else cut.directory
    assert (where / "checkpoints" / "last.ckpt").exists()
    assert not cut.finished
    rounds: list[int] = []
    cut.run(lambda tick: rounds.append(tick.rounds) if tick.stage == stage else None)
    assert rounds[:2] == [0, 55]
    same(whole.result(), cut.result())
    assert whole.tuning_rows() == cut.tuning_rows()


def test_where_no_setting_comes_through_a_shorter_step_is_tried(part: Made) -> None:
    made = part("Logistic-UCB-1", SMALL._replace(nu=(100.0,), lam=(100.0,)))
    assert made.run(quiet).endswith("lr 0.001")
    assert made.finished
    assert [(row["lr"], row["diverged"], row["chosen"]) for row in made.tuning_rows()] == [
        (0.01, 2, False),
        (0.001, 0, True),
    ]
    assert made.result().settings["lr"] == 0.001
    config = yaml.safe_load((made.directory / "config.yaml").read_text())
    assert config["model"]["init_args"]["lr"] == 0.001
    assert "takes steps of 0.001, because with 0.01 no setting" in str(made.note())


def test_a_part_made_with_another_step_is_not_taken_for_this_one(part: Made) -> None:
    made = part("Logistic-UCB-1", SMALL._replace(nu=(0.1,), lam=(0.1,)))
    made.run(quiet)
    other = made._replace(panel=made.panel._replace(lr=(0.001,)))
    with pytest.raises(InputError, match=r"holds a run with other settings; they differ in model.init_args.lr"):
        other.run(quiet)


def test_a_part_in_which_every_setting_diverges_has_no_numbers(part: Made) -> None:
    made = part("Logistic-UCB-1", SMALL._replace(nu=(100.0,), lam=(100.0,)))
    made = made._replace(panel=made.panel._replace(lr=(0.01,)))
    assert "diverged in every setting" in made.run(quiet)
    assert made.finished
    result = made.result()
    assert np.isnan(result.final).all()
    assert result.seeds == result.diverged == [0, 1]
    (row,) = made.tuning_rows()
    assert row["mean"] is None
    assert (row["diverged"], row["chosen"]) == (2, False)
    assert "diverged in every setting" in made.run(quiet)


def test_final_runs_mark_seeds_that_diverge(part: Made, tmp_path: Path) -> None:
    made = part()
    settings = {"lam": [0.1, 100.0, 0.1], "seed": [0, 1, 2], "replicas": 3, "on_divergence": "mark"}
    settings |= {"optimizer": "gd", "lr": 0.01, "nu": 0.1}
    fit = fits.Fit(tmp_path / "some", made.agent, settings, made.panel.environment, 100)
    environment = fits.environment_of(made.panel.environment)
    summary = fits.run(fit, environment, lambda rounds: None)
    result = common.of_replicas(fit.directory, summary, {}, range(3))
    assert result.diverged == [1]
    assert np.isnan(result.final).tolist() == [False, True, False]
    assert np.isnan(result.curves).sum(1).tolist() == [0, 50, 0]
    # all of them: a result, and not an error
    all_of_them = fit._replace(directory=tmp_path / "all", settings={**settings, "lam": 100.0})
    summary = fits.run(all_of_them, environment, lambda rounds: None)
    assert summary["finished"]
    result = common.of_replicas(all_of_them.directory, summary, {}, range(3))
    assert result.diverged == [0, 1, 2]
    assert result.t.max() == 50
    assert not (tmp_path / "all" / "rounds").exists()


# ---- nu and lam of the replay ----------------------------------------------------------------------------------------


def row(nu: float, lam: float, diverged: int = 0) -> dict[str, float]:
    return {"nu": nu, "lam": lam, "diverged": diverged}


def test_shared_settings_have_the_best_mean_rank_and_never_diverged() -> None:
    grids = {
        "a": [row(1, 1), row(2, 1), row(3, 1), row(4, 1, 1)],
        "b": [row(4, 1), row(2, 1), row(3, 1), row(1, 1)],
        "c": [row(3, 1), row(2, 1), row(1, 1), row(4, 1)],
    }
    # ranks: 1 has 0 + 3 + 2, 2 has 1 + 1 + 1, 3 has 2 + 2 + 0; 4 diverged
    assert shared.best_of("NCBF-UCB", grids) == shared.Shared(2, 1, ["a", "b", "c"])
    # where all diverged somewhere, the least counts
    worse = {"a": [row(1, 1, 2), row(2, 1, 1)], "b": [row(1, 1), row(2, 1)]}
    assert shared.best_of("NCBF-UCB", worse)[:2] == (2, 1)
    assert shared.best_of("NCBF-UCB", {}) == shared.Shared(**paper.DEFAULTS["NCBF-UCB"], panels=[])


def test_shared_settings_are_written_down_once(part: Made) -> None:
    made = part("Logistic-UCB-1")
    made.run(quiet)
    found = shared.shared_settings(made.root, SMALL)
    result = made.result()
    assert found["Logistic-UCB-1"] == shared.Shared(result.settings["nu"], result.settings["lam"], ["fig1 h1"])
    assert [agent for agent in paper.PAPER_AGENTS if found[agent].panels] == ["Logistic-UCB-1"]
    shared.settle_settings(made.root, SMALL)
    shutil.rmtree(made.directory)
    shared.settle_settings(made.root, SMALL)
    assert shared.read_settings(made.root) == {agent: values._asdict() for agent, values in found.items()}


# ---- other readings, the control, and sweeps -------------------------------------------------------------------------


def test_the_literal_reading_is_the_papers_words_and_nothing_else(part: Made) -> None:
    """Its numbers must stay reproducible: what it asks of an agent is spelled out here."""
    chosen = parts.Chosen(0.01, 0.1, 0.01, 0)
    made = part("NeuralLog-UCB-2", READINGS["literal"])
    words = {"optimizer": "gd", "start": "warm", "steps": 100, "update_every": 50, "update_growth": 0.0}
    common = {"kappa": 10.0, "S": 1.0, **words, "width": 20, "depth": 2, "lr": 0.01, "on_divergence": "mark"}
    assert made.final(chosen).settings == {**common, "nu": 0.01, "lam": 0.1, "replicas": 10, "seed": 0}
    grid = [0.01, 0.1, 1.0, 10.0, 100.0]
    searched = {"grid": {"nu": grid, "lam": grid}, "replicas": 3, "seed": 1000}
    assert made.tuning(0.01).settings == {**common, **searched}
    assert made.final(chosen).rounds == 2000
    assert made.panel.environment.init_args == {"function": "h1", "pool": 2500}


def test_the_stable_reading_leaves_the_rest_to_the_agents(part: Made) -> None:
    made = part("NeuralLog-UCB-2", READINGS["stable"])
    settings = made.final(parts.Chosen(0.001, 1.0, None, 0)).settings
    fixed = {"optimizer": "adam", "kappa": 10.0, "S": 1.0, "width": 20, "depth": 2, "on_divergence": "mark"}
    assert settings == {**fixed, "nu": 0.001, "lam": 1.0, "replicas": 50, "seed": 0}
    assert min(READINGS["stable"].nu) == 0.0001


def test_greedy_has_no_nu_and_tunes_its_lam(part: Made) -> None:
    made = part("Greedy", STABLE)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*nu has no effect")
        line = made.run(quiet)
    assert "nu" not in line
    assert [row["lam"] for row in made.tuning_rows()] == [0.1, 1.0]
    assert set(made.result().settings) == {"lam", "kappa", "S", "m"}


def test_a_reading_has_its_panels_and_its_scaling() -> None:
    vector, figure = READINGS["vector"], paper.FIGURES["fig2"]
    assert [panel.name for panel in vector.panels(figure)] == ["mnist", "shuttle"]
    assert vector.runs("fig2")
    assert not vector.runs("fig1")
    assert not vector.runs("obd")
    assert vector.described(figure.panels[0].environment).init_args == {"dataset": "mnist", "scaling": "vector"}
    assert READINGS["stable"].panels(figure) == figure.panels
    assert not READINGS["literal"].runs("fixed")


def test_sweeps_are_single_runs_with_one_setting_changed(
    tmp_path: Path, fit: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps = (
        paper.Sweep("kappa", (10.0, 50.0)),
        paper.Sweep("kappa", (10.0, 50.0), nu=1.0),
        paper.Sweep("nu", (0.01, 1.0)),
        paper.Sweep("arms", (5, 20)),
    )
    figure = paper.FIGURES["fixed"]
    monkeypatch.setitem(paper.FIGURES, "fixed", figure._replace(sweeps=sweeps))
    made = Part("fixed", figure.panels[0], "NCBF-UCB", STABLE, tmp_path)
    made.run(quiet)
    assert made.finished
    found = made.sweep_results()
    assert [(s.varied, s.value) for s in found] == [
        *(("arms", 5), ("arms", 20), ("kappa", 10), ("kappa", 50)),
        *(("kappa at nu = 1", 10), ("kappa at nu = 1", 50), ("nu", 0.01), ("nu", 1)),
    ]
    lam = made.result().settings["lam"]
    for sweep in found:
        name, _, nu = sweep.varied.partition(" at nu = ")
        changed = {"nu": float(nu or 0.01), "kappa": 10.0} | ({name: sweep.value} if name != "arms" else {})
        arms = int(sweep.value) if sweep.varied == "arms" else 20
        agent = NCBFUCB(dim=20, lam=lam, seed=1, **changed)
        alone = fit(agent, rounds=60, arms=arms, pool=arms)[1].regret.sum()
        assert sweep.seeds == [0, 1]
        assert sweep.final[1] == pytest.approx(float(alone), rel=1e-6)
    shutil.rmtree(made.directory / "sweep-arms=5")
    assert not made.finished
