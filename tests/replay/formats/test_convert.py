"""A log in CSV becomes the same log in Parquet, or an error says which line and why."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nl_lightning.core.errors import InputError
from replay.formats.convert import convert_log
from replay.formats.obd import sample
from replay.formats.obd_rows import CsvBlock, ObdRows
from replay.logs.description import read_description
from replay.logs.obd import EVENTS, ITEMS, OBD, USER_FEATURES
from replay.logs.schema import Schema
from tests.support.obd_csv import AFFINITIES, HEADER, ITEM_ROWS, read, row, text, write

SAMPLES = [(policy, campaign) for policy in ("random", "bts") for campaign in ("all", "men", "women")]


@pytest.mark.parametrize(("policy", "campaign"), SAMPLES)
def test_values_are_those_of_pandas(policy: str, campaign: str, tmp_path: Path) -> None:
    source = sample(policy, campaign)
    convert_log(source, tmp_path / "log")
    table = pq.read_table(tmp_path / "log" / "events-00000.parquet")
    assert table.schema.equals(EVENTS)
    events = table.to_pandas()
    expected = pd.read_csv(source / f"{campaign}.csv", index_col=0, converters={"propensity_score": float})
    assert (events["timestamp"] == pd.to_datetime(expected["timestamp"], format="ISO8601")).all()
    for name in ("item_id", "position", "click", "propensity_score", *USER_FEATURES):
        assert events[name].tolist() == expected[name].tolist()
    affinities = expected.filter(like="affinity").to_numpy(np.float32)
    dense = np.zeros_like(affinities)
    for number, (item, value) in enumerate(zip(events["affinity_item"], events["affinity"], strict=True)):
        assert (np.diff(item) > 0).all()
        dense[number, item] = value
    assert (dense == affinities).all()
    items = pq.read_table(tmp_path / "log" / "items.parquet")
    assert items.schema.equals(ITEMS)
    context = pd.read_csv(source / "item_context.csv", index_col=0, converters={"item_feature_0": float})
    assert items.to_pandas().astype(object).equals(context.sort_values("item_id")[ITEMS.names].astype(object))
    log = read_description(tmp_path / "log")
    assert (log["policy"], log["campaign"], log["items"]) == (policy, campaign, len(context))
    assert log["contents"]["clicks"] == expected["click"].sum()
    counts, propensity = log["contents"], expected["propensity_score"]
    assert counts["categories"] == {name: expected[name].nunique() for name in USER_FEATURES}
    assert counts["numeric"] == {"position": [expected["position"].min(), expected["position"].max()]}
    assert counts["pair"] == {"affinity": [affinities[affinities > 0].min(), affinities.max()]}
    assert counts["uniform_rows"] == ((propensity * len(context) - 1).abs() < 1e-6).sum()
    assert (counts["uniform_rows"] == len(expected)) == (policy == "random")
    assert Schema.from_dict(log["schema"], stored=True) == OBD


SPELLINGS: dict[str, Callable[[str], str]] = {
    "no newline at the end": lambda file: file.removesuffix("\n"),
    "CRLF": lambda file: file.replace("\n", "\r\n"),
    "byte order mark": lambda file: "\ufeff" + file,
    "no index": lambda file: "".join(line.split(",", 1)[1] for line in file.splitlines(keepends=True)),
    "another order": lambda file: "".join(",".join(line.split(",")[::-1]) + "\n" for line in file.splitlines()),
    "a column more": lambda file: "".join(f"{line},x\n" for line in file.splitlines()),
    "quotes": lambda file: file.replace("u1", '"u1"').replace("0.5", '"0.5"').replace("é", '"é"'),
    "times without a zone": lambda file: file.replace("+00:00", ""),
    "another zone": lambda file: file.replace(" 00:", " 09:").replace("+00:00", "+09:00"),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings_of_the_same_log(spelling: str, tmp_path: Path) -> None:
    convert_log(write(tmp_path / "a", [row(i) for i in range(9)]), tmp_path / "log")
    source = write(tmp_path / "b", [row(i) for i in range(9)], items=ITEM_ROWS[::-1])
    (source / "all.csv").write_bytes(SPELLINGS[spelling]((source / "all.csv").read_text()).encode())
    convert_log(source, tmp_path / "other")
    assert read(tmp_path / "other") == read(tmp_path / "log")
    assert pq.read_table(tmp_path / "other" / "items.parquet").equals(pq.read_table(tmp_path / "log" / "items.parquet"))


def test_quotes_nulls_and_zeros_are_kept_apart(tmp_path: Path) -> None:
    cells = {"user_feature_0": '"a, ""b"""', "user_feature_1": "NA", "propensity_score": "", AFFINITIES[1]: "-0.0"}
    convert_log(write(tmp_path / "a", [row(1, **cells)]), tmp_path / "log")
    (event,) = read(tmp_path / "log")
    assert [event[name] for name in USER_FEATURES] == ['a, "b"', "NA", None, "d"]
    assert event["propensity_score"] is None
    assert (event["affinity_item"], event["affinity"]) == ([2], [0.5])


DAMAGES = [
    ("click", "2", "click is 2, expected 0 or 1"),
    ("click", "-1", "click is -1, expected 0 or 1"),
    ("click", "", "click is empty"),
    ("click", "0.5", "click is 0.5, expected 0 or 1"),
    ("propensity_score", "0", "propensity_score is 0, expected a number above 0 and up to 1"),
    ("propensity_score", "1.5", "propensity_score is 1.5, expected"),
    ("propensity_score", "-0.1", "propensity_score is -0.1, expected"),
    ("propensity_score", "NaN", "propensity_score is NaN, expected"),
    ("propensity_score", "?", "propensity_score is ?, expected"),
    ("position", "0", "position is 0, expected a whole number from 1 to 127"),
    ("position", "300", "position is 300, expected"),
    ("position", "", "position is empty"),
    ("item_id", "3", "item_id is 3, expected an item of item_context.csv, 0 to 2"),
    ("item_id", "-1", "item_id is -1, expected"),
    ("item_id", "1.0", "item_id is 1.0, expected"),
    ("item_id", "", "item_id is empty"),
    ("timestamp", "yesterday", "timestamp is yesterday, expected a time like 2019-11-24 00:00:17.004101+00:00"),
    ("timestamp", "2019-13-24 00:00:17+00:00", "timestamp is 2019-13-24 00:00:17+00:00, expected"),
    ("timestamp", "2019-11-24 00:00:17", "timestamp is 2019-11-24 00:00:17, expected"),
    ("timestamp", "", "timestamp is empty"),
    (AFFINITIES[1], "-1", f"{AFFINITIES[1]} is -1, expected a number of at least 0"),
    (AFFINITIES[2], "inf", f"{AFFINITIES[2]} is inf, expected"),
    (AFFINITIES[0], "nan", f"{AFFINITIES[0]} is nan, expected"),
    (AFFINITIES[0], "1e39", f"{AFFINITIES[0]} is 1e39, expected"),
    (AFFINITIES[0], "", f"{AFFINITIES[0]} is empty"),
    (AFFINITIES[2], " ", f"{AFFINITIES[2]} is ' ', expected"),
    ("user_feature_0", "a,b", "the line has 14 fields, expected 13"),
    ("user_feature_0", '"a', "a quotation mark is not closed"),
    ("user_feature_0", "a\rb", "there is a carriage return within the line"),
    ("user_feature_0", "\udcff", "the line is not UTF-8 text"),
    (AFFINITIES[2], '"0.5', "a quotation mark is not closed"),
]


@pytest.mark.parametrize(("column", "cell", "reason"), DAMAGES)
def test_damaged_row(column: str, cell: str, reason: str, tmp_path: Path) -> None:
    source = write(tmp_path / "a", [])
    raw = text(HEADER, [row(i, **({column: cell} if i == 3 else {})) for i in range(6)])
    (source / "all.csv").write_bytes(raw.encode(errors="surrogateescape"))
    with pytest.raises(InputError) as stop:
        convert_log(source, tmp_path / "log")
    assert f"all.csv:5: {reason}" in str(stop.value)
    assert "--on-error skip" in str(stop.value)
    assert not (tmp_path / "log").exists()
    convert_log(source, tmp_path / "log", on_error="skip")
    assert [event["affinity"][0] for event in read(tmp_path / "log")[1:]] == [1, 2, 4, 5]
    skipped = read_description(tmp_path / "log")["skipped"]
    assert skipped["rows"] == 1
    assert skipped["first"][0].startswith(f"all.csv:5: {reason}")


def test_several_damaged_rows_are_counted(tmp_path: Path) -> None:
    source = write(tmp_path / "a", [row(i, click="7" if i > 5 else "0") for i in range(60)])
    with pytest.raises(InputError, match=r"all.csv:8: click is 7.* 53 more rows are damaged up to line 61"):
        convert_log(source, tmp_path / "log")
    convert_log(source, tmp_path / "log", on_error="skip")
    skipped = read_description(tmp_path / "log")["skipped"]
    assert (skipped["rows"], len(skipped["first"]), len(read(tmp_path / "log"))) == (54, 20, 6)


@pytest.mark.parametrize("cell", ["a\rb", '"a', "a,b", ""])
def test_the_first_row_may_be_damaged(cell: str, tmp_path: Path) -> None:
    source = write(tmp_path / "a", [row(0, timestamp=cell), row(1)])
    convert_log(source, tmp_path / "log", on_error="skip")
    assert len(read(tmp_path / "log")) == 1


def test_a_log_without_a_whole_row_is_no_log(tmp_path: Path) -> None:
    source = write(tmp_path / "a", [row(i, click="7") for i in range(3)])
    with pytest.raises(InputError, match=r"no intact row.*all.csv:2: click is 7"):
        convert_log(source, tmp_path / "log", on_error="skip")
    assert not (tmp_path / "log").exists()


CELLS = st.text(st.sampled_from('0123456789.-+eExX,"\r \tnaifNI_:Zé'), max_size=6)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> ObdRows:
    return ObdRows(write(tmp_path_factory.mktemp("log"), [row(0)]) / "all.csv")


@given(changes=st.lists(st.tuples(st.integers(0, len(HEADER) - 1), CELLS), min_size=1, max_size=8))
def test_a_row_s_fate_does_not_hang_on_its_neighbours(whole: ObdRows, changes: list[tuple[int, str]]) -> None:
    rows = [row(i, **{HEADER[column]: cell}) for i, (column, cell) in enumerate(changes)]
    lines = [(",".join(cells) + "\n").encode() for cells in [*rows, row(50, click="2")]]
    together, damages = whole.events(CsvBlock(b"".join(lines), 2, len(lines), 0))
    alone = [whole.events(CsvBlock(line, number, 1, 0)) for number, line in enumerate(lines, 2)]
    assert [damage.line for damage in damages] == [damage.line for _, one in alone for damage in one]
    assert together.to_pylist() == [event for table, _ in alone for event in table.to_pylist()]
