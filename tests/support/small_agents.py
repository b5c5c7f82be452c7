"""Every agent with each of its design matrices, small, and rounds for them."""

import torch

from nl_lightning import AGENTS
from nl_lightning.agents.base import Agent, LinearAgent

SETTINGS = {"nu": [0.3, 1.0], "lam": [0.5, 2.0], "kappa": [6.0, 20.0], "S": [1.0, 0.7]}
"""Two replicas that differ in everything."""
DIM, ARMS = 4, 5

VARIANTS = [(name, design) for name in AGENTS for design in ("diagonal", "full")]
VARIANTS += [(name, "theory") for name in AGENTS if name.startswith("NeuralLog")]
"""Every agent with each of its design matrices; that of theory mode is one of them."""


def make(name: str, depth: int = 2, design: str = "diagonal", **settings: object) -> Agent:
    if design != "theory":
        # what ALGORITHMS.md calls literal, where a test does not say otherwise
        settings = {"optimizer": "gd", "nu": 0.1, "lam": 1.0, **settings}
        if "grid" in settings:
            settings = {k: v for k, v in settings.items() if k not in settings["grid"]}  # type: ignore[operator]
    size = {} if issubclass(AGENTS[name], LinearAgent) else {"width": 6, "depth": depth}
    if design == "theory":
        settings = {"mode": "theory", "horizon": 100, **{k: v for k, v in settings.items() if k not in ("nu", "lam")}}
    else:
        settings["design"] = design
    return AGENTS[name](DIM, **size, **settings)


def deal(
    seed: int, replicas: int, rounds: int, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor]:
    """Arms (rounds, R, K, d) and rewards (rounds, R)."""
    g = torch.Generator().manual_seed(seed)
    arms = 2 * torch.rand(rounds, replicas, ARMS, DIM, generator=g, dtype=torch.float64) - 1
    return arms.to(dtype), torch.randint(2, (rounds, replicas), generator=g)
