"""Convert a table of clicks to a log in Parquet: a table of your own, or the Open Bandit Dataset.

With --schema, SRC is a CSV or Parquet file, or a directory of files of one kind, which are read in the order of their
names; a path, or an address that pyarrow can open. The schema is a YAML file that says which column plays which role.
`python -m replay schema SRC` writes a first one to edit.

In a CSV file, columns are separated by commas, and the first line holds their names. An empty cell is a missing value.
Times are ISO 8601 (UTC if they have no zone) or Unix seconds. Lists are written [a, b] or a|b. A reward is 0 or 1, or
false or true. Every row is checked. A damaged one is reported by its file and line (CSV, counted from 1) or row
(Parquet, counted from 0).

Without --schema, SRC is the directory of one log of the Open Bandit Dataset, which holds its CSV file next to
item_context.csv, or a directory above several logs. In the latter case every log is converted, to the same relative
path below DST. Without SRC, the samples that come with the obp package are converted.

An interrupted conversion is resumed when the command is run again.

examples:
  python -m replay convert clicks.csv data/mine --schema clicks.yaml
  python -m replay convert s3://bucket/clicks data/mine --schema clicks.yaml --on-error skip
  python -m replay convert data/samples
  python -m replay convert open_bandit_dataset data/obd --on-error skip
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from nl_lightning.core.arguments import program
from nl_lightning.core.errors import InputError
from replay.formats.convert import ON_ERROR, convert_log, is_converted
from replay.formats.obd import ITEM_CONTEXT, find_logs, samples
from replay.formats.table import convert_table, table_is_converted
from replay.formats.table_files import KINDS
from replay.logs.description import read_description
from replay.logs.statistics import LogStatistics

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "src",
        metavar="SRC",
        nargs="?",
        help="a table: a file, a directory of files or an address; without --schema, the directory of a log of the "
        "Open Bandit Dataset, or above several (default: the samples of the obp package)",
    )
    parser.add_argument("dst", metavar="DST", type=Path, help="directory to write to")
    parser.add_argument("--schema", metavar="FILE", type=Path, help="YAML file with the roles of the table's columns")
    parser.add_argument("--on-error", choices=ON_ERROR, default="stop", help="stop at a damaged row, or skip it")
    parser.add_argument(
        "--policy",
        metavar="NAME",
        help="name of the logging policy (default: for the Open Bandit Dataset, the name of the directory "
        "above the campaign's)",
    )


def run(options: argparse.Namespace) -> None:
    if options.schema is not None:
        if options.src is None:
            raise InputError("SRC is needed with --schema: the table to convert. Give SRC DST --schema FILE.")
        _convert_table(options)
        return
    source = Path(options.src) if options.src else samples()
    if _is_table(source):
        raise InputError(
            f"{source} is not a log of the Open Bandit Dataset: {ITEM_CONTEXT} is missing beside it. If it is a table "
            f"of your own, add --schema FILE; `{program('replay')} schema {source}` writes a first schema."
        )
    logs = find_logs(source)
    single = source.is_file() or logs[0].parent == source
    for log in logs:
        target = options.dst if single else options.dst / log.parent.relative_to(source)
        if is_converted(log, target):
            print(f"{target} already holds {log}: nothing to do.")
            continue
        with _bar(log.name) as progress:
            convert_log(log, target, options.on_error, options.policy, progress)
        _summarise(target)


def _convert_table(options: argparse.Namespace) -> None:
    if table_is_converted(options.src, options.dst, options.schema):
        print(f"{options.dst} already holds {options.src}: nothing to do.")
        return
    with _bar(PurePath(options.src).name) as progress:
        convert_table(options.src, options.dst, options.schema, options.on_error, options.policy, progress)
    _summarise(options.dst)


def _is_table(source: Path) -> bool:
    """Whether a path looks like a table of one's own rather than a log of the Open Bandit Dataset."""
    if source.is_file():
        return source.suffix.lower() in KINDS and not (source.parent / ITEM_CONTEXT).exists()
    return source.is_dir() and any(source.glob("*.parquet")) and not any(source.rglob(ITEM_CONTEXT))


@contextmanager
def _bar(name: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar, as a function to call with the number of bytes done and in total."""
    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn(), TextColumn("left"))
    described = TextColumn("{task.description}", markup=False)
    with Progress(described, *columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, size: bar.update(task, completed=done, total=size)


def _summarise(target: Path) -> None:
    """Summarise a new log in one line."""
    log = read_description(target)
    statistics, skipped = LogStatistics.from_json(log["contents"]), log["skipped"]
    before = sum(file["bytes"] for file in _files(log["source"]))
    after = sum(file.stat().st_size for file in target.iterdir())
    estimated = ", propensities estimated" if log["schema"].get("logging") == "estimated" else ""
    print(
        f"{target}: {statistics.rows:,} rows, {statistics.clicks:,} clicks, CTR {statistics.ctr:.3%}, "
        f"{skipped['rows']:,} rows skipped, {decimal(before)} before, {decimal(after)} after{estimated}"
    )
    for text in skipped["first"]:
        print(f"  skipped {text}")
    if skipped["rows"] > len(skipped["first"]):
        print(f"  and {skipped['rows'] - len(skipped['first']):,} more")


def _files(source: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The files of a source, as fingerprints."""
    return (
        [source["log"], source["items"]] if "log" in source else [*source["files"], *filter(None, [source["actions"]])]
    )
