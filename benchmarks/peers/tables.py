"""The tables of RESULTS.md that show us beside our peers: pure functions from what was measured to Markdown."""

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import quartiles
from benchmarks.peers.growth import ROUND_BYTES
from benchmarks.peers.marks import event_seconds, slope
from benchmarks.peers.process import OURS
from benchmarks.peers.side_by_side import Measured, costs, ratios
from nl_lightning.core.statistics import interval, wilson
from nl_lightning.experiments.tables import markdown

Group = Mapping[str, Measured]


def online(group: Group) -> str:
    """(a) and (b)"""

    def seconds(measured: Measured) -> str:
        values = costs(measured).values()
        return f"{median(values):.2f} ({quartiles(values)})"

    def regret(measured: Measured) -> str:
        values = np.array([run["regret"] for run in measured["runs"].values()])
        if not measured["seeded"]:
            return f"{values.mean():.0f}"
        mean, low, high = interval(values)
        return f"{mean:.0f} ({low:.0f} to {high:.0f}), {len(values)} seeds"

    columns: dict[str, Callable[[Measured], str]] = {
        "seconds a run": seconds,
        "we are faster by": lambda measured: _faster(measured, group),
        "final regret": regret,
        "import, s": lambda measured: f"{measured['import_seconds']:.1f}",
        "first 150 rounds, s": lambda measured: f"{measured['first_seconds']:.2f}",
    }
    return _table(group, columns)


def events(group: Group) -> str:
    """(c) and (d)"""

    def ctr(measured: Measured) -> str:
        runs = list(measured["runs"].values())
        rate, accepted = (float(np.mean([run[name] for run in runs])) for name in ("ctr", "accepted"))
        low, high = wilson(rate * accepted, accepted)
        return f"{rate:.4f} ({low:.4f} to {high:.4f}) of {accepted:,.0f}"

    columns: dict[str, Callable[[Measured], str]] = {
        "events a second": _speed,
        "we are faster by": lambda measured: _faster(measured, group),
        "CTR of accepted events": ctr,
        "peak memory, GB": lambda measured: f"{_peak(measured) / 1e9:.2f}",
    }
    return _table(group, columns)


def values(group: Group) -> str:
    """(c), the value of a policy that learns beside what it earns online in as many rounds"""

    def column(measured: Measured, name: str) -> NDArray[np.float64]:
        return np.array([run[name] for run in measured["runs"].values()], dtype=np.float64)

    def bias(measured: Measured) -> str:
        value, online = column(measured, "value"), column(measured, "online")
        off = value - online
        return f"{off.mean():+.4f} ± {off.std(ddof=1) / len(off) ** 0.5:.4f}"

    columns: dict[str, Callable[[Measured], str]] = {
        "events a second": _speed,
        "accepted": lambda measured: f"{column(measured, 'accepted').mean():,.0f}",
        "value": lambda measured: f"{column(measured, 'value').mean():.4f}",
        "online": lambda measured: f"{column(measured, 'online').mean():.4f}",
        "bias": bias,
        "root mean square error": lambda measured: (
            f"{np.sqrt(np.mean((column(measured, 'value') - column(measured, 'online').mean()) ** 2)):.4f}"
        ),
    }
    return _table(group, columns)


def _speed(measured: Measured) -> str:
    speeds = [1 / cost for cost in costs(measured).values()]
    return f"{median(speeds):,.0f} ({quartiles(speeds, ',.0f')})"


def _table(group: Group, columns: Mapping[str, Callable[[Measured], str]]) -> str:
    rows = []
    for name, measured in group.items():
        shown = [show(measured) for show in columns.values()] if measured["runs"] else ["-"] * len(columns)
        missing = f"**not measured: {measured['error']}**" if "error" in measured else ""
        rows.append([name, "; ".join(filter(None, [missing, measured["differs"]])), *shown])
    return markdown(["who", "what is done", *columns], rows, right=2)


def _faster(measured: Measured, group: Group) -> str:
    """Against the first of ours: one run of one seed or one replica, on one thread."""
    ours = next(other for other in group.values() if other["peer"] == OURS)
    if measured["peer"] == OURS or not ours["runs"]:
        return ""
    found = ratios(measured, ours)
    return f"{median(found):.1f} ({quartiles(found, '.1f')})"


def _peak(measured: Measured) -> float:
    return float(max(run["memory"] for run in measured["runs"].values()))


def growing_rounds(by_name: Mapping[str, list[dict[str, Any]]]) -> str:
    """(e), online runs: seconds by the number of rounds"""
    return _growth(by_name, "rounds", lambda point: f"{point['seconds']:.2f} s")


def growing_memory(points: list[dict[str, Any]]) -> str:
    """(e), our own memory by the number of rounds, which is little enough to need long runs to be seen at all"""
    if any("error" in point for point in points):
        return f"Not measured: {points[-1]['error']}"
    head = ["rounds", *(f"{point['rounds']:,}" for point in points)]
    row = ["peak memory, MB", *(f"{point['memory'] / 1e6:.1f}" for point in points)]
    more = f"One more round takes {slope(points):.0f} bytes; its features and its reward are {ROUND_BYTES}."
    return f"{markdown(head, [row], right=1)}\n\n{more}"


def growing_log(by_name: Mapping[str, list[dict[str, Any]]]) -> str:
    """(e), learning from a log: microseconds an event by the length of the log, TrainNN aside"""
    return _growth(
        by_name, "events", lambda point: f"{event_seconds(point) * 1e6:.0f} us, {point['memory'] / 1e6:.0f} MB"
    )


def _growth(by_name: Mapping[str, list[dict[str, Any]]], size: str, show: Callable[[dict[str, Any]], str]) -> str:
    sizes = sorted({point[size] for points in by_name.values() for point in points if size in point})
    rows = []
    for name, points in by_name.items():
        found = {point[size]: show(point) for point in points if size in point}
        errors = [f"not measured: {point['error']}" for point in points if "error" in point]
        rows.append([name, *(found.get(number, "-") for number in sizes), *(errors or [""])])
    return markdown(["who", *(f"{number:,}" for number in sizes), ""], rows, right=1)
