"""Contenders at the same work, one after the other and again: what each repetition took, and what it reached."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.peers.contenders import Contender
from benchmarks.peers.install import NotInstalled
from benchmarks.peers.process import Failed, Process

Measured = dict[str, Any]
"""``runs``: what each repetition gave, by its number; ``import_seconds``; or ``error``"""

Say = Callable[[str], None]

FIRST_ROUNDS = 150
"""Of a run that is not counted."""


def measure(contenders: Sequence[Contender], data: Path, say: Say) -> dict[str, Measured]:
    """By name. Who cannot be measured has an ``error`` and what was measured before it."""
    found: dict[str, Measured] = {c.name: {**c._asdict(), "runs": {}} for c in contenders}
    with ExitStack() as stack:
        processes, failures = _start(dict.fromkeys(c.peer for c in contenders), stack, data, say)
        for contender in contenders:
            if contender.peer in failures:
                found[contender.name]["error"] = failures[contender.peer]
        for repetition in range(max(contender.repetitions for contender in contenders)):
            for contender in contenders:
                place = found[contender.name]
                if repetition >= contender.repetitions or "error" in place:
                    continue
                say(f"{contender.name}, {repetition + 1} of {contender.repetitions}")
                process = processes[contender.peer]
                settings = {**contender.settings, **({"seed": repetition} if contender.seeded else {})}
                try:
                    if not repetition:
                        place["import_seconds"] = process.import_seconds
                        place["first_seconds"] = _warm_up(process, contender.work, settings)
                    place["runs"][repetition] = process.ask(contender.work, **settings)
                except Failed as error:
                    place["error"] = str(error)
    return found


def _start(peers: Iterable[str], stack: ExitStack, data: Path, say: Say) -> tuple[dict[str, Process], dict[str, str]]:
    """A process for every peer, or why there is none."""
    processes: dict[str, Process] = {}
    failures: dict[str, str] = {}
    for peer in peers:
        say(f"{peer}: starting")
        try:
            processes[peer] = stack.enter_context(Process(peer, data))
        except NotInstalled as error:
            failures[peer] = f"does not install: {error}"
        except Failed as error:
            failures[peer] = f"does not start: {error}"
    return processes, failures


def _warm_up(process: Process, work: str, settings: dict[str, Any]) -> float | None:
    """What is done for the first time (compiled, loaded) takes longer: a short run that is told apart, its seconds."""
    if work != "online":
        return None
    found: float = process.ask(work, **{**settings, "rounds": FIRST_ROUNDS})["seconds"]
    return found


def costs(measured: Measured) -> dict[int, float]:
    """Seconds of each repetition for one unit of the work: an event of a log, or a whole online run of one seed."""
    units = measured["counts"]
    return {int(number): run["seconds"] / run.get("events", units) for number, run in measured["runs"].items()}


def ratios(theirs: Measured, ours: Measured) -> list[float]:
    """How many times as fast we are, in each repetition that both have."""
    a, b = costs(theirs), costs(ours)
    return [a[number] / b[number] for number in a if number in b]
