"""How many seeds a panel needs, and the runs of the further ones."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from nl_lightning.experiments import common, further, paper
from nl_lightning.experiments.comparisons import MARGIN, compare
from nl_lightning.experiments.further import FurtherPart
from nl_lightning.experiments.parts import Part
from nl_lightning.experiments.pool import Tick
from nl_lightning.experiments.readings import READINGS, quick
from nl_lightning.experiments.results import AgentResult, PanelResult
from nl_lightning.runs.summary import REGRET

SMALL = READINGS["stable"]._replace(seeds=2, tuning_seeds=1, horizon=60, nu=(0.01,), lam=(0.1, 1.0), most_seeds=5)
H1 = paper.FIGURES["fig1"].panels[0]


def quiet(tick: Tick) -> None:
    """Nobody wants to know."""


def result(agent: str, final: np.ndarray) -> AgentResult:
    n = len(final)
    return AgentResult(agent, {}, list(range(n)), np.array([2000]), final[:, None], final, [])


def panel(*finals: np.ndarray) -> PanelResult:
    agents = ("NCBF-UCB", "NeuralLog-UCB-2", "NeuralLog-TS-1")
    return PanelResult("p", "p", [result(agent, final) for agent, final in zip(agents, finals, strict=False)])


def test_needed_seeds_as_in_plain_loops() -> None:
    random = np.random.default_rng(0)
    finals = [random.normal(mean, spread, 12) for mean, spread in ((100, 9), (110, 14), (105, 3))]
    worst = 0.0
    for a in range(3):
        for b in range(a + 1, 3):
            differences = [x - y for x, y in zip(finals[a], finals[b], strict=True)]
            mean = sum(differences) / 12
            s = math.sqrt(sum((x - mean) ** 2 for x in differences) / 11)
            width = MARGIN / 2 * min(sum(finals[a]) / 12, sum(finals[b]) / 12)
            worst = max(worst, (stats.t.ppf(0.98, 11) * s / width) ** 2)
    assert further.needed(panel(*finals)) == math.ceil(worst)


def test_agents_that_do_not_explore_with_a_network_do_not_count() -> None:
    random = np.random.default_rng(1)
    finals = [random.normal(100, 5, 20) for _ in range(2)]
    both = panel(*finals)
    wild = random.normal(900, 400, 20)
    others = [result("Logistic-UCB-1", wild), result("Greedy", wild)]
    assert further.needed(both._replace(agents=[*both.agents, *others])) == further.needed(both) > 0


@pytest.mark.parametrize(
    ("finals", "wanted"),
    [
        ([np.full(4, 3.0), np.full(4, 5.0)], 0),
        ([np.arange(4.0)], 0),
        # of 2000 rounds, half of 0.2 clicks is the width
        ([np.zeros(4), np.array([0.0, 0.01, 0.0, 0.02])], 1),
        (
            [np.zeros(4), np.array([0.0, 1.0, 0.0, 2.0])],
            math.ceil((stats.t.ppf(0.98, 3) * np.sqrt(11 / 12) / 0.1) ** 2),
        ),
    ],
    ids=["no spread", "one agent", "next to no regret", "some regret beside none"],
)
def test_edges(finals: list[np.ndarray], wanted: int) -> None:
    assert further.needed(panel(*finals)) == wanted


def test_with_the_needed_seeds_comparisons_are_decided() -> None:
    """Over many panels whose agents differ by any amount: nearly all intervals exclude 0 or lie within the margin."""
    random = np.random.default_rng(2)
    decided, first = [], []
    for _ in range(300):
        shift, shared = random.uniform(-8, 8), random.normal(0, 20, 4000)

        def draw(n: int, shift: float = shift, shared: np.ndarray = shared) -> PanelResult:
            noise = random.normal(0, 10, (2, n))
            return panel(100 + shared[:n] + noise[0], 100 + shift + shared[:n] + noise[1])

        pilot = draw(50)
        for n, found in ((50, first), (max(50, further.needed(pilot)), decided)):
            both = pilot if n == 50 else draw(n)
            comparison = compare(both.of("NCBF-UCB"), both.of("NeuralLog-UCB-2"), REGRET)
            found.append(comparison.equal or comparison.holds or comparison.opposing <= 0.04)
    assert np.mean(decided) > 0.85
    assert np.mean(decided) > np.mean(first) + 0.2


def test_further_seeds_are_as_if_all_had_been_run_at_once(tmp_path: Path) -> None:
    own = [Part("fig1", H1, agent, SMALL, tmp_path / "a") for agent in ("NCBF-UCB", "NeuralLog-UCB-2", paper.CONTROL)]
    later = further.of_parts(own)
    assert [part.name for part in later] == [f"{part.name}, further seeds" for part in own]
    for part in own[:-1]:
        part.run(quiet)
    further.settle(own)
    assert further.settled(tmp_path / "a", "fig1", "h1") is None, "an agent is still missing"
    assert not any(part.finished for part in later)
    own[-1].run(quiet)
    further.settle(own)
    assert further.settled(tmp_path / "a", "fig1", "h1") == 5
    assert not any(part.finished for part in later)
    assert own[0].result().seeds == [0, 1]
    for part in later:
        assert part.run(quiet) == "5 seeds in all"
    assert all(part.finished for part in later)
    for part in own:
        found = part.result()
        assert found.seeds == [0, 1, 2, 3, 4]
        whole = Part("fig1", H1, part.agent, SMALL._replace(seeds=5, most_seeds=0), tmp_path / "b")
        whole.run(quiet)
        expected = whole.result()
        np.testing.assert_allclose(found.final, expected.final, rtol=1e-5)
        np.testing.assert_allclose(found.curves, expected.curves, rtol=1e-5)
        np.testing.assert_array_equal(found.t, expected.t)
        assert found.settings == expected.settings
    (note,) = further.note(own)
    needed = json.loads((tmp_path / "a" / "fig1" / "h1" / "seeds.json").read_text())["needed"]
    assert "Seeds by panel: h1 5." in note
    assert f"More would have been needed for h1 ({needed:,})." in note
    # what is settled stays, and what is finished is not run again
    file = tmp_path / "a" / "fig1" / "h1" / "seeds.json"
    before = file.stat().st_mtime_ns, (own[0].further / "summary.json").stat().st_mtime_ns
    further.settle(own)
    later[0].run(quiet)
    assert (file.stat().st_mtime_ns, (own[0].further / "summary.json").stat().st_mtime_ns) == before


@pytest.mark.parametrize(("wanted", "seeds"), [(0, 50), (50, 50), (51, 60), (190, 190), (2000, 200)])
def test_seeds_by_what_is_needed(wanted: int, seeds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In tens, up to 200."""
    part = Part("fig1", H1, "NCBF-UCB", READINGS["stable"], tmp_path)
    monkeypatch.setattr(further, "needed", lambda panel: wanted)
    monkeypatch.setattr(Part, "finished", True)
    monkeypatch.setattr(Part, "first_result", lambda self: result("NCBF-UCB", np.zeros(50)))
    part.directory.mkdir(parents=True)
    further.settle([part])
    assert further.settled(tmp_path, "fig1", "h1") == seeds


def test_a_panel_that_needs_none_gets_none(tmp_path: Path) -> None:
    part = Part("fig1", H1, "NeuralLog-UCB-2", SMALL._replace(seeds=4), tmp_path)
    part.run(quiet)
    further.settle([part])
    (later,) = further.of_parts([part])
    assert further.settled(tmp_path, "fig1", "h1") == 4
    assert later.finished
    assert later.run(quiet) == "none are needed"
    assert not part.further.exists()
    assert "More would" not in further.note([part])[0]


def test_who_may_get_further_seeds() -> None:
    panels = {panel.name: panel for figure in paper.FIGURES.values() for panel in figure.panels}
    for reading in READINGS.values():
        assert not further.of_parts([Part("fig1", H1, "NCBF-UCB", quick(reading), Path())])
    stable = READINGS["stable"]
    assert further.most(stable, panels["h1"]) == stable.most_seeds > stable.seeds
    assert further.most(stable, panels["mnist"]) == stable.seeds == 50
    assert further.most(READINGS["literal"], panels["h1"]) == READINGS["literal"].seeds == 10
    made = FurtherPart(Part("fig1", H1, "NCBF-UCB", stable, Path("nowhere")))
    assert (made.figure, made.reading) == ("fig1", stable)
    assert made.cost == pytest.approx(common.seconds(150, 2000, 400, 2500))
