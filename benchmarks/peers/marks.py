"""What we hold ourselves to beside our peers."""

from statistics import median
from typing import Any

import numpy as np

from benchmarks.measure import Row, quartiles
from benchmarks.peers.contenders import FROZEN, LEARNING_MARKS, ONLINE, ONLINE_MARKS, SEEDS, Mark
from benchmarks.peers.growth import EVENTS, ROUND_BYTES
from benchmarks.peers.process import OURS
from benchmarks.peers.side_by_side import costs, ratios

_FROZEN_SPEED = 200_000
_FLAT = 1.25
"""The last rounds of a log may cost so many times what those of a short one do."""


def rows(found: dict[str, Any]) -> list[Row]:
    """Of all that ``compare`` measured."""
    faster = [
        _faster(found[group], mark)
        for group, marks in (("online", ONLINE_MARKS), ("learning", LEARNING_MARKS))
        for mark in marks
    ]
    return [
        *faster,
        _regret(found["online"]),
        _frozen(found["frozen"]),
        _slope(found["growth"]["long"]),
        _flat(found["growth"]["learning"]),
    ]


def _faster(group: dict[str, Any], mark: Mark) -> Row:
    theirs, ours = group[mark.theirs], group[mark.ours]
    what, target = f"{mark.title}: {mark.ours} / {mark.theirs}", f">= {mark.at_least:g}"
    found = ratios(theirs, ours)
    if not found:
        return what, f"not measured: {theirs.get('error') or ours.get('error')}", target, False
    value = f"{median(found):.1f} times as fast ({quartiles(found, '.1f')})"
    return what, value, target, median(found) >= mark.at_least


def _regret(group: dict[str, Any]) -> Row:
    """Whether we also end with less regret than the best peer, each with settings that were searched alike."""
    what, target = f"(a) final regret: {ONLINE[0].name} / the best peer", "<= 0.8"
    means = {
        name: float(np.mean([run["regret"] for run in measured["runs"].values()]))
        for name, measured in group.items()
        if measured["seeded"] and len(measured["runs"]) >= SEEDS
    }
    peers = {name: mean for name, mean in means.items() if group[name]["peer"] != OURS}
    if not peers or ONLINE[0].name not in means:
        return what, "not measured", target, False
    best = min(peers, key=lambda name: peers[name])
    value = means[ONLINE[0].name] / peers[best]
    shown = f"{value:.2f} ({means[ONLINE[0].name]:.0f} / {peers[best]:.0f}, {best})"
    return what, shown, target, value <= 0.8


def _frozen(group: dict[str, Any]) -> Row:
    ours = group[FROZEN[0].name]
    what, target = f"(d) a frozen policy: {FROZEN[0].name}", f">= {_FROZEN_SPEED:,}"
    if "error" in ours:
        return what, f"not measured: {ours['error']}", target, False
    speed = 1 / median(costs(ours).values())
    return what, f"{speed:,.0f} events/s", target, speed >= _FROZEN_SPEED


def slope(points: list[dict[str, Any]]) -> float:
    """Bytes of memory that one more round takes: the line of least squares through (rounds, memory)."""
    rounds, memory = ([float(point[name]) for point in points] for name in ("rounds", "memory"))
    return float(np.polyfit(rounds, memory, 1)[0])


def _slope(points: list[dict[str, Any]]) -> Row:
    what, target = "(e) memory of one more round of (a)", f"< {2 * ROUND_BYTES} bytes"
    errors = [point["error"] for point in points if "error" in point]
    if errors:
        return what, f"not measured: {errors[0]}", target, False
    found = slope(points)
    value = f"{found:.0f} bytes; its features and reward are {ROUND_BYTES}"
    return what, value, target, found < 2 * ROUND_BYTES


def event_seconds(point: dict[str, Any]) -> float:
    """What an event of a log takes, TrainNN aside."""
    return float((point["seconds"] - point.get("training", 0.0)) / point["events"])


def _flat(by_name: dict[str, Any]) -> Row:
    points = next(iter(by_name.values()))
    what, target = f"(e) an event of (c), TrainNN aside: of {EVENTS[-1]:,} / of {EVENTS[1]:,}", f"<= {_FLAT}"
    errors = [point["error"] for point in points if "error" in point]
    if errors:
        return what, f"not measured: {errors[0]}", target, False
    short, long = (event_seconds(points[place]) for place in (1, -1))
    value = f"{long / short:.2f} ({long * 1e6:.0f} us / {short * 1e6:.0f} us)"
    return what, value, target, long / short <= _FLAT
