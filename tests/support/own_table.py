"""Small tables of one's own, as rows of text and as CSV and Parquet files."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA: dict[str, Any] = {
    "action": "item",
    "reward": "click",
    "propensity": "p",
    "timestamp": "time",
    "context": {"numeric": ["age"], "categorical": ["country"]},
    "pair": {"numeric": ["affinity"]},
    "candidates": "shown",
    "keep": ["page", "zip"],
}
ACTIONS = {"table": "items.csv", "key": "sku", "numeric": ["price"], "categorical": ["brand"]}
ITEMS = "sku,price,brand\na,1.5,x\nb,,\nc,2,x\n"
HEADER = ["time", "item", "click", "p", "age", "country", "shown", "affinity", "page", "zip", "unread"]


def without(*names: str, **changes: Any) -> dict[str, Any]:
    """The schema without some keys, with others changed."""
    return {name: value for name, value in SCHEMA.items() if name not in names} | changes


def event(number: int, **cells: str) -> dict[str, str]:
    """An intact row of text, with some cells replaced."""
    values = [
        f"2024-05-01 00:{number // 60 % 60:02d}:{number % 60:02d}", "abc"[number % 3], str(int(number % 4 == 0)),
        "0.25", "" if number % 5 == 0 else str(number / 2), "" if number % 7 == 0 else f"land {number % 2}",
        "[a, b, c]", f"[{number}, 0.5, -1]", str(number), f"0{number}", "x",
    ]  # fmt: skip
    return dict(zip(HEADER, values, strict=True)) | cells


def write_csv(path: Path, rows: Iterable[Mapping[str, str]], header: Sequence[str] = HEADER) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.DictWriter(text, header, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(text.getvalue())
    return path


def typed(rows: Iterable[Mapping[str, str]]) -> pa.Table:
    """The same rows with types."""

    def number(cell: str) -> float | None:
        return float(cell) if cell else None

    rows = list(rows)
    columns: dict[str, Any] = {name: [row[name] or None for row in rows] for name in HEADER}
    for name in ("p", "age"):
        columns[name] = pa.array([number(row[name]) for row in rows], pa.float64())
    for name in ("click", "page"):
        columns[name] = pa.array([int(row[name]) for row in rows], pa.int64())
    columns["time"] = pa.array(columns["time"]).cast(pa.timestamp("us"))
    columns["shown"] = [row["shown"][1:-1].split(", ") for row in rows]
    columns["affinity"] = [[float(cell) for cell in row["affinity"][1:-1].split(",")] for row in rows]
    return pa.table(columns)


def write_parquet(path: Path, rows: Iterable[Mapping[str, str]], group: int = 7) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(typed(rows), path, row_group_size=group)
    return path


def stored(log: Path) -> pa.Table:
    """All events of a log."""
    return pa.concat_tables([pq.read_table(part) for part in sorted(log.glob("events-*"))]).unify_dictionaries()
