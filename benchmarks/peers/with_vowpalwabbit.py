"""Vowpal Wabbit's evaluation of exploration on a log (``--explore_eval``), in its environment."""

from benchmarks.peers.asked import answer, path_of

# isort: split
import re
import time
from typing import Any

from vowpalwabbit import Workspace

from benchmarks.peers.world import LoggedEvents, play

POLICY = "--cb_explore_adf --epsilon 0.05 --quadratic ua"


def value(logging: str, seed: int) -> dict[str, Any]:
    """The file driver over a log, as a text file; then the same policy online in as many rounds as it updated."""
    events = LoggedEvents(logging, seed)
    path = path_of(f"vowpalwabbit-{logging}.txt")
    with open(path, "w") as file:
        for user, action, reward, p in events:
            file.write(example(events, user, action, f"0:{-reward}:{p}") + "\n\n")
    start = time.perf_counter()
    evaluated = Workspace(f"--explore_eval {POLICY} --random_seed {seed} --data {path}", enable_logging=True)
    seconds = time.perf_counter() - start
    estimate = -evaluated.get_sum_loss() / evaluated.get_weighted_examples()
    evaluated.finish()
    (count,) = re.findall(r"weighted update count = ([\d.]+)", "\n".join(evaluated.get_log()))
    accepted = int(float(count))
    online = play(Online(events, seed), events, accepted + 1, seed)
    return {"seconds": seconds, "events": len(events), "accepted": accepted, "value": estimate, "online": online}


class Online:
    """The policy in the world itself."""

    def __init__(self, events: LoggedEvents, seed: int) -> None:
        self.events, self.workspace = events, Workspace(f"{POLICY} --random_seed {seed} --quiet")

    def chances(self, user: int) -> list[float]:
        return self.workspace.predict(example(self.events, user, -1, ""))  # type: ignore[no-any-return]

    def learn(self, user: int, action: int, reward: int, chance: float) -> None:
        self.workspace.learn(example(self.events, user, action, f"0:{-reward}:{chance}"))


def example(events: LoggedEvents, user: int, action: int, label: str) -> str:
    """A user, and a line per item, the chosen one with its label."""
    lines = [
        (f"{label} |a " if item == action else "|a ") + " ".join(names) for item, names in enumerate(events.item_names)
    ]
    return "\n".join([f"shared |u {' '.join(events.user_names[user])}", *lines])


if __name__ == "__main__":
    answer({"value": value})
