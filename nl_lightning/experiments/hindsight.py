"""Models in hindsight: about the least regret that a linear model and the network allow, click probabilities known.

An agent must learn these probabilities from its clicks, so its regret lies above that of its model. Where a linear
model has much regret in hindsight, no linear agent can have little.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nl_lightning.agents import Greedy
from nl_lightning.core.files import write_beside
from nl_lightning.core.link import mu
from nl_lightning.core.rng import CHUNK
from nl_lightning.environments import Environment
from nl_lightning.environments.base import Simulation
from nl_lightning.experiments import fits, paper
from nl_lightning.experiments.common import parameters, seconds
from nl_lightning.experiments.pool import Tell, Tick
from nl_lightning.experiments.readings import Reading
from nl_lightning.experiments.results import Floor

__all__ = [
    "MODELS",
    "HindsightPart",
    "Rounds",
    "distinct",
    "linear_regret",
    "network_regret",
    "of_figure",
    "rounds_of",
]

NETWORK: dict[str, Any] = {"optimizer": "adam", "lr": 0.03, "steps": 500, "start": "warm", **paper.NETWORK}
"""The network and its training."""

LINEAR_STARTS, LINEAR_STEPS, LINEAR_LR = 3, 200, 0.1
"""Descents of the linear model, and the steps of each."""


class Rounds(NamedTuple):
    """T rounds of R replicas, with what only hindsight knows."""

    arms: Tensor
    """(R, T, K, d)"""
    probability: Tensor
    """(R, T, K), of a click"""
    regret: Tensor
    """(R, T, K)"""


class HindsightPart(NamedTuple):
    """The models in one panel."""

    figure: str
    panel: paper.Panel
    reading: Reading
    root: Path
    """of the run directories of the reading"""

    @property
    def name(self) -> str:
        return f"{self.reading.name} {self.figure} {self.panel.name} in hindsight"

    @property
    def file(self) -> Path:
        return self.root / self.figure / self.panel.name / "hindsight.json"

    @property
    def cost(self) -> float:
        size = parameters(paper.CONTROL, self.panel.features, paper.NETWORK["width"])
        return seconds(self.reading.hindsight_seeds, self.reading.horizon, size)

    @property
    def finished(self) -> bool:
        return self.file.exists()

    def run(self, tell: Tell) -> str:
        started = time.monotonic()
        environment = fits.environment_of(self.reading.described(self.panel.environment))
        seeds = list(range(self.reading.hindsight_seeds))
        found = {}
        rounds = rounds_of(environment, seeds, self.reading.horizon)
        for number, (model, regret) in enumerate(MODELS.items()):
            tell(Tick(model, number, len(MODELS), number / len(MODELS)))
            found[model] = regret(rounds, environment.blocks).tolist()
        stored = {"seeds": seeds, "regret": found, "seconds": time.monotonic() - started}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_beside(self.file, lambda path: path.write_text(json.dumps(stored, indent=1) + "\n"))
        return "regret " + ", ".join(f"{model} {np.mean(values):.1f}" for model, values in found.items())

    def seconds(self) -> float:
        return float(json.loads(self.file.read_text())["seconds"]) if self.finished else 0.0

    def floors(self) -> list[Floor]:
        stored = json.loads(self.file.read_text())
        return [
            Floor(self.panel.name, model, stored["seeds"], np.array(final, dtype=np.float64))
            for model, final in stored["regret"].items()
        ]


def of_figure(figure: paper.Figure, reading: Reading, root: Path) -> list[HindsightPart]:
    """A part for every panel, in a reading that has floors."""
    panels = reading.panels(figure) if reading.hindsight_seeds else ()
    return [HindsightPart(figure.name, panel, reading, root) for panel in panels]


def rounds_of(environment: Environment, seeds: list[int], horizon: int) -> Rounds:
    """The rounds that agents with these seeds play, with the probability of every click.

    Where an environment has no h its clicks are certain, as the right class of a data set is.
    """
    assert isinstance(environment, Simulation), environment
    environment.prepare(seeds, torch.empty(0, device="cpu"))
    arms, probability, regrets = [], [], []
    played = 0
    while played < horizon:
        deal = environment.next_deal(played, min(CHUNK, horizon - played))
        count = deal.arms.shape[1]
        latent = environment.latent(played, count)
        assert deal.regret is not None, environment
        arms.append(deal.arms)
        probability.append(deal.reward.double() if latent is None else mu(latent))
        regrets.append(deal.regret.expand(deal.reward.shape))
        played += count
    return Rounds(torch.cat(arms, 1), torch.cat(probability, 1), torch.cat(regrets, 1))


def distinct(rounds: Rounds) -> tuple[Tensor, Tensor, Tensor]:
    """Each arm x once, as (R, N, d), with how often it was shown and its expected clicks, (R, N).

    Replicas with fewer arms than N are padded with arms that were shown 0 times.
    """
    arms, probability = rounds.arms.flatten(1, 2), rounds.probability.flatten(1, 2)
    found = [torch.unique(own, dim=0, return_inverse=True) for own in arms]
    shape = len(found), max(len(x) for x, _ in found)
    x = arms.new_zeros(*shape, arms.shape[2])
    if arms.shape[1]:
        # padding is an arm like any other, so that blocks have their number
        x[:] = arms[:, :1]
    shown, clicks = (probability.new_zeros(shape) for _ in range(2))
    for replica, (own, place) in enumerate(found):
        x[replica, : len(own)] = own
        shown[replica].index_add_(0, place, torch.ones_like(probability[replica]))
        clicks[replica].index_add_(0, place, probability[replica])
    return x, shown, clicks


def network_regret(rounds: Rounds, blocks: int) -> Tensor:
    """The regret (R,) over these rounds of the network's best arms, once it is fitted to the clicks that they expect.

    An arm x that was shown n times with c expected clicks is two observations: a click with weight c, and none with
    weight n - c. So the loss is sum_x -c log mu(f(x)) - (n - c) log(1 - mu(f(x))) + lam |theta|^2.
    """
    x, shown, clicks = distinct(rounds)
    R, _, _, d = rounds.arms.shape
    agent = Greedy(dim=d, blocks=blocks, replicas=R, update_every=2 * x.shape[1], **NETWORK)
    reward = torch.cat([torch.ones_like(clicks), torch.zeros_like(clicks)], 1)
    # the difference of two sums may fall below 0 by rounding
    agent.learn(torch.cat([x, x], 1), reward, torch.cat([clicks, (shown - clicks).clamp_min(0)], 1))
    parts = rounds.arms.split(CHUNK, 1)
    return _of_best(
        rounds, torch.cat([agent.evaluate(part.flatten(1, 2))[0].view(part.shape[:3]) for part in parts], 1)
    )


def linear_regret(rounds: Rounds, blocks: int) -> Tensor:
    """The least regret (R,) over these rounds that descent finds for the best arms of f(x) = x . theta.

    A linear model of a function that is not linear may choose badly where it fits well, so it is fitted to what it
    chooses: descent is on sum_t sum_k softmax_k(f(x_tk)) regret_tk, from several random starts. With blocks each has a
    theta of its own.
    """
    block = rounds.arms[..., -1:].long() if blocks > 1 else None
    x = rounds.arms if block is None else rounds.arms[..., :-1]
    flat, wanted = x.flatten(1, 2), rounds.regret.to(x)

    def f(theta: Tensor) -> Tensor:
        of_blocks = torch.bmm(flat, theta.mT).unflatten(1, x.shape[1:3])
        return of_blocks.squeeze(-1) if block is None else of_blocks.gather(-1, block).squeeze(-1)

    least = torch.full((len(x),), torch.inf, dtype=rounds.regret.dtype)
    g = torch.Generator().manual_seed(0)
    for _ in range(LINEAR_STARTS):
        theta = (torch.randn(len(x), blocks, x.shape[-1], generator=g) / x.shape[-1] ** 0.5).requires_grad_()
        optimizer = torch.optim.Adam([theta], LINEAR_LR)
        for _ in range(LINEAR_STEPS):
            optimizer.zero_grad()
            scores = f(theta)
            least = torch.minimum(least, _of_best(rounds, scores.detach()))
            (scores.softmax(-1) * wanted).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return least


def _of_best(rounds: Rounds, f: Tensor) -> Tensor:
    """The regret (R,) of the arms with the highest f (R, T, K)."""
    return rounds.regret.gather(-1, f.argmax(-1, keepdim=True)).sum((1, 2))


MODELS: dict[str, Callable[[Rounds, int], Tensor]] = {"linear": linear_regret, "network": network_regret}
"""The model of the linear agents, and the network of the others."""
