"""Ground truth of a simulated world: the exact click rate of a frozen agent, and the world as an environment."""

from collections.abc import Sequence

import torch
from torch import Tensor

from nl_lightning.agents.asking import mean_and_bonus
from nl_lightning.agents.base import Agent
from nl_lightning.agents.probabilities import best_of_all, best_of_random_sets
from nl_lightning.core.errors import InputError
from nl_lightning.core.rng import CHUNK, Stream, generator
from nl_lightning.environments import ChunkedSimulation, Deal
from nl_lightning.environments.synthetic import different
from replay.logs.reader import Log
from replay.protocol.candidates import Protocol, check_protocol
from replay.protocol.obd_features import DIM, ObdFeatures
from replay.simulation.simulated_world import SimulatedWorld

__all__ = ["ARMS_AT_ONCE", "Online", "choice_probability", "exact_ctr"]


ARMS_AT_ONCE = 50_000
"""Arms held in memory at a time, over all replicas."""


def exact_ctr(
    agent: Agent, features: ObdFeatures, world: SimulatedWorld, protocol: Protocol, arms_shown: int, draws: int = 1
) -> Tensor:
    """(R,): the true click rate of a frozen agent that chooses from candidate sets of the world.

        sum over users, positions of  1/(users positions)  sum_i P(agent shows i) P(click on i)

    Arms with equal scores are equally likely, as the agent breaks ties. P(agent shows i) is exact, except for Thompson
    sampling, where it is a mean over Monte Carlo draws. With ``affinity`` the candidates are the items of highest
    affinity, as one would deploy it: there is no logged item.
    """
    users, positions, items = world.probability.shape
    codes, moved = features.encode_profiles(world.profiles()), features.to(agent.network.weights[0])
    liked, clicked = torch.from_numpy(world.affinity), torch.from_numpy(world.probability)
    draws = draws if agent.exploration.stochastic else 1
    total = torch.zeros(agent.replicas, dtype=torch.float64, device=agent.device)
    at_once = max(1, ARMS_AT_ONCE // (agent.replicas * positions * items))
    for first in range(0, users, at_once):
        some = slice(first, first + at_once)
        affinity = liked[some].repeat_interleave(positions, dim=0)
        place = torch.arange(positions).repeat(len(liked[some]))
        item = torch.arange(items).expand(len(place), -1)
        context = torch.cat([codes[some].repeat_interleave(positions, dim=0), place.unsqueeze(1)], dim=1)
        shown = (context, affinity.new_empty(len(place), 0), item, affinity.unsqueeze(-1))
        arms = moved.arms(*(column.to(agent.device) for column in shown)).flatten(0, 1)
        mean, bonus = mean_and_bonus(agent, arms.expand(agent.replicas, -1, -1))
        probability = clicked[some].flatten(0, 1).to(mean)
        for draw in range(draws):
            normal = None
            if agent.exploration.stochastic:
                generators = [generator(seed, Stream.LOGGED_ACTIONS, draw, items, first) for seed in agent.noise.seeds]
                drawn = [torch.randn(mean.shape[1], generator=g, dtype=torch.float64) for g in generators]
                normal = torch.stack(drawn).to(mean)
            score = agent.exploration.score(mean, bonus, normal)
            score = score.unflatten(1, (len(place), items))
            chosen = choice_probability(score, protocol, arms_shown, affinity, agent.tie_tolerance)
            total += (chosen * probability).sum((-2, -1))
    return total / (draws * users * positions)


def choice_probability(score: Tensor, protocol: Protocol, arms: int, affinity: Tensor, tolerance: float) -> Tensor:
    """P(item is shown) if the best of the candidate set is shown, for scores (..., C, n) and affinities (C, n).

    Of the items whose score equals the highest one of the set, up to the relative ``tolerance``, each is as likely.
    """
    if protocol == "uniform":
        return best_of_random_sets(score, arms, tolerance)
    if protocol == "affinity":
        top = affinity.sort(dim=-1, descending=True, stable=True).indices[:, :arms].to(score.device)
        inside = torch.zeros_like(score, dtype=torch.bool).scatter(-1, top.expand(*score.shape[:-1], -1), True)
        score = score.masked_fill(~inside, -torch.inf)
    return best_of_all(score, tolerance)


class Online(ChunkedSimulation):
    """The world of a simulated log as an online environment. A replay of the log estimates what an agent earns here.

    Args:
        log: directory of a simulated log (``python -m replay simulate``).
        candidates: ``uniform``: K items drawn uniformly; ``all``: all items; ``affinity``: the K items of highest
            affinity.
        arms: number K of items that a round shows (not used by ``all``).
    """

    dim = DIM

    def __init__(self, log: str, candidates: Protocol = "uniform", arms: int = 5) -> None:
        super().__init__()
        opened = Log(log)
        if "world" not in opened.description:
            raise InputError(f"{log} is not a simulated log: its world is unknown.")
        self.world = SimulatedWorld.from_description(opened.description)
        self.features = ObdFeatures.fit(opened)
        self.protocol, self.arms = candidates, check_protocol(candidates, arms, opened)
        self._codes = self.features.encode_profiles(self.world.profiles())
        self._affinity = torch.from_numpy(self.world.affinity)
        self._probability = torch.from_numpy(self.world.probability)

    def reset(self, seeds: Sequence[int]) -> None:
        self._seeds = list(seeds)

    def deal_chunk(self, chunk: int) -> Deal:
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
            context = torch.cat([self._codes[user], position.unsqueeze(1)], dim=1)
            none = affinity.new_empty(CHUNK, 0)
            shown.append(self.features.arms(context, none, item, affinity.unsqueeze(-1)))
            probability = self._probability[user, position].gather(1, item)
            rewards.append(torch.rand(CHUNK, 1, generator=g, dtype=torch.float64) < probability)
            probabilities.append(probability)
        probability = torch.stack(probabilities)
        regret = probability.amax(-1, keepdim=True) - probability
        return Deal(torch.stack(shown), torch.stack(rewards).double(), regret)
