"""``reproduce``: run the paper's experiments, and say for each of its claims whether the numbers agree."""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from nl_lightning.core import lightning_logging
from nl_lightning.core.arguments import OneLineParser, program
from nl_lightning.core.checks import check_whole
from nl_lightning.core.errors import InputError
from nl_lightning.core.files import output_directory
from nl_lightning.experiments import paper, pool
from nl_lightning.experiments.reproduce import Asked, Reproduction

__all__ = ["asked", "main", "parser"]

WHAT = (*paper.FIGURES, "obd", "all")

_EPILOG = """examples:
  python -m nl_lightning reproduce fig1                 figure 1 as in the paper: 10 seeds, T = 2000, the whole grid
  python -m nl_lightning reproduce all --quick          everything, reduced, in minutes: to see that it works
  python -m nl_lightning reproduce all --resume         go on with what was stopped; finished parts are kept
  python -m nl_lightning reproduce fig2 --data DIR      with DIR/mnist.parquet, DIR/mushroom.parquet, ...
  python -m nl_lightning reproduce fig4 --seeds 20 --out runs/more-seeds

A part is one agent in one panel: a grid search over nu and lam on seeds of its own, then the final run with the best
setting. Settings whose TrainNN diverges are marked and never chosen where another one does not. --out gets RESULTS.md,
and of each figure a picture and its numbers; --out/runs has the run directory of every part."""


def main(arguments: Sequence[str]) -> None:
    """``reproduce WHAT... [options]``"""
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


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    paper_scale, quick = paper.PAPER, paper.QUICK
    made = OneLineParser(
        prog=f"{program('nl_lightning')} reproduce",
        description="Run the paper's experiments, and say of each of its claims whether the numbers agree.",
        epilog=_EPILOG.replace("python -m nl_lightning", program("nl_lightning")),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("what", nargs="+", choices=WHAT, metavar="WHAT", help=f"what to run: {', '.join(WHAT)}")
    made.add_argument(
        "--seeds",
        type=int,
        help=f"of the final runs; default: {paper_scale.seeds}, for obd {paper_scale.replay_seeds}, as in the paper",
    )
    made.add_argument(
        "--tuning-seeds", type=int, help=f"of the grid search; default: {paper_scale.tuning_seeds} others"
    )
    made.add_argument("--horizon", type=int, help=f"rounds T; default: {paper_scale.horizon}")
    made.add_argument(
        "--quick",
        action="store_true",
        help=f"minutes instead of hours: {quick.seeds} seeds (obd: {quick.replay_seeds}), T = {quick.horizon}, nu and "
        f"lam of {', '.join(f'{value:g}' for value in quick.grid)}; options given beside it win",
    )
    made.add_argument("--resume", action="store_true", help="keep what is finished in --out, and run the rest")
    made.add_argument("--out", type=Path, default=Path("runs/reproduce"), help="directory; default: runs/reproduce")
    made.add_argument("--jobs", type=int, default=pool.cores(), help="parts at once; default: the number of cores")
    made.add_argument("--data", type=Path, help="directory of the data sets of figures 2 and 5 (NL_LIGHTNING_DATA)")
    made.add_argument("--wandb", action="store_true", help="log to Weights & Biases; offline without a key")
    return made


def asked(options: argparse.Namespace) -> Asked:
    """How much these options ask for."""
    scale, said = (paper.QUICK, ["--quick"]) if options.quick else (paper.PAPER, [])
    for name in ("seeds", "tuning_seeds", "horizon"):
        value = getattr(options, name)
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            check_whole(1, **{option: value})
            said += [option, str(value)]
            scale = scale._replace(**{name: value} | ({"replay_seeds": value} if name == "seeds" else {}))
    if scale.seeds > paper.FIRST_TUNING_SEED:
        raise InputError(
            f"--seeds must be at most {paper.FIRST_TUNING_SEED}, got {scale.seeds}: the seeds behind are tuned on."
        )
    return Asked(scale, said)
