"""What is true in a simulated world: the exact click rate of a frozen agent, and the world played online."""

from collections.abc import Sequence
from math import comb
from typing import final

import torch
from torch import Tensor

from nl_lightning.agent import Agent
from nl_lightning.environments import Deal, Simulation
from nl_lightning.environments.synthetic import different
from nl_lightning.errors import InputError
from nl_lightning.randomness import CHUNK, Stream, generator
from replay.candidates import Protocol, check_protocol
from replay.features import DIM, Features
from replay.stream import Log
from replay.world import World


def exact_ctr(agent: Agent, features: Features, world: World, protocol: Protocol, arms: int, draws: int = 1) -> Tensor:
    """(R,): the click rate of a frozen agent that is shown candidate sets of the world.

        sum over users, positions of  1/(users positions)  sum_i P(agent shows i) P(click on i)

    P(agent shows i) is exact but for Thompson sampling, where it is a mean over Monte Carlo draws. ``affinity`` here is
    the policy that one would deploy: the items of highest affinity, without looking at a logged one.
    """
    users, positions, items = world.probability.shape
    codes = features.encode_profiles(world.profiles()).repeat_interleave(positions, dim=0)
    position = torch.arange(1, positions + 1).repeat(users)
    affinity = torch.from_numpy(world.affinity).repeat_interleave(positions, dim=0)
    item = torch.arange(items).expand(len(codes), -1)
    moved = features.to(agent.network.weights[0])
    shown = moved.arms(*(t.to(agent.device) for t in (codes, position, item, affinity))).flatten(0, 1)
    mean, bonus = agent.mean_and_bonus(shown.expand(agent.replicas, -1, -1))
    probability = torch.from_numpy(world.probability).flatten(0, 1).to(mean)
    total = torch.zeros_like(mean[:, 0])
    for draw in range(draws if agent.thompson else 1):
        score = mean + bonus
        if agent.thompson:
            generators = [generator(seed, Stream.LOGGED_ACTIONS, draw, items) for seed in agent.noise.seeds]
            normal = [torch.randn(mean.shape[1], generator=g, dtype=torch.float64) for g in generators]
            score = mean + bonus * torch.stack(normal).to(mean)
        chosen = choice_probability(score.unflatten(1, (len(codes), items)), protocol, arms, affinity)
        total += (chosen * probability).sum(-1).mean(-1)
    return total / (draws if agent.thompson else 1)


def choice_probability(score: Tensor, protocol: Protocol, arms: int, affinity: Tensor) -> Tensor:
    """P(item is shown) for scores (..., C, n) of all items and affinities (C, n): the best of the candidate set.

    The j-th best of n items (j from 0) is the best of a uniformly drawn set of K with probability
    binom(n - 1 - j, K - 1) / binom(n, K).
    """
    n = score.shape[-1]
    if protocol == "affinity":
        top = affinity.sort(dim=-1, descending=True, stable=True).indices[:, :arms].to(score.device)
        inside = torch.zeros_like(score, dtype=torch.bool).scatter(-1, top.expand(*score.shape[:-1], -1), True)
        score, protocol = score.masked_fill(~inside, -torch.inf), "all"
    if protocol == "all":
        return torch.zeros_like(score).scatter(-1, score.argmax(-1, keepdim=True), 1.0)
    by_rank = torch.tensor([comb(n - 1 - j, arms - 1) / comb(n, arms) for j in range(n)], dtype=score.dtype)
    rank = score.argsort(-1, descending=True).argsort(-1)
    return by_rank.to(score.device)[rank]


@final
class Online(Simulation):
    """The world of a simulated log, played online: what a replay of that log estimates.

    Args:
        log: directory of a simulated log (``python -m replay simulate``).
        candidates: ``uniform``: K items drawn uniformly; ``all``: all items; ``affinity``: the K of highest affinity.
        arms: number K of items that a round shows (not for ``all``).
    """

    dim = DIM

    def __init__(self, log: str, candidates: Protocol = "uniform", arms: int = 5) -> None:
        super().__init__()
        opened = Log(log)
        if "world" not in opened.description:
            raise InputError(f"{log} is not a simulated log: its world is not known.")
        self.world = World.from_description(opened.description)
        self.features = Features.fit(opened)
        self.protocol, self.arms = candidates, check_protocol(candidates, arms, opened.n_items)
        self._codes = self.features.encode_profiles(self.world.profiles())
        self._affinity = torch.from_numpy(self.world.affinity)
        self._probability = torch.from_numpy(self.world.probability)

    def _prepare(self, seeds: Sequence[int]) -> None:
        self._seeds = list(seeds)

    def _deal_chunk(self, chunk: int) -> Deal:
        users, positions, items = self._probability.shape
        shown, rewards, probabilities = [], [], []
        for seed in self._seeds:
            g = generator(seed, Stream.ROUNDS, chunk)
            user = torch.randint(users, (CHUNK,), generator=g)
            position = torch.randint(positions, (CHUNK,), generator=g)
            item = torch.arange(items).expand(CHUNK, -1)
            if self.protocol == "uniform":
                item = different(torch.rand(CHUNK, self.arms, generator=g, dtype=torch.float64), items)
            elif self.protocol == "affinity":
                item = self._affinity[user].sort(dim=1, descending=True, stable=True).indices[:, : self.arms]
            affinity = self._affinity[user].gather(1, item)
            shown.append(self.features.arms(self._codes[user], position + 1, item, affinity))
            probability = self._probability[user, position].gather(1, item)
            rewards.append(torch.rand(CHUNK, 1, generator=g, dtype=torch.float64) < probability)
            probabilities.append(probability)
        probability = torch.stack(probabilities)
        regret = probability.amax(-1, keepdim=True) - probability
        return Deal(torch.stack(shown), torch.stack(rewards).double(), regret)
