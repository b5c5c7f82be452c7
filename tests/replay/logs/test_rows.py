"""Parts of a log, given like slices."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nl_lightning.core.errors import InputError
from replay.logs.rows import parse_rows


@given(st.integers(0, 50), st.integers(1, 50), st.data())
def test_rows_are_those_of_a_slice(first: int, length: int, data: st.DataObject) -> None:
    """Of a log with the rows first, first + 1, ..."""
    end = first + length
    start, stop = sorted(data.draw(st.lists(st.integers(first, end), min_size=2, max_size=2, unique=True)))
    for text in (f"{start}:{stop}", f" {start} : {stop} "):
        assert parse_rows(text, end, "log", first) == (start, stop)
    assert parse_rows(f"{start}:", end, "log", first) == (start, end)
    assert parse_rows(f":{stop}", end, "log", first) == (first, stop)
    assert parse_rows(":", end, "log", first) == (first, end)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        *((rows, "rows must be like 0:5000, 5000: or :5000") for rows in ("", "5", "a:b", "-5:", "1:2:3", "1.0:2")),
        *((rows, "rows must be like 0:5000, 5000: or :5000") for rows in (None, 5, slice(3), "9" * 5000 + ":")),
        (" " * 100_000 + "x", "rows must be like"),
        ("٣:", "rows must be like"),
        ("0:101", "rows 0:101 end at 101, but my log has 100 rows."),
        ("100:", "rows 100: hold no event of my log, which has 100 rows."),
        ("7:7", "rows 7:7 hold no event of my log"),
        ("8:7", "rows 8:7 hold no event of my log"),
        (":0", "rows :0 hold no event of my log"),
        (f"{10**17}:", "hold no event of my log"),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
def test_refusals(rows: Any, text: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_rows(rows, 100, "my log")
    assert text in str(refused.value)
    assert len(str(refused.value)) < 200


def test_rows_of_a_part_are_rows_of_the_log() -> None:
    with pytest.raises(InputError, match="rows 5:20 begin at 5, but my log has the rows 10 to 29"):
        parse_rows("5:20", 30, "my log", 10)
    with pytest.raises(InputError, match="rows 15:31 end at 31, but my log has the rows 10 to 29"):
        parse_rows("15:31", 30, "my log", 10)
