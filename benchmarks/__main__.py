"""Speed and memory, ours and our peers', as ratios measured in one run: ``python -m benchmarks``.

The machine is noisy, so every number is a median of interleaved repetitions, and only ratios within one run count. What
is measured is stored in ``benchmarks/results``, and ``benchmarks/RESULTS.md`` is written from that.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks import (
    blocks,
    coverage,
    devices,
    document,
    fit,
    learners,
    learning,
    own_log,
    profile,
    replay,
    stored,
    theory,
    threads,
    variants,
)
from benchmarks.measure import Row, quiet
from benchmarks.peers import marks
from benchmarks.peers.compare import compare, compare_values

Say = Callable[[str], None]
Found = tuple[list[Row], dict[str, Any]]
"""What is to be reached, and what else there is to tell."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", choices=list(document.ORDER), help="measure one part; left out, all")
    parser.add_argument("--write", action="store_true", help="measure nothing, write RESULTS.md anew")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch in fits; with more, ratios spread")
    parser.add_argument("--long", type=int, default=100_000, help="rounds of the memory measurement of a fit")
    parser.add_argument(
        "--rows", type=int, default=1_400_000, help="events of the simulated log; memory: ten times, too"
    )
    options = parser.parse_args()
    quiet()
    console = Console()
    reached = options.write or _measure(options, console)
    console.print(f"written: {document.write(Path(__file__).parent).name} in benchmarks/")
    sys.exit(0 if reached else 1)


def _measure(options: argparse.Namespace, console: Console) -> bool:
    """Measure the chosen parts, and tell whether all of them reach what they have to."""
    parts: dict[str, Callable[[Say], Found]] = {
        "peers": _peers,
        "values": lambda say: ([], compare_values(say)),
        "profile": _profile,
        "fit": _rows(
            fit.gradient_step, fit.optimizers, fit.own_network, fit.act_and_observe, lambda: fit.memory(options.long)
        ),
        "long": _rows(fit.schedule, fit.million, learning.schedules),
        "learning": learning.untuned,
        "fixed": learning.fixed_arms,
        "grid": learning.grid,
        "tried": learning.tried,
        "blocks": _rows(blocks.fits),
        "theory": _rows(theory.rounds_of_theory_mode, theory.memory),
        "replay": _rows(
            lambda: replay.frozen(options.rows),
            lambda: own_log.frozen(options.rows),
            replay.conversion,
            own_log.conversion,
            lambda: replay.memory(options.rows, 10 * options.rows),
            lambda: own_log.memory(options.rows),
        ),
        "coverage": coverage.measure,
        "learners": learners.values,
        "sample": _rows(learners.speed),
        "devices": _rows(devices.replicas, lambda: devices.frozen(options.rows)),
        "variants": _rows(variants.half, variants.compiled),
        "threads": _rows(threads.fits),
    }
    table = Table(title=f"torch {torch.__version__}", title_justify="left")
    for name in ("what", "measured: median (quartiles)", "to reach", ""):
        table.add_column(name)
    chosen = [options.only] if options.only else list(parts)
    reached = True
    columns = (
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(chosen))
        for part in chosen:

            def say(text: str, part: str = part) -> None:
                progress.update(task, description=f"{part}: {text}")
                if not console.is_terminal:
                    # no bar that could be looked at
                    console.print(f"{part}: {text}", highlight=False)

            torch.set_num_threads(options.threads)
            rows, detail = parts[part](say)
            stored.store(part, rows, detail)
            for what, value, limit, holds in rows:
                table.add_row(what, value, limit, "" if limit == "-" else "yes" if holds else "NO")
                reached &= holds
            progress.advance(task)
    console.print(table)
    return reached


def _peers(say: Say) -> Found:
    found = compare(say)
    return marks.rows(found), found


def _profile(say: Say) -> Found:
    rows: list[Row] = []
    told = {}
    for replicas in (1, 10):
        say(f"R = {replicas}")
        found = profile.Profile(replicas)
        rows += found.rows()
        told[f"R = {replicas}"] = {"shares": found.shares(), "operations": found.operations}
    return rows, told


def _rows(*works: Callable[[], list[Row]]) -> Callable[[Say], Found]:
    """A part of several measurements."""

    def measure(say: Say) -> Found:
        rows = []
        for number, work in enumerate(works, start=1):
            say(f"{number} of {len(works)}")
            rows += work()
        return rows, {}

    return measure


if __name__ == "__main__":
    main()
