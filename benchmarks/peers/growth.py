"""(e): how time and memory grow with the rounds of an online run, and with the length of a log."""

from pathlib import Path
from typing import Any

from benchmarks.peers.contenders import AGILERL_SAME, CALVERA_FASTEST, Contender, obp_learning, our_run
from benchmarks.peers.install import NotInstalled
from benchmarks.peers.process import OURS, Failed, Process
from benchmarks.peers.side_by_side import FIRST_ROUNDS, Say

ROUNDS = (1000, 2000, 4000, 8000)
LONG_ROUNDS = (8000, 32_000, 128_000)
"""Of these only the memory is measured, with one gradient step for a hundred."""
EVENTS = (10_000, 40_000, 140_000, 400_000, 1_400_000)
PEER_EVENTS = 140_000
"""Peers are asked for logs up to this length: they would take half an hour for the longest."""

ROUND_BYTES = 4 * (20 + 1)
"""The features and the reward of a round of an online run, in float32."""

Points = list[dict[str, Any]]


def online(data: Path, say: Say) -> dict[str, Any]:
    """By contender: a point for every number of rounds."""
    found: dict[str, Any] = {}
    for contender in (our_run(1), CALVERA_FASTEST, AGILERL_SAME):
        sizes = [{"rounds": rounds, "seed": 0} for rounds in ROUNDS]
        found[contender.name] = _points(contender, data, say, sizes)
    return found


def long_online(data: Path, say: Say) -> Points:
    """Our memory in runs that are long enough to see it grow."""
    contender = our_run(1)
    settings = {"seed": 0, "steps": 1, "lr": 1e-4}
    return _points(contender, data, say, [{"rounds": rounds, **settings} for rounds in LONG_ROUNDS])


def learning(data: Path, say: Say) -> dict[str, Any]:
    """By contender: a point for every length of a log, which we learn from to its end."""
    ours = Contender("NeuralLog-UCB-2", OURS, "learning", {"replicas": 1, "threads": 1, "rounds": 10**9}, "", 1)
    logs = [{"log": f"log-{events}", "steps": 1, "lr": 1e-4} for events in EVENTS]
    peer = obp_learning("LogisticUCB", "bool")
    return {
        ours.name: _points(ours, data, say, logs),
        peer.name: _points(peer, data, say, [{"log": f"log-{n}.npz"} for n in EVENTS if n <= PEER_EVENTS]),
    }


def _points(contender: Contender, data: Path, say: Say, sizes: list[dict[str, Any]]) -> Points:
    """A process for each: what an earlier run has left in memory would be counted to a later one."""
    points: Points = []
    for size in sizes:
        say(f"{contender.name}: {next(iter(size.values()))}")
        settings = {**contender.settings, **size}
        try:
            with Process(contender.peer, data) as process:
                if "rounds" in settings:
                    # Once before it counts: what is loaded on first use is no growth.
                    process.ask(contender.work, **{**settings, "rounds": FIRST_ROUNDS})
                points.append({**size, **process.ask(contender.work, **settings)})
        except (NotInstalled, Failed) as error:
            return [*points, {"error": str(error)}]
    return points
