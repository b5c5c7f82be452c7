"""The same work for us and for our peers, in one go: what ``benchmarks/RESULTS.md`` tells of them."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import growth, same_data
from benchmarks.peers.contenders import FROZEN, LEARNING, LOG_ROWS, LOGGINGS, LOGS, ONLINE, SEEDS, VALUES
from benchmarks.peers.install import PEERS, NotInstalled, python_of, version_of
from benchmarks.peers.side_by_side import Say, measure

GROUPS = {"online": ONLINE, "learning": LEARNING, "frozen": FROZEN}


def compare(say: Say) -> dict[str, Any]:
    """Everything that was measured, as it can be stored: by group and contender, and how it grows."""
    found = _installed([peer for peer in PEERS if any(c.peer == peer for group in GROUPS.values() for c in group)], say)
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory)
        say("the same data for all")
        same_data.write_rounds(data, list(range(SEEDS)), max(growth.ROUNDS))
        same_data.write_sample(data)
        for rows in sorted({LOG_ROWS, *growth.EVENTS}):
            same_data.write_simulated(data, rows)
        for name, contenders in GROUPS.items():
            found[name] = measure(contenders, data, say)
        found["growth"] = {
            "online": growth.online(data, say),
            "long": growth.long_online(data, say),
            "learning": growth.learning(data, say),
        }
    return found


def compare_values(say: Say) -> dict[str, Any]:
    """The same for values of policies that learn, beside the known truth."""
    found = _installed([peer for peer in PEERS if any(contender.peer == peer for contender in VALUES)], say)
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory)
        say("the same logs for all")
        for logging in LOGGINGS:
            same_data.write_world(data, logging, LOGS)
        found["values"] = measure(VALUES, data, say)
    return found


def _installed(peers: Sequence[str], say: Say) -> dict[str, Any]:
    """The peers' versions, and which of them could not be installed."""
    found: dict[str, Any] = {"versions": {peer: version_of(peer) for peer in peers}, "not_installed": {}}
    for peer in peers:
        say(f"{peer} {version_of(peer)}: its environment")
        try:
            python_of(peer)
        except NotInstalled as error:
            found["not_installed"][peer] = str(error)
    return found
