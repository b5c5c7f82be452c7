"""A conversion stops, goes on and says what is wrong with its files; a log says what it holds."""

import json
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest
from scipy.stats import binomtest

import replay.formats.obd_rows
import replay.logs.writer
from nl_lightning.core.errors import InputError
from replay.__main__ import main
from replay.commands import convert, info
from replay.formats.convert import convert_log
from replay.formats.obd import find_logs, sample, samples
from replay.logs.description import read_description
from replay.logs.writer import locked
from tests.support.obd_csv import AFFINITIES, HEADER, ITEM_HEADER, ITEM_ROWS, contents, read, row, text, write


def command(module: ModuleType, *arguments: Any) -> None:
    parser = ArgumentParser()
    module.add_arguments(parser)
    module.run(parser.parse_args([str(argument) for argument in arguments]))


class Killed(Exception):
    """The process ends here."""


def kill_at(moment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """End at the ``moment``-th file, when it is written and not yet renamed."""
    written = iter(range(moment))
    write_beside = replay.logs.writer.write_beside

    def dying(path: Path, writes: Callable[[Path], object]) -> None:
        def write_and_die(beside: Path) -> None:
            writes(beside)
            if next(written, None) is None:
                raise Killed

        write_beside(path, write_and_die)

    monkeypatch.setattr(replay.logs.writer, "write_beside", dying)


@pytest.mark.parametrize("moment", range(7))
def test_a_stopped_conversion_goes_on_to_the_same_files(
    moment: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay.formats.obd_rows, "BLOCK", 700)
    monkeypatch.setattr(replay.logs.writer, "PART_ROWS", 20)
    monkeypatch.setattr(replay.logs.writer, "ROW_GROUP", 8)
    damage = {i: {"click": "7"} for i in (3, 4, 40, 41, 42, 43, 44, 45, 46, 47, 99, 119)}
    source = write(tmp_path / "a", [row(i, **damage.get(i, {})) for i in range(120)])
    convert_log(source, tmp_path / "undisturbed", on_error="skip")
    undisturbed = contents(tmp_path / "undisturbed")
    assert len(undisturbed) == 7
    with monkeypatch.context() as patch:
        kill_at(moment, patch)
        with pytest.raises(Killed):
            convert_log(source, tmp_path / "log", on_error="skip")
    # killed before anything was written, it leaves no directory
    said = {0: "does not exist", 1: "holds no log"}.get(moment, "is unfinished")
    with pytest.raises(InputError, match=said):
        read_description(tmp_path / "log")
    bytes_done: list[int] = []
    convert_log(source, tmp_path / "log", "skip", progress=lambda done, size: bytes_done.append(done))
    assert contents(tmp_path / "log") == undisturbed
    assert bytes_done == sorted(bytes_done)
    assert len(read(tmp_path / "log")) == 108


def test_a_stop_at_a_damaged_row_goes_on_with_skip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay.formats.obd_rows, "BLOCK", 700)
    monkeypatch.setattr(replay.logs.writer, "PART_ROWS", 20)
    source = write(tmp_path / "a", [row(i, click="7" if i == 70 else "0") for i in range(120)])
    with pytest.raises(InputError, match="all.csv:72"):
        convert_log(source, tmp_path / "log")
    parts = contents(tmp_path / "log")
    assert "events-00001.parquet" in parts
    assert "log.json" not in parts
    convert_log(source, tmp_path / "log", on_error="skip")
    assert contents(tmp_path / "log").items() >= parts.items()
    assert len(read(tmp_path / "log")) == 119


def test_a_part_says_where_to_resume(tmp_path: Path) -> None:
    """Under the keys that earlier versions wrote: what they left unfinished can be resumed."""
    convert_log(write(tmp_path / "a", [row(i) for i in range(9)]), tmp_path / "log")
    metadata = pq.read_schema(tmp_path / "log" / "events-00000.parquet").metadata
    assert set(metadata) == {b"nl_lightning.version", b"nl_lightning.source", b"nl_lightning.progress"}
    assert json.loads(metadata[b"nl_lightning.progress"])["line"] == 11


@pytest.mark.parametrize("file", ["all.csv", "item_context.csv"])
@pytest.mark.parametrize("finished", [True, False])
def test_another_source_is_refused(file: str, finished: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "a", [row(i) for i in range(9)])
    with monkeypatch.context() as patch:
        kill_at(99 if finished else 1, patch)
        try:
            convert_log(source, tmp_path / "log")
        except Killed:
            assert not finished
    (source / file).write_text((source / file).read_text().replace("é", "e").replace("c1", "d1"))
    with pytest.raises(InputError, match="another source|source has changed"):
        convert_log(source, tmp_path / "log")


def test_a_finished_log_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "bts" / "all", [row(i) for i in range(9)])
    command(convert, source, tmp_path / "log")
    assert "9 rows, 2 clicks, CTR 22.222%, 0 rows skipped" in capsys.readouterr().out
    times = {file: file.stat().st_mtime_ns for file in (tmp_path / "log").iterdir()}
    command(convert, source, tmp_path / "log")
    assert "already holds" in capsys.readouterr().out
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "log").iterdir()} == times


def test_the_command_shows_an_error_and_no_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(write(tmp_path / "a", [row(0), row(1, click="2")])), str(tmp_path / "log")]
    with pytest.raises(SystemExit) as stop:
        main(["convert", *arguments])
    assert stop.value.code == 1
    assert "error: " in (shown := capsys.readouterr().err)
    assert "all.csv:3: click is 2, expected 0 or 1. Repair the row" in shown
    main(["convert", *arguments, "--on-error", "skip"])
    assert "1 rows, 1 clicks, CTR 100.000%, 1 rows skipped" in capsys.readouterr().out
    main(["info", arguments[1]])
    assert "all.csv:3" in capsys.readouterr().out


def test_a_source_that_changes_meanwhile_gives_no_log(tmp_path: Path) -> None:
    source = write(tmp_path / "a", [row(0)])
    with pytest.raises(InputError, match="has changed while"):
        convert_log(source, tmp_path / "log", progress=lambda done, size: (source / "all.csv").write_text("x") and None)
    assert not (tmp_path / "log" / "log.json").exists()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    source = write(tmp_path / "a", [row(0)])
    with locked(tmp_path / "log"), pytest.raises(InputError, match="another process"):
        convert_log(source, tmp_path / "log")
    convert_log(source, tmp_path / "log")


def without(name: str) -> list[str]:
    return [column for column in HEADER if column != name]


HEADERS = [
    (without("click"), "no column click"),
    (
        ["clicks" if name == "click" else name for name in HEADER],
        "no column click. There is clicks: was a column renamed",
    ),
    ([*HEADER, "click"], "two columns click"),
    ([*HEADER, f"{AFFINITIES[0][:-1]}3"], "3 items .* got 4 .*affinity_3 is too many"),
    (without(AFFINITIES[1]), "got 2 .*affinity_1 is missing"),
    ([], "has no header"),
    (["\udcff"], "header cannot be read"),
]


@pytest.mark.parametrize(("header", "words"), HEADERS)
def test_header_errors(header: list[str], words: str, tmp_path: Path) -> None:
    source = write(tmp_path / "a", [])
    (source / "all.csv").write_bytes(text(header, [row(0)]).encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=f"all.csv.*{words}"):
        convert_log(source, tmp_path / "log")
    assert not (tmp_path / "log").exists()


ITEMS_DAMAGES = [
    (["1", "x", "1.5", "a", "b", "c"], ":3: item_id is x, expected a whole number"),
    (["1", "1", "", "a", "b", "c"], ":3: item_feature_0 is empty, expected a number"),
    (["1", "1", "nan", "a", "b", "c"], ":3: item_feature_0 is nan, expected a finite number"),
    (["1", "0", "1.5", "a", "b", "c"], ":3: there is a second item 0"),
    (["1", "1", "1.5", "a", "b"], ":3: .*5 fields, expected 6"),
    (["1", "5", "1.5", "a", "b", "c"], ": there is no item 1"),
    (["1", "1", "1.5", "a", "b", "\udcff"], ":3: the line is not UTF-8"),
]


@pytest.mark.parametrize(("item", "words"), ITEMS_DAMAGES)
def test_item_errors(item: list[str], words: str, tmp_path: Path) -> None:
    source = write(tmp_path / "a", [row(0)])
    items = text(ITEM_HEADER, [ITEM_ROWS[0], item, ITEM_ROWS[2]])
    (source / "item_context.csv").write_bytes(items.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=f"item_context.csv{words}"):
        convert_log(source, tmp_path / "log", on_error="skip")


def test_sources_that_are_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(source: Path, words: str) -> None:
        with pytest.raises(InputError, match=words):
            command(convert, source, tmp_path / "log")

    fails(tmp_path / "nowhere", "does not exist")
    fails(tmp_path, "no log in")
    fails(write(tmp_path / "empty", []), "header and no rows")
    source = write(tmp_path / "x", [row(0)])
    (source / "x.txt").touch()
    fails(source / "x.txt", "cannot be read|no header")
    (source / "b.csv").touch()
    fails(source, "several CSV files .all.csv, b.csv.")
    (source / "item_context.csv").unlink()
    fails(source / "all.csv", "item_context.csv is missing")
    fails(source, "no log in")
    monkeypatch.setattr("replay.formats.obd.find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install .nl-lightning.obp.."):
        sample()


def test_every_log_below_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(convert, tmp_path / "samples")
    found = {file.parent.relative_to(tmp_path / "samples") for file in tmp_path.rglob("log.json")}
    assert found == {log.parent.relative_to(samples()) for log in find_logs(samples())}
    assert len(capsys.readouterr().out.splitlines()) == len(found) == 6
    command(info, tmp_path / "samples")
    assert capsys.readouterr().out.count("10,000") == 6
    with pytest.raises(InputError, match="logs below it"):
        read_description(tmp_path / "samples" / "bts")
    with pytest.raises(InputError, match="no sample bts/x; the samples are bts/all"):
        sample("bts", "x")


def test_names_of_policy_and_campaign(tmp_path: Path) -> None:
    for place, policy, expected in [("x/all", None, "x"), ("y", None, "unknown"), ("x/all", "mine", "mine")]:
        convert_log(write(tmp_path / place, [row(0)]), tmp_path / "log" / expected, policy=policy)
        log = read_description(tmp_path / "log" / expected)
        assert (log["policy"], log["campaign"]) == (expected, "all")


def test_info_shows_what_a_log_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row(2), row(1, propensity_score="", click="x"), row(0), row(5, propensity_score="")]
    command(convert, write(tmp_path / "a", rows), tmp_path / "log", "--on-error", "skip", "--policy", "[/x]")
    assert "skipped all.csv:3: click is x" in capsys.readouterr().out
    command(info, tmp_path / "log")
    low, high = binomtest(2, 3).proportion_ci(method="wilson")
    ends = f"{low:.3%} to {high:.3%}"
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for words in ("policy [/x]", "rows 3", "clicks 2", f"66.667% (95% interval {ends})", "not uniform"):
        assert words in shown
    for words in ("0.25 to 0.25, 1 missing", "propensity_score: 1", "not in order", "1 all.csv:3: click"):
        assert words in shown
    for words in ("actions 3", "position: 1 to 3", "user_feature_0: 3", "user_feature_2: 0", "affinity: 0.5 to 5"):
        assert words in shown


def test_damaged_logs_are_named(tmp_path: Path) -> None:
    def fails(words: str) -> None:
        with pytest.raises(InputError, match=words):
            command(info, tmp_path / "log")

    fails("does not exist")
    convert_log(write(tmp_path / "a", [row(i) for i in range(9)]), tmp_path / "log")
    part, log = tmp_path / "log" / "events-00000.parquet", tmp_path / "log" / "log.json"
    whole, described = part.read_bytes(), json.loads(log.read_text())
    (tmp_path / "log" / "events-00001.parquet").write_bytes(whole)
    fails("events-00001.parquet does not belong to this log")
    (tmp_path / "log" / "events-00001.parquet").unlink()
    pq.write_table(pq.read_table(part)[:5], part)
    fails("events-00000.parquet has 5 rows, expected 9")
    part.write_bytes(whole[:-9])
    fails("events-00000.parquet is not a complete Parquet file")
    part.unlink()
    fails("events-00000.parquet is missing")
    for change, words in [({"format": "x"}, "does not describe a log"), ({"version": 99}, "version 99")]:
        log.write_text(json.dumps(described | change))
        fails(words)
    log.write_text("{")
    fails("log.json is damaged")
    part.write_bytes(whole)
    log.unlink()
    fails("is unfinished")
    part.unlink()
    fails("holds no log")
