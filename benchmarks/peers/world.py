"""A simulated log and the world it comes from, for peers: it needs no package, and nothing of ours."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from benchmarks.peers.asked import path_of

ROWS = 10_000
"""Events of a log."""


class LoggedEvents:
    """One of the logs of a world: pairs of (user, action, reward, propensity).

    Attributes:
        user_names: the categories of each user.
        item_names: those of each item, and its own name.
        rates: click rates by user and item.
    """

    def __init__(self, logging: str, number: int) -> None:
        found = json.loads(Path(path_of(f"world-{logging}.json")).read_text())
        self.user_names: list[list[str]] = found["user_names"]
        self.item_names: list[list[str]] = found["item_names"]
        self.rates: list[list[float]] = found["rates"]
        self._events: list[tuple[int, int, int, float]] = found["logs"][number]

    def __iter__(self) -> Iterator[tuple[int, int, int, float]]:
        return iter(self._events)

    def __len__(self) -> int:
        return len(self._events)


class Learner(Protocol):
    """A policy that learns online."""

    def chances(self, user: int) -> list[float]: ...

    def learn(self, user: int, action: int, reward: int, chance: float) -> None: ...


def play(learner: Learner, events: LoggedEvents, rounds: int, seed: int) -> float:
    """What a learner earns in so many rounds of the world: the mean click rate of what it would choose."""
    drawn, earned = random.Random(seed), 0.0
    for _ in range(rounds):
        user = drawn.randrange(len(events.rates))
        chances, rates = learner.chances(user), events.rates[user]
        total = sum(chances)
        earned += sum(chance * rate for chance, rate in zip(chances, rates, strict=True)) / total
        (action,) = drawn.choices(range(len(rates)), chances)
        learner.learn(user, action, int(drawn.random() < rates[action]), chances[action] / total)
    return earned / rounds
