"""Tables in memory become logs, with the checks of a conversion."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import replay
import replay.logs.table
from nl_lightning.core.errors import InputError
from replay.formats.table import convert_table
from replay.logs.schema import Schema
from tests.support.own_table import ACTIONS, SCHEMA, event, stored, typed, without, write_csv

ROWS = [event(i) for i in range(20)]
ITEMS = {"sku": ["a", "b", "c"], "price": [1.5, None, 2.0], "brand": ["x", None, "x"]}


def test_the_log_is_that_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay.logs.table, "WRITTEN", 6)
    convert_table(write_csv(tmp_path / "x.csv", ROWS), tmp_path / "file", SCHEMA)
    arrow = replay.Log.from_arrow(typed(ROWS), SCHEMA, tmp_path / "arrow")
    frame = typed(ROWS).to_pandas().set_index("unread")
    pandas = replay.Log.from_pandas(frame, Schema.from_dict(SCHEMA), str(tmp_path / "pandas"))
    assert arrow.actions == pandas.actions == ["a", "b", "c"]
    assert stored(tmp_path / "arrow").equals(stored(tmp_path / "file"))
    assert stored(tmp_path / "pandas").equals(stored(tmp_path / "file"))
    assert arrow.statistics == replay.Log(tmp_path / "file").statistics
    assert pandas.frame(pandas.groups[0])["country"].tolist()[1] == "land 1"


def test_a_schema_in_a_file_with_a_table_of_actions(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "action: item\nreward: click\nlogging: uniform\nactions: {table: items.csv, key: sku, numeric: [price]}\n"
    )
    (tmp_path / "items.csv").write_text("sku,price\nc,1\na,2\nb,\n")
    frame = pd.DataFrame({"item": ["a", "b"], "click": [True, False]})
    log = replay.Log.from_pandas(frame, tmp_path / "mine.yaml", tmp_path / "log")
    assert log.actions == ["c", "a", "b"]
    assert stored(tmp_path / "log")["propensity"].to_pylist() == [1 / 3] * 2
    given = pd.DataFrame({"sku": ["a", "b"], "price": [1, 2]})
    assert replay.Log.from_pandas(frame, tmp_path / "mine.yaml", tmp_path / "given", given).actions == ["a", "b"]


def test_a_table_of_actions_in_memory(tmp_path: Path) -> None:
    schema = without(actions={name: value for name, value in ACTIONS.items() if name != "table"})
    log = replay.Log.from_arrow(typed(ROWS), schema, tmp_path / "log", pa.table(ITEMS))
    assert log.items.to_pydict() == ITEMS
    for actions, words in [
        (None, "`actions` without a table"),
        (
            pa.table(ITEMS | {"sku": ["a", "b", "a"]}),
            "column sku, row 2: a is there already, in row 0",
        ),
        (pa.table(ITEMS | {"sku": [1.0, 2.0, 3.0]}), "column sku: expected names of actions.*got double"),
        (pa.table(ITEMS | {"price": ["1", "2", "3"]}), "column price: expected numbers, got string"),
        (
            pa.table(ITEMS | {"sku": ["a", "b", "d"]}),
            "row 0: shown lists c, expected an action of the table",
        ),
    ]:
        with pytest.raises(InputError, match=words):
            replay.Log.from_arrow(typed(ROWS), schema, tmp_path / "no", actions)
    with pytest.raises(InputError, match="the schema has no `actions`"):
        replay.Log.from_arrow(typed(ROWS), SCHEMA, tmp_path / "no", pa.table(ITEMS))
    assert not (tmp_path / "no").exists()


def test_whole_numbers_and_categories(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "item": pd.array([7, 3, 7], dtype="Int32"),
            "click": [0.0, 1.0, 0.0],
            "age": pd.array([1, None, 3], dtype="Int64"),
            "member": [True, False, True],
            "kind": pd.Categorical([1, 2, 1]),
            "share": [1.0, np.nan, 2.5],
        }
    )
    context = {"numeric": ["age", "share"], "categorical": ["member", "kind"]}
    schema = {"action": "item", "reward": "click", "logging": "uniform", "context": context}
    log = replay.Log.from_pandas(frame, schema, tmp_path / "log")
    assert log.actions == [3, 7]
    events = stored(tmp_path / "log").to_pydict()
    assert events["item"] == [1, 0, 1]
    assert events["age"] == [1, None, 3]
    assert events["share"] == [1.0, None, 2.5]
    assert events["member"] == ["true", "false", "true"]
    assert events["kind"] == ["1", "2", "1"]


BAD: list[tuple[str, Any, str]] = [
    ("click", 2, "The table, row 7: click is 2.*, expected 0 or 1. Repair or remove the row"),
    ("click", None, "row 7: click is empty, expected 0 or 1"),
    ("p", 0.0, "row 7: p is 0.0, expected a number above 0 and up to 1"),
    ("p", float("nan"), "row 7: p is empty"),
    ("item", "z", "row 7: item is z, expected one of the event's candidates"),
    ("age", float("inf"), "row 7: age is inf, expected a finite number, or nothing"),
    ("affinity", [1.0], "row 7: affinity has 1 numbers, expected 3"),
    ("shown", [], "row 7: shown is empty"),
    ("shown", ["b", "b"], "row 7: shown lists an action twice"),
    ("item", 3, "column item: expected values of one type, got a mixture"),
]


@pytest.mark.parametrize(("name", "value", "words"), BAD)
def test_damaged_rows(name: str, value: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay.logs.table, "WRITTEN", 6)
    frame = typed(ROWS).to_pandas()
    frame[name] = frame[name].astype(object)
    frame.at[7, name] = value
    if name == "p" and value != value:
        frame[name] = frame[name].astype(float)
    with pytest.raises(InputError, match=words):
        replay.Log.from_pandas(frame, SCHEMA, tmp_path / "log")
    assert not (tmp_path / "log").exists()


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    frame = typed(ROWS).to_pandas()
    with pytest.raises(InputError, match=r"The table: there is no column click, .*Did you mean clicked\?"):
        replay.Log.from_pandas(frame.rename(columns={"click": "clicked"}), SCHEMA, tmp_path / "log")
    with pytest.raises(InputError, match="there are 2 columns click"):
        replay.Log.from_pandas(frame.rename(columns={"unread": "click"}), SCHEMA, tmp_path / "log")
    with pytest.raises(InputError, match="is empty: expected one row per event"):
        replay.Log.from_pandas(frame[:0], SCHEMA, tmp_path / "log")


def test_a_log_is_not_overwritten(tmp_path: Path) -> None:
    replay.Log.from_arrow(typed(ROWS), SCHEMA, tmp_path / "log")
    with pytest.raises(InputError, match="already holds a log"):
        replay.Log.from_arrow(typed(ROWS), SCHEMA, tmp_path / "log")
    with pytest.raises(InputError, match="not a local directory"):
        replay.Log.from_arrow(typed(ROWS), SCHEMA, "fsspec+memory://bucket/log")
