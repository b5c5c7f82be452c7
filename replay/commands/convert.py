"""Convert logs of the Open Bandit Dataset from CSV to Parquet.

SRC is the directory of one log, which holds its CSV file next to item_context.csv, or a directory above several logs.
In the latter case every log is converted, to the same relative path below DST. Without SRC, the samples that come with
the obp package are converted.

An interrupted conversion is resumed when the command is run again.

examples:
  python -m replay convert data/samples
  python -m replay convert open_bandit_dataset data/obd --on-error skip
"""

import argparse
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from replay.formats.convert import ON_ERROR, convert_log, is_converted
from replay.formats.obd import find_logs, samples
from replay.logs.description import read_description
from replay.logs.statistics import LogStatistics

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "src",
        metavar="SRC",
        nargs="?",
        help="directory of a log, or a directory above several logs (default: the samples of the obp package)",
    )
    parser.add_argument("dst", metavar="DST", type=Path, help="directory to write to")
    parser.add_argument("--on-error", choices=ON_ERROR, default="stop", help="stop at a damaged row, or skip it")
    parser.add_argument(
        "--policy",
        metavar="NAME",
        help="name of the logging policy (default: the name of the directory above the campaign's)",
    )


def run(options: argparse.Namespace) -> None:
    source = Path(options.src) if options.src else samples()
    logs = find_logs(source)
    single = source.is_file() or logs[0].parent == source
    for log in logs:
        target = options.dst if single else options.dst / log.parent.relative_to(source)
        _convert(log, target, options.on_error, options.policy)


def _convert(path: Path, target: Path, on_error: str, policy: str | None) -> None:
    """Convert a log under a progress bar, then summarise it in one line."""
    if is_converted(path, target):
        print(f"{target} already holds {path}: nothing to do.")
        return
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TextColumn("left"), TimeRemainingColumn())
    name = TextColumn("{task.description}", markup=False)
    with Progress(name, *columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(path.name, total=None)
        convert_log(path, target, on_error, policy, lambda done, size: bar.update(task, completed=done, total=size))
    log = read_description(target)
    statistics, skipped = LogStatistics.from_json(log["contents"]), log["skipped"]
    before = sum(file["bytes"] for file in log["source"].values())
    after = sum(file.stat().st_size for file in target.iterdir())
    print(
        f"{target}: {statistics.rows:,} rows, {statistics.clicks:,} clicks, CTR {statistics.ctr:.3%}, "
        f"{skipped['rows']:,} rows skipped, {before / 1e6:.1f} MB before, {after / 1e6:.1f} MB after"
    )
    for text in skipped["first"]:
        print(f"  skipped {text}")
    if skipped["rows"] > len(skipped["first"]):
        print(f"  and {skipped['rows'] - len(skipped['first']):,} more")
