"""The page of a report says what the runs say: every number of it is computed again from the files of the runs."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from nl_lightning.cli.main import main
from nl_lightning.core.errors import InputError
from nl_lightning.reporting import page
from nl_lightning.reporting.comparison import compare_runs
from nl_lightning.reporting.discovery import find
from nl_lightning.reporting.page_data import gather, read_entries
from nl_lightning.reporting.palette import AGENT_COLOURS, COLOURS
from nl_lightning.runs.directory import RunDirectory
from tests.support.page_runs import make


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("runs")
    make(where)
    return where


def page_of(*paths: Path) -> dict[str, Any]:
    """The data of a page, as its script gets it."""
    found = find(paths)
    entries = [entry for run in found.runs for entry in read_entries(run)]
    text = page.render(gather("a title", found.runs, entries, found.left_out))
    return embedded(text)


def embedded(text: str) -> dict[str, Any]:
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return json.loads(data)


@pytest.fixture(scope="module")
def data(runs: Path) -> dict[str, Any]:
    return page_of(runs)


def section(data: dict[str, Any], measure: str) -> dict[str, Any]:
    return next(section for section in data["sections"] if section["measure"] == measure)


def entries_of(data: dict[str, Any], measure: str, run: str) -> list[dict[str, Any]]:
    numbers = [number for number, head in enumerate(data["runs"]) if head["name"] == run]
    return [entry for entry in section(data, measure)["entries"] if entry["run"] in numbers]


def summary_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())


def twin(run: Path, replicas: list[int], t: list[int], column: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean and half of the interval over replicas, by pandas and scipy."""
    rounds = pd.read_parquet(run / "rounds.parquet")
    if column == "acceptance":
        rounds[column] = rounds["t"] / (rounds["event"] + 1)
    wide = rounds[rounds["replica"].isin(replicas)].pivot(index="t", columns="replica", values=column).loc[t]
    n = len(replicas)
    half = stats.t.ppf(0.98, n - 1) * wide.std(axis=1, ddof=1) / np.sqrt(n)
    return wide.mean(axis=1).to_numpy(), half.to_numpy()


@pytest.mark.parametrize(
    ("measure", "run", "names"),
    [
        ("regret", "h1/one", {"value": "cumulative_regret", "dimension": "logdet", "radius": "radius"}),
        ("regret", "h2/stopped", {"value": "cumulative_regret", "dimension": "logdet", "radius": "radius"}),
        (
            "ctr",
            "obd/two",
            {"value": "cumulative_reward", "dimension": "logdet", "radius": "radius", "acceptance": "acceptance"},
        ),
    ],
)
def test_curves_are_means_and_intervals_over_the_rounds(
    measure: str, run: str, names: dict[str, str], runs: Path, data: dict[str, Any]
) -> None:
    (entry,) = entries_of(data, measure, run)
    assert set(entry["series"]) == set(names)
    last = summary_of(runs / run)["rounds"]
    assert entry["t"][0] == 1
    assert entry["t"][-1] == last
    assert len(entry["t"]) == min(last, 400)
    replicas = list(range(entry["seeds"]))
    for name, column in names.items():
        mean, half = twin(runs / run, replicas, entry["t"], column)
        np.testing.assert_allclose(np.array(entry["series"][name]["mean"], float), mean, rtol=1e-5)
        np.testing.assert_allclose(np.array(entry["series"][name]["half"], float), half, rtol=2e-5, atol=1e-12)


def test_the_table_has_the_numbers_of_the_summary(runs: Path, data: dict[str, Any]) -> None:
    (entry,) = entries_of(data, "regret", "h1/two")
    (row,) = summary_of(runs / "h1/two")["over_replicas"]
    assert entry["final"] == [row["regret"], row["regret_low"], row["regret_high"]]
    assert (entry["agent"], entry["seeds"], entry["diverged"], entry["rounds"]) == ("Logistic-UCB-1", 4, 0, 500)
    assert entry["final"][0] == pytest.approx(entry["series"]["value"]["mean"][-1], rel=1e-5)
    (entry,) = entries_of(data, "ctr", "obd/one")
    rounds = pd.read_parquet(runs / "obd/one/rounds.parquet")
    clicks = rounds.groupby("replica")["reward"].sum().mean()
    assert clicks > 0
    assert entry["final"][0] == pytest.approx(clicks / 300)
    assert (entry["clicks"], entry["accepted"]) == (pytest.approx(clicks), 300)
    # the last event that was seen is the last that was accepted: the run was given 300 rounds
    seen = (rounds.groupby("replica")["event"].max() + 1).mean()
    assert entry["seen"] == pytest.approx(seen)
    assert entry["rate"] == pytest.approx(300 / seen)
    assert section(data, "ctr")["interval"] == 0.95


def test_a_grid_shows_its_best_settings_and_says_what_it_leaves_out(runs: Path, data: dict[str, Any]) -> None:
    found = entries_of(data, "regret", "grid/g")
    rows = summary_of(runs / "grid/g")["over_replicas"]
    assert [entry["final"][0] for entry in found] == [row["regret"] for row in rows[:8]]
    assert len({entry["label"] for entry in found}) == 8
    assert any("grid/g: 1 of 9 settings" in line for line in data["left_out"])
    # lam = 300 diverges: these come last, with nothing to draw
    lost = [entry for entry in found if entry["diverged"]]
    assert [entry["series"] for entry in lost] == [{}, {}]
    assert all("lam = 300" in entry["label"] for entry in lost)
    alive = found[0]
    replicas = rows[0]["replicas"]
    mean, half = twin(runs / "grid/g", replicas, alive["t"], "cumulative_regret")
    np.testing.assert_allclose(alive["series"]["value"]["mean"], mean, rtol=1e-5)
    np.testing.assert_allclose(alive["series"]["value"]["half"], half, rtol=2e-5, atol=1e-12)


def test_colours_and_dashes_tell_curves_apart(data: dict[str, Any]) -> None:
    for part in data["sections"]:
        styles = [(entry["colour"], entry["dash"]) for entry in part["entries"] if entry["problem"] == 0]
        assert len(set(styles)) == len(styles)
        assert max(colour for colour, _ in styles) < len(COLOURS)


def test_an_agent_has_its_colour_everywhere(runs: Path, data: dict[str, Any]) -> None:
    for measure, run in (("regret", "h1/one"), ("regret", "h1/two"), ("ctr", "obd/two")):
        (entry,) = entries_of(data, measure, run)
        assert COLOURS[entry["colour"]] == AGENT_COLOURS[entry["agent"]]
    found = find([runs / "h1/one"])
    text = page.render(gather("x", found.runs, [entry for run in found.runs for entry in read_entries(run)], []))
    for number, colour in enumerate(COLOURS):
        assert f"--c{number}: {colour.lower()};" in text


def test_pairs_are_paired_t_tests_over_common_seeds(runs: Path, data: dict[str, Any]) -> None:
    part = section(data, "regret")
    first, second = (part["entries"].index(entries_of(data, "regret", name)[0]) for name in ("h1/one", "h1/two"))
    finals = [[r["regret"] for r in summary_of(runs / name)["replicas"]][:3] for name in ("h1/one", "h1/two")]
    if first > second:
        first, second, finals = second, first, finals[::-1]
    (found,) = [pair[2:] for pair in part["pairs"] if pair[:2] == [first, second]]
    problem = part["problems"][part["entries"][first]["problem"]]
    # one comparison
    assert problem["level"] == 0.96
    assert problem["rule"] == (
        "Differences are paired by seed. An agent is better than the baseline if the whole interval of its difference "
        "lies below 0."
    )
    ends = stats.ttest_rel(*finals).confidence_interval(problem["level"])
    assert found[:4] == pytest.approx([np.subtract(*finals).mean(), ends.low, ends.high, 3], rel=1e-5)


def test_pairs_of_replays_are_those_of_compare(runs: Path, data: dict[str, Any], tmp_path: Path) -> None:
    """The page and the terminal have one rule."""
    part = section(data, "ctr")
    ((first, second, *found),) = part["pairs"]
    names = [data["runs"][part["entries"][k]["run"]]["name"] for k in (first, second)]
    directories = [RunDirectory(runs / name) for name in names]
    stored = [(run, summary) for run in directories if (summary := run.read_summary()) is not None]
    labels = [summary["agent"] for _, summary in stored]
    report = compare_runs(stored, tmp_path, baseline=labels[1])
    (expected,) = [row["difference"] for row in report.result if row["agent"] == labels[0]]
    assert found[:3] == pytest.approx([expected[name] for name in ("value", "low", "high")], rel=1e-5)
    assert found[3] is None
    assert expected["verdict"] == "cannot tell"
    assert found[4] == expected["events_needed"]
    assert part["problems"][0]["level"] == expected["level"] == 0.95
    assert "paired by event" in part["problems"][0]["rule"]


def test_only_the_same_problems_are_compared(data: dict[str, Any]) -> None:
    part = section(data, "regret")
    problems = [entry["problem"] for entry in part["entries"]]
    # h1 with 500 rounds, h1 with 40 rounds, h2
    assert len(part["problems"]) == 3
    assert all(problems[first] == problems[second] for first, second, *_ in part["pairs"])
    counts = np.bincount(problems)
    assert len(part["pairs"]) == sum(n * (n - 1) // 2 for n in counts)
    for place, problem in enumerate(part["problems"]):
        # without Greedy the first one is the baseline
        assert problem["baseline"] == problems.index(place)
        assert problem["level"] == pytest.approx(1 - 0.04 / max(counts[place] - 1, 1))


def test_lists_of_problem_seeds_pair_by_problem(runs: Path, tmp_path: Path) -> None:
    """With seeds of the environment by replica, a replica's seed alone does not say which problem it had."""
    shutil.copytree(runs / "grid/g", tmp_path / "x" / "grid")
    best = summary_of(runs / "grid/g")["over_replicas"][0]["replicas"]
    seeds = [7, 8] * 9
    seeds[best[1]] = 99
    config = tmp_path / "x" / "grid" / "config.yaml"
    text, places = re.subn(r"(\n +)seed: null", rf"\1seed: {seeds}", config.read_text())
    assert places == 1
    config.write_text(text)
    pairs = section(page_of(tmp_path), "regret")["pairs"]
    # the first of 8 has one problem in common with each of the five others that did not diverge
    assert [pair[5] for pair in pairs if pair[0] == 0] == [1, 1, 1, 1, 1, 0, 0]
    assert {pair[5] for pair in pairs if 0 < pair[0] < pair[1] < 6} == {2}


def test_configs_side_by_side(runs: Path, data: dict[str, Any]) -> None:
    rows = {row["key"]: row for row in data["configs"]}
    names = [head["name"] for head in data["runs"]]
    replicas = rows["model.init_args.replicas"]
    assert dict(zip(names, replicas["values"], strict=True))["h1/two"] == "4"
    assert replicas["differs"]
    assert not rows["trainer.max_epochs"]["differs"]
    # a log has no pool of arms: an empty cell, which differs
    pools = rows["data.environment.init_args.pool"]
    assert dict(zip(names, pools["values"], strict=True))["obd/two"] is None
    assert {*pools["values"]} == {"2500", None}
    assert pools["differs"]
    (one, *others) = page_of(runs / "h1/one")["configs"]
    assert not any(row["differs"] for row in [one, *others])


def test_the_head_says_versions_and_what_is_unfinished(runs: Path, data: dict[str, Any]) -> None:
    assert data["versions"]["torch"] == [summary_of(runs / "h1/one")["versions"]["torch"]]
    assert [head["name"] for head in data["runs"] if not head["finished"]] == ["h2/stopped"]
    (stopped,) = entries_of(data, "regret", "h2/stopped")
    assert not stopped["finished"]
    notes = " ".join(section(data, "ctr")["notes"])
    assert "understate the uncertainty" in notes
    assert "any single policy" in notes
    assert "38 clicks in 10,000 events" in notes
    assert section(data, "ctr")["problems"][0]["log"] == 0.0038
    assert section(data, "regret")["notes"] == []


def test_what_is_no_run_is_left_out_and_said(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "h1/one", tmp_path / "all/good")
    shutil.copytree(runs / "h1/one", tmp_path / "all/without")
    (tmp_path / "all/without/rounds.parquet").unlink()
    shutil.copytree(runs / "h1/one", tmp_path / "all/goes-on")
    (tmp_path / "all/goes-on/summary.json").unlink()
    (tmp_path / "all/other").mkdir()
    (tmp_path / "all/other/summary.json").write_text('{"another": "thing"}')
    found = find([tmp_path, tmp_path / "all/good"])
    assert [run.name for run in found.runs] == ["all/good"]
    lines = "\n".join(found.left_out)
    assert len(found.left_out) == 3
    assert "without: its rounds.parquet is missing" in lines
    assert "goes-on: a run without a result" in lines
    assert "other: its summary.json is not that of a run" in lines


def test_a_run_without_a_config_is_shown_and_not_compared(runs: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(runs / "h1/one", tmp_path / "x" / name)
        (tmp_path / "x" / name / "config.yaml").unlink()
    data = page_of(tmp_path)
    assert data["configs"] == []
    assert data["sections"][0]["pairs"] == []
    assert "no config.yaml" in data["sections"][0]["problems"][0]["text"]


def test_names_cannot_become_tags(runs: Path, tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)> {{data}} <!-- &amp;"
    where = tmp_path / "runs" / evil.replace("/", "|")
    shutil.copytree(runs / "h1/one", where)
    summary = summary_of(where)
    summary["agent"] = evil
    (where / "summary.json").write_text(json.dumps(summary))
    out = tmp_path / "page.html"
    main(["report", str(tmp_path / "runs"), "--out", str(out), "--title", evil])
    text = out.read_text()
    assert "<img" not in text
    assert text.count("</script>") == 2
    data = embedded(text)
    assert data["title"] == evil
    assert data["sections"][0]["entries"][0]["agent"] == evil
    assert "<title>&lt;/script&gt;&lt;img" in text


def test_twenty_runs_are_small_and_no_address_is_loaded(runs: Path, tmp_path: Path) -> None:
    for number in range(20):
        shutil.copytree(runs / "h1/one", tmp_path / "many" / f"run-{number}")
    out = tmp_path / "deep" / "er" / "page.html"
    main(["report", str(tmp_path / "many"), "--out", str(out)])
    assert out.stat().st_size < 1_500_000
    assert not re.search(r"""(src|href)\s*=|@import|url\((?!#)""", out.read_text())
    assert not list(out.parent.glob(".*"))


def test_grids_are_thinned(runs: Path) -> None:
    """160 curves have 100 points each."""
    found = find([runs / "h1/one"])
    entries = [entry for run in found.runs for entry in read_entries(run)] * 160
    text = page.render(gather("many", found.runs, entries, []))
    data = embedded(text)
    assert {len(entry["t"]) for entry in data["sections"][0]["entries"]} == {100}
    assert data["sections"][0]["entries"][0]["t"][-1] == 500
    assert len(text) < 3_000_000


def fails(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["report", *arguments])
    assert stop.value.code not in (0, None)
    return capsys.readouterr().err


def test_errors_say_what_was_expected(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "page.html")]
    assert "does not exist. Expected the directory of a run" in fails([str(tmp_path / "nosuch"), *out], capsys)
    (tmp_path / "empty").mkdir()
    assert "holds no run. Expected the directory of a run" in fails([str(tmp_path / "empty"), *out], capsys)
    # one good directory does not excuse another
    assert "empty holds no run" in fails([str(runs), str(tmp_path / "empty"), *out], capsys)
    (tmp_path / "file").write_text("")
    assert "is no directory" in fails([str(tmp_path / "file"), *out], capsys)
    good = str(runs / "h1/one")
    assert "a directory that can be made" in fails([good, "--out", str(tmp_path / "file" / "page.html")], capsys)
    assert "--out must be a file" in fails([good, "--out", str(tmp_path / "empty")], capsys)
    assert "PATH" in fails([], capsys)
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("file", "content", "text"),
    [
        ("summary.json", '{"agent": "Neur', "summary.json is damaged"),
        ("summary.json", b"\xff\xfe\x00", "summary.json is damaged"),
        ("config.yaml", "a: [", "config.yaml is damaged"),
        ("config.yaml", "data: {log: 's3://me:secret@bucket'}", "config.yaml, data.log, holds credentials"),
        ("rounds.parquet", b"PAR1 and no more", "rounds.parquet is damaged"),
    ],
)
def test_damaged_files_are_named(
    file: str, content: str | bytes, text: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(runs / "h1/one", tmp_path / "x" / "run")
    raw = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "x" / "run" / file).write_bytes(raw)
    assert text in fails([str(tmp_path), "--out", str(tmp_path / "page.html")], capsys)


def test_a_table_of_other_columns_is_refused(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "h1/one", tmp_path / "x" / "run")
    pd.DataFrame({"replica": [0], "t": [1]}).to_parquet(tmp_path / "x/run/rounds.parquet")
    with pytest.raises(InputError, match="cumulative_regret"):
        page_of(tmp_path)


def test_the_command_says_where_the_page_is(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["report", str(runs / "h1"), str(runs / "obd" / "one")])
    assert "3 runs in report.html" in capsys.readouterr().out
    data = embedded(Path("report.html").read_text())
    assert [part["measure"] for part in data["sections"]] == ["regret", "ctr"]
    assert data["title"] == "h1, one"
