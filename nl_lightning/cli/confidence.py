"""``confidence``: whether the confidence sets of NeuralLog-UCB-2 contain the true parameter."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from nl_lightning.agents import NeuralLogUCB2
from nl_lightning.core.arguments import OneLineParser, program
from nl_lightning.core.checks import check_whole
from nl_lightning.core.files import output_directory, write_beside
from nl_lightning.core.statistics import wilson
from nl_lightning.diagnostics.confidence import draw, simulate, write_csv

__all__ = ["main"]


def main(arguments: Sequence[str]) -> None:
    """``confidence [options]``: how often the confidence sets hold, a picture and its numbers."""
    options = _parser().parse_args(arguments)
    check_whole(1, rounds=options.rounds, runs=options.runs, arms=options.arms)
    agent = NeuralLogUCB2(
        options.dim,
        width=options.width,
        depth=options.depth,
        mode="theory",
        S=options.S,
        delta=options.delta,
        C1=options.C1,
        C7=options.C7,
        horizon=options.rounds,
        replicas=options.runs,
        seed=options.seed,
    ).double()
    output_directory(options.out)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"{options.runs} runs side by side, round", total=options.rounds)
        paths = simulate(agent, options.rounds, options.arms, lambda: progress.advance(task))
    write_beside(options.out / "confidence.png", lambda path: draw(paths, options.delta, path))
    write_beside(options.out / "confidence.csv", lambda path: write_csv(paths, options.delta, path))
    held, runs = int(paths.holds().sum()), options.runs
    low, high = wilson(held, runs)
    ratio = (paths.distance / paths.radius).amax(1)
    console = Console()
    promise = 1 - options.delta
    kept = "The promise is not kept with these constants." if high < promise else ""
    loose = "The sets are much larger than they need to be." if ratio.amax() < 0.5 else ""
    for line in (
        f"theta* lay in all {options.rounds + 1} confidence sets in {held} of {runs} runs: "
        f"{held / runs:.1%} ({low:.1%} to {high:.1%}); promised are {promise:.0%}. {kept}".rstrip(),
        f"The distance came to at most {ratio.amax():.2f} times the radius (at t = {int(ratio.argmax())}), "
        f"at t = {options.rounds} to {ratio[-1]:.3f} times. {loose}".rstrip(),
        f"lam_t grew from {paths.lam[0].mean():.1f} to {paths.lam[-1].mean():.1f}, nu2_t from "
        f"{paths.radius[0].mean():.1f} to {paths.radius[-1].mean():.1f}, D_t to {paths.dimension[-1].mean():.2f}.",
        f"Files: {options.out}/confidence.csv and confidence.png",
    ):
        console.print(line, soft_wrap=True)


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog=f"{program('nl_lightning')} confidence",
        description="Play NeuralLog-UCB-2 in theory mode on problems whose true parameter theta* is known, and see "
        "whether its confidence sets hold theta*: sqrt(m) |theta* - theta_t|_W <= nu2_t at all t.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--dim", type=int, default=10, help="features d of an arm; arms have length 1")
    add("--arms", type=int, default=5, help="arms K of a round")
    add("--width", type=int, default=20, help="width m of the network")
    add("--depth", type=int, default=2, help="number L of layers")
    add("--S", type=float, default=1.0, help="length sqrt(m) |theta* - theta_0|, which the agent is told")
    add("--delta", type=float, default=0.05, help="the sets hold in 1 - delta of runs, says the theory")
    add("--C1", type=float, default=1.0, help="constant of lam_t and iota_t")
    add("--C7", type=float, default=1.0, help="constant of nu2_t")
    add("--rounds", type=int, default=200, help="rounds T of a run")
    add("--runs", type=int, default=100, help="independent runs")
    add("--seed", type=int, default=0, help="seed of the first run; the others follow")
    add("--out", type=Path, default=Path("runs/confidence"), help="directory of the files")
    return parser
