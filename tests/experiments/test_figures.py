"""The files of a figure: their content, that the same numbers give the same bytes, and what a picture says."""

import io
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from nl_lightning.experiments import figures
from nl_lightning.experiments.paper import PAPER_AGENTS
from nl_lightning.experiments.results import FigureResult
from tests.support.experiment_results import agent_result, figure, panel


@pytest.mark.parametrize("name", ["fig1", "obd-kappa"])
def test_final_numbers_equal_a_twin_in_pandas(name: str) -> None:
    result = figure(name)
    table = pd.read_csv(io.StringIO(figures.finals_csv(result)))
    twin = pd.concat(
        pd.DataFrame({"panel": p.name, "agent": a.agent, "seed": a.seeds, result.measure: a.final, **a.settings})
        for p in result.panels
        for a in p.agents
    )
    twin["diverged"] = twin[result.measure].isna().astype(int)
    pd.testing.assert_frame_equal(table, twin.reset_index(drop=True)[table.columns], rtol=1e-14)
    assert table.diverged.sum() == 2


def test_curves_equal_a_twin_in_pandas() -> None:
    result = figure("fig1")
    table = pd.read_csv(io.StringIO(figures.curves_csv(result)))
    assert list(table.columns) == ["panel", "agent", "t", "mean", "low", "high"]
    counted = table.groupby(["panel", "agent"]).t
    assert counted.size().between(50, 60).all()
    assert (counted.min() == 1).all()
    assert (counted.max() == 400).all()
    for p in result.panels:
        for a in p.agents:
            frame = pd.DataFrame(a.curves.T, index=a.t, columns=a.seeds).drop(columns=a.diverged)
            mine = table[(table.panel == p.name) & (table.agent == a.agent)].set_index("t")
            frame = frame.loc[mine.index]
            np.testing.assert_allclose(mine["mean"], frame.mean(axis=1), rtol=1e-5)
            n = frame.shape[1]
            assert n == (8 if a.diverged else 10)
            low, high = stats.t.interval(0.96, n - 1, frame.mean(axis=1), frame.std(axis=1) / np.sqrt(n))
            np.testing.assert_allclose(mine.low, low, rtol=1e-4)
            np.testing.assert_allclose(mine.high, high, rtol=1e-4)


def test_a_band_ends_with_the_first_seed_and_is_none_without_any() -> None:
    result = agent_result("NCBF-UCB", [10.0, 12.0, 14.0])
    result.curves[1, 200:] = np.nan
    band = figures.band(result)
    assert band is not None
    assert band.t[-1] == result.t[199]
    assert not np.isnan(band.interval.mean).any()
    assert figures.band(agent_result("NCBF-UCB", [np.nan, np.nan])) is None


def test_the_same_numbers_give_the_same_bytes(tmp_path: Path) -> None:
    result = figure("obd-m")
    for ending in figures.FORMATS:
        first, second = (tmp_path / f"{turn}.{ending}" for turn in ("first", "second"))
        figures.draw(result, first)
        figures.draw(result, second)
        assert first.read_bytes() == second.read_bytes()
        result.panels[0].agents[0].curves[0] *= 1.5
        figures.draw(result, second)
        assert first.read_bytes() != second.read_bytes()
    svg = (tmp_path / "first.svg").read_text()
    assert "<dc:date>" not in svg
    assert b"matplotlib" not in (tmp_path / "first.png").read_bytes()
    assert len(svg) < 500_000


def drawn(result: FigureResult, path: Path) -> str:
    """An SVG whose comments are the texts that it shows."""
    figures.draw(result, path)
    return "\n".join(re.findall(r"<!-- (.*?) -->", path.read_text(), flags=re.DOTALL))


def test_what_a_picture_says(tmp_path: Path) -> None:
    texts = drawn(figure("fig1"), tmp_path / "a.svg")
    assert texts.count("round t") == 3
    assert texts.count("cumulative regret") >= 1
    assert "2 of 10 seeds of NCBF-UCB diverged" in texts
    assert "96% band over 10 seeds" in texts
    for agent in PAPER_AGENTS[:5]:
        assert f"\n{agent}\n" in f"\n{texts}\n"
    texts = drawn(figure("simulated-S", diverging=False), tmp_path / "b.svg")
    assert texts.count("accepted events t") == 3
    assert "cumulative reward" in texts
    assert "diverged" not in texts
    assert drawn(figure("fig3"), tmp_path / "c.svg").count("round t") == 3


def test_an_agent_without_numbers_and_a_single_seed_are_drawn(tmp_path: Path) -> None:
    numbers = {"NCBF-UCB": [np.nan, np.nan], "an agent of one's own": [3.0, 4.0]}
    result = figure("fig1")._replace(panels=[panel(numbers)])
    assert "all 2 seeds of NCBF-UCB diverged" in drawn(result, tmp_path / "a.svg")
    assert "NCBF-UCB" not in figures.curves_csv(result)
    texts = drawn(result._replace(panels=[panel({"NCBF-UCB": [3.0]})]), tmp_path / "b.svg")
    assert "one seed" in texts


def test_every_agent_has_a_colour_and_a_line_of_its_own() -> None:
    assert list(figures.STYLES) == list(PAPER_AGENTS)
    assert len({style.colour for style in figures.STYLES.values()}) == 7
    assert len({style.line for style in figures.STYLES.values()}) == 7


def test_thinning_keeps_both_ends() -> None:
    for count in (1, 2, 59, 60, 61, 400):
        places = figures.thinned(count, 60)
        assert places[0] == 0
        assert places[-1] == count - 1
        assert len(places) == min(count, 60)
        assert np.ptp(np.diff(places)) <= 1 if count > 1 else True
