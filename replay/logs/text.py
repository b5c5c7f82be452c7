"""Turn columns of text into numbers, times and lists. What cannot be read becomes null and is marked.

Numbers are written as in ``1``, ``-2.5`` or ``1e-3``; ``NaN`` is a missing value.

Times are written as in ISO 8601 (``2024-05-01``, ``2024-05-01 12:30:00``, ``2024-05-01T12:30:00.5+02:00``; without a
zone they are UTC), or they are numbers, which are Unix seconds.

Lists are written as in JSON or Python, ``[a, b]``, ``["a", "b"]``, ``[1.5, 2]``, or with bars between their values,
``a|b|c``. A value that holds a comma, a bracket or a bar needs quotation marks within brackets.
"""

import re
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from replay.logs.layout import TIME

__all__ = [
    "FIRST_SECOND",
    "LAST_SECOND",
    "Read",
    "in_range",
    "is_text",
    "read_lists",
    "read_numbers",
    "read_times",
    "seconds",
]

FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799
"""Unix seconds at the start of the year 1 and at the end of the year 9999."""

_SPACE = " \t"
_LONG_FRACTION = r"(\.\d{6})\d+"
_ELEMENT = re.compile(r"""[ \t]*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^,'"\[\]]*))[ \t]*(,|$)""")
_ESCAPED = re.compile(r"\\(.)")


class Read(NamedTuple):
    """A column that was read."""

    values: pa.Array
    """null where a value is missing or cannot be read"""
    bad: NDArray[np.bool_]
    """(N,), whether a value cannot be read"""


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def read_numbers(text: pa.Array) -> Read:
    """Read numbers as float64. Infinite ones are read as such."""
    cells = pc.utf8_trim(text, _SPACE)
    return _cast(cells, pa.float64())


def read_times(text: pa.Array) -> Read:
    """Read times as microseconds in UTC."""
    cells = pc.replace_substring_regex(pc.utf8_trim(text, _SPACE), _LONG_FRACTION, r"\1")
    zoned, bad = _cast(cells, TIME)
    if not bad.any():
        return Read(*in_range(zoned))
    # Only what could not be read is read in another way.
    rest = np.flatnonzero(bad)
    local, worse = _cast(cells.take(pa.array(rest)), pa.timestamp("us"))
    numbers, worst = _cast(cells.take(pa.array(rest)), pa.float64())
    unix = seconds(numbers)
    found = pc.coalesce(local.cast(TIME), unix.values)
    mask = np.zeros(len(text), dtype=bool)
    mask[rest] = True
    times = pc.replace_with_mask(zoned, pa.array(mask), found)
    unread = np.zeros(len(text), dtype=bool)
    unread[rest] = worse & (worst | unix.bad | _is_nan(numbers))
    times, outside = in_range(times)
    return Read(times, unread | outside)


def seconds(numbers: pa.Array) -> Read:
    """Unix seconds as times."""
    values = numbers.cast(pa.float64()).to_numpy(zero_copy_only=False)
    with np.errstate(invalid="ignore"):
        inside = (values >= FIRST_SECOND) & (values <= LAST_SECOND)
    micro = np.round(np.where(inside, values, 0) * 1e6).astype(np.int64)
    known = numbers.is_valid().to_numpy(zero_copy_only=False)
    return Read(pa.array(micro, pa.int64(), mask=~inside).cast(TIME), known & ~inside)


def read_lists(text: pa.Array, kind: pa.DataType) -> Read:
    """Read lists of text (``pa.string()``) or of numbers (``pa.float64()``)."""
    cells = pc.utf8_trim(text, _SPACE)
    known = cells.is_valid().to_numpy(zero_copy_only=False)
    opened = pc.fill_null(pc.starts_with(cells, "["), False).to_numpy(zero_copy_only=False)
    closed = pc.fill_null(pc.ends_with(cells, "]"), False).to_numpy(zero_copy_only=False)
    bracketed = opened & closed & (pc.fill_null(pc.utf8_length(cells), 0).to_numpy(zero_copy_only=False) > 1)
    if not bracketed.any() or bracketed[known].all():
        fast = _split(cells, bool(bracketed.any()), kind)
        if fast is not None:
            return fast
    elif not (opened | closed)[~bracketed].any():
        # lists of both kinds
        parts = [(np.flatnonzero(bracketed), True), (np.flatnonzero(~bracketed), False)]
        split = [_split(cells.take(pa.array(rows)), inside, kind) for rows, inside in parts]
        if all(part is not None for part in split):
            order = np.argsort(np.concatenate([rows for rows, _ in parts]), kind="stable")
            lists = pa.concat_arrays([part.values for part in split if part is not None])
            bad = np.concatenate([part.bad for part in split if part is not None])
            return Read(lists.take(pa.array(order)), bad[order])
    return _one_by_one(cells, kind)


def _split(cells: pa.Array, bracketed: bool, kind: pa.DataType) -> Read | None:
    """Lists that are all written in one way, without quotation marks but around whole values; None if they are not."""
    inner = pc.utf8_slice_codeunits(cells, 1, -1) if bracketed else cells
    inner = pc.utf8_trim(inner, _SPACE)
    if not bracketed and pc.any(pc.match_substring_regex(inner, r"[\[\]]")).as_py():
        return None
    lists = pc.split_pattern(inner, "," if bracketed else "|")
    elements = pc.utf8_trim(lists.flatten(), _SPACE)
    if bracketed and pc.any(pc.match_substring_regex(elements, r"""['"\[\]\\]""")).as_py():
        plain = r"""^(?:"[^"'\[\]\\]*"|'[^"'\[\]\\]*'|[^"'\[\]\\]*)$"""
        if not pc.all(pc.match_substring_regex(elements, plain)).as_py():
            return None
        elements = pc.utf8_trim(elements, "\"'")
    length = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    empty = pc.fill_null(pc.equal(inner, ""), False).to_numpy(zero_copy_only=False)
    if empty.any():
        owner = np.repeat(np.arange(len(cells)), length)
        elements = elements.filter(pa.array(~empty[owner]))
        length = np.where(empty, 0, length)
    return _gather(length, elements, cells.is_null(), kind)


def _gather(length: NDArray[np.int64], elements: pa.Array, null: pa.Array, kind: pa.DataType) -> Read:
    """Lists of these lengths, of values that are read from text."""
    owner = np.repeat(np.arange(len(length)), length)
    if pa.types.is_floating(kind):
        elements, unread = _cast(elements, kind)
    else:
        unread = pc.equal(elements, "").to_numpy(zero_copy_only=False)
    bad = np.zeros(len(length), dtype=bool)
    bad[owner[unread]] = True
    offsets = pa.array(np.concatenate([[0], np.cumsum(length)]), pa.int32())
    return Read(pa.ListArray.from_arrays(offsets, elements, mask=null), bad)


def _one_by_one(cells: pa.Array, kind: pa.DataType) -> Read:
    found = [None if cell is None else _elements(cell) for cell in cells.to_pylist()]
    bad = np.array([cell.is_valid and values is None for cell, values in zip(cells, found, strict=True)], dtype=bool)
    elements = pa.array([value for values in found for value in values or ()], pa.string())
    length = np.array([len(values or ()) for values in found], dtype=np.int64)
    null = pa.array([values is None for values in found], pa.bool_())
    read = _gather(length, elements, null, kind)
    return Read(read.values, read.bad | bad)


def _elements(cell: str) -> list[str] | None:
    """The values of one list as text; None if it cannot be read."""
    if not cell.startswith("[") and not cell.endswith("]"):
        return (
            None if "[" in cell or "]" in cell else [value.strip(_SPACE) for value in cell.split("|")] if cell else []
        )
    if not (cell.startswith("[") and cell.endswith("]") and len(cell) > 1):
        return None
    inner = cell[1:-1].strip(_SPACE)
    values, place = [], 0
    while inner:
        found = _ELEMENT.match(inner, place)
        if found is None:
            return None
        double, single, plain, comma = found.groups()
        quoted = double if double is not None else single
        values.append(plain.strip(_SPACE) if quoted is None else _ESCAPED.sub(r"\1", quoted))
        place = found.end()
        if not comma:
            return values
    return values


def _cast(text: pa.Array, kind: pa.DataType) -> Read:
    """Text as values of another type."""
    try:
        return Read(text.cast(kind), np.zeros(len(text), dtype=bool))
    except pa.ArrowInvalid:
        pass
    # Every distinct text is tried on its own.
    encoded = text.dictionary_encode()
    values, bad = [], []
    for cell in encoded.dictionary:
        try:
            values.append(cell.cast(kind))
            bad.append(False)
        except pa.ArrowInvalid:
            values.append(pa.scalar(None, kind))
            bad.append(True)
    codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
    read = pa.array(values, kind) if values else pa.nulls(0, kind)
    return Read(read.take(encoded.indices), np.array([*bad, False], dtype=bool)[codes])


def _is_nan(numbers: pa.Array) -> NDArray[np.bool_]:
    return np.isnan(numbers.to_numpy(zero_copy_only=False))


def in_range(times: pa.Array) -> Read:
    """Times of the years 1 to 9999; others become null."""
    micro = pc.fill_null(times.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    outside = (micro < FIRST_SECOND * 1_000_000) | (micro >= (LAST_SECOND + 1) * 1_000_000)
    return Read(pc.if_else(pa.array(outside), pa.scalar(None, TIME), times) if outside.any() else times, outside)
