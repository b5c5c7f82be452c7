"""``reproduce``: run the paper's experiments, and say for each of its claims whether the numbers agree."""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nl_lightning.core import lightning_logging
from nl_lightning.core.arguments import OneLineParser, program
from nl_lightning.core.checks import check_whole
from nl_lightning.core.errors import InputError
from nl_lightning.core.files import output_directory
from nl_lightning.experiments import paper, pool, recheck
from nl_lightning.experiments.readings import READINGS, quick
from nl_lightning.experiments.reproduce import Asked, Reproduction

__all__ = ["asked", "main", "parser"]

WHAT = (*paper.FIGURES, "obd", "all")

_EPILOG = """examples:
  python -m nl_lightning reproduce fig1                 figure 1 in every reading: grid search, then 10 or more seeds
  python -m nl_lightning reproduce fig1 --reading stable
  python -m nl_lightning reproduce all --quick          everything, reduced, in minutes: to see that it works
  python -m nl_lightning reproduce all --resume         go on with what was stopped; finished parts are kept
  python -m nl_lightning reproduce fig2 --data DIR      with DIR/mnist.parquet, DIR/mushroom.parquet, ...
  python -m nl_lightning reproduce fig4 --seeds 20 --out runs/more-seeds
  python -m nl_lightning reproduce check runs/reproduce runs/other     how many verdicts are the same

Numbers do not depend on --jobs. Another processor rounds otherwise, and so does this one with
ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE before the command: make --out runs/other so, then check both.

A reading is a way to take the paper's words; --reading chooses some of them. A part is one agent in one panel: a grid
search over nu and lam on seeds of its own, then the final run with the best setting. Settings whose TrainNN diverges
are marked and never chosen where another one does not. --out gets RESULTS.md, and of each reading and figure a picture
and its numbers; --out/runs has the run directory of every part."""


def main(arguments: Sequence[str]) -> None:
    """``reproduce WHAT... [options]``, or ``reproduce check ONE OTHER``"""
    if list(arguments[:1]) == ["check"]:
        _check(arguments[1:])
        return
    options = parser().parse_args(arguments)
    check_whole(1, **{"--jobs": options.jobs})
    if options.data is not None:
        if not options.data.is_dir():
            raise InputError(f"--data must be a directory with the data sets; there is none at {options.data}.")
        os.environ["NL_LIGHTNING_DATA"] = str(options.data.resolve())
    lightning_logging.silence()
    wanted = list(WHAT[:-1]) if "all" in options.what else list(dict.fromkeys(options.what))
    wanted_scale = asked(options)
    out = output_directory(options.out)
    try:
        complete = Reproduction(wanted, wanted_scale, out, options.resume, options.wandb).run(options.jobs)
    except KeyboardInterrupt:
        resume = [] if options.resume else ["--resume"]
        again = f"{program('nl_lightning')} {shlex.join(['reproduce', *arguments, *resume])}"
        message = f"Stopped. Finished parts are kept, and others have checkpoints; go on with: {again}"
        if pool.stuck:
            print(message, file=sys.stderr, flush=True)
            os._exit(1)
        sys.exit(message)
    if not complete:
        sys.exit(1)


def _check(arguments: Sequence[str]) -> None:
    """Print the share of equal verdicts; exit code 1 if a stable reading has too few."""
    made = OneLineParser(
        prog=f"{program('nl_lightning')} reproduce check",
        description="Compare the verdicts of two reproductions that differ by rounding, by reading.",
    )
    made.add_argument("one", type=Path, help="directory of the first")
    made.add_argument("other", type=Path, help="directory of the second, made with other rounding")
    given = made.parse_args(arguments)
    rows = recheck.agreement(given.one, given.other)
    for row in rows:
        print(f"{row.reading}: {row.same} of {row.total} verdicts are the same ({row.share:.1%})")
        for text in row.different:
            print(f"  {text}")
    short = [row.reading for row in rows if row.share < recheck.WANTED and not READINGS[row.reading].shorter]
    if short:
        sys.exit(f"Fewer than {recheck.WANTED:.0%} are the same in: {', '.join(short)}.")


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    small = quick(READINGS["literal"])
    made = OneLineParser(
        prog=f"{program('nl_lightning')} reproduce",
        description="Run the paper's experiments, and say of each of its claims whether the numbers agree.",
        epilog=_EPILOG.replace("python -m nl_lightning", program("nl_lightning")),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("what", nargs="+", choices=WHAT, metavar="WHAT", help=f"what to run: {', '.join(WHAT)}")
    made.add_argument(
        "--reading",
        action="append",
        choices=list(READINGS),
        metavar="NAME",
        help=f"only this reading; can be given several times: {', '.join(READINGS)}",
    )
    made.add_argument(
        "--seeds",
        type=int,
        help="of the final runs; default: by reading, 10 (the paper's), or 50 to 200 by what a panel needs; obd: 5",
    )
    made.add_argument("--tuning-seeds", type=int, help="of the grid search; default: 3 others")
    made.add_argument("--horizon", type=int, help="rounds T; default: 2000, and more on the simulated log")
    made.add_argument(
        "--quick",
        action="store_true",
        help=f"minutes instead of hours: {small.seeds} seeds (obd: {small.replay_seeds}), T = {small.horizon}, nu of "
        f"{', '.join(f'{value:g}' for value in small.nu)}; options given beside it win",
    )
    made.add_argument("--resume", action="store_true", help="keep what is finished in --out, and run the rest")
    made.add_argument("--out", type=Path, default=Path("runs/reproduce"), help="directory; default: runs/reproduce")
    made.add_argument("--jobs", type=int, default=pool.cores(), help="parts at once; default: the number of cores")
    made.add_argument("--data", type=Path, help="directory of the data sets of figures 2 and 5 (NL_LIGHTNING_DATA)")
    made.add_argument("--wandb", action="store_true", help="log to Weights & Biases; offline without a key")
    return made


def asked(options: argparse.Namespace) -> Asked:
    """The readings that these options ask for."""
    said = ["--quick"] if options.quick else []
    changes: dict[str, Any] = {}
    for name in ("seeds", "tuning_seeds", "horizon"):
        value = getattr(options, name)
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            check_whole(1, **{option: value})
            said += [option, str(value)]
            changes |= {name: value} | (
                {"replay_seeds": value, "sweep_seeds": value, "most_seeds": 0} if name == "seeds" else {}
            )
    names = [name for name in READINGS if name in (options.reading or READINGS)]
    chosen = [quick(READINGS[name]) if options.quick else READINGS[name] for name in names]
    readings = [reading._replace(**changes) for reading in chosen]
    most = max(reading.seeds for reading in readings)
    if most > paper.FIRST_TUNING_SEED:
        raise InputError(
            f"--seeds must be at most {paper.FIRST_TUNING_SEED}, got {most}: the seeds behind are tuned on."
        )
    return Asked(readings, said)
