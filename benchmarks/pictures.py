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

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RATIOS, GROWTH = "ratios.png", "growth.png"

_OURS, _THEIRS = "#D55E00", ("#0072B2", "#009E73", "#7F7F7F")


def draw(found: dict[str, Any], directory: Path) -> None:
    """Both of them, from what ``compare`` measured."""
    for name, figure in ((RATIOS, _ratios(found)), (GROWTH, _growth(found["growth"]))):
        write_beside(directory / name, lambda path, figure=figure: figure.savefig(path, dpi=130))  # type: ignore[misc]


def _ratios(found: dict[str, Any]) -> Figure:
    """A dot a mark: the median ratio, the line from the lowest to the highest, and where it has to be."""
    bars: list[tuple[Mark, list[float]]] = []
    for group, marks in (("online", ONLINE_MARKS), ("learning", LEARNING_MARKS)):
        bars += [(mark, ratios(found[group][mark.theirs], found[group][mark.ours])) for mark in marks]
    figure = Figure(figsize=(8.5, 0.62 * len(bars) + 1.3), layout="constrained")
    axes = figure.add_subplot()
    for place, (mark, values) in enumerate(reversed(bars)):
        axes.plot([mark.at_least] * 2, [place - 0.3, place + 0.3], color="black", linewidth=2)
        if not values:
            axes.text(1.1, place, "not measured", va="center")
            continue
        middle = median(values)
        axes.barh(place, middle, height=0.5, color=_OURS, alpha=0.75)
        axes.plot([min(values), max(values)], [place, place], color="#333333", linewidth=1.5)
        axes.annotate(
            f"{middle:.0f}" if middle >= 10 else f"{middle:.1f}",
            (max(middle, max(values), mark.at_least), place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
        )
    labels = [f"{mark.title}\nbeside {mark.theirs}" for mark, _ in reversed(bars)]
    axes.set_yticks(range(len(bars)), labels, fontsize=9)
    axes.set_xscale("log")
    axes.set_xlim(left=1)
    axes.xaxis.set_major_formatter(lambda number, _: f"{number:g}")
    axes.margins(x=0.12)
    axes.set_xlabel("we are so many times as fast; the thin line is the spread, the black mark what is to be reached")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _growth(growth: dict[str, Any]) -> Figure:
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    runs, memory, log = figure.subplots(1, 3)
    runs.set(title="(e) an online run", xlabel="rounds", ylabel="seconds", xscale="log", yscale="log")
    _lines(runs, growth["online"], "rounds", lambda point: point["seconds"])
    _lines(memory, {"NeuralLog-UCB-2": growth["long"]}, "rounds", lambda point: point["memory"] / 1e6)
    memory.set(title="(e) our memory in a long run", xlabel="rounds", ylabel="peak memory, MB")
    log.set(
        title="(e) learning from a log, TrainNN aside",
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
        colour = _OURS if not place else _THEIRS[(place - 1) % len(_THEIRS)]
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
