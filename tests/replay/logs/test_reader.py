"""Logs that are damaged or strange: a clear error that names file, column and row group."""

import json
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from nl_lightning.cli.main import main as nl_lightning
from nl_lightning.core.errors import InputError
from replay.formats.sample import bundled_log
from replay.logs.obd import OBD
from replay.logs.reader import Log
from replay.logs.statistics import LogStatistics
from replay.logs.writer import LogWriter
from replay.protocol.candidates import candidates
from replay.protocol.obd_features import ObdFeatures
from replay.simulation.simulated_world import SimulatedWorld
from tests.support.paths import ROOT
from tests.support.replay_logs import SMALL, write_log

CONFIG = f"--config={ROOT / 'configs' / 'obd.yaml'}"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("logs") / "log", SimulatedWorld(**SMALL), 1400, group=350).path


@pytest.fixture
def log(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "log")
    return tmp_path / "log"


def rewritten(file: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(file)), file, row_group_size=350)


def put(name: str, row: int, value: object) -> Callable[[pa.Table], pa.Table]:
    """Another value in one place."""

    def change(table: pa.Table) -> pa.Table:
        column, values = table.schema.get_field_index(name), table[name].to_pylist()
        values[row] = value
        kind = table.schema.field(name)
        return table.set_column(column, pa.field(name, kind.type), pa.array(values, kind.type))

    return change


def cast(name: str, kind: pa.DataType) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        return table.set_column(table.schema.get_field_index(name), name, pc.cast(table[name], kind))

    return change


SECOND = "events-00001.parquet"


def read(log: Path) -> None:
    opened = Log(log)
    for group in opened.groups:
        opened.events(group)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda t: t.drop_columns(["click"]), "has no column click"),
        (lambda t: t.rename_columns({"item_id": "item"}), "has no column item_id.*this file has timestamp, item,"),
        (cast("click", pa.float64()), "column click: expected int8, got double"),
        (cast("user_feature_1", pa.string()), "column user_feature_1: expected dictionary.*got string"),
        (put("click", 400, 2), "row group 1, column click: expected 0 or 1, got 2"),
        (put("click", 10, None), "row group 0, column click: 1 values are missing"),
        (put("item_id", 350, 12), "row group 1, column item_id: expected 0 to 11, got 12"),
        (put("item_id", 0, -1), "row group 0, column item_id: expected 0 to 11, got -1"),
        (
            put("propensity_score", 500, 0.0),
            r"row group 1, column propensity_score: expected a number in \(0, 1\], got 0",
        ),
        (put("propensity_score", 3, 1.5), r"row group 0, column propensity_score: .* got 1.5"),
        (put("position", 3, 0), "row group 0, has 0 to 3"),
        (put("position", 353, 4), "row group 1, has 1 to 4"),
        (put("position", 3, None), "row group 0, column position: 1 values are missing, expected at most 0"),
        (cast("position", pa.string()), "column position: expected numbers, got string"),
        (cast("affinity", pa.list_(pa.float64())), "column affinity: expected list.*float.*, got list.*double"),
        (put("user_feature_3", 400, None), "row group 1, column user_feature_3: 1 values are missing"),
        (put("affinity_item", 0, [99, 100]), "columns affinity_item and affinity: their lists differ in length"),
        (put("affinity", 0, [1.0] * 7), "columns affinity_item and affinity: their lists differ in length"),
    ],
)
def test_damaged_events_are_named(change: Callable[[pa.Table], pa.Table], text: str, log: Path) -> None:
    rewritten(log / SECOND, change)
    with pytest.raises(InputError, match=f"{SECOND}.*{text}"):
        read(log)


def test_damaged_affinities_are_named(log: Path) -> None:
    """By opening the log if footers tell, else by reading them."""
    changed = put("affinity", 360, [-2.0])(put("affinity_item", 360, [3])(pq.read_table(log / SECOND)))
    pq.write_table(changed, log / SECOND, row_group_size=350)
    stated = f"contents.pair.affinity: it says 1.0 to 6.0, but the column affinity of {SECOND}, row group 1, has -2.0 "
    with pytest.raises(InputError, match=stated):
        Log(log)
    pq.write_table(changed, log / SECOND, row_group_size=350, write_statistics=False)
    opened = Log(log)
    opened.events(opened.groups[2])
    with pytest.raises(InputError, match=f"{SECOND}, row group 1, column affinity: expected 1 to 6, got -2"):
        opened.events(opened.groups[3])
    # a part knows the extremes of the whole, not only its own
    part = opened.part("1050:1400")
    with pytest.raises(InputError, match=f"{SECOND}, row group 1, column affinity: expected 1 to 6, got -2"):
        part.events(part.groups[0])


def test_positions_without_statistics_in_footers_are_named(log: Path) -> None:
    changed = put("position", 353, 4)(pq.read_table(log / SECOND))
    pq.write_table(changed, log / SECOND, row_group_size=350, write_statistics=False)
    with pytest.raises(InputError, match=f"{SECOND}, row group 1, column position: expected 1 to 3, got 4"):
        read(log)


def test_truncated_and_foreign_files(log: Path, whole: Path) -> None:
    data = (log / SECOND).read_bytes()
    (log / SECOND).write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match=f"{SECOND} is not a complete Parquet file"):
        Log(log)
    (log / SECOND).unlink()
    with pytest.raises(InputError, match=f"{SECOND} is missing"):
        Log(log)
    (log / SECOND).write_text("nothing")
    with pytest.raises(InputError, match=f"{SECOND} is not a complete Parquet file"):
        Log(log)
    with pytest.raises(InputError, match="nosuch"):
        Log(log / "nosuch")
    (log / "log.json").unlink()
    with pytest.raises(InputError, match="is unfinished"):
        Log(log)


def test_an_unreadable_row_group_is_named(log: Path) -> None:
    """Bytes in the middle of a column are overwritten: the footer is whole, the data is not."""
    footer = pq.read_metadata(log / SECOND)
    names = [footer.row_group(1).column(i).path_in_schema for i in range(footer.num_columns)]
    column = footer.row_group(1).column(names.index("propensity_score"))
    start = column.dictionary_page_offset or column.data_page_offset
    data = bytearray((log / SECOND).read_bytes())
    data[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    (log / SECOND).write_bytes(bytes(data))
    opened = Log(log)
    opened.events(opened.groups[2])
    with pytest.raises(InputError, match=f"{SECOND}, row group 1, column propensity_score: cannot be read"):
        opened.events(opened.groups[3])


def test_a_changed_bit_is_an_error_or_changes_nothing(log: Path) -> None:
    """Pages have checksums. The footer has none: there a bit may change what is no data."""
    whole, good = Log(log), (log / SECOND).read_bytes()
    expected = [whole.read(group) for group in whole.groups]
    start = len(good) - int.from_bytes(good[-8:-4], "little") - 8
    random = np.random.default_rng(0)
    errors = []
    for place in random.integers(4, start, size=60):
        data = bytearray(good)
        data[place] ^= 1 << int(random.integers(8))
        (log / SECOND).write_bytes(bytes(data))
        try:
            opened = Log(log)
            assert [opened.read(group) for group in opened.groups] == expected
        except InputError as error:
            errors.append(str(error))
    assert all(SECOND in error for error in errors)
    # times, which a replay does not read, take about half of the bytes
    assert len(errors) > 20


def test_a_constant_propensity_is_not_a_uniform_log(tmp_path: Path) -> None:
    world = SimulatedWorld(**SMALL)
    for name, change in (
        ("a", put("click", 0, 0)),
        ("b", lambda t: t.set_column(4, "propensity_score", pa.array([0.5] * 50))),
    ):
        writer = LogWriter(tmp_path / name, OBD, world.item_table(), {})
        writer.add(change(world.draw(0, 50)), progress=0)
        writer.finish(policy="x", campaign="y")
    assert Log(tmp_path / "a").statistics.uniform
    assert not Log(tmp_path / "b").statistics.uniform


def test_users_without_any_feature(tmp_path: Path) -> None:
    world, events = SimulatedWorld(**SMALL), SimulatedWorld(**SMALL).draw(0, 300)
    for name in (f"user_feature_{i}" for i in range(4)):
        column = events.schema.get_field_index(name)
        nothing = pa.array([None] * 300, pa.string()).dictionary_encode().cast(events.schema.field(name).type)
        events = events.set_column(column, events.schema.field(name), nothing)
    writer = LogWriter(tmp_path / "log", OBD, world.item_table(), {})
    writer.add(events, progress=0)
    writer.finish(policy="x", campaign="y")
    opened = Log(tmp_path / "log")
    features = ObdFeatures.fit(opened)
    events = opened.events(opened.groups[0])
    encoded = features.encode(opened, events, candidates(events, "all", 12, opened, 0))
    assert encoded[3:] == (0, 1200)
    assert (features.users(encoded.codes) == 0).all()


@pytest.mark.parametrize("name", [field.name for field in fields(LogStatistics)])
def test_a_log_json_without_its_contents(name: str, log: Path) -> None:
    stored = json.loads((log / "log.json").read_text())
    del stored["contents"][name]
    (log / "log.json").write_text(json.dumps(stored))
    with pytest.raises(InputError, match=f"log.json, contents.{name}: expected a value, got nothing"):
        Log(log)


def test_items_out_of_order_are_refused(log: Path) -> None:
    rewritten(log / "items.parquet", lambda t: t.take(list(range(11, -1, -1))))
    with pytest.raises(InputError, match="items.parquet, column item_id: items must be numbered 0, 1, 2"):
        Log(log)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--data.environment.log=nosuch"], "nosuch"),
        (["--data.environment.candidates=nosuch"], "candidates"),
        (["--data.environment.arms=81"], "the log has only 80"),
        (["--data.environment.arms=0"], "arms must be a whole number of at least 1"),
        (["--data.environment.fit_rows=0"], "fit_rows must be"),
        (["--data.environment.seed=-1"], "seed must be"),
        (["--data.environment.propensity_floor=2"], "propensity_floor must lie in"),
    ],
)
def test_a_fit_refuses_and_leaves_nothing(
    options: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        nl_lightning(["fit", CONFIG, *options])
    assert stop.value.code not in (0, None)
    assert text in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_log_that_breaks_in_the_middle_of_a_fit(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the place. A mended log is another log than the run began with: it begins anew when asked."""
    monkeypatch.chdir(tmp_path)
    good = (log / SECOND).read_bytes()
    rewritten(log / SECOND, put("click", 400, 7))
    fit = ["fit", CONFIG, f"--data.environment.log={log}", "--run.id=x", "--run.checkpoint_every=1"]
    small = ["--model.update_every=20", "--model.steps=2", "--trainer.enable_progress_bar=false", "--model.replicas=2"]
    with pytest.raises(SystemExit):
        nl_lightning([*fit, *small])
    assert "row group 1, column click: expected 0 or 1, got 7" in capsys.readouterr().err
    (log / SECOND).write_bytes(good)
    with pytest.raises(SystemExit):
        nl_lightning(["fit", "--resume=runs/obd/x"])
    assert "is not the log that this run began with" in capsys.readouterr().err
    nl_lightning(["fit", "--resume=runs/obd/x", "--restart"])
    nl_lightning([*fit[:3], "--run.id=y", *small])
    one, other = (json.loads(Path(f"runs/obd/{run}/summary.json").read_text()) for run in "xy")
    assert one["replicas"] == other["replicas"]
    assert pq.read_table("runs/obd/x/rounds.parquet").equals(pq.read_table("runs/obd/y/rounds.parquet"))


def test_the_bundled_sample_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = bundled_log("bts", "men")
    opened = Log(path)
    assert (opened.rows, opened.n_items, opened.description["policy"]) == (10_000, 34, "bts")
    before = (path / "log.json").stat().st_mtime_ns
    assert bundled_log("bts", "men") == path
    assert (path / "log.json").stat().st_mtime_ns == before
    assert [p.name for p in path.parent.iterdir()] == ["men"]


def test_a_log_is_read_in_parts(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No row group is read twice in a first pass, and the users' columns only."""
    opened, seen = Log(whole), []
    read = Log.read
    monkeypatch.setattr(
        Log,
        "read",
        lambda self, group, columns, **how: seen.append((group, columns)) or read(self, group, columns, **how),
    )
    ObdFeatures.fit(opened)
    assert [group for group, _ in seen] == opened.groups
    assert {name for _, columns in seen for name in columns} == {f"user_feature_{i}" for i in range(4)}
