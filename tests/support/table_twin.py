"""Features of a generic table, slowly: dense one-hot matrices, NumPy's SVD, one event and one action at a time."""

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

Arms = Callable[[Any, Sequence[int], dict[str, Sequence[float]]], np.ndarray]


def moments(values: Sequence[float], numeric: str) -> Callable[[float], float]:
    """(x - shift) / spread, clipped."""
    known = np.array([value for value in values if value is not None and not np.isnan(value)], dtype=float)
    if numeric == "scale":
        shift, spread, limit = (known.max() + known.min()) / 2, (known.max() - known.min()) / 2, 1.0
    else:
        shift, spread, limit = known.mean(), known.std(), 5.0
    return lambda x: 0.0 if pd.isna(x) else float(min(limit, max(-limit, (x - shift) / (spread or 1.0))))


def one_hot(columns: list[list[Any]], most: int) -> tuple[np.ndarray, Callable[[Sequence[Any]], np.ndarray]]:
    """The dense one-hot matrix of columns, and the one-hot vector of a row."""
    keys: list[tuple[list[Any], Callable[[Any], Any]]] = []
    for column in columns:
        names = sorted({value for value in column if not pd.isna(value)})
        if len(names) > most:
            keys.append((list(range(most)), lambda value: zlib.crc32(value.encode()) % most))
        else:
            keys.append((names, lambda value: value))

    def vector(row: Sequence[Any]) -> np.ndarray:
        parts = []
        for value, (names, key) in zip(row, keys, strict=True):
            parts += [float(not pd.isna(value) and key(value) == name) for name in names]
        return np.array(parts)

    rows = list(zip(*columns, strict=True))
    return np.array([vector(row) for row in rows]), vector


def reduced(matrix: np.ndarray, components: int) -> np.ndarray:
    """What a one-hot vector is multiplied by."""
    if matrix.shape[1] <= components:
        return np.eye(matrix.shape[1])
    _, values, vectors = np.linalg.svd(matrix, full_matrices=False)
    rank = int((values > 1e-6 * values[0]).sum())
    vectors = vectors[: min(rank, components)].T
    signs = np.sign(vectors[np.abs(vectors).argmax(0), np.arange(vectors.shape[1])])
    return vectors * signs


def features(frame: pd.DataFrame, items: pd.DataFrame, schema: Any, settings: dict[str, Any]) -> Arms:
    """A function: an event, its actions, and its pair features by action number -> arms (K, d)."""
    numeric, most, components = settings["numeric"], settings["max_categories"], settings["components"]
    context, actions = schema.context, schema.action_features
    scale = {name: moments(frame[name].tolist(), numeric) for name in context.numeric}
    few = [name for name in context.numeric if is_discrete(frame[name])]
    many = [name for name in context.numeric if name not in few]
    holes = {name: frame[name].isna().any() for name in context.numeric}
    matrix, vector = one_hot([frame[name].tolist() for name in context.categorical], most)
    project = reduced(matrix, components) if context.categorical else np.zeros((0, 0))
    pair = {name: moments([v for row in frame[name] for v in row], numeric) for name in schema.pair}

    action_scale = {name: moments(items[name].tolist(), numeric) for name in actions.numeric}
    action_matrix, action_vector = one_hot([items[name].tolist() for name in actions.categorical], most)
    action_project = reduced(action_matrix, components) if actions.categorical else np.zeros((0, 0))

    def action_features(i: int) -> list[float]:
        row = items.iloc[i]
        found: list[float] = []
        for name in actions.numeric:
            found.append(action_scale[name](row[name]))
            if items[name].isna().any():
                found.append(float(pd.isna(row[name])))
        if actions.categorical:
            found += list(action_vector([row[name] for name in actions.categorical]) @ action_project)
        return found or [float(i == j) for j in range(len(items))]

    def arms(event: Any, offered: Sequence[int], pairs: dict[str, Sequence[float]]) -> np.ndarray:
        c: list[float] = []
        if context.categorical:
            c += list(vector([event[name] for name in context.categorical]) @ project)
        for name in few:
            c.append(scale[name](event[name]))
            c += [float(pd.isna(event[name]))] if holes[name] else []
        c += [scale[name](event[name]) for name in many]
        c += [float(pd.isna(event[name])) for name in many if holes[name]]
        rows = []
        for place, action in enumerate(offered):
            v = action_features(action)
            x = [*c, *v, *(pair[name](pairs[name][place]) for name in schema.pair)]
            rows.append(x + [a * b for a in c for b in v] if settings["products"] else x)
        return np.array(rows)

    return arms


def is_discrete(column: pd.Series) -> bool:
    known = column.dropna()
    return bool(len(known)) and bool((known == known.round()).all()) and known.nunique() <= 64
