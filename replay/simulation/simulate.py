"""Simulate a log whose true click rates are known, to test evaluators by.

DST becomes a log like any other. Its log.json also holds, under "world", all arguments and the exact click rates of
the logging policy, of the uniform policy and of the best one. A simulation that was stopped goes on where it was.
"""

import argparse
from dataclasses import fields
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from nl_lightning.core.checks import check_whole
from replay.logs.schema import LOG_FILE, ROW_GROUP
from replay.logs.statistics import Contents, read_description
from replay.logs.writer import LogWriter, claimed
from replay.simulation.simulated_world import POLICIES, World

HELP = {
    "items": "number of items",
    "users": "number of user profiles",
    "positions": "number of positions, at most 127",
    "policy": "how the shown item is chosen",
    "temperature": "of the softmax policy: low is greedy, high nearly uniform",
    "ctr": "click rate of the uniform policy",
    "seed": "of the world and its events",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    # Defaults are those of World. SUPPRESS keeps "(default: None)" out of the help.
    parser.add_argument("dst", metavar="DST", type=Path, help="directory of the log")
    parser.add_argument("--rows", type=int, required=True, default=argparse.SUPPRESS, help="number of events")
    for field in fields(World):
        choices = POLICIES if field.name == "policy" else None
        kind = type(field.default)
        parser.add_argument(f"--{field.name}", type=kind, default=field.default, choices=choices, help=HELP[field.name])


def run(options: argparse.Namespace) -> None:
    check_whole(1, rows=options.rows)
    world = World(**{field.name: getattr(options, field.name) for field in fields(World)})
    if make_log(options.dst, world, options.rows):
        _summarise(options.dst)
    else:
        print(f"{options.dst} already holds this log, whole: there is nothing to do.")


def make_log(path: Path, world: World, rows: int, quiet: bool = False) -> bool:
    """Simulate a log, or the rest of one; False where it is whole already."""
    source = {"simulated": world.description()["arguments"], "rows": rows}
    if (path / LOG_FILE).exists() and read_description(path)["source"] == source:
        return False
    with claimed(path):
        writer = LogWriter(path, world.item_table(), source)
        _write(world, writer, rows, quiet)
        writer.finish(campaign="simulated", policy=world.policy, world=world.description())
    return True


def _write(world: World, writer: LogWriter, rows: int, quiet: bool) -> None:
    """Add the events that are missing, a row group at a time."""
    done = writer.progress or 0
    if done and not quiet:
        print(f"{writer.path} holds {done:,} of {rows:,} rows; going on behind them.")
    columns = TextColumn("row"), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), TextColumn("left")
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True, quiet=quiet)) as progress:
        task = progress.add_task("rows", total=rows, completed=done)
        while done < rows:
            events = world.draw(done, min(ROW_GROUP, rows - done))
            done += events.num_rows
            writer.add(events, progress=done)
            progress.update(task, completed=done)


def _summarise(path: Path) -> None:
    log = read_description(path)
    contents, rates = Contents.of(path, log), log["world"]["ctr"]
    print(f"{path}: {contents.rows:,} rows, {contents.clicks:,} clicks, CTR {contents.ctr:.6f}")
    print(f"exact CTR of the logging policy ({log['policy']}): {rates['logging']:.6f}")
    print(f"exact CTR of the uniform policy: {rates['uniform']:.6f}")
    print(f"exact CTR of the best policy: {rates['best']:.6f}")
