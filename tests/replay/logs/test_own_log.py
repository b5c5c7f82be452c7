"""A log with columns of one's own: its events, its parts, its frames, its statistics."""

from collections.abc import Callable
from math import fsum, isnan
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nl_lightning.core.errors import InputError
from replay import Log, Schema
from replay.logs.layout import CATEGORY, check_events, check_items
from replay.logs.reader import Events
from replay.logs.statistics import LogStatistics, StatisticsCounter
from replay.protocol.obd_features import ObdFeatures
from replay.simulation.simulated_world import SimulatedWorld
from tests.support.own_logs import NAMES, own_events, own_items, own_schema, write_own_log
from tests.support.replay_logs import SMALL, write_log

ROWS = 110
Row = dict[str, Any]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """Row groups of 9 events, two a file."""
    return write_own_log(tmp_path_factory.mktemp("logs") / "log", own_events(ROWS), group=9, part=18)


def plain(events: Events) -> list[Row]:
    """Events as rows of plain values."""
    rows = []
    lists = {"shown": events.candidates, **{name: pairs.value for name, pairs in events.pair.items()}}
    cut = {
        name: np.split(ragged.values, np.cumsum(ragged.length)[:-1])
        for name, ragged in lists.items()
        if ragged is not None
    }
    for i, row in enumerate(events.rows):
        found: Row = {"row": row, "item": events.item[i], "bought": events.click[i], "p": events.propensity[i]}
        found |= {name: None if np.isnan(values[i]) else values[i] for name, values in events.numeric.items()}
        for name, (codes, values) in events.categorical.items():
            found[name] = None if codes[i] < 0 else values[codes[i]]
        found |= {name: parts[i].tolist() for name, parts in cut.items()}
        rows.append(found)
    return rows


def all_rows(log: Log) -> list[Row]:
    return [row for group in log.groups for row in plain(log.events(group))]


def test_events_are_those_that_were_written(log: Log) -> None:
    stored = own_events(ROWS).to_pylist()
    found = all_rows(log)
    assert [row.pop("row") for row in found] == list(range(ROWS))
    assert found == [{name: row[name] for name in found[0]} for row in stored]
    assert set(found[0]) == set(stored[0]) - {"time", "page"}
    assert any(row["recency"] is None for row in found)


def test_the_names_of_actions(log: Log) -> None:
    assert log.actions == NAMES
    assert log.n_items == 5
    assert log.items.column_names == ["name", "price", "brand"]


# ---- parts of a log --------------------------------------------------------------------------------------------------


def count(rows: list[Row], items: int) -> dict[str, Any]:
    """The statistics of events, by plain loops."""
    known = [row["p"] for row in rows if row["p"] is not None]
    times = [row["time"] for row in rows if row["time"] is not None]

    def ends(values: list[Any]) -> list[Any]:
        return [min(values), max(values)]

    numeric = {name: [row[name] for row in rows if row[name] is not None] for name in ("age", "recency")}
    even = [row for row in rows if row["p"] is not None and abs(row["p"] * len(row["shown"]) - 1) < 1e-6]
    missing = {name: sum(row[name] is None for row in rows) for name in rows[0]}
    return {
        "items": items,
        "rows": len(rows),
        "clicks": sum(row["bought"] for row in rows),
        "propensity_low": min(known, default=None),
        "propensity_high": max(known, default=None),
        "inverse_propensities": pytest.approx(fsum(1 / p for p in known), rel=1e-12),
        "uniform_rows": len(even),
        "numeric": {name: ends(values) for name, values in numeric.items() if values},
        "pair": {"affinity": ends([value for row in rows for value in row["affinity"]])},
        "candidates": ends([len(row["shown"]) for row in rows]),
        "categories": {"country": len({row["country"] for row in rows} - {None})},
        "missing": {name: number for name, number in missing.items() if number},
        "first_time": min(times).isoformat() if times else None,
        "last_time": max(times).isoformat() if times else None,
        "in_order": times == sorted(times),
    }


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.tuples(st.integers(0, ROWS), st.integers(0, ROWS)).filter(lambda ends: ends[0] != ends[1]), st.data())
def test_a_part_is_the_whole_cut(log: Log, ends: tuple[int, int], data: st.DataObject) -> None:
    """Its events, its row groups, its statistics; also a part of a part."""
    start, stop = sorted(ends)
    part = log.part(f"{start}:{stop}")
    assert (part.first_row, part.rows) == (start, stop - start)
    assert all_rows(part) == all_rows(log)[start:stop]
    bounds = sorted({start, stop} | {group.first for group in log.groups if start < group.first < stop})
    assert [group.first for group in part.groups] == bounds[:-1]
    assert [group.first + group.rows for group in part.groups] == bounds[1:]
    stored = own_events(ROWS).to_pylist()
    assert part.statistics.to_json() == count(stored[start:stop], log.n_items)
    frames = [row for group in part.groups for row in part.frame(group).index]
    assert frames == list(range(start, stop))
    inner = data.draw(st.integers(start, stop - 1))
    again = part.part(f"{inner}:")
    assert all_rows(again) == all_rows(log)[inner:stop]
    assert again.statistics.to_json() == count(stored[inner:stop], log.n_items)
    # the log itself stays as it was
    assert (log.first_row, log.rows) == (0, ROWS)
    assert log.statistics.to_json() == count(stored, log.n_items)


def test_parts_that_are_none(log: Log) -> None:
    assert log.part(None) is log
    part = log.part("30:60")
    for rows, text in (
        ("20:40", "rows 20:40 begin at 20, but .*/log has the rows 30 to 59"),
        ("40:61", "rows 40:61 end at 61, but .*/log has the rows 30 to 59"),
        ("60:", "rows 60: hold no event of .*/log, which has the rows 30 to 59"),
        ("x", "rows must be like 0:5000"),
    ):
        with pytest.raises(InputError, match=text):
            part.part(rows)
    assert part.part(":40").rows == 10


def test_features_of_a_part_are_fitted_on_its_first_rows(tmp_path: Path) -> None:
    whole = write_log(tmp_path / "log", SimulatedWorld(**SMALL), 600, group=100)
    part = whole.part("250:")
    few, same = ObdFeatures.fit(part, rows=9), ObdFeatures.fit(whole.part("250:259"))
    assert few.categories == same.categories
    assert (few.user == same.user).all()
    assert all(few.categories)


# ---- frames ----------------------------------------------------------------------------------------------------------


def test_a_frame_is_what_is_known_before_the_choice(log: Log) -> None:
    stored, group = own_events(ROWS).to_pylist(), log.groups[2]
    frame = log.frame(group)
    assert list(frame.columns) == ["time", "age", "recency", "country", "shown", "affinity", "page"]
    assert list(frame.index) == list(range(18, 27))
    for row, found in zip(frame.index, frame.to_dict("records"), strict=True):
        expected = stored[row]
        assert list(found["shown"]) == [NAMES[action] for action in expected["shown"]]
        assert list(found["affinity"]) == expected["affinity"]
        assert found["time"] == expected["time"]
        assert found["age"] == expected["age"]
        for name in ("recency", "country", "page"):
            missing = found[name] is None or (isinstance(found[name], float) and isnan(found[name]))
            assert missing == (expected[name] is None)
            assert missing or found[name] == expected[name]


def test_a_frame_of_a_sparse_log_leaves_affinities_out(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", SimulatedWorld(**SMALL), 50)
    frame = log.frame(log.groups[0])
    assert list(frame.columns) == ["timestamp", "position", *(f"user_feature_{i}" for i in range(4))]


def test_a_frame_of_a_damaged_log_is_refused(tmp_path: Path) -> None:
    log = write_own_log(tmp_path / "log", own_events(20), group=10, part=40)
    file = tmp_path / "log" / "events-00000.parquet"
    table = pq.read_table(file)
    lists = table["shown"].to_pylist()
    lists[12] = [0, 5]
    column = table.schema.get_field_index("shown")
    changed = table.set_column(column, "shown", pa.array(lists, table["shown"].type))
    pq.write_table(changed, file, row_group_size=10)
    log.frame(log.groups[0])
    with pytest.raises(InputError, match="row group 1, column shown: expected 0 to 4, got 5"):
        log.frame(log.groups[1])


# ---- statistics ------------------------------------------------------------------------------------------------------


def counted(events: pa.Table, schema: Schema | None = None, at_once: int = 7) -> LogStatistics:
    counter = StatisticsCounter(schema or own_schema(), 5)
    for start in range(0, events.num_rows, at_once):
        counter.add(events.slice(start, at_once))
    return counter.statistics


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_statistics_are_those_of_plain_loops(at_once: int) -> None:
    events = own_events(50, seed=3)
    assert counted(events, at_once=at_once).to_json() == count(events.to_pylist(), 5)


def put(name: str, values: list[Any]) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        place, kind = table.schema.get_field_index(name), table.schema.field(name).type
        return table.set_column(place, name, pa.array(values, kind) if kind != CATEGORY else _categories(values))

    return change


def _categories(values: list[Any]) -> pa.Array:
    return pa.array(values, pa.string()).dictionary_encode().cast(CATEGORY)


def test_uniform_with_candidates_means_one_of_them(tmp_path: Path) -> None:
    """However many an event has: the propensities differ, and yet the log is uniform."""
    events = own_events(30, uniform=True)
    uniform = write_own_log(tmp_path / "a", events).statistics
    assert uniform.uniform
    assert uniform.uniform_rows == 30
    assert uniform.propensity_low is not None
    assert uniform.propensity_low < uniform.propensity_high
    assert (uniform.candidates, uniform.most_candidates) == ([2, 5], 5)
    odd = write_own_log(tmp_path / "b", own_events(30)).statistics
    assert (odd.uniform, odd.uniform_rows) == (False, 20)
    # the same propensities are not uniform if all actions could have been shown
    schema = own_schema(candidates=None, pair=None)
    everything = write_own_log(tmp_path / "c", events, schema).statistics
    assert not everything.uniform
    assert (everything.candidates, everything.most_candidates) == (None, 5)
    assert everything.uniform_rows == sum(len(actions) == 5 for actions in events["shown"].to_pylist())
    flat = write_own_log(tmp_path / "d", put("p", [0.2] * 30)(events), schema).statistics
    assert flat.uniform


def test_a_missing_propensity_is_not_uniform(tmp_path: Path) -> None:
    events = own_events(30, uniform=True)
    some = put("p", [None, *events["p"].to_pylist()[1:]])(events)
    log = write_own_log(tmp_path / "some", some)
    assert (log.statistics.uniform, log.statistics.uniform_rows, log.missing_propensities) == (False, 29, 1)
    none = write_own_log(tmp_path / "none", put("p", [None] * 30)(events))
    assert (none.statistics.uniform, none.statistics.uniform_rows, none.missing_propensities) == (False, 0, 30)
    assert none.statistics.propensity_low is None
    assert np.isnan(none.events(none.groups[0]).propensity).all()


def test_columns_without_any_value(tmp_path: Path) -> None:
    events = put("recency", [None] * 30)(put("country", [None] * 30)(put("time", [None] * 30)(own_events(30))))
    log = write_own_log(tmp_path / "log", events)
    assert "recency" not in log.statistics.numeric
    assert log.statistics.categories == {"country": 0}
    assert (log.statistics.first_time, log.statistics.in_order) == (None, True)
    assert np.isnan(log.events(log.groups[0]).numeric["recency"]).all()
    assert log.statistics.to_json() == count(events.to_pylist(), 5)
    assert log.part("5:9").statistics.to_json() == count(events.to_pylist()[5:9], 5)


def test_numbers_that_are_not_a_number_are_missing_ones(tmp_path: Path) -> None:
    events = put("recency", [float("nan")] * 29 + [2.0])(own_events(30))
    log = write_own_log(tmp_path / "log", events)
    assert log.statistics.numeric["recency"] == [2.0, 2.0]
    everything = write_own_log(tmp_path / "all", put("recency", [float("nan")] * 30)(events))
    assert "recency" not in everything.statistics.numeric
    assert np.isnan(everything.events(everything.groups[0]).numeric["recency"]).all()


@pytest.mark.parametrize(("name", "value"), [("recency", float("inf")), ("recency", -float("inf"))])
def test_infinite_numbers_are_not_written(name: str, value: float, tmp_path: Path) -> None:
    events = own_events(30)
    values = events[name].to_pylist()
    values[7] = value
    with pytest.raises(InputError, match=f"column {name}: expected finite numbers, got {value}"):
        write_own_log(tmp_path / "log", put(name, values)(events))
    assert not list((tmp_path / "log").glob("events-*"))


def test_columns_without_a_role_are_not_written(tmp_path: Path) -> None:
    """Not even their missing values are counted."""
    events = own_events(30).append_column("note", pa.array([None] * 30, pa.string()))
    log = write_own_log(tmp_path / "log", events)
    assert "note" not in pq.read_schema(tmp_path / "log" / "events-00000.parquet").names
    assert "note" not in log.statistics.missing


# ---- columns and their types -----------------------------------------------------------------------------------------


def cast(name: str, kind: pa.DataType) -> Callable[[pa.Table], pa.Table]:
    return lambda t: t.set_column(t.schema.get_field_index(name), name, t[name].cast(kind))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda t: t.drop_columns(["item"]), "no column item. Its schema names the columns item, bought, p,"),
        (lambda t: t.drop_columns(["age", "page"]), "my file has no column age, page."),
        (lambda t: t.rename_columns({"p": "q"}), "no column p. .*this file has time, item, bought, q, .*renamed"),
        (lambda t: t.append_column("age", t["age"]), "my file has 2 columns age"),
        (cast("item", pa.int64()), "my file, column item: expected int32, got int64. Convert the log again."),
        (cast("bought", pa.bool_()), "column bought: expected int8, got bool"),
        (cast("p", pa.float32()), "column p: expected double, got float"),
        (cast("time", pa.timestamp("ms", tz="UTC")), "column time: expected timestamp.us, tz=UTC., got timestamp.ms"),
        (cast("country", pa.string()), "column country: expected dictionary<.*>, got string"),
        (cast("age", pa.string()), "column age: expected numbers, got string"),
        (cast("recency", pa.decimal128(9, 2)), "column recency: expected numbers, got decimal128"),
        (cast("shown", pa.list_(pa.int64())), "column shown: expected list<.*int32>, got list<.*int64>"),
        (cast("affinity", pa.list_(pa.string())), "column affinity: expected lists of numbers, got list<.*string>"),
        (lambda t: put("page", [None] * 9)(t).drop_columns(["affinity"]), "no column affinity"),
    ],
)  # fmt: skip
def test_columns_of_events_are_checked(change: Callable[[pa.Table], pa.Table], text: str) -> None:
    events = own_events(9)
    check_events(events.schema, own_schema(), "my file")
    with pytest.raises(InputError, match=text):
        check_events(change(events).schema, own_schema(), "my file")


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.uint16(), pa.float32(), pa.float64()], ids=str)
def test_numbers_of_any_width(kind: pa.DataType, tmp_path: Path) -> None:
    events = cast("age", kind)(own_events(30))
    log = write_own_log(tmp_path / "log", events)
    assert log.events(log.groups[0]).numeric["age"].tolist() == events["age"].to_pylist()
    assert log.statistics.to_json() == count(events.to_pylist(), 5)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda t: t.drop_columns(["name"]), "no column name. Its schema names the columns brand, price, name"),
        (lambda t: t.drop_columns(["price"]), "my file has no column price"),
        (lambda t: t.append_column("name", t["name"]), "my file has 2 columns name"),
        (cast("price", pa.string()), "my file, column price: expected numbers, got string"),
        (cast("brand", pa.string()), "my file, column brand: expected dictionary<.*>, got string"),
    ],
)  # fmt: skip
def test_columns_of_actions_are_checked(change: Callable[[pa.Table], pa.Table], text: str) -> None:
    check_items(own_items().schema, own_schema(), "my file")
    with pytest.raises(InputError, match=text):
        check_items(change(own_items()).schema, own_schema(), "my file")
