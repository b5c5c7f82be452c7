"""The two plots of RESULTS.md: how many times as fast we are, and how time and memory grow."""

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from benchmarks.peers.contenders import LEARNING_MARKS, ONLINE_MARKS, Mark
from benchmarks.peers.marks import event_seconds
from benchmarks.peers.side_by_side import ratios
from nl_lightning.core.files import write_beside
from nl_lightning.reporting.palette import OTHERS, OURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RATIOS, GROWTH = "ratios.png", "growth.png"

_WORDS = {
    "(a) one run": "Simulated, one seed",
    "(b) ten seeds, a seed": "Simulated, ten seeds at once, per seed",
    "(c) one replica": "Log of 10,000 events",
    "(c) ten replicas, a replica": "Log, ten replicas at once, per replica",
}
"""What a mark is about, for those who have not read the text around it."""


def draw(found: dict[str, Any], directory: Path) -> None:
    """Both of them, from what ``compare`` measured."""
    for name, figure in ((RATIOS, _ratios(found)), (GROWTH, _growth(found["growth"]))):
        write_beside(directory / name, lambda path, figure=figure: figure.savefig(path, dpi=130))  # type: ignore[misc]


def _ratios(found: dict[str, Any]) -> Figure:
    """A bar a mark: the median ratio, the line from the lowest to the highest, and where it has to be."""
    bars: list[tuple[Mark, list[float]]] = []
    for group, marks in (("online", ONLINE_MARKS), ("learning", LEARNING_MARKS)):
        by_name = found[group]
        # results from before a mark was set do not have it
        known = [mark for mark in marks if mark.ours in by_name and mark.theirs in by_name]
        bars += [(mark, ratios(by_name[mark.theirs], by_name[mark.ours])) for mark in known]
    # narrow, with what a bar is about above it: on a phone it can still be read
    figure = Figure(figsize=(6.4, 0.8 * len(bars) + 1.6), layout="constrained")
    axes = figure.add_subplot()
    bar = goal = spread = None
    for place, (mark, values) in enumerate(reversed(bars)):
        (goal,) = axes.plot([mark.at_least] * 2, [place - 0.27, place + 0.19], color="black", linewidth=2.5)
        if not values:
            axes.text(1.1, place, "not measured", va="center")
            continue
        middle = median(values)
        bar = axes.barh(place, middle, height=0.38, color=OURS, alpha=0.75)
        (spread,) = axes.plot([min(values), max(values)], [place, place], color="#333333", linewidth=1.5)
        axes.annotate(
            f"{middle:.0f} times" if middle >= 100 else f"{middle:.1f} times",
            (max(middle, *values, mark.at_least), place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
        )
    for place, (mark, _) in enumerate(reversed(bars)):
        axes.annotate(
            _described(mark), (0, place), xycoords=("axes fraction", "data"), xytext=(2, 17), textcoords="offset points"
        )
    axes.set_yticks([])
    axes.set_ylim(-0.45, len(bars) - 0.2)
    axes.set_xscale("log")
    axes.set_xlim(left=1)
    axes.xaxis.set_major_formatter(lambda number, _: f"{number:g}")
    axes.margins(x=0.16)
    axes.set_xlabel("time of the other library / time of nl-lightning (1: equally fast)")
    axes.spines[["top", "right"]].set_visible(False)
    handles = {"median of alternating runs": bar, "lowest to highest": spread, "goal": goal}
    drawn = [(handle, label) for label, handle in handles.items() if handle is not None]
    figure.legend(*map(list, zip(*drawn, strict=True)), loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle("Speed of nl-lightning compared with other bandit libraries", x=0.01, ha="left")
    return figure


def _described(mark: Mark) -> str:
    work, descent, _ = mark.title.partition(", gradient descent")
    how = ", gradient descent" if descent else ""
    return f"{_WORDS.get(work, work)}{how}: {mark.theirs}"


def _growth(growth: dict[str, Any]) -> Figure:
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    runs, memory, log = figure.subplots(1, 3)
    runs.set(title="Time of an online run", xlabel="rounds", ylabel="seconds", xscale="log", yscale="log")
    _lines(runs, growth["online"], "rounds", lambda point: point["seconds"])
    # room for the legend
    runs.set_ylim(top=4 * runs.get_ylim()[1])
    _lines(memory, {"NeuralLog-UCB-2": growth["long"]}, "rounds", lambda point: point["memory"] / 1e6)
    memory.set(title="Memory of nl-lightning in a long run", xlabel="rounds", ylabel="peak memory, MB")
    log.set(
        title="Learning from a log, without TrainNN",
        xlabel="events of the log",
        ylabel="microseconds an event",
        xscale="log",
        yscale="log",
    )
    _lines(log, growth["learning"], "events", lambda point: 1e6 * event_seconds(point))
    return figure


def _lines(axes: "Axes", by_name: Mapping[str, list[dict[str, Any]]], size: str, show: Any) -> None:
    for place, (name, points) in enumerate(by_name.items()):
        known = [point for point in points if size in point]
        colour = OURS if not place else OTHERS[(place - 1) % len(OTHERS)]
        axes.plot([p[size] for p in known], [show(p) for p in known], "o-", color=colour, label=name, markersize=4)
    axes.grid(alpha=0.3)
    sizes = sorted({point[size] for points in by_name.values() for point in points if size in point})
    if axes.get_xscale() == "log":
        axes.set_xticks(sizes, [_short(number) for number in sizes])
        axes.minorticks_off()
    else:
        axes.xaxis.set_major_formatter(lambda number, _: _short(number))
    axes.yaxis.set_major_formatter(lambda number, _: f"{number:g}")
    if len(by_name) > 1:
        axes.legend(fontsize=8)


def _short(number: float) -> str:
    """1,400,000 as 1.4M, 8,000 as 8k"""
    return f"{number / 1e6:g}M" if number >= 1e6 else f"{number / 1e3:g}k"
