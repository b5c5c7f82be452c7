"""Columns of a table: find them by name, and turn them into the types of a log."""

import difflib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nl_lightning.core.errors import InputError
from replay.logs.layout import CATEGORY, TIME
from replay.logs.text import Read, in_range, is_text, read_lists, read_numbers, read_times, seconds

__all__ = [
    "as_category",
    "as_lists",
    "as_numbers",
    "as_reward",
    "as_times",
    "combined",
    "decoded",
    "require_columns",
    "short",
    "shown",
]

_REWARDS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1}


def require_columns(names: Sequence[str], wanted: Sequence[str], source: str, of: str) -> None:
    """Raise an InputError unless each wanted column is there once. ``of`` is the table in the words of the schema."""
    missing = [name for name in wanted if name not in names]
    if missing:
        near = difflib.get_close_matches(missing[0], names, 1, 0.5)
        folded = [name for name in names if name.strip().casefold() == missing[0].strip().casefold()]
        meant = f" Did you mean {short((folded or near)[0])}?" if folded or near else ""
        several = f" (nor {', '.join(map(short, missing[1:6]))})" if len(missing) > 1 else ""
        one = names[0] if len(names) == 1 else ""
        hint = next((f" Expected commas between the columns, not {sign!r}." for sign in ";\t|" if sign in one), "")
        raise InputError(
            f"{source}: there is no column {short(missing[0])}{several}, which the schema names for the {of}.{meant} "
            f"The table has {', '.join(map(short, names[:20]))}{', ...' if len(names) > 20 else ''}.{hint} "
            "Correct the schema, or rename the column."
        )
    counts = Counter(names)
    for name in wanted:
        if counts[name] > 1:
            raise InputError(f"{source}: there are {counts[name]} columns {short(name)}. Remove or rename the others.")


def combined(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column as one array; dictionaries are unified."""
    if isinstance(column, pa.ChunkedArray):
        if pa.types.is_dictionary(column.type) and column.num_chunks > 1:
            column = column.unify_dictionaries()
        column = column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks else pa.nulls(0, column.type)
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def decoded(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column as one array without a dictionary; text as ``pa.string()``, nothing but nulls as text too."""
    array = combined(column)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_large_string(array.type) or pa.types.is_string_view(array.type) or pa.types.is_null(array.type):
        array = array.cast(pa.string())
    return array


def as_numbers(column: pa.Array | pa.ChunkedArray, place: str, text: bool = False, whole: bool = False) -> Read:
    """Finite numbers as float64, or as int64 if ``whole``. NaN becomes null, infinite numbers are bad.

    Args:
        column: numbers, or text if that is allowed.
        place: the column's name in errors.
        text: whether text is read as numbers.
        whole: whether to return whole numbers.
    """
    array = decoded(column)
    bad = np.zeros(len(array), dtype=bool)
    if is_text(array.type) and (text or array.null_count == len(array)):
        array, bad = read_numbers(array)
    kind = array.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        if whole and kind != pa.uint64():
            return Read(array.cast(pa.int64()), bad)
        return Read(array.cast(pa.int64() if pa.types.is_boolean(kind) else kind).cast(pa.float64(), safe=False), bad)
    if not (pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise InputError(
            f"{place}: expected numbers, got {kind}. Convert the column to numbers, or give it another role "
            "(a categorical column may hold text)."
        )
    array = array.cast(pa.float64(), safe=False)
    values = array.to_numpy(zero_copy_only=False)
    finite = np.isfinite(values)
    if not finite.all():
        bad = bad | np.isinf(values)
        array = pa.array(values, pa.float64(), mask=~finite)
    return Read(array, bad)


def as_reward(column: pa.Array | pa.ChunkedArray, place: str) -> Read:
    """0 and 1 as int8; also true and false, in any case."""
    array = combined(column)
    if pa.types.is_dictionary(array.type):
        inner = as_reward(array.dictionary, place)
        codes = pc.fill_null(array.indices, -1).to_numpy(zero_copy_only=False)
        return Read(inner.values.take(array.indices), np.append(inner.bad, False)[codes])
    kind = array.type
    if is_text(kind) or pa.types.is_null(kind):
        read = [None if cell is None else _REWARDS.get(cell.strip(" \t").lower()) for cell in array.to_pylist()]
        values = pa.array(read, pa.int8())
        return Read(values, (values.is_null().to_numpy(False)) & array.is_valid().to_numpy(False))
    if pa.types.is_boolean(kind):
        return Read(array.cast(pa.int8()), np.zeros(len(array), dtype=bool))
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise InputError(f"{place}: expected rewards, 0 or 1, got {kind}. Name the column of 0 and 1 in the schema.")
    numbers = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    good = (numbers == 0) | (numbers == 1)
    known = array.is_valid().to_numpy(zero_copy_only=False) & ~np.isnan(numbers)
    return Read(pa.array(np.where(good, numbers, 0).astype(np.int8), mask=~good), known & ~good)


def as_times(column: pa.Array | pa.ChunkedArray, place: str) -> Read:
    """Times as microseconds in UTC: times, dates, text in ISO 8601, or Unix seconds."""
    array = decoded(column)
    kind = array.type
    if is_text(kind):
        return read_times(array)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        values = array.cast(pa.float64(), safe=False)
        return seconds(pa.array(values.to_numpy(zero_copy_only=False), pa.float64(), from_pandas=True))
    if pa.types.is_date(kind):
        array, kind = array.cast(pa.timestamp("ms")), pa.timestamp("ms")
    if not pa.types.is_timestamp(kind):
        raise InputError(f"{place}: expected times, got {kind}. Times are timestamps, ISO 8601 text or Unix seconds.")
    try:
        micro = array.cast(pa.timestamp("us", kind.tz), safe=kind.unit in ("s", "ms"))
    except pa.ArrowInvalid as error:
        raise InputError(f"{place}: expected times of the years 1 to 9999 ({error}).") from error
    # A zone is only how a time is shown: the stored number is UTC.
    return in_range(micro.cast(pa.int64()).cast(TIME))


def as_category(column: pa.Array | pa.ChunkedArray, place: str) -> pa.Array:
    """A categorical column; numbers become their text."""
    array = combined(column)
    if array.type == CATEGORY:
        return array
    try:
        if not pa.types.is_dictionary(array.type):
            if pa.types.is_floating(array.type):
                array = pa.array(array.to_numpy(zero_copy_only=False), from_pandas=True)
            array = array.dictionary_encode()
        values = array.dictionary.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
        raise InputError(
            f"{place}: expected categories, text or whole numbers, got {kind}. Convert the column to "
            "text, or leave it out of the schema."
        ) from None
    made = pa.DictionaryArray.from_arrays(array.indices.cast(pa.int32()), values)
    # Two values may have one text, or a value may be null.
    distinct = len(values.unique()) == len(values) and not values.null_count
    return made if distinct else made.dictionary_decode().dictionary_encode().cast(CATEGORY)


def as_lists(column: pa.Array | pa.ChunkedArray, place: str, numbers: bool) -> Read:
    """Lists of finite numbers (float64), or of the names of actions (text or whole numbers)."""
    array = decoded(column)
    bad = np.zeros(len(array), dtype=bool)
    if is_text(array.type):
        array, bad = read_lists(array, pa.float64() if numbers else pa.string())
    kind = array.type
    if pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_list_view(kind):
        kind = pa.list_(kind.value_type)
        array = array.cast(kind)
    words = "lists of numbers" if numbers else "lists of actions"
    if not pa.types.is_list(kind):
        raise InputError(f"{place}: expected {words}, got {kind}. Make it a list column, or text like [1, 2] or 1|2.")
    length = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    owner = np.repeat(np.arange(len(array)), length)
    values = decoded(array.flatten())
    null = array.is_null()
    if numbers:
        values, worse = as_numbers(values, place)
        worse = worse | values.is_null().to_numpy(zero_copy_only=False)
    else:
        if not (is_text(values.type) or pa.types.is_integer(values.type)):
            raise InputError(f"{place}: expected lists of text or of whole numbers, got {kind}.")
        worse = values.is_null().to_numpy(zero_copy_only=False)
    bad = bad.copy()
    bad[owner[worse]] = True
    offsets = pa.array(np.concatenate([[0], np.cumsum(length)]), pa.int32())
    return Read(pa.ListArray.from_arrays(offsets, values, mask=null), bad)


def shown(column: pa.Array | pa.ChunkedArray, row: int) -> str:
    """A value for a message."""
    value: Any = column[row].as_py()
    if value is None:
        return "nothing"
    if not isinstance(value, str):
        return short(str(value))
    return short(value) if value.strip() == value and value and value.isprintable() else f"{value!r:.60}"


def short(text: str) -> str:
    """A text for a message, cut if it is long."""
    return text if len(text) <= 60 else f"{text[:57]}..."
