"""Show what a log holds: rows, clicks, propensities, items, users, missing values.

LOG is the directory of a log, or a directory above several logs. The numbers come from log.json; the other files are
only checked for presence and number of rows.

examples:
  python -m replay info data/obd/random/all
  python -m replay info s3://bucket/logs
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from nl_lightning.core.statistics import CLICK_LEVEL, wilson
from replay.logs.address import Address, address, size
from replay.logs.description import check_files, read_description
from replay.logs.layout import EVENTS_FILES, ITEMS_FILE, LOG_FILE
from replay.logs.schema import Schema
from replay.logs.statistics import LogStatistics

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "log", metavar="LOG", help="directory of a log, or above several logs: a path or an address (s3://...)"
    )


def run(options: argparse.Namespace) -> None:
    console = Console()
    for path in _logs(address(options.log)):
        log = read_description(path)
        check_files(path, log)
        table = Table(title=Text(str(path)), title_justify="left", show_header=False)
        for name, text in _lines(path, log):
            table.add_row(name, Text(text))
        console.print(table)


def _logs(path: Address) -> list[Address]:
    """The log at a path, or all logs below it, finished or not."""
    below = {file.parent for name in (LOG_FILE, EVENTS_FILES) for file in path.rglob(name)} if path.is_dir() else set()
    return [path] if path in below or not below else sorted(below)


def _lines(path: Address, log: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    counts = LogStatistics.from_json(log["contents"])
    # a table of one's own has neither
    if log["policy"] != "unknown":
        yield "policy", log["policy"]
        yield "campaign", log["campaign"]
    yield "rows", f"{counts.rows:,}"
    yield "clicks", f"{counts.clicks:,}"
    low, high = wilson(counts.clicks, counts.rows, CLICK_LEVEL)
    yield "CTR", f"{counts.ctr:.3%} ({CLICK_LEVEL:.0%} interval {low:.3%} to {high:.3%})"
    schema = Schema.from_dict(log["schema"], stored=True)
    yield "logging", "uniform" if counts.uniform else "not uniform, judging by its propensities"
    missing = counts.missing.get(schema.propensity_column, 0)
    if counts.propensity_low is None:
        yield "propensities", "none"
    else:
        yield "propensities", f"{counts.propensity_low:.6g} to {counts.propensity_high:.6g}, {missing:,} missing"
    if schema.logging == "estimated":
        yield "", "The propensities are estimated: every result of this log rests on that estimate."
    yield "actions", f"{log['items']:,}"
    if counts.candidates:
        yield "candidates", f"{counts.candidates[0]:,} to {counts.candidates[1]:,} an event"
    yield "numeric columns", _ranges(counts.numeric) or "none"
    yield "categories", _pairs(counts.categories) or "none"
    if schema.pair:
        yield "features of event and action", _ranges(counts.pair)
    yield "missing values", _pairs(counts.missing) or "none"
    order = "in order" if counts.in_order else "not in order"
    yield "time", f"{counts.first_time} to {counts.last_time}, {order}" if counts.first_time else "unknown"
    skipped = log.get("skipped", {"rows": 0, "first": []})
    yield "skipped rows", "\n".join([f"{skipped['rows']:,}", *skipped["first"]])
    files = [path / LOG_FILE, path / ITEMS_FILE, *path.glob(EVENTS_FILES)]
    yield "size", f"{decimal(sum(map(size, files)))} in {len(files)} files"


def _ranges(extremes: Mapping[str, Sequence[float]]) -> str:
    return "\n".join(f"{name}: {low:g} to {high:g}" for name, (low, high) in extremes.items())


def _pairs(counts: Mapping[str, int]) -> str:
    return "\n".join(f"{name}: {number:,}" for name, number in counts.items())
