"""``confidence``: whether the confidence sets of NeuralLog-UCB-2 hold the true parameter.

The problem is linear in the features, with a known theta* on the edge of the parameter set:

    P(r = 1) = mu(h(x)),    h(x) = g(x; theta_0)^T (theta* - theta_0),    sqrt(m) |theta* - theta_0| = S,    |x| = 1

Algorithm 2 plays it as printed, with TrainNN after every round, and the paper's lemma says: with probability 1 - delta

    sqrt(m) |theta* - theta_t|_{W_t} <= nu2_t    for all t.

Runs are replicas of one agent: each has its own theta_0, theta*, arms and clicks.
"""

import argparse
import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor
from torch.nn.functional import normalize

from nl_lightning.agents import NeuralLogUCB2
from nl_lightning.agents.theory import Theory
from nl_lightning.core.checks import check_whole
from nl_lightning.core.files import output_directory, write_beside
from nl_lightning.core.link import mu
from nl_lightning.core.rng import Stream, generator
from nl_lightning.core.statistics import wilson
from nl_lightning.designs.adaptive import AdaptiveDesign
from nl_lightning.designs.samples import gradient


class Paths(NamedTuple):
    """What was measured at t = 0, ..., T: (T + 1, R) each."""

    distance: Tensor
    """sqrt(m) |theta* - theta_t|_{W_t}"""
    radius: Tensor
    """nu2_t"""
    lam: Tensor
    """lam_t"""
    dimension: Tensor
    """D_t"""

    def holds(self) -> Tensor:
        """(R,): whether the set holds theta* at every t"""
        return (self.distance <= self.radius).all(0)


class Problem:
    """theta* of every replica of an agent in theory mode, and what follows from it."""

    def __init__(self, agent: NeuralLogUCB2) -> None:
        assert isinstance(agent.formulas, Theory)
        self.agent, self.theory = agent, agent.formulas
        # In the coordinates of the features: what is across them has no part in any h.
        draws = [generator(seed, Stream.PROBLEM) for seed in agent.settings.seeds]
        size = sum(out * fan_in for out, fan_in in self.theory.shapes)
        direction = torch.stack([torch.randn(size, generator=g, dtype=torch.float64) for g in draws])
        self.truth = normalize(direction, dim=1) * agent.S.unsqueeze(1) / self.theory.scale
        """(R, p), theta* - theta_0"""

    def h(self, arms: Tensor) -> Tensor:
        """g(x; theta_0)^T (theta* - theta_0) = sqrt(m) phi . (theta* - theta_0), (R, K), of arms (R, K, d)"""
        *_, factors = self.agent.evaluate(arms)
        phi = gradient(tuple(factor.double() for factor in factors))
        return torch.bmm(phi, self.truth.unsqueeze(2)).squeeze(2) * self.theory.scale

    @torch.no_grad()
    def distance(self) -> Tensor:
        """sqrt(m) |theta* - theta_t|_{W_t}, (R,); |v|_W^2 = sum w (phi . v)^2 + lam_t |v|^2"""
        agent, theory = self.agent, self.theory
        assert isinstance(agent.design, AdaptiveDesign)
        moved = [(w - w_0).double() for w, w_0 in zip(agent.network.weights, agent.initial_weights, strict=True)]
        seen = torch.cat([part.flatten(1) for part in theory.halved(moved)], dim=1)
        across = sum(part.square().flatten(1).sum(1) for part in moved) - seen.square().sum(1)
        v = self.truth - seen
        length = v.square().sum(1) + across
        return (agent.design.spread(v) + theory.lam * length).sqrt() * theory.scale


def simulate(agent: NeuralLogUCB2, rounds: int, arms: int, tick: Callable[[], object] = lambda: None) -> Paths:
    """Play a number of rounds with K arms each."""
    problem = Problem(agent)
    theory = problem.theory
    draws = [generator(seed, Stream.ROUNDS) for seed in agent.settings.seeds]
    found = [(problem.distance(), agent.radius, theory.lam.clone(), agent.effective_dimension)]
    for _ in range(rounds):
        normal = [torch.randn(arms, agent.dim, generator=g, dtype=torch.float64) for g in draws]
        shown = normalize(torch.stack(normal), dim=2)
        choice = agent.act(shown)
        chance = choice.chosen(mu(problem.h(shown)))
        uniform = torch.cat([torch.rand(1, generator=g, dtype=torch.float64) for g in draws])
        agent.observe(choice, uniform < chance)
        agent.train_nn()
        found.append((problem.distance(), agent.radius, theory.lam.clone(), agent.effective_dimension))
        tick()
    return Paths(*(torch.stack(column) for column in zip(*found, strict=True)))


def draw(paths: Paths, delta: float, path: Path) -> None:
    """Distance and radius over t, and lam_t and D_t below them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 6.5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    t = torch.arange(len(paths.radius)).numpy()
    low, high = (paths.distance.quantile(q, dim=1).numpy() for q in (0.0, 1 - delta))
    median = paths.distance.median(1).values.numpy()
    above.plot(t, paths.radius.mean(1).numpy(), color="C3", label=r"radius $\nu_t^{(2)}$ (mean over runs)")
    (line,) = above.plot(t, median, label=r"distance $\sqrt{m}\,|\theta^* - \theta_t|_{W_t}$ (median)")
    shade = f"from the smallest to the {1 - delta:.0%} quantile"
    above.fill_between(t, low, high, color=line.get_color(), alpha=0.2, linewidth=0, label=shade)
    above.set(yscale="log", ylabel="length")
    above.set_title(f"Confidence sets of NeuralLog-UCB-2: {paths.radius.shape[1]} runs", fontsize="medium")
    below.plot(t, paths.lam.mean(1).numpy(), label=r"$\lambda_t$")
    below.plot(t, paths.dimension.mean(1).numpy(), label=r"$D_t$")
    below.set(yscale="log", xlabel="round t", ylabel="mean over runs", xlim=(0, len(t) - 1))
    for axes in (above, below):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)


def _write_csv(paths: Paths, delta: float, path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["t", "distance_median", "distance_quantile", "distance_max", "nu2", "lam", "D"])
        columns = (
            paths.distance.median(1).values,
            paths.distance.quantile(1 - delta, dim=1),
            paths.distance.amax(1),
            *(values.mean(1) for values in paths[1:]),
        )
        for t, row in enumerate(torch.stack(columns, dim=1).tolist()):
            writer.writerow([t, *row])


def main(arguments: Sequence[str]) -> None:
    """``confidence [options]``: how often the confidence sets hold, a picture and its numbers."""
    parser = argparse.ArgumentParser(
        prog="python -m nl_lightning confidence",
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
    options = parser.parse_args(arguments)
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
    write_beside(options.out / "confidence.csv", lambda path: _write_csv(paths, options.delta, path))
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
