"""Simulate a log whose true click rates are known, for testing evaluators.

DST becomes a log like any other. Its log.json also holds, under "world", all arguments and the exact click rates of
the logging policy, of the uniform policy and of the best policy. An interrupted simulation is resumed when the command
is run again.

example:
  python -m replay simulate data/simulated --rows 400000 --policy softmax
"""

import argparse
from dataclasses import fields
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from nl_lightning.core.whole import check_whole
from replay.logs.description import read_description
from replay.logs.obd import MOST_POSITIONS
from replay.logs.statistics import LogStatistics
from replay.simulation.simulate import make_log
from replay.simulation.simulated_world import POLICIES, SimulatedWorld

__all__ = ["HELP", "add_arguments", "run"]


HELP = {
    "items": "number of items",
    "users": "number of user profiles",
    "positions": f"number of positions, at most {MOST_POSITIONS}",
    "policy": "logging policy that chooses the item to show",
    "temperature": "temperature of the softmax policy: low is greedy, high is nearly uniform",
    "ctr": "click rate of the uniform policy",
    "seed": "seed of the world and its events",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dst", metavar="DST", type=Path, help="directory of the log")
    parser.add_argument("--rows", type=int, required=True, help="number of events")
    for field in fields(SimulatedWorld):
        choices = POLICIES if field.name == "policy" else None
        kind = type(field.default)
        parser.add_argument(f"--{field.name}", type=kind, default=field.default, choices=choices, help=HELP[field.name])


def run(options: argparse.Namespace) -> None:
    check_whole(1, rows=options.rows)
    world = SimulatedWorld(**{field.name: getattr(options, field.name) for field in fields(SimulatedWorld)})
    columns = TextColumn("row"), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn()
    bar = Progress(*columns, TimeRemainingColumn(), TextColumn("left"), console=Console(stderr=True))

    def show(done: int, rows: int) -> None:
        if not bar.tasks:
            if done:
                print(f"{options.dst} holds {done:,} of {rows:,} rows; resuming after them.")
            bar.add_task("rows", total=rows, completed=done)
            bar.start()
        bar.update(bar.tasks[0].id, completed=done)

    try:
        made = make_log(options.dst, world, options.rows, show)
    finally:
        if bar.tasks:
            bar.stop()
    if made:
        _summarise(options.dst)
    else:
        print(f"{options.dst} already holds this log: nothing to do.")


def _summarise(path: Path) -> None:
    log = read_description(path)
    statistics, rates = LogStatistics.from_json(log["contents"]), log["world"]["ctr"]
    print(f"{path}: {statistics.rows:,} rows, {statistics.clicks:,} clicks, CTR {statistics.ctr:.6f}")
    print(f"exact CTR of the logging policy ({log['policy']}): {rates['logging']:.6f}")
    print(f"exact CTR of the uniform policy: {rates['uniform']:.6f}")
    print(f"exact CTR of the best policy: {rates['best']:.6f}")
