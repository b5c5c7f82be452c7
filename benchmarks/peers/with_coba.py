"""coba's rejection sampling for learners on a log (``RejectionCB``), in its environment."""

from benchmarks.peers.asked import answer

# isort: split
import time
from collections.abc import Iterator
from statistics import fmean
from typing import Any, ClassVar

from coba.evaluators import RejectionCB
from coba.learners import VowpalEpsilonLearner

from benchmarks.peers.world import LoggedEvents, play


class _Logged:
    """A log as an environment of coba."""

    params: ClassVar[dict[str, Any]] = {}

    def __init__(self, events: LoggedEvents) -> None:
        self.events = events

    def read(self) -> Iterator[dict[str, Any]]:
        actions, users = items(self.events), users_of(self.events)
        for user, action, reward, p in self.events:
            yield {
                "context": users[user],
                "actions": actions,
                "action": actions[action],
                "reward": reward,
                "probability": p,
            }


def items(events: LoggedEvents) -> list[tuple[str, ...]]:
    return [tuple(names) for names in events.item_names]


def users_of(events: LoggedEvents) -> list[tuple[str, ...]]:
    return [tuple(names) for names in events.user_names]


def value(logging: str, seed: int) -> dict[str, Any]:
    """The evaluator over a log, whose value is the mean reward of accepted events; then the same learner online."""
    events = LoggedEvents(logging, seed)
    start = time.perf_counter()
    rewards = [found["reward"] for found in RejectionCB(seed=seed + 1).evaluate(_Logged(events), _learner(seed))]
    seconds = time.perf_counter() - start
    online = play(Online(events, seed), events, len(rewards), seed)
    estimate = fmean(rewards)
    return {"seconds": seconds, "events": len(events), "accepted": len(rewards), "value": estimate, "online": online}


def _learner(seed: int) -> VowpalEpsilonLearner:
    return VowpalEpsilonLearner(epsilon=0.05, seed=seed + 1)


class Online:
    """The learner in the world itself."""

    def __init__(self, events: LoggedEvents, seed: int) -> None:
        self.learner, self.users, self.items = _learner(seed), users_of(events), items(events)

    def chances(self, user: int) -> list[float]:
        # what its score method asks for, once for all items
        chances, _ = self.learner._pmf(self.users[user], self.items)
        return [float(chance) for chance in chances]

    def learn(self, user: int, action: int, reward: int, chance: float) -> None:
        self.learner.learn(self.users[user], self.items[action], reward, chance, actions=self.items)


if __name__ == "__main__":
    answer({"value": value})
