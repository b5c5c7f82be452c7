"""Speed and memory, as ratios measured in one run: ``python -m benchmarks``.

The machine is noisy, so every number is a median of interleaved repetitions, and only ratios within one run count.
"""

import argparse
import logging
import sys
import warnings
from collections.abc import Callable

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import blocks, devices, fit, replay, theory, variants
from benchmarks.measure import Row


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only",
        choices=["fit", "blocks", "theory", "replay", "devices", "variants"],
        help="measure one part; left out, all",
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of torch in fits; with more, ratios spread")
    parser.add_argument("--long", type=int, default=100_000, help="rounds of the memory measurement of a fit")
    parser.add_argument(
        "--rows", type=int, default=1_400_000, help="events of the simulated log; memory: ten times, too"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.WARNING)
    parts: dict[str, list[Callable[[], list[Row]]]] = {
        "fit": [fit.gradient_step, fit.act_and_observe, fit.whole_fit, lambda: fit.memory(options.long)],
        "blocks": [blocks.fits],
        "theory": [theory.rounds_of_theory_mode, theory.memory],
        "replay": [
            replay.learning,
            lambda: replay.frozen(options.rows),
            replay.conversion,
            lambda: replay.memory(options.rows, 10 * options.rows),
        ],
        "devices": [devices.replicas, lambda: devices.frozen(options.rows)],
        "variants": [variants.half, variants.compiled],
    }
    table = Table(title=f"torch {torch.__version__}", title_justify="left")
    for name in ("what", "measured: median (quartiles)", "to reach", ""):
        table.add_column(name)
    chosen = [part for name, group in parts.items() if options.only in (None, name) for part in group]
    reached = True
    for part in track(chosen, description="measuring"):
        torch.set_num_threads(options.threads)
        for what, value, limit, holds in part():
            table.add_row(what, value, limit, "yes" if holds else "NO")
            reached &= holds
    Console().print(table)
    sys.exit(0 if reached else 1)


if __name__ == "__main__":
    main()
