"""From the frame of a file to a data set's features and labels, as the description of the data set says."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from nl_lightning.core.errors import InputError

__all__ = ["LABELS", "MISSING", "SIDE", "Description", "Table", "check_counts", "frame_of", "plain", "table_of"]


LABELS = ("class", "label")
"""Names that the column of classes may have."""

MISSING = "?"
"""How the missing value of a category is written: it is a category like others."""

SIDE = 28
"""Rows and columns of an image's pixels."""


class Description(NamedTuple):
    """What is known of a data set, whoever's file it is in. Column names are compared as ``plain`` writes them."""

    title: str
    openml: int
    """number of the data set in OpenML"""
    kind: Literal["numbers", "categories", "images"]
    features: tuple[tuple[str, ...], ...]
    """names that the columns of features have in one file or another, in order; the first are those of our files"""
    classes: tuple[tuple[str, ...], ...]
    """names that the classes 0, ..., K - 1 have in one file or another, likewise"""
    counts: tuple[int, ...]
    """rows of each class"""
    sha256: str
    """of a file that is known to be right"""

    @property
    def rows(self) -> int:
        return sum(self.counts)

    @property
    def columns(self) -> str:
        """The columns of a file in words."""
        names = " or ".join(_listed(names) for names in self.features)
        return f"class ({' or '.join(_listed(names) for names in self.classes)}) and {names}"


class Table(NamedTuple):
    """n rows of a data set of K classes."""

    x: Tensor
    """(n, d): numbers in float64, the pixels of an image as bytes, or the codes of categories"""
    label: Tensor
    """(n,), 0 to K - 1"""
    categories: tuple[tuple[str, ...], ...] = ()
    """of each column of codes what they stand for, in alphabetical order; none where x are no codes"""


def plain(name: object) -> str:
    """A column's name without what publishers write differently: fLength: and fLength, bruises%3F and bruises."""
    text = str(name).strip().lower().replace("%3f", "").replace("-", "_").replace(" ", "_")
    return text.rstrip(":?")


def table_of(frame: pd.DataFrame, description: Description, origin: str) -> Table:
    """The features and labels in a frame that came from ``origin``; columns that are not needed are left out."""
    names = [plain(name) for name in frame.columns]
    frame = frame.set_axis(names, axis="columns")
    label = next((name for name in LABELS if name in names), None)
    if label is None:
        raise InputError(
            f"{origin}: there is no column of classes ({' or '.join(LABELS)}) among {_listed(names)}. "
            f"{description.title} has the columns {description.columns}; the first line of a CSV names them."
        )
    columns = _columns(names, description, origin)
    doubled = sorted(name for name in {label, *columns} if names.count(name) > 1)
    if doubled:
        raise InputError(f"{origin}: there are two columns {doubled[0]}. Leave one of them out.")
    labels = _labels(frame[label], description, origin)
    if description.kind == "categories":
        codes, categories = zip(*(_categories(frame[name]) for name in columns), strict=True)
        return Table(torch.from_numpy(np.stack(codes, axis=1)), labels, tuple(categories))
    if columns == ("image",):
        return Table(_images(frame["image"], origin), labels)
    x = np.empty((len(frame), len(columns)), np.uint8 if description.kind == "images" else np.float64)
    for place, name in enumerate(columns):
        numbers = _numbers(frame[name], origin)
        if x.dtype == np.uint8 and (numbers != np.rint(numbers).clip(0, 255)).any():
            raise InputError(f"{origin}: {name} must be a pixel, a whole number from 0 to 255.")
        x[:, place] = numbers
    return Table(torch.from_numpy(x), labels)


def check_counts(table: Table, description: Description, origin: str) -> None:
    """A file that is cut off, doubled, or another data set with the same columns is not taken for this one."""
    rows = len(table.label)
    if rows != description.rows:
        raise InputError(f"{origin} has {rows} rows, expected the {description.rows} of {description.title}.")
    counts = tuple(table.label.bincount(minlength=len(description.counts)).tolist())
    if counts != description.counts:
        raise InputError(
            f"{origin}: the classes {_listed(description.classes[0])} of {description.title} have "
            f"{_listed(description.counts)} rows, got {_listed(counts)}. It is another data set, or was changed."
        )


def frame_of(table: Table, description: Description) -> pd.DataFrame:
    """The frame of which ``table_of`` makes this table."""
    data: dict[str, Any] = {"class": np.array(description.classes[0], dtype=object)[table.label.numpy()]}
    x = table.x.numpy()
    if description.kind == "images":
        data["image"] = [row.tobytes() for row in x]
        return pd.DataFrame(data)
    for place, name in enumerate(description.features[0]):
        column = x[:, place]
        data[name] = np.array(table.categories[place], dtype=object)[column] if table.categories else column
    return pd.DataFrame(data)


def _listed(items: Iterable[object]) -> str:
    """A list in words, of which only the ends are told where it is long."""
    words = [str(item) for item in items]
    if len(words) > 12:
        return f"{', '.join(words[:3])}, ..., {words[-1]} ({len(words)})"
    return ", ".join(words) or "none"


def _columns(names: Sequence[str], description: Description, origin: str) -> tuple[str, ...]:
    """The names of the feature columns: those ones of the known names that are all there."""
    present = set(names)
    missing = [[name for name in known if name not in present] for known in description.features]
    fewest = min(range(len(missing)), key=lambda place: len(missing[place]) / len(description.features[place]))
    if missing[fewest]:
        raise InputError(
            f"{origin}: there is no column {_listed(missing[fewest])} among {_listed(names)}. "
            f"{description.title} has the columns {description.columns}."
        )
    return description.features[fewest]


def _words(column: "pd.Series[Any]") -> tuple[NDArray[np.intp], list[str]]:
    """Codes of a column's different values, -1 where one is missing, and these as text: 1, 1.0 and '1' are alike."""
    codes, values = pd.factorize(column)
    return codes, [
        f"{value:g}" if isinstance(value, (float, np.floating)) else str(value).strip().strip("'\"") for value in values
    ]


def _labels(column: "pd.Series[Any]", description: Description, origin: str) -> Tensor:
    codes, words = _words(column)
    empty = (codes < 0) | np.isin(codes, [code for code, word in enumerate(words) if not word])
    if empty.any():
        raise InputError(f"{origin}: row {int(empty.argmax()) + 1} has no {column.name}. Mend the row.")
    # Some files number classes from 0 and others from 1: the names of a file are those of one list.
    known = next((names for names in description.classes if set(words) <= set(names)), None)
    if known is None:
        raise InputError(
            f"{origin}: {column.name} has the values {_listed(sorted(words))}, "
            f"expected {' or '.join(_listed(names) for names in description.classes)}."
        )
    return torch.from_numpy(np.array([known.index(word) for word in words], dtype=np.int64)[codes])


def _categories(column: "pd.Series[Any]") -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Codes of a column's categories in alphabetical order, so that they do not depend on the order of rows."""
    codes, words = _words(column)
    # Codes of -1 find the last one.
    words = [word or MISSING for word in [*words, MISSING]]
    present = sorted({words[code] for code in np.unique(codes)})
    return np.array([present.index(word) if word in present else -1 for word in words])[codes], tuple(present)


def _numbers(column: "pd.Series[Any]", origin: str) -> NDArray[np.float64]:
    """A column as float64; what is missing is 0, as in the paper."""
    if not pd.api.types.is_numeric_dtype(column):
        text = column.astype(object).where(column.notna(), "").astype(str).str.strip()
        column = pd.to_numeric(text.where(~text.isin(["", MISSING]), "nan"), errors="coerce")
        wrong = (column.isna() & ~text.str.lower().isin(["", MISSING, "nan"])).to_numpy()
        if wrong.any():
            row = int(wrong.argmax())
            raise InputError(f"{origin}: row {row + 1} has {column.name} = {text.iloc[row]!r}, expected a number.")
    numbers = column.to_numpy(np.float64, na_value=np.nan)
    infinite = np.isinf(numbers)
    if infinite.any():
        raise InputError(f"{origin}: row {int(infinite.argmax()) + 1} has an infinite {column.name}.")
    return np.nan_to_num(numbers)


def _images(column: "pd.Series[Any]", origin: str) -> Tensor:
    """(n, 784) bytes of a column of images."""
    rows = column.tolist()
    for number, image in enumerate(rows, 1):
        if not isinstance(image, bytes) or len(image) != SIDE * SIDE:
            raise InputError(
                f"{origin}: the image of row {number} must be {SIDE * SIDE} bytes, {SIDE} x {SIDE} pixels."
            )
    return torch.from_numpy(np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1).copy())
