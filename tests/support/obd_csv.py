"""Small logs in the layout of the Open Bandit Dataset."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from replay.logs.obd import ITEM_FEATURES, USER_FEATURES

AFFINITIES = [f"user-item_affinity_{i}" for i in range(3)]
HEADER = ["", "timestamp", "item_id", "position", "click", "propensity_score", *USER_FEATURES, *AFFINITIES]
ITEM_HEADER = ["", "item_id", "item_feature_0", *ITEM_FEATURES]
ITEM_ROWS = [[str(i), str(i), f"{i}.5", "a", "", f"c{i}"] for i in range(3)]


def row(number: int, **cells: str) -> list[str]:
    """A whole row, no two alike, with some cells replaced."""
    time = f"2019-11-24 00:{number // 60:02d}:{number % 60:02d}.004101+00:00"
    values = [str(number), time, str(number % 3), str(1 + number % 3), str(int(number % 5 == 0)), "0.25"]
    values += [f"u{number % 7}", "é", "", "d", "0.0", str(number), "0.5"]
    return [cells.get(name, value) for name, value in zip(HEADER, values, strict=True)]


def text(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join(",".join(cells) + "\n" for cells in [header, *rows])


def write(
    directory: Path,
    rows: Sequence[Sequence[str]],
    header: Sequence[str] = HEADER,
    items: Sequence[Sequence[str]] = ITEM_ROWS,
    item_header: Sequence[str] = ITEM_HEADER,
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "all.csv").write_text(text(header, rows))
    (directory / "item_context.csv").write_text(text(item_header, items))
    return directory


def read(log: Path) -> list[dict[str, Any]]:
    return [event for part in sorted(log.glob("events-*")) for event in pq.read_table(part).to_pylist()]


def contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}
