"""A table of one's own becomes a log, or an error says which file, column and row, and what to do."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import replay.formats.table_blocks
import replay.logs.actions
import replay.logs.writer
from nl_lightning.core.errors import InputError
from replay.formats.csv_blocks import CsvBlock
from replay.formats.table import convert_table, table_is_converted
from replay.formats.table_blocks import CsvTable
from replay.logs.actions import ActionNumbers
from replay.logs.description import read_description
from replay.logs.layout import CATEGORY, TIME
from replay.logs.reader import Log
from replay.logs.schema import Schema
from replay.logs.table import TableChecker
from tests.support.obd_csv import contents
from tests.support.own_table import (
    ACTIONS,
    HEADER,
    ITEMS,
    SCHEMA,
    event,
    stored,
    typed,
    without,
    write_csv,
    write_parquet,
)

ROWS = [event(i) for i in range(20)]


def fails(words: str, *arguments: Any, **options: Any) -> str:
    with pytest.raises(InputError, match=words) as stop:
        convert_table(*arguments, **options)
    assert "\n" not in str(stop.value)
    return str(stop.value)


def test_csv_and_parquet_give_the_same_log(tmp_path: Path) -> None:
    convert_table(write_csv(tmp_path / "x.csv", ROWS), tmp_path / "csv", SCHEMA)
    convert_table(write_parquet(tmp_path / "x.parquet", ROWS), tmp_path / "parquet", SCHEMA)
    events = stored(tmp_path / "csv")
    assert events.equals(stored(tmp_path / "parquet"))
    assert {name: events.schema.field(name).type for name in events.column_names} == {
        "time": TIME, "item": pa.int32(), "click": pa.int8(), "p": pa.float64(), "age": pa.float64(),
        "country": CATEGORY, "shown": pa.list_(pa.int32()), "affinity": pa.list_(pa.float64()), "page": pa.int64(),
        "zip": pa.string(),
    }  # fmt: skip
    expected = typed(ROWS)
    for name in ("click", "p", "age", "affinity", "page", "zip", "country"):
        assert events[name].to_pylist() == expected[name].to_pylist()
    assert events["time"].cast(pa.timestamp("us")).to_pylist() == expected["time"].to_pylist()
    log = Log(tmp_path / "csv")
    assert log.actions == ["a", "b", "c"]
    assert [log.actions[number] for number in events["item"].to_pylist()] == expected["item"].to_pylist()
    assert log.events(log.groups[0]).candidates is not None
    assert log.schema == Schema.from_dict(SCHEMA)


def test_a_directory_is_one_table(tmp_path: Path) -> None:
    convert_table(write_csv(tmp_path / "x.csv", ROWS), tmp_path / "one", SCHEMA)
    for kind, write in (("csv", write_csv), ("parquet", write_parquet)):
        for number, (start, stop) in enumerate([(0, 9), (9, 9), (9, 20)]):
            write(tmp_path / kind / f"part-{number}.{kind}", ROWS[start:stop])
        (tmp_path / kind / "_SUCCESS").touch()
        (tmp_path / kind / "mine.yaml").touch()
        convert_table(tmp_path / kind, tmp_path / f"log-{kind}", SCHEMA)
        assert stored(tmp_path / f"log-{kind}").equals(stored(tmp_path / "one"))
    # the columns of another file may stand in another order
    write_csv(tmp_path / "csv" / "part-2.csv", ROWS[9:], HEADER[::-1])
    convert_table(tmp_path / "csv", tmp_path / "reversed", SCHEMA)
    assert stored(tmp_path / "reversed").equals(stored(tmp_path / "one"))


def test_an_address(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    for file in (write_csv(tmp_path / "x.csv", ROWS), write_parquet(tmp_path / "x.parquet", ROWS)):
        memory.pipe(f"/bucket/{file.suffix[1:]}/{file.name}", file.read_bytes())
        convert_table(file, tmp_path / f"here{file.suffix}", SCHEMA)
        for place in (file.as_uri(), f"fsspec+memory://bucket/{file.suffix[1:]}"):
            target = tmp_path / f"log{file.suffix}{len(place)}"
            convert_table(place, target, SCHEMA)
            assert stored(target).equals(stored(tmp_path / f"here{file.suffix}"))


SPELLINGS: dict[str, Callable[[str], str]] = {
    "no newline at the end": lambda file: file.removesuffix("\n"),
    "CRLF": lambda file: file.replace("\n", "\r\n"),
    "byte order mark": lambda file: "\ufeff" + file,
    "a zone": lambda file: file.replace("2024-05-01 00", "2024-05-01T02").replace(":00,", ":00,"),
    "lists with bars": lambda file: file.replace('"[a, b, c]"', "a|b|c"),
    "lists of JSON": lambda file: file.replace('"[a, b, c]"', '"[""a"", ""b"", ""c""]"'),
    "lists of Python": lambda file: file.replace('"[a, b, c]"', "\"['a', 'b', 'c']\""),
    "true and false": lambda file: file.replace(",0,0.25", ",False,0.25").replace(",1,0.25", ",true,0.25"),
    "spaces around numbers": lambda file: file.replace(",0.25,", ", 0.25 ,"),
    "NaN": lambda file: file.replace("0.25,,", "0.25,NaN,"),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings_of_the_same_table(spelling: str, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "x.csv", ROWS)
    convert_table(file, tmp_path / "log", SCHEMA)
    changed = SPELLINGS[spelling](file.read_text())
    if spelling == "a zone":
        changed = "\n".join(
            line if number == 0 or not line else line.replace(",", "+02:00,", 1)
            for number, line in enumerate(changed.split("\n"))
        )
    assert changed != file.read_text()
    file.write_bytes(changed.encode())
    convert_table(file, tmp_path / "other", SCHEMA)
    assert stored(tmp_path / "other").equals(stored(tmp_path / "log"))


def test_times_of_several_kinds(tmp_path: Path) -> None:
    times = ["1714521600", "2024-05-01", "2024-05-01T00:00:00Z", "2024-05-01T02:00:00.000000123+02:00", "1714521600.0"]
    file = write_csv(tmp_path / "x.csv", [event(i, time=time) for i, time in enumerate(times)])
    convert_table(file, tmp_path / "log", SCHEMA)
    assert {str(time) for time in stored(tmp_path / "log")["time"].to_pylist()} == {"2024-05-01 00:00:00+00:00"}


LIST = r"shown is \[a, expected a list of actions, such as \[a, b\] or a\|b"
DAMAGES = [
    ("click", "2", "click is 2, expected 0 or 1"),
    ("click", "0.5", "click is 0.5, expected 0 or 1"),
    ("click", "", "click is empty, expected 0 or 1"),
    ("click", "yes", "click is yes, expected 0 or 1"),
    ("p", "0", "p is 0.*, expected a number above 0 and up to 1"),
    ("p", "1.5", "p is 1.5, expected"),
    ("p", "-0.1", "p is -0.1, expected"),
    (
        "p",
        "",
        "p is empty, expected a number above 0 and up to 1 in every row .if some are not known, put `logging: est",
    ),
    ("p", "NaN", "p is NaN, expected"),
    ("p", "?", r"p is \?, expected"),
    ("item", "d", "item is d, expected one of the event's candidates in shown"),
    ("item", "", "item is empty, expected an action"),
    ("shown", "", "shown is empty, expected a list of at least one action"),
    ("shown", "[]", "shown is empty, expected a list of at least one action"),
    ("shown", "[a", LIST),
    ("shown", "[a, a, b]", "shown lists an action twice"),
    ("shown", "[b, c]", r"item is a, expected one of the event's candidates in shown, \[b, c\]"),
    ("affinity", "[1, 2]", "affinity has 2 numbers, expected 3, one for each of the candidates of the event"),
    ("affinity", "[1, 2, inf]", r"affinity is \[1, 2, inf\], expected a list of finite numbers"),
    ("affinity", "[1, , 2]", "affinity is .*, expected a list of finite numbers"),
    ("affinity", "x", "affinity is x, expected a list of finite numbers"),
    ("affinity", "", "affinity is empty, expected a list of finite numbers"),
    ("age", "old", "age is old, expected a finite number, or nothing"),
    ("age", "inf", "age is inf, expected a finite number, or nothing"),
    ("age", "1e999", "age is .*, expected a finite number, or nothing"),
    ("time", "yesterday", "time is yesterday, expected a time like 2024-05-01 12:30:00"),
    ("time", "2024-13-01", "time is 2024-13-01, expected a time"),
    ("time", "1714521600000", "time is 1714521600000, expected a time"),
    ("time", "", "time is empty, expected a time.*, in every row .if some are not known, leave `timestamp` out"),
    ("country", "\udcff", "the line is not UTF-8 text"),
    ("country", "a\rb", "there is a carriage return within the line"),
]


@pytest.mark.parametrize(("column", "cell", "reason"), DAMAGES)
def test_a_damaged_row(column: str, cell: str, reason: str, tmp_path: Path) -> None:
    rows = [event(i, **({column: cell} if i == 3 else {})) for i in range(6)]
    file = write_csv(tmp_path / "x.csv", [event(0)])
    text = ",".join(HEADER) + "\n" + "".join(",".join(_quoted(row[name]) for name in HEADER) + "\n" for row in rows)
    file.write_bytes(text.encode(errors="surrogateescape"))
    said = fails(f"x.csv:5: {reason}", file, tmp_path / "log", SCHEMA)
    assert "--on-error skip" in said
    assert not (tmp_path / "log").exists()
    convert_table(file, tmp_path / "log", SCHEMA, on_error="skip")
    assert stored(tmp_path / "log")["page"].to_pylist() == [0, 1, 2, 4, 5]
    skipped = read_description(tmp_path / "log")["skipped"]
    assert skipped["rows"] == 1
    assert skipped["first"][0].startswith("x.csv:5: ")


def _quoted(cell: str) -> str:
    return f'"{cell}"' if "," in cell else cell


def test_damaged_lines(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "x.csv", ROWS)
    lines = file.read_text().splitlines()
    for damage, words in [("a,b", "the line has 2 fields, expected 11"), ("", "the line is empty")]:
        file.write_text("\n".join([*lines[:9], damage, *lines[9:]]) + "\n")
        fails(f"x.csv:10: {words}", file, tmp_path / "log", SCHEMA)
    file.write_text("\n".join([*lines[:9], lines[9].removesuffix("x") + '"x', *lines[10:]]) + "\n")
    fails("x.csv:10: a quotation mark is not closed", file, tmp_path / "log", SCHEMA)


def test_a_damaged_row_of_a_parquet_file(tmp_path: Path) -> None:
    table = typed(ROWS)
    click = pa.array([7 if row == 11 else 0 for row in range(20)])
    (tmp_path / "t").mkdir()
    pq.write_table(table, tmp_path / "t" / "a.parquet")
    pq.write_table(table.set_column(2, "click", click), tmp_path / "t" / "b.parquet", row_group_size=4)
    fails(r"t/b.parquet, row 11: click is 7, expected 0 or 1\.", tmp_path / "t", tmp_path / "log", SCHEMA)
    convert_table(tmp_path / "t", tmp_path / "log", SCHEMA, on_error="skip")
    assert read_description(tmp_path / "log")["skipped"]["first"] == ["b.parquet, row 11: click is 7, expected 0 or 1"]
    assert len(stored(tmp_path / "log")) == 39


def test_a_table_without_an_intact_row_is_no_log(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "x.csv", [event(i, click="7") for i in range(3)])
    fails("no row to make a log from", file, tmp_path / "log", SCHEMA, on_error="skip")
    (tmp_path / "items.csv").write_text(ITEMS)
    schema = without("keep", actions={**ACTIONS, "table": str(tmp_path / "items.csv")})
    fails("no intact row.*x.csv:2: click is 7", file, tmp_path / "log", schema, on_error="skip")
    assert not (tmp_path / "log").exists()
    fails("no row to make a log from", write_csv(tmp_path / "y.csv", []), tmp_path / "log", SCHEMA)


# ---- columns, files, types -------------------------------------------------------------------------------------------


def test_missing_and_renamed_columns(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "x.csv", ROWS)
    fails(
        r"x.csv:1: there is no column clik, .*Did you mean click\? The table has time, item, .*Correct the schema",
        file, tmp_path / "log", without("reward", reward="clik"),
    )  # fmt: skip
    fails(r"no column Item, .*Did you mean item\?", file, tmp_path / "log", without("action", action="Item"))
    fails(r"no column nowhere \(nor neither\)", file, tmp_path / "log", without("keep", keep=["nowhere", "neither"]))
    parquet = write_parquet(tmp_path / "x.parquet", ROWS)
    fails(r"x.parquet: there is no column clik", parquet, tmp_path / "log", without("reward", reward="clik"))
    write_csv(tmp_path / "d" / "a.csv", ROWS)
    write_csv(tmp_path / "d" / "b.csv", ROWS, [*HEADER[:-3], "pages", "zip"])
    fails(r"b.csv:1: there is no column page, .*Did you mean pages\?", tmp_path / "d", tmp_path / "log", SCHEMA)
    file.write_text(file.read_text().replace("unread", "click", 1))
    fails("x.csv:1: there are two columns click", file, tmp_path / "log", SCHEMA)
    file.write_text(file.read_text().replace(",", ";"))
    fails("Expected commas between the columns, not ';'", file, tmp_path / "log", SCHEMA)
    file.write_text("")
    fails("x.csv is empty", file, tmp_path / "log", SCHEMA)


def test_files_that_are_no_table(tmp_path: Path) -> None:
    fails("nowhere does not exist. Expected a CSV or Parquet file", tmp_path / "nowhere", tmp_path / "log", SCHEMA)
    (tmp_path / "d").mkdir()
    fails("d has no CSV or Parquet file", tmp_path / "d", tmp_path / "log", SCHEMA)
    write_csv(tmp_path / "d" / "a.csv", ROWS)
    write_parquet(tmp_path / "d" / "b.parquet", ROWS)
    fails("two kinds, a.csv and b.parquet", tmp_path / "d", tmp_path / "log", SCHEMA)
    (tmp_path / "d" / "b.parquet").rename(tmp_path / "d" / "b.xlsx")
    fails("b.xlsx: expected a file that ends in .csv or .parquet, got .xlsx", tmp_path / "d", tmp_path / "log", SCHEMA)
    (tmp_path / "d" / "b.xlsx").rename(tmp_path / "c.parquet")
    (tmp_path / "d" / "below").mkdir()
    fails("d has a directory below", tmp_path / "d", tmp_path / "log", SCHEMA)
    (tmp_path / "c.parquet").write_bytes((tmp_path / "c.parquet").read_bytes()[:-9])
    fails("c.parquet is not a complete Parquet file", tmp_path / "c.parquet", tmp_path / "log", SCHEMA)


WRONG_TYPES = [
    ("age", pa.array(["1"] * 20), "column age: expected numbers, got string"),
    ("p", pa.array(["1"] * 20), "column p: expected numbers, got string"),
    ("item", pa.array([1.0] * 20), "column item: expected actions, text or whole numbers, got double"),
    ("click", pa.array([b"1"] * 20), "column click: expected rewards, 0 or 1, got binary"),
    ("time", pa.array([True] * 20), "column time: expected times, got bool"),
    ("shown", pa.array([1] * 20), "column shown: expected lists of actions, got int64"),
    ("shown", pa.array([[1.5]] * 20), "column shown: expected lists of text or of whole numbers, got list"),
    ("affinity", pa.array([["a"]] * 20), "column affinity: expected numbers, got string"),
    ("country", pa.array([["a"]] * 20), "column country: expected categories, text or whole numbers, got list"),
]


@pytest.mark.parametrize(("name", "values", "words"), WRONG_TYPES)
def test_columns_of_a_wrong_type(name: str, values: pa.Array, words: str, tmp_path: Path) -> None:
    table = typed(ROWS)
    pq.write_table(table.set_column(table.column_names.index(name), name, values), tmp_path / "x.parquet")
    fails(f"x.parquet, {words}", tmp_path / "x.parquet", tmp_path / "log", SCHEMA, on_error="skip")


def test_types_of_parquet_files(tmp_path: Path) -> None:
    """Whole numbers stay whole if they are in every file; a kept column has one type."""
    table = typed(ROWS).set_column(4, "age", pa.array(range(20), pa.int16()))
    table = table.set_column(5, "country", table["country"].dictionary_encode())
    (tmp_path / "t").mkdir()
    pq.write_table(table, tmp_path / "t" / "a.parquet")
    convert_table(tmp_path / "t", tmp_path / "whole", SCHEMA)
    assert stored(tmp_path / "whole")["age"].type == pa.int64()
    pq.write_table(typed(ROWS), tmp_path / "t" / "b.parquet")
    convert_table(tmp_path / "t", tmp_path / "mixed", SCHEMA)
    assert stored(tmp_path / "mixed")["age"].type == pa.float64()
    pq.write_table(table.set_column(8, "page", pa.array(["x"] * 20)), tmp_path / "t" / "c.parquet")
    fails(
        "c.parquet, column page: expected int64, as in .*a.parquet, got string", tmp_path / "t", tmp_path / "x", SCHEMA
    )


@pytest.mark.parametrize(
    ("cells", "kind", "values"),
    [
        (["1", "", "-3"], pa.int64(), [1, None, -3]),
        (["1", "2.5", ""], pa.float64(), [1.0, 2.5, None]),
        (["1", "07", ""], pa.string(), ["1", "07", None]),
        (["1", "x", "2"], pa.string(), ["1", "x", "2"]),
        (["", "", ""], pa.string(), [None, None, None]),
    ],
)
def test_types_of_kept_columns(
    cells: list[str], kind: pa.DataType, values: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are those of all values of a CSV file, also if it has many blocks."""
    monkeypatch.setattr(replay.formats.table_blocks, "BLOCK", 150)
    file = write_csv(tmp_path / "x.csv", [event(i, page=cell) for i, cell in enumerate(cells)])
    convert_table(file, tmp_path / "log", SCHEMA)
    events = stored(tmp_path / "log")
    assert events["page"].type == kind
    assert events["page"].to_pylist() == values


# ---- actions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "actions"),
    [
        (["10", "9", "10"], [9, 10]),
        (["10", "09", "9"], ["09", "10", "9"]),
        (["b", "a", "9"], ["9", "a", "b"]),
        (["-1", "0", "5"], [-1, 0, 5]),
    ],
)
def test_actions_are_found_in_the_table(names: list[str], actions: list[Any], tmp_path: Path) -> None:
    file = write_csv(tmp_path / "x.csv", [event(i, item=name) for i, name in enumerate(names)])
    convert_table(file, tmp_path / "log", without("candidates", "pair"))
    log = Log(tmp_path / "log")
    assert log.actions == actions
    assert [str(log.actions[number]) for number in stored(tmp_path / "log")["item"].to_pylist()] == names


def test_actions_may_only_be_candidates(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "x.csv", [event(0, shown="[z, a, y]")])
    convert_table(file, tmp_path / "log", SCHEMA)
    assert Log(tmp_path / "log").actions == ["a", "y", "z"]


def test_only_intact_rows_have_actions(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "x.csv", [event(0), event(1, shown="x|b|z", click="9"), event(2)])
    convert_table(file, tmp_path / "log", SCHEMA, on_error="skip")
    assert Log(tmp_path / "log").actions == ["a", "b", "c"]


def test_too_many_actions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay.logs.table.MOST_ACTIONS", 2)
    file = write_csv(tmp_path / "x.csv", ROWS)
    fails("x.csv, column item: there are more than 2 different actions", file, tmp_path / "log", SCHEMA)


def test_a_table_of_actions(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(json.dumps(without(actions=ACTIONS)))
    (tmp_path / "items.csv").write_text(ITEMS)
    # also if it lies among the files of the table
    write_csv(tmp_path / "x.csv", ROWS)
    convert_table(tmp_path, tmp_path.parent / f"{tmp_path.name}-log", tmp_path / "mine.yaml")
    log = Log(tmp_path.parent / f"{tmp_path.name}-log")
    assert log.items.to_pydict() == {"sku": ["a", "b", "c"], "price": [1.5, None, 2.0], "brand": ["x", None, "x"]}
    write_csv(tmp_path / "y.csv", [event(i, shown="a|d" if i == 2 else "a|b|c", affinity="1|2") for i in range(6)])
    reason = "shown lists d, expected an action of items.csv"
    schema = without("pair", actions={**ACTIONS, "table": str(tmp_path / "items.csv")})
    fails(f"y.csv:4: {reason}", tmp_path / "y.csv", tmp_path / "no", schema)


def test_whole_numbers_of_a_table_of_actions(tmp_path: Path) -> None:
    pq.write_table(pa.table({"sku": pa.array([7, 3], pa.int16()), "extra": [1, 2]}), tmp_path / "items.parquet")
    schema = without("candidates", "pair", actions={"table": str(tmp_path / "items.parquet"), "key": "sku"})
    file = write_csv(tmp_path / "x.csv", [event(0, item="3"), event(1, item="7")])
    convert_table(file, tmp_path / "log", schema)
    assert Log(tmp_path / "log").actions == [7, 3]
    assert stored(tmp_path / "log")["item"].to_pylist() == [1, 0]
    file = write_csv(tmp_path / "x.csv", [event(0, item="3"), event(1, item="07")])
    fails("x.csv:3: item is 07, expected an action of items.parquet", file, tmp_path / "no", schema)


BAD_ITEMS = [
    ("sku,brand\na,x\n", "items.csv: there is no column price, which the schema names for the actions"),
    ("SKU,price,brand\na,1,x\n", r"no column sku, .*Did you mean SKU\?"),
    ("sku,price,brand\na,1,x\nb,1,x\na,2,x\n", "column sku, row 3 below the header: a is there already, in row 1"),
    (
        "sku,price,brand\na,1,x\nb,cheap,x\n",
        "column price, row 2 below the header: expected a finite number.*got cheap",
    ),
    ("sku,price,brand\na,inf,x\n", "column price, row 1 below the header: expected a finite number.*got inf"),
    (
        "sku,price,brand\na,1,x\n,1,x\n",
        "column sku, row 2 below the header: expected the name of an action, got nothing",
    ),
    ("sku,price,brand\n", "items.csv: the table of actions is empty"),
    ("", "items.csv is empty"),
    ("sku,price,brand\na,1\n", "items.csv: the table of actions cannot be read"),
]


@pytest.mark.parametrize(("text", "words"), BAD_ITEMS)
def test_a_bad_table_of_actions(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text(text)
    schema = without(actions={**ACTIONS, "table": str(tmp_path / "items.csv")})
    fails(words, write_csv(tmp_path / "x.csv", ROWS), tmp_path / "log", schema, on_error="skip")
    assert not (tmp_path / "log").exists()


def test_a_table_of_actions_that_is_not_there(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "x.csv", ROWS)
    fails(
        "items.csv does not exist. Expected a CSV or Parquet file at", file, tmp_path / "log", without(actions=ACTIONS)
    )
    fails("`actions` without a table", file, tmp_path / "log", without(actions={"key": "sku"}))
    (tmp_path / "items.xlsx").touch()
    schema = without(actions={"table": str(tmp_path / "items.xlsx"), "key": "sku"})
    fails("expected a table of actions in CSV or Parquet", file, tmp_path / "log", schema)


# ---- propensities ----------------------------------------------------------------------------------------------------


def test_uniform_propensities(tmp_path: Path) -> None:
    rows = [event(i, shown="a|b|c" if i % 2 else "[a, b, c, d]", affinity="") for i in range(8)]
    file = write_csv(tmp_path / "x.csv", rows)
    convert_table(file, tmp_path / "listed", without("propensity", "pair", logging="uniform"))
    assert stored(tmp_path / "listed")["propensity"].to_pylist() == [0.25, 1 / 3] * 4
    convert_table(file, tmp_path / "all", without("propensity", "pair", "candidates", logging="uniform"))
    assert stored(tmp_path / "all")["propensity"].to_pylist() == [1 / 3] * 8
    assert Log(tmp_path / "all").statistics.uniform


def test_estimated_propensities_come_near(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    age = rng.normal(size=6000)
    logits = np.column_stack([age, -age, np.zeros_like(age)])
    true = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    action = (rng.random((6000, 1)) > true.cumsum(1)).sum(1)
    rows = [event(i, item="abc"[a], age=str(x)) for i, (a, x) in enumerate(zip(action, age, strict=True))]
    schema = without("propensity", "pair", "candidates", logging="estimated")
    convert_table(write_csv(tmp_path / "x.csv", rows), tmp_path / "log", schema)
    found = stored(tmp_path / "log")["propensity"].to_numpy()
    assert np.abs(found - true[np.arange(6000), action]).max() < 0.1
    assert np.abs(found - true[np.arange(6000), action]).mean() < 0.02
    assert Log(tmp_path / "log").schema.logging == "estimated"
    # restricted to the candidates and renormalised
    rows = [row | {"shown": "[a, b, c]" if row["item"] == "c" else "[a, b]"} for row in rows]
    schema = without("propensity", "pair", logging="estimated")
    convert_table(write_csv(tmp_path / "y.csv", rows), tmp_path / "listed", schema)
    listed = stored(tmp_path / "listed")["propensity"].to_numpy()
    short = action < 2
    np.testing.assert_allclose(listed[~short], found[~short])
    expected = true[np.arange(6000), action] / true[:, :2].sum(1)
    assert np.abs(listed - expected)[short].max() < 0.1


def test_estimates_are_cross_fitted(tmp_path: Path) -> None:
    """The actions of a fold do not matter to the models that its propensities come from."""
    rng = np.random.default_rng(0)
    schema = without("propensity", "pair", "candidates", "keep", logging="estimated")
    rows = [event(i, item="ab"[rng.integers(2)], age=str(rng.normal())) for i in range(200)]
    convert_table(write_csv(tmp_path / "x.csv", rows), tmp_path / "log", schema)
    for number, row in enumerate(rows):
        if number % 5 == 2:
            row["item"] = {"a": "b", "b": "a"}[row["item"]]
    convert_table(write_csv(tmp_path / "y.csv", rows), tmp_path / "other", schema)
    before, after = (stored(tmp_path / name)["propensity"].to_numpy() for name in ("log", "other"))
    np.testing.assert_allclose(after[2::5], 1 - before[2::5])
    assert not np.allclose(after[0::5], before[0::5])


def test_a_sample_bounds_the_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay.logs.propensities.SAMPLE", 50)
    schema = without("propensity", "pair", "candidates", logging="estimated")
    convert_table(write_csv(tmp_path / "x.csv", [event(i) for i in range(400)]), tmp_path / "log", schema)
    found = stored(tmp_path / "log")["propensity"].to_numpy()
    assert ((found >= 1e-3) & (found <= 1)).all()
    monkeypatch.setattr("replay.logs.propensities.MOST_ESTIMATED", 2)
    fails("at most 2 actions; the log has 3", tmp_path / "x.csv", tmp_path / "no", schema)


def test_an_estimate_without_any_context(tmp_path: Path) -> None:
    """It is the action's share of the other folds, but for the penalty."""
    schema = {"action": "item", "reward": "click", "logging": "estimated"}
    rows = [event(i, item="a" if i % 4 else "b") for i in range(400)]
    convert_table(write_csv(tmp_path / "x.csv", rows), tmp_path / "log", schema)
    expected = [0.75 if row["item"] == "a" else 0.25 for row in rows]
    np.testing.assert_allclose(stored(tmp_path / "log")["propensity"].to_numpy(), expected, atol=0.01)
    convert_table(write_csv(tmp_path / "y.csv", [event(0)]), tmp_path / "single", schema)
    assert stored(tmp_path / "single")["propensity"].to_pylist() == [1.0]


# ---- stopping and going on -------------------------------------------------------------------------------------------


class Killed(Exception):
    """The process ends here."""


@pytest.mark.parametrize("moment", range(6))
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_stopped_conversion_goes_on_to_the_same_files(
    kind: str, moment: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay.formats.table_blocks, "BLOCK", 700)
    monkeypatch.setattr(replay.formats.table_blocks, "BATCH", 5)
    monkeypatch.setattr(replay.logs.writer, "PART_ROWS", 20)
    monkeypatch.setattr(replay.logs.writer, "ROW_GROUP", 8)
    rows = [event(i, **({"p": "2"} if i in (3, 4, 40, 41, 42, 79) else {})) for i in range(80)]
    write = write_csv if kind == "csv" else write_parquet
    for number in range(4):
        write(tmp_path / "t" / f"{number}.{kind}", rows[20 * number : 20 * number + 20])
    schema = SCHEMA if moment % 2 else without("propensity", "keep", logging="estimated")
    convert_table(tmp_path / "t", tmp_path / "undisturbed", schema, on_error="skip")
    undisturbed = contents(tmp_path / "undisturbed")
    written = iter(range(moment))
    write_beside = replay.logs.writer.write_beside

    def dying(path: Path, writes: Callable[[Path], object]) -> None:
        def write_and_die(beside: Path) -> None:
            writes(beside)
            if next(written, None) is None:
                raise Killed

        write_beside(path, write_and_die)

    with monkeypatch.context() as patch:
        patch.setattr(replay.logs.writer, "write_beside", dying)
        if moment < len(undisturbed):
            with pytest.raises(Killed):
                convert_table(tmp_path / "t", tmp_path / "log", schema, on_error="skip")
    done: list[float] = []
    convert_table(
        tmp_path / "t", tmp_path / "log", schema, "skip", progress=lambda now, size: done.append(now / size)
    )  # fmt: skip
    assert contents(tmp_path / "log") == undisturbed
    assert done == sorted(done)
    assert not done or done[-1] == 1


def test_a_finished_log_is_left_and_another_source_refused(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "x.csv", ROWS)
    assert not table_is_converted(file, tmp_path / "log", SCHEMA)
    convert_table(file, tmp_path / "log", SCHEMA)
    assert table_is_converted(file, tmp_path / "log", SCHEMA)
    before = contents(tmp_path / "log")
    convert_table(file, tmp_path / "log", SCHEMA)
    assert contents(tmp_path / "log") == before
    fails("holds a log of this source with another schema", file, tmp_path / "log", without("keep"))
    write_csv(file, ROWS[1:])
    fails("holds a log from another source, or its source has changed", file, tmp_path / "log", SCHEMA)


def test_an_unfinished_log_of_another_schema_or_other_actions_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns would mean something else, and so would the numbers of actions."""
    monkeypatch.setattr(replay.logs.writer, "PART_ROWS", 5)
    monkeypatch.setattr(replay.formats.table_blocks, "BLOCK", 700)
    (tmp_path / "items.csv").write_text(ITEMS)
    schema = without("keep", actions={**ACTIONS, "table": str(tmp_path / "items.csv")})
    file = write_csv(tmp_path / "x.csv", [event(i, **({"click": "7"} if i == 18 else {})) for i in range(20)])
    fails("x.csv:20: click is 7", file, tmp_path / "log", schema)
    assert (tmp_path / "log" / "events-00000.parquet").exists()
    other = {**schema, "context": {"numeric": ["age"]}}
    fails("log was started with another schema. Give that schema to go on", file, tmp_path / "log", other)
    (tmp_path / "items.csv").write_text(ITEMS + "d,1,y\n")
    fails("started from another source", file, tmp_path / "log", schema, on_error="skip")
    (tmp_path / "log" / "events-00000.parquet").read_bytes()


def test_a_source_that_changes_meanwhile_gives_no_log(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "x.csv", ROWS)

    def change(done: int, size: int) -> None:
        with file.open("a") as opened:
            opened.write(" ")

    fails("has changed while it was converted", file, tmp_path / "log", SCHEMA, progress=change)
    assert not (tmp_path / "log" / "log.json").exists()


def test_choices_are_checked(tmp_path: Path) -> None:
    fails("on_error is 'x', expected one of stop, skip", tmp_path, tmp_path / "log", SCHEMA, on_error="x")
    fails("does not say which column is the action", tmp_path, tmp_path / "log", without("action"))
    fails("no propensity column", tmp_path, tmp_path / "log", without("propensity"))


# ---- a row's fate ----------------------------------------------------------------------------------------------------

CELLS = st.text(st.sampled_from("0123456789.-+eExX,[]|'\"\r \tnaifNI_:Zébc"), max_size=6)
TIMES = st.sampled_from(["2024-05-01", "1714521600", "2024-05-01T00:00:00Z", "1e3", "2024", "x"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> CsvTable:
    schema = Schema.from_dict(SCHEMA)
    table = CsvTable(write_csv(tmp_path_factory.mktemp("t") / "x.csv", ROWS), schema, 0)
    keep = {"page": pa.int64(), "zip": pa.string()}
    table.checker = TableChecker(schema, ActionNumbers(pa.array(["a", "b", "c"])), text=True, keep=keep)
    return table


@given(changes=st.lists(st.tuples(st.sampled_from(HEADER), CELLS | TIMES), min_size=1, max_size=8))
def test_a_row_s_fate_does_not_hang_on_its_neighbours(whole: CsvTable, changes: list[tuple[str, str]]) -> None:
    rows = [event(i, **{column: cell}) for i, (column, cell) in enumerate(changes)]
    lines = [(",".join(_quoted(row[name]) for name in HEADER) + "\n").encode() for row in [*rows, event(50, click="2")]]
    together, damages = whole.events(CsvBlock(b"".join(lines), 2, len(lines), 0))
    alone = [whole.events(CsvBlock(line, number, 1, 0)) for number, line in enumerate(lines, 2)]
    assert damages == [damage for _, one in alone for damage in one]
    assert together.to_pylist() == [one for table, _ in alone for one in table.to_pylist()]
