"""The Open Bandit Dataset as published: finding its logs, reading their headers and items."""

import csv
import io
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa

from nl_lightning.core.errors import InputError
from replay.formats.csv_blocks import read_header
from replay.logs.columns import short as _cut
from replay.logs.obd import ITEM_FEATURES, ITEM_NUMBER, ITEMS, USER_FEATURES

__all__ = [
    "AFFINITY",
    "COLUMNS",
    "ITEM_CONTEXT",
    "check_columns",
    "find_log",
    "find_logs",
    "read_items",
    "sample",
    "samples",
]


ITEM_CONTEXT = "item_context.csv"
AFFINITY = "user-item_affinity_"
COLUMNS = ("timestamp", "item_id", "position", "click", "propensity_score", *USER_FEATURES)


def samples() -> Path:
    """The directory of the samples that come with obp."""
    # The package is located but not imported, which would take seconds.
    package = find_spec("obp")
    for place in (package.submodule_search_locations or ()) if package else ():
        if (Path(place) / "dataset" / "obd").is_dir():
            return Path(place) / "dataset" / "obd"
    raise InputError(
        "The samples of the Open Bandit Dataset come with obp, which is not installed. Install it (pip install "
        "'nl-lightning[obp]'), or name a log of your own."
    )


def sample(policy: str = "random", campaign: str = "all") -> Path:
    """The directory of one sample: policy random or bts, campaign all, men or women."""
    directory = samples() / policy / campaign
    if not directory.is_dir():
        known = ", ".join(str(log.parent.relative_to(samples())) for log in find_logs(samples()))
        raise InputError(f"There is no sample {policy}/{campaign}; the samples are {known}.")
    return directory


def find_logs(source: Path) -> list[Path]:
    """The CSV file of the log ``source``, or those of all logs below that directory."""
    if not source.is_dir() or (source / ITEM_CONTEXT).exists():
        return [find_log(source)]
    logs = [find_log(items.parent) for items in sorted(source.rglob(ITEM_CONTEXT))]
    if not logs:
        raise InputError(f"There is no log in {source} or below it. Expected a CSV file next to {ITEM_CONTEXT}.")
    return logs


def find_log(source: Path) -> Path:
    """The CSV file of a log, given the file itself or its directory."""
    if not source.exists():
        raise InputError(f"{source} does not exist. Expected a directory with a log's CSV file next to {ITEM_CONTEXT}.")
    items = (source if source.is_dir() else source.parent) / ITEM_CONTEXT
    if not items.is_file():
        raise InputError(f"{items} is missing. A log needs it next to its CSV file.")
    if source.is_file():
        return source
    # macOS leaves ._all.csv next to all.csv.
    found = [file for file in sorted(source.glob("*.csv")) if file.name != ITEM_CONTEXT and file.name[0] != "."]
    named = [file for file in found if file.stem == source.resolve().name]
    if len(named or found) != 1:
        several = (
            f"several CSV files ({', '.join(file.name for file in found)}); give one of them" if found else "no log"
        )
        raise InputError(f"{source} has {several}. Expected one CSV file next to {ITEM_CONTEXT}.")
    return (named or found)[0]


def _require(path: Path, names: list[str], wanted: tuple[str, ...]) -> None:
    missing = [name for name in wanted if name not in names]
    if missing:
        unknown = [name for name in names if name and name not in wanted and not name.startswith(AFFINITY)]
        found = f" There is {', '.join(map(_cut, unknown[:5]))}: was a column renamed?" if unknown else ""
        raise InputError(f"{path}:1: there is no column {', '.join(missing)}.{found} Expected {', '.join(wanted)}.")


def check_columns(path: Path, names: list[str], items: int) -> list[str]:
    """Check the columns of a log; return its affinity columns, by item."""
    _require(path, names, COLUMNS)
    expected = [f"{AFFINITY}{i}" for i in range(items)]
    found = {name for name in names if name.startswith(AFFINITY)}
    if found != set(expected):
        first = next(iter(sorted(found.symmetric_difference(expected), key=lambda name: (len(name), name))))
        raise InputError(
            f"{path}:1: expected the columns {expected[0]} to {expected[-1]}, one for each of the {items} items of "
            f"{ITEM_CONTEXT}, got {len(found)} of their kind; "
            f"{_cut(first)} is {'too many' if first in found else 'missing'}."
        )
    return expected


def read_items(path: Path) -> pa.Table:
    """Read the items in the order of their ids, which must be 0, 1, ..., n - 1."""
    raw = path.read_bytes()
    names = read_header(path, raw.split(b"\n", 1)[0])
    _require(path, names, tuple(ITEMS.names))
    try:
        reader = csv.reader(io.StringIO(raw.decode("utf-8-sig"), newline=""))
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InputError(f"{path}:{line}: the line is not UTF-8 text.") from error
    items: dict[int, dict[str, Any]] = {}
    try:
        for cells in reader:
            if reader.line_num > 1:
                item = _item(names, cells)
                if item["item_id"] in items:
                    raise ValueError(f"there is a second item {item['item_id']}")
                items[item["item_id"]] = item
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path}:{reader.line_num}: {error}. Repair the line: every item is needed.") from error
    absent = next((i for i in range(len(items)) if i not in items), None)
    if absent is not None or not items:
        raise InputError(f"{path}: there is no item {absent or 0}. Items are numbered 0, 1, 2, ... without a gap.")
    return pa.Table.from_pylist([items[i] for i in range(len(items))], ITEMS)


def _item(names: list[str], row: list[str]) -> dict[str, Any]:
    """The values of an item; a ValueError says what is wrong with them."""
    if len(row) != len(names):
        raise ValueError(f"the line has {len(row)} fields, expected {len(names)}")
    cells = dict(zip(names, row, strict=True))
    numbers: dict[str, Any] = {}
    for name, kind, words in (("item_id", int, "a whole number"), (ITEM_NUMBER, float, "a number")):
        try:
            numbers[name] = kind(cells[name])
        except ValueError:
            raise ValueError(f"{name} is {_cut(cells[name]) or 'empty'}, expected {words}") from None
    if not math.isfinite(numbers[ITEM_NUMBER]):
        raise ValueError(f"{ITEM_NUMBER} is {_cut(cells[ITEM_NUMBER])}, expected a finite number")
    return numbers | {name: cells[name] or None for name in ITEM_FEATURES}
