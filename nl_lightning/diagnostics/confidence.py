"""Whether the confidence sets of NeuralLog-UCB-2 contain the true parameter.

The problem is linear in the features, with a known theta* on the edge of the parameter set:

    P(r = 1) = mu(h(x)),    h(x) = g(x; theta_0)^T (theta* - theta_0),    sqrt(m) |theta* - theta_0| = S,    |x| = 1

Algorithm 2 plays it as printed, with TrainNN after every round, and the paper's lemma says: with probability 1 - delta

    sqrt(m) |theta* - theta_t|_{W_t} <= nu2_t    for all t.

Runs are replicas of one agent: each has its own theta_0, theta*, arms and clicks.
"""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from nl_lightning.agents import NeuralLogUCB2
from nl_lightning.agents.theory import Theory
from nl_lightning.core.link import mu
from nl_lightning.core.rng import Stream, generator
from nl_lightning.designs.adaptive import AdaptiveDesign
from nl_lightning.designs.samples import gradient

__all__ = ["ConfidencePaths", "KnownProblem", "draw", "simulate", "write_csv"]


class ConfidencePaths(NamedTuple):
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
        """(R,): whether the set contains theta* at every t"""
        return (self.distance <= self.radius).all(0)


class KnownProblem:
    """A known theta* for every replica of an agent in theory mode."""

    def __init__(self, agent: NeuralLogUCB2) -> None:
        assert isinstance(agent.formulas, Theory)
        self.agent, self.theory = agent, agent.formulas
        # In the coordinates of the features: a component orthogonal to them does not change h.
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


def simulate(
    agent: NeuralLogUCB2, rounds: int, arms: int, tick: Callable[[], object] = lambda: None
) -> ConfidencePaths:
    """Play a number of rounds with K arms each."""
    problem = KnownProblem(agent)
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
    return ConfidencePaths(*(torch.stack(column) for column in zip(*found, strict=True)))


def draw(paths: ConfidencePaths, delta: float, path: Path) -> None:
    """Draw distance and radius over t, and lam_t and D_t below them."""
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


def write_csv(paths: ConfidencePaths, delta: float, path: Path) -> None:
    """Write distance, radius, lam_t and D_t at every t as CSV, one row per t."""
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
