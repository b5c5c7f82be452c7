"""``tailbound``: how tight the tail inequalities are in simulation."""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from nl_lightning.core.arguments import OneLineParser, program
from nl_lightning.core.checks import check_whole
from nl_lightning.core.errors import InputError
from nl_lightning.core.files import output_directory, write_beside
from nl_lightning.diagnostics.martingales import DESIGNS, MartingaleSetting, simulate
from nl_lightning.diagnostics.tailbound import Row, draw, remarks, summarise, table, write_csv

__all__ = ["main"]


def main(arguments: Sequence[str]) -> None:
    """``tailbound [--dims ...] [--norms ...] [--designs ...] [options]``: a table, a picture and their numbers."""
    options = _parser().parse_args(arguments)
    settings, out = _settings(options), options.out
    output_directory(out)
    rows: list[Row] = []
    curves: list[Row] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(settings) * options.rounds)
        for setting in settings:
            progress.update(task, description=f"{setting.design}, d = {setting.d}, S = {setting.S:g}")
            row, points = summarise(setting, simulate(setting, lambda: progress.advance(task)))
            rows.append(row)
            curves += points
    write_beside(out / "tailbound.csv", lambda path: write_csv(rows, path))
    write_beside(out / "tailbound_curves.csv", lambda path: write_csv(curves, path))
    write_beside(out / "tailbound.png", lambda path: draw(rows, curves, path))
    console = Console()
    console.print(table(rows))
    for line in [*remarks(rows), f"Files: {out}/tailbound.csv, tailbound_curves.csv and tailbound.png"]:
        console.print(line, soft_wrap=True)


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog=f"{program('nl_lightning')} tailbound",
        description="Simulate self-normalised martingales and see how tight three tail inequalities are: the paper's "
        "Theorem 1, Faury et al. (2020) and Verma et al. (2025). The defaults take less than a minute.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    known = "; ".join(f"{name}: {design.text}" for name, design in DESIGNS.items())
    norms = "|theta*|: the larger, the smaller variances can be and the larger kappa"
    add = parser.add_argument
    add("--dims", nargs="+", type=int, metavar="d", default=[2, 10, 60], help="dimensions of x_t")
    add("--norms", nargs="+", type=float, metavar="S", default=[0.5, 5.0, 10.0], help=norms)
    add("--designs", nargs="+", metavar="NAME", default=list(DESIGNS), help=f"how x_t is chosen. {known}")
    add("--rounds", type=int, metavar="T", default=1000, help="rounds of a run")
    add("--runs", type=int, metavar="n", default=200, help="independent runs of every setting")
    add("--lam", type=float, default=1.0, help="regularisation: H_0 = lam I")
    add("--delta", type=float, default=0.05, help="each bound holds at all t with probability 1 - delta")
    add("--seed", type=int, default=0, help="the same seed gives the same numbers")
    add("--out", type=Path, metavar="DIRECTORY", default=Path("runs/tailbound"), help="where the files go")
    return parser


def _settings(options: argparse.Namespace) -> list[MartingaleSetting]:
    """Every design with every d and S, each once; or an error that says what is wrong."""
    for design in options.designs:
        if design not in DESIGNS:
            raise InputError(f"There is no design {design!r}. The designs: {', '.join(DESIGNS)}.")
    check_whole(1, dims=min(options.dims), rounds=options.rounds, runs=options.runs)
    check_whole(0, seed=options.seed)
    for S in options.norms:
        # beyond 30 float64 hardly tells mu(S) from 1
        if not 0 < S <= 30:
            raise InputError(f"norms must be greater than 0 and at most 30, got {S!r}.")
    if not 0 < options.delta < 1:
        raise InputError(f"delta must lie between 0 and 1, got {options.delta!r}.")
    # updates of the inverse lose as many digits as lam is smaller than the data
    if not 1e-6 <= options.lam < math.inf:
        raise InputError(f"lam must be a finite number of at least 1e-6, got {options.lam!r}.")
    settings = [
        MartingaleSetting(design, d, S, options.rounds, options.runs, options.lam, options.delta, options.seed)
        for design in dict.fromkeys(options.designs)
        for d in sorted(set(options.dims))
        for S in sorted(set(options.norms))
    ]
    # inverses and what is multiplied with them; every x; four paths and five bounds
    needed = max(8 * options.runs * (3 * s.k**2 + options.rounds * (s.k + 9)) for s in settings)
    if needed > 2**31:
        raise InputError(
            f"A setting would take {needed / 2**30:.1f} GiB, more than 2: take fewer runs, rounds or dims."
        )
    return settings
