"""Categories as numbers: one-hot encoding of several columns side by side, hashing, and truncated SVD.

The one-hot matrix H (N, W) of N rows is never built as a whole. Its right singular vectors are the eigenvectors of

    G = H^T H    (W, W),    G[i, j] = number of rows that have both category i and category j

which is a sum over rows, so it is accumulated block by block. The sums are whole numbers and exact: the result does not
depend on how the rows are cut into blocks.
"""

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.sparse import csr_matrix

from replay.logs.reader import Categories

__all__ = ["Known", "OneHotCounter", "code_table", "hash_bucket", "leading_eigenvectors", "one_hot_table", "width"]

Known = list[str] | int
"""What is known of a column: its categories, sorted, or the number of buckets that they are hashed into."""

_NULL = 1e-12
"""Eigenvalues below this share of the largest one are those of a null space."""


def width(known: Known) -> int:
    """The number of one-hot columns of a column."""
    return known if isinstance(known, int) else len(known)


def hash_bucket(text: str, buckets: int) -> int:
    """The bucket of a category: CRC-32 of its UTF-8 text, modulo the number of buckets. The same on every machine."""
    return zlib.crc32(text.encode()) % buckets


def code_table(known: Known, values: Sequence[str]) -> NDArray[np.int64]:
    """(V + 1,): the code of each of V values; ``width(known)`` for values that are not known, and in the last entry.

    Indexed by the codes of ``Categories``, in which -1 is a missing value.
    """
    if isinstance(known, int):
        codes = [hash_bucket(value, known) for value in values]
    else:
        place = {name: i for i, name in enumerate(known)}
        codes = [place.get(value, len(known)) for value in values]
    return np.array([*codes, width(known)], dtype=np.int64)


class OneHotCounter:
    """Counts categories and how often they occur together, over blocks of rows.

    A column with more than ``max_categories`` categories is hashed into that many buckets. At most twice as many
    counts are kept per column, whatever the number of its categories.
    """

    def __init__(self, columns: int, max_categories: int) -> None:
        self.max_categories = max_categories
        # What is counted: categories by their text, then, where these are too many, buckets by their number.
        self._ids: list[dict[str | int, int]] = [{} for _ in range(columns)]
        self._size = 0
        self._gram = csr_matrix((0, 0))

    def add(self, columns: Sequence[Categories]) -> None:
        """Count a block of rows."""
        if not columns:
            return
        n, rows, ids = len(columns[0].codes), [], []
        for known, (codes, values) in zip(self._ids, columns, strict=True):
            # A dictionary may list values that no row has.
            present = np.bincount(codes[codes >= 0], minlength=len(values)).nonzero()[0]
            table = np.full(len(values) + 1, -1)
            table[present] = [self._id(known, values[code]) for code in present]
            found = table[codes]
            rows.append(np.flatnonzero(found >= 0))
            ids.append(found[found >= 0])
        row, place = np.concatenate(rows), np.concatenate(ids)
        one_hot = csr_matrix((np.ones(len(row)), (row, place)), shape=(n, self._size))
        self._gram.resize(self._size, self._size)
        self._gram = self._gram + one_hot.T @ one_hot

    def _id(self, known: dict[str | int, int], value: str) -> int:
        key: str | int = value
        # there are as many texts as categories until a column is found to have too many
        if value not in known and len(known) >= self.max_categories:
            key = hash_bucket(value, self.max_categories)
        if key not in known:
            known[key] = self._size
            self._size += 1
        return known[key]

    @property
    def known(self) -> list[Known]:
        """The categories of each column, or its number of buckets."""
        return [
            self.max_categories if any(isinstance(key, int) for key in ids) else sorted(map(str, ids))
            for ids in self._ids
        ]

    def gram(self) -> NDArray[np.float64]:
        """G (W, W), columns side by side in the order of ``known``."""
        known, places, start = self.known, np.empty(self._size, dtype=np.int64), 0
        for ids, names in zip(self._ids, known, strict=True):
            texts = [key for key in ids if isinstance(key, str)]
            places[[ids[text] for text in texts]] = start + code_table(names, texts)[:-1]
            buckets = [key for key in ids if isinstance(key, int)]
            places[[ids[bucket] for bucket in buckets]] = start + np.array(buckets, dtype=np.int64)
            start += width(names)
        # fold what was counted as a category and is now in a bucket
        fold = csr_matrix((np.ones(self._size), (np.arange(self._size), places)), shape=(self._size, start))
        return (fold.T @ self._gram @ fold).toarray() if self._size else np.zeros((start, start))


def leading_eigenvectors(gram: NDArray[np.float64], components: int) -> NDArray[np.float64]:
    """(W, at most ``components``): eigenvectors of the largest eigenvalues, without those of the null space.

    The sign of each vector is such that its largest entry is positive, the first one of several.
    """
    size = len(gram)
    if not gram.any():
        return np.zeros((size, 0))
    values, vectors = eigh(gram, subset_by_index=[max(0, size - components), size - 1])
    vectors = vectors[:, values > _NULL * values[-1]][:, ::-1]
    magnitude = np.abs(vectors)
    largest = (magnitude >= (1 - 1e-9) * magnitude.max(axis=0)).argmax(axis=0)
    return vectors * np.sign(vectors[largest, np.arange(vectors.shape[1])])


def one_hot_table(known: Sequence[Known], gram: NDArray[np.float64], components: int) -> NDArray[np.float64]:
    """(W + C, c): the features of each category of C columns, one block of rows per column.

    The features of a row are the sum of its categories' rows of this table: the one-hot vector itself, or, where it has
    more than ``components`` entries, its projection onto as many singular vectors. The last row of each block, of
    unseen and missing values, is zeros.
    """
    widths = [width(names) for names in known]
    total = sum(widths)
    vectors = np.eye(total) if total <= components else leading_eigenvectors(gram, components)
    blocks = np.split(vectors, np.cumsum(widths)[:-1]) if widths else []
    return np.concatenate([np.zeros((0, vectors.shape[1])), *(np.pad(block, ((0, 1), (0, 0))) for block in blocks)])
