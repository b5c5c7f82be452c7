"""Text becomes lists, numbers and times."""

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.logs.text import read_lists, read_numbers, read_times

NAMES = st.text(st.characters(exclude_categories=["C", "Z"]) | st.just(" "), min_size=1, max_size=5).map(str.strip)
NAMES = NAMES.filter(bool)
PLAIN = NAMES.filter(lambda name: not set(name) & set("[]|,'\"\\ \t"))


@given(st.lists(st.lists(NAMES, min_size=1, max_size=4), max_size=5))
def test_lists_of_json_are_read_back(lists: list[list[str]]) -> None:
    read = read_lists(pa.array([json.dumps(one, ensure_ascii=False) for one in lists], pa.string()), pa.string())
    assert read.values.to_pylist() == lists
    assert not read.bad.any()


@given(st.lists(st.tuples(st.booleans(), st.lists(PLAIN, min_size=1, max_size=4)), max_size=5))
def test_lists_of_both_kinds_are_read_back(lists: list[tuple[bool, list[str]]]) -> None:
    texts = [f"[{', '.join(one)}]" if bracket else "|".join(one) for bracket, one in lists]
    read = read_lists(pa.array(texts, pa.string()), pa.string())
    assert read.values.to_pylist() == [one for _, one in lists]
    assert not read.bad.any()


@given(st.lists(st.lists(st.floats(allow_nan=False), min_size=1, max_size=4), max_size=5), st.booleans())
def test_lists_of_numbers_are_read_back(lists: list[list[float]], bars: bool) -> None:
    texts = ["|".join(map(str, one)) if bars else str(one) for one in lists]
    assert read_lists(pa.array(texts, pa.string()), pa.float64()).values.to_pylist() == lists


@given(st.lists(st.text(st.sampled_from("ab[]|,'\"\\ "), max_size=6) | st.none(), max_size=6))
def test_a_list_does_not_hang_on_its_neighbours(cells: list[str | None]) -> None:
    together = read_lists(pa.array(cells, pa.string()), pa.string())
    alone = [read_lists(pa.array([cell], pa.string()), pa.string()) for cell in cells]
    assert together.bad.tolist() == [bool(one.bad[0]) for one in alone]
    for one, list_, bad in zip(alone, together.values.to_pylist(), together.bad, strict=True):
        assert bad or one.values.to_pylist() == [list_]


@pytest.mark.parametrize("cell", ["[a", "a]", "[a,]", "[a,,b]", "[[a]]", "a||b", "[a b", '["a]', "[", "|"])
def test_what_is_no_list(cell: str) -> None:
    assert read_lists(pa.array([cell, "[a, b]"]), pa.string()).bad.tolist() == [True, False]


def test_numbers_and_times() -> None:
    numbers = read_numbers(pa.array([" 1.5", "x", None, "-1e3", "0x10"]))
    assert numbers.values.to_pylist() == [1.5, None, None, -1000.0, None]
    assert numbers.bad.tolist() == [False, True, False, False, True]
    cells = ["1970-01-02", "86400", "1970-01-02T01:00:00+01:00", "x", None, "1e15", "nan", "0000-01-01"]
    times = read_times(pa.array(cells))
    assert [time and time.timestamp() for time in times.values.to_pylist()] == [86400.0] * 3 + [None] * 5
    assert times.bad.tolist() == [False] * 3 + [True, False, True, True, True]
