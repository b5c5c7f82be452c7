"""Features of actions: a table with one row per action, made of what the log's table of actions tells."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from replay.logs.reader import Categories
from replay.logs.schema import Columns, Schema
from replay.protocol.one_hot import OneHotCounter, code_table, one_hot_table, width
from replay.protocol.scaling import LIMITS, Moments, scaled

__all__ = ["ACTION_SIGNS", "action_table"]

ACTION_SIGNS = 64
"""More actions than this that nothing is known of are coded by as many signs."""


def action_table(items: pa.Table, schema: Schema, settings: Mapping[str, Any]) -> NDArray[np.float64]:
    """v (n, a) of all actions."""
    columns, n = schema.action_features, items.num_rows
    parts = []
    for name in columns.numeric:
        values = items[name].cast(pa.float64()).to_numpy()
        moments = Moments()
        moments.add(values)
        feature = scaled(values, *moments.scaling(settings["numeric"], name), LIMITS[settings["numeric"]])
        parts.append(np.nan_to_num(feature)[:, None])
        if moments.missing:
            parts.append(np.isnan(values)[:, None].astype(np.float64))
    parts.append(_action_categories(items, columns, settings))
    table = np.concatenate(parts, axis=1)
    return table if table.shape[1] else _identities(list(map(str, items[schema.key].to_pylist())), n)


def _action_categories(items: pa.Table, columns: Columns, settings: Mapping[str, Any]) -> NDArray[np.float64]:
    found = []
    for name in columns.categorical:
        column = items[name].combine_chunks()
        column = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        index = column.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        found.append(Categories(index, column.dictionary.to_pylist()))
    counter = OneHotCounter(len(found), settings["max_categories"])
    counter.add(found)
    table = one_hot_table(counter.known, counter.gram(), settings["components"])
    rows, start = np.zeros((items.num_rows, table.shape[1])), 0
    for known, (index, values) in zip(counter.known, found, strict=True):
        rows += table[start + code_table(known, values)[index]]
        start += width(known) + 1
    return rows


def _identities(names: Sequence[str], n: int) -> NDArray[np.float64]:
    """(n, a): one-hot, or 64 signs from a hash of the name, times 1/8: vectors of length 1, nearly orthogonal."""
    if n <= ACTION_SIGNS:
        return np.eye(n)
    digests = [hashlib.sha256(name.encode()).digest()[: ACTION_SIGNS // 8] for name in names]
    bits = np.unpackbits(np.frombuffer(b"".join(digests), dtype=np.uint8)).reshape(n, ACTION_SIGNS)
    return (2.0 * bits - 1) / ACTION_SIGNS**0.5
