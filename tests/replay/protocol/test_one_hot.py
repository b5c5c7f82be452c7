"""Categories and numbers as features: properties, and the dense twin."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nl_lightning.core.errors import InputError
from replay.logs.reader import Categories
from replay.protocol import one_hot
from replay.protocol.one_hot import (
    OneHotCounter,
    code_table,
    hash_bucket,
    leading_eigenvectors,
    one_hot_table,
    width,
)
from replay.protocol.scaling import FewValues, Moments, nearest, scaled

ROWS = st.lists(st.tuples(st.sampled_from([None, *"abcdef"]), st.sampled_from([None, *"xyz"])), min_size=1, max_size=40)


def categories(values: list[str | None], unused: list[str]) -> Categories:
    names = [*unused, *dict.fromkeys(value for value in values if value is not None)]
    return Categories(np.array([-1 if value is None else names.index(value) for value in values]), names)


def counted(rows: list[tuple[str | None, ...]], most: int, block: int) -> OneHotCounter:
    counter = OneHotCounter(2, most)
    for start in range(0, len(rows), block):
        columns = [list(column) for column in zip(*rows[start : start + block], strict=True)]
        counter.add([categories(column, ["unused"]) for column in columns])
    return counter


@settings(deadline=None)
@given(ROWS, st.integers(1, 7), st.integers(1, 40))
def test_co_occurrences_are_those_of_the_dense_matrix(
    rows: list[tuple[str | None, ...]], most: int, block: int
) -> None:
    counter = counted(rows, most, block)
    rows_of_ones = []
    for row in rows:
        parts: list[float] = []
        for value, known, column in zip(row, counter.known, zip(*rows, strict=True), strict=True):
            names = sorted({value for value in column if value is not None})
            assert known == (names if len(names) <= most else most)
            part = np.zeros(width(known) + 1)
            part[code_table(known, [value])[0] if value is not None else -1] = 1
            parts += part[:-1].tolist()
        rows_of_ones.append(parts)
    dense = np.array(rows_of_ones).reshape(len(rows), -1)
    assert (counter.gram() == dense.T @ dense).all()

    vectors = leading_eigenvectors(counter.gram(), 3)
    values = np.linalg.svd(dense, compute_uv=False)
    rank = int((values > 1e-6).sum())
    assert vectors.shape[1] == min(3, rank)
    # as much of the matrix is kept as by the SVD, whatever basis it has where singular values are equal
    np.testing.assert_allclose(
        np.linalg.norm(dense @ vectors, axis=0), values[: vectors.shape[1]], rtol=1e-9, atol=1e-9
    )
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(vectors.shape[1]), atol=1e-9)
    for vector in vectors.T:
        assert vector[np.abs(vector) >= (1 - 1e-9) * np.abs(vector).max()][0] > 0


@settings(deadline=None)
@given(ROWS, st.integers(1, 12))
def test_a_row_of_the_table_is_the_projected_one_hot_vector(
    rows: list[tuple[str | None, ...]], components: int
) -> None:
    counter = counted(rows, 10, 7)
    table = one_hot_table(counter.known, counter.gram(), components)
    widths = [width(known) for known in counter.known]
    assert table.shape[1] <= components
    vectors = np.eye(sum(widths)) if sum(widths) <= components else leading_eigenvectors(counter.gram(), components)
    assert (np.delete(table, [widths[0], sum(widths) + 1], axis=0) == vectors).all()
    assert not table[[widths[0], sum(widths) + 1]].any()


def test_hashes_are_stable_and_spread() -> None:
    assert [hash_bucket(text, 1000) for text in ("", "a", "Zürich", "日本")] == [0, 907, 798, 756]
    counts = Counter(hash_bucket(f"user {i}", 64) for i in range(6400))
    assert len(counts) == 64
    assert max(counts.values()) < 160


def test_what_is_counted_is_bounded() -> None:
    counter = OneHotCounter(1, 8)
    for start in range(0, 10_000, 1000):
        counter.add([categories([f"v{i}" for i in range(start, start + 1000)], [])])
    assert counter.known == [8]
    assert counter.gram().sum() == np.trace(counter.gram()) == 10_000


def test_more_categories_than_memory_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_hot, "MOST_ONE_HOT", 5)
    counted([(letter, "x") for letter in "abcd"], 5, 5).gram()
    with pytest.raises(InputError, match="have 6 categories together, and at most 5"):
        counted([(letter, "x") for letter in "abcde"], 5, 5).gram()


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6) | st.just(np.nan), min_size=1, max_size=60), st.integers(1, 60))
def test_moments_are_those_of_all_values_at_once(values: list[float], block: int) -> None:
    moments, everything = Moments(), np.array(values)
    for start in range(0, len(values), block):
        moments.add(everything[start : start + block])
    known = everything[~np.isnan(everything)]
    assert (moments.count, moments.missing) == (len(known), len(values) - len(known))
    if len(known):
        assert (moments.low, moments.high) == (known.min(), known.max())
        assert moments.mean == pytest.approx(known.mean(), abs=1e-9 * max(1, np.abs(known).max()))
        assert moments.squares == pytest.approx(known.var() * len(known), rel=1e-6, abs=1e-6 * np.square(known).max())


def test_moments_of_a_far_away_column_are_exact() -> None:
    moments, rng = Moments(), np.random.default_rng(0)
    values = 1.6e9 + rng.normal(size=100_000)
    for part in np.split(values, 100):
        moments.add(part)
    shift, factor = moments.scaling("standard", "time")
    result = scaled(values, shift, factor, 5.0)
    assert abs(result.mean()) < 1e-6
    assert result.std() == pytest.approx(1, abs=1e-6)


@given(st.sets(st.integers(-50, 50), min_size=1), st.lists(st.integers(-60, 60) | st.just(np.nan), min_size=1))
def test_an_unseen_number_takes_the_nearest(seen: set[int], values: list[float]) -> None:
    known = [float(value) for value in sorted(seen)]
    places, unseen = nearest(known, np.array(values, dtype=np.float64))
    assert unseen == sum(value not in seen for value in values if not np.isnan(value))
    for place, value in zip(places, values, strict=True):
        if np.isnan(value):
            assert place == len(known)
        else:
            assert abs(known[place] - value) == min(abs(one - value) for one in known)


def test_columns_with_few_whole_numbers_are_discrete() -> None:
    for values, expected in (
        ([3, 1, 1], [1.0, 3.0]),
        ([3.0, np.nan], [3.0]),
        ([0.5], None),
        ([np.nan], None),
        (range(64), [float(i) for i in range(64)]),
        (range(65), None),
        ([2.0**60], None),
    ):
        few = FewValues()
        few.add(np.array(values))
        assert few.values == expected
    few = FewValues()
    few.add(np.array([1, 2]))
    few.add(np.array([2.5]))
    few.add(np.array([1]))
    assert few.values is None
