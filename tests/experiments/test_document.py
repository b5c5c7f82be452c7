"""RESULTS.md: written from stored results alone, and saying what they say."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from nl_lightning.core.errors import InputError
from nl_lightning.core.statistics import wilson
from nl_lightning.experiments import answer, document, figures, storage, tables
from nl_lightning.experiments.claims import CLAIMS, controls, verdicts
from nl_lightning.experiments.comparisons import VERDICTS
from nl_lightning.experiments.paper import PAPER_AGENTS
from nl_lightning.experiments.results import FigureResult, SweepResult
from nl_lightning.experiments.sweeps import growths
from nl_lightning.runs.summary import CTR, REGRET
from tests.support.experiment_results import agent_result, figure, panel, spread, tuning


def stored(result: FigureResult, command: str = "") -> storage.Stored:
    """As it comes back from its file."""
    return storage.from_json(json.loads(json.dumps(storage.to_json(result, command), allow_nan=False)))


def rows(table: str) -> list[list[str]]:
    """The cells of a Markdown table, without its rule."""
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table.splitlines()]
    return [[text.strip() for text in line] for line in [lines[0], *lines[2:]]]


@pytest.mark.parametrize("name", ["fig1", "obd-m"])
def test_all_but_the_curves_comes_back(name: str, tmp_path: Path) -> None:
    result = figure(name)
    if name == "obd-m":
        for p in result.panels:
            p.agents[:] = [agent._replace(accepted=[1000 + seed for seed in agent.seeds]) for agent in p.agents]
    storage.save(result, tmp_path, "python -m nl_lightning reproduce all")
    names = {f"{name}{end}" for end in (".csv", "-curves.csv", ".png", ".svg", ".json")}
    assert {path.name for path in (tmp_path / "literal").iterdir()} == names
    (found,) = storage.load_all(tmp_path)
    assert found.horizon == 400
    assert found.command == "python -m nl_lightning reproduce all"
    assert set(found.versions) == {"python", "nl-lightning", "torch", "lightning", "numpy"}
    back = found.result
    for field in ("name", "title", "measure", "verdicts", "tuning", "notes", "seconds"):
        assert getattr(back, field) == getattr(result, field)
    for one, other in zip(back.panels, result.panels, strict=True):
        assert (one.name, one.title, one.row, one.column) == (other.name, other.title, other.row, other.column)
        for a, b in zip(one.agents, other.agents, strict=True):
            assert (a.agent, a.settings, a.seeds, a.diverged, a.accepted) == (
                b.agent,
                b.settings,
                b.seeds,
                b.diverged,
                b.accepted,
            )
            np.testing.assert_array_equal(a.final, b.final)
    # verdicts and the table of final numbers can be made anew from it
    assert document.document([found]) == document.document([found._replace(result=result)])
    assert figures.finals_csv(back) == (tmp_path / "literal" / f"{name}.csv").read_text()


def test_numbers_of_numpy_are_stored() -> None:
    result = figure("fig1")
    row = {**result.tuning[0], "mean": np.float64(3.5), "nu": np.float32(1), "diverged": np.int64(2), "chosen": True}
    row_without = {**row, "mean": float("nan")}
    back = stored(result._replace(tuning=[row, row_without])).result
    assert back.tuning[0]["mean"] == 3.5
    assert back.tuning[0]["diverged"] == 2
    assert back.tuning[1]["mean"] is None


def test_the_document_is_in_the_papers_order_and_needs_results(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="reproduce fig1"):
        document.write(tmp_path)
    (tmp_path / "literal").mkdir()
    for name in ("simulated-S", "obd-m", "fig2", "fig1"):
        (tmp_path / "literal" / f"{name}.json").write_text(
            json.dumps(storage.to_json(figure(name), f"reproduce {name}"))
        )
    (tmp_path / "literal" / "other.json").write_text("{}")
    assert document.write(tmp_path) == tmp_path / "RESULTS.md"
    text = (tmp_path / "RESULTS.md").read_text()
    headings = re.findall(r"^##+ (.*)", text, flags=re.MULTILINE)
    assert headings == [
        "Claims by reading",
        "How a verdict is reached",
        "How it was made",
        "Reading: literal",
        "Figure 1",
        "Figure 2",
        "Open Bandit Dataset, bundled sample",
        "Open Bandit Dataset, bundled sample, over m",
        "Simulated log",
        "Simulated log, over S",
    ]
    assert "(`reproduce fig1`, `reproduce fig2`, `reproduce obd-m`, `reproduce simulated-S`)" in text
    assert "- Figure 1 (literal); Figure 2 (literal): 10 seeds, 400 rounds." in text
    (tmp_path / "literal" / "fig2.json").write_text('{"name": "fig2"}')
    with pytest.raises(InputError, match=r"fig2\.json must be a figure's result"):
        document.write(tmp_path)


def test_the_parts_of_a_figure() -> None:
    result = figure("fig1")
    text = document.document([stored(result)])
    assert "![Figure 1](literal/fig1.png)" in text
    assert "10 seeds, 400 rounds" in text
    for verdict in result.verdicts:
        assert f"| {verdict.claim} | {verdict.panel} | **{verdict.verdict}** | {verdict.reason} |" in text
    for claim in CLAIMS["fig1"]:
        assert f'- **{claim.text}**: "{claim.words}". Tested: {claim.tested}.' in text
    assert "Diverged seeds, not in the means above: h1: 2 of 10 seeds of NCBF-UCB diverged." in text
    assert "- The paper repeats 10 times." in text
    assert text.count("<details>") == text.count("</details>") == 1
    # a table needs an empty line before it, also inside the fold
    for place in re.finditer(r"^\|.*\n\| (---|--:)", text, flags=re.MULTILINE):
        assert text[: place.start()].endswith("\n\n")
    given = [v.verdict for v in result.verdicts]
    counts = ", ".join(f"{kind} {given.count(kind)}" for kind in VERDICTS if kind in given)
    assert f"one verdict a claim and panel. Literal: {counts}." in text


def test_the_table_of_claims_counts_verdicts_by_figure_and_reading() -> None:
    literal = [figure("fig1"), figure("fig4")]
    stable = figure("fig1", diverging=False)._replace(reading="stable")
    head, body = tables.claims_by_reading([*literal, stable])
    assert head == ["claim", "where", "literal", "stable"]
    assert len(body) == len(CLAIMS["fig1"]) + len(CLAIMS["fig4"])
    for claim, where, *cells in body:
        for cell, result in zip(cells, (literal[where == "fig4"], stable), strict=True):
            given = [v.verdict for v in result.verdicts if v.claim == claim and result.name == where]
            counts = {kind: int(n) for kind, n in (part.rsplit(" ", 1) for part in cell.split(", ") if part)}
            assert counts == {kind: given.count(kind) for kind in set(given)}


def test_the_answer_opens_the_document_in_at_most_ten_lines() -> None:
    """Counts, divergence, exploration, fixed arms, kappa and the replay, all from the stored numbers."""
    numbers = spread((170.0, 300.0, 290.0, 150.0, 140.0, 160.0, 155.0, 400.0), agents=(*PAPER_AGENTS, "Greedy"))
    flat = spread((170.0, 300.0, 290.0, 150.0, 140.0, 160.0, 155.0, 90.0), agents=(*PAPER_AGENTS, "Greedy"))
    panels = [panel(numbers, "h1"), panel(flat, "h2", column=1)]
    swept = [
        SweepResult(p.name, agent, varied, kappa, [0, 1, 2], scale * np.roll([1.0, 1.1, 0.9], int(power * kappa)))
        for p in panels
        for varied, ncbf in (("kappa", 0.5), ("kappa at nu = 0.1", 1.0))
        for agent, power in (("NCBF-UCB", ncbf), ("NeuralLog-UCB-2", 0.0))
        for kappa in (10.0, 40.0)
        for scale in (100 * kappa**power,)
    ]
    ours = figure("fig1")._replace(
        name="fixed",
        panels=panels,
        reading="stable",
        sweeps=swept,
        verdicts=verdicts("fixed", panels),
        controls=controls("fixed", panels),
    )
    results = [figure("fig1"), figure("fig1", diverging=False)._replace(reading="stable"), ours, figure("obd-m")]
    lines = answer.lines(results)
    assert 6 <= len(lines) <= 10
    text = "\n".join(lines)
    assert "count as the worst: literal: 4 of 360; stable: 0 of 310." in text
    assert "of 2 panels 1 need none, because no agent that explores is better than Greedy by 5% (fixed h2)" in text
    assert "it pays in 1 (fixed h1)" in text
    assert "h1: Greedy 400, best NeuralLog-UCB-2 140" in text
    assert "with the nu that was chosen, NCBF-UCB 0.50 to 0.50" in text
    assert "; with nu = 0.1 for all agents, NCBF-UCB 1.00 to 1.00" in text
    assert "NeuralLog-UCB-2 0.00 to 0.00" in text
    assert "on the bundled sample" in text
    whole = document.document([stored(result) for result in results])
    assert whole.startswith("# Results\n\n- " + lines[0])
    assert "stable/fixed-sweeps.png" in whole
    fit = growths(swept)["h1", "NCBF-UCB"]
    assert f"| NCBF-UCB | 0.50 ({fit.low:.2f} to {fit.high:.2f}): {fit.law} |" in whole
    assert "as its root" in fit.law
    assert "With nu = 0.1 for all agents:" in whole
    fit = growths(swept, "kappa at nu = 0.1")["h1", "NCBF-UCB"]
    assert f"| NCBF-UCB | 1.00 ({fit.low:.2f} to {fit.high:.2f}): {fit.law} |" in whole
    assert "| NeuralLog-UCB-2 | 0.00 (0.00 to 0.00): not at all | 0.00 (0.00 to 0.00): not at all |" in whole


def test_final_numbers_and_settings() -> None:
    numbers = {"NCBF-UCB": [1.0, 3.0, np.nan], "NeuralLog-UCB-2": [np.nan] * 3, "Logistic-UCB-1": [2.0]}
    result = figure("fig1")._replace(panels=[panel(numbers, "a|b"), panel({"NCBF-UCB": [5.0]}, "h2")])
    half = 15.894544844 * np.sqrt(2) / np.sqrt(2)  # t of one degree of freedom at 98%
    assert rows(tables.finals(result)) == [
        ["agent", "a\\|b", "h2"],
        ["NCBF-UCB", f"2.0 ({2 - half:.1f} to {2 + half:.1f})", "5.0"],
        ["NeuralLog-UCB-2", "diverged", "-"],
        ["Logistic-UCB-1", "2.0", "-"],
    ]
    assert rows(tables.chosen(result))[1] == ["NCBF-UCB", "0.1, 1", "0.1, 1"]


def test_the_interval_of_a_ctr_is_that_of_one_seeds_events() -> None:
    agent = agent_result("NCBF-UCB", [0.010, 0.030, np.nan])._replace(accepted=[1000, 2000, 7])
    low, high = wilson((10 + 60) / 2, 1500)
    assert tables.estimate(agent, CTR) == f"{35 / 1500:.4f} ({low:.4f} to {high:.4f})"
    assert tables.estimate(agent._replace(accepted=None), CTR).startswith("0.0200 (")
    assert tables.estimate(agent, REGRET).startswith("0.0 (")


def test_the_grid_marks_what_diverged_and_what_was_chosen() -> None:
    result = figure("fig1")
    found = dict(tables.grids(result))
    assert len(found) == 15
    head, *body = rows(found["h2, NeuralLog-UCB-1, lr = 0.01"])
    assert head == ["", "lam = 0.01", "lam = 0.1", "lam = 1", "lam = 10", "lam = 100"]
    assert [row[0] for row in body] == ["nu = 0.01", "nu = 0.1", "nu = 1", "nu = 10", "nu = 100"]
    assert all(row[5] == "x 3 of 3" for row in body)
    assert body[1] == ["nu = 0.1", "100.1", "100.2", "**101.1**", "110.1", "x 3 of 3"]
    partly = [{**row, "diverged": 1} for row in tuning(result.panels[:1])]
    assert "**101.1 x 1 of 3**" in tables.grids(result._replace(tuning=partly))[0][1]
    assert tables.grids(result._replace(tuning=[])) == []
    assert "<details>" not in document.document([stored(result._replace(tuning=[]))])


def test_the_replay_table_has_the_papers_numbers_beside_ours() -> None:
    results = [figure(f"obd-{parameter}") for parameter in ("m", "kappa", "S")]
    head, *body = rows(tables.replay_table(results, with_paper=True))
    assert head == ["parameter", "value", *PAPER_AGENTS]
    assert [(row[0], row[1]) for row in body] == [
        *(("m", value) for value in ("20", "50", "100")),
        *(("kappa", value) for value in ("50", "100", "200")),
        *(("S", value) for value in ("1", "10", "100")),
    ]
    assert [cell.split("[")[1] for cell in body[8][2:]] == [
        f"{number}]" for number in ("0.0021", "0.0016", "0.0022", "0.0023", "0.0015", "0.0051", "0.0050")
    ]
    for row in body:
        own = [float(cell.split(" ")[0].strip("*")) for cell in row[2:]]
        bold = [cell.startswith("**") for cell in row[2:]]
        assert sum(bold) == 3
        assert min(n for n, b in zip(own, bold, strict=True) if b) >= max(
            n for n, b in zip(own, bold, strict=True) if not b
        )
    assert "[" not in tables.replay_table(results, with_paper=False)
    # with the interval of every CTR
    shown = tables.estimate(results[2].panels[2].of("NCBF-UCB"), CTR)
    assert body[8][2].replace("*", "").startswith(f"{shown} [0.0021]")
    text = document.document([stored(result) for result in results])
    for said in ("10,000 events", "38 clicks", "no single policy", "full log", "not here"):
        assert said in text


def test_cells_cannot_end_their_cell() -> None:
    awkward = "a | b \\| c\nd \\"
    table = tables.markdown(["x", "y"], [[awkward, "2"]])
    assert table.count("\n") == 2
    line = table.splitlines()[2]
    # by GitHub's rule a bar ends a cell unless an odd number of backslashes stands before it
    bars = [m for m in re.finditer(r"(\\*)\|", line) if len(m[1]) % 2 == 0]
    assert len(bars) == 3
    result = figure("fig1")
    verdict = result.verdicts[0]._replace(reason="p(a|b)\nsmall")
    assert "| p(a\\|b) small |" in document.document([stored(result._replace(verdicts=[verdict]))])


def test_nothing_of_the_machine_is_written() -> None:
    result = figure("fig1")
    text = document.document([stored(result)])
    assert text == document.document([stored(result._replace(seconds=99.0))])
    assert not re.search(r"\d{4}-\d\d-\d\d", text)
