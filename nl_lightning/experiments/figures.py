"""A figure as files: final numbers and curves as CSV, and the picture in the paper's layout."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nl_lightning.core.statistics import Interval, interval
from nl_lightning.experiments.paper import PAPER_AGENTS
from nl_lightning.experiments.results import AgentResult, FigureResult, Floor, PanelResult
from nl_lightning.reporting.palette import AGENT_COLOURS, GREY
from nl_lightning.reporting.plots import over_seeds
from nl_lightning.runs.summary import CTR, MEASURES, Measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "FORMATS",
    "STYLES",
    "Band",
    "Style",
    "band",
    "curves_csv",
    "divergence",
    "draw",
    "finals_csv",
    "metadata",
    "seeds_of",
    "style",
    "thinned",
]

FORMATS = ("png", "svg")

_POINTS = 60
"""Points of a curve, in the CSV as in the picture: an SVG of nine panels stays below half a megabyte."""

_SALT = "nl-lightning"
"""Seeds the names inside an SVG, so that the same numbers give the same file."""


class Style(NamedTuple):
    """How an agent is drawn, in all figures."""

    colour: str
    line: tuple[float, tuple[float, ...]]
    """offset, then dashes and gaps; empty for a solid line"""


_LINES: tuple[tuple[float, ...], ...] = ((6, 1.5, 1, 1.5), (1, 1.5), (2.5, 1), (4, 1.5), (), (7, 1), (3, 1, 1, 1))

STYLES: dict[str, Style] = {
    agent: Style(AGENT_COLOURS[agent], (0, line)) for agent, line in zip(PAPER_AGENTS, _LINES, strict=True)
}
"""Line styles differ for printing in grey."""

_OTHER = Style(GREY, (0, ()))
"""An agent that is not in the paper."""


_OTHER_FLOOR: dict[str, Any] = {"linestyle": "none", "color": GREY, "marker": "d", "markersize": 5}
_FLOORS = {"linear": {**_OTHER_FLOOR, "marker": "<"}, "network": {**_OTHER_FLOOR, "marker": "*", "markersize": 7}}
"""How the regret of a model in hindsight is marked."""


class Band(NamedTuple):
    """An agent's mean curve and its interval over the seeds that did not diverge."""

    t: NDArray[np.int64]
    interval: Interval


def thinned(count: int, at_most: int) -> NDArray[np.int64]:
    """Indices of at most ``at_most`` evenly spaced points out of ``count``, including the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(count, at_most)).round().astype(np.int64))


def band(result: AgentResult, at_most: int = _POINTS) -> Band | None:
    """The mean curve with its interval. It ends where the first seed ends; None if all seeds diverged."""
    alive = [i for i, seed in enumerate(result.seeds) if seed not in result.diverged]
    alive = [i for i in alive if not np.isnan(result.curves[i]).all()]
    if not alive:
        return None
    curves = result.curves[alive]
    known = np.flatnonzero(~np.isnan(curves).any(axis=0))
    if not len(known):
        return None
    places = known[thinned(len(known), at_most)]
    return Band(result.t[places], interval(curves[:, places]))


def finals_csv(result: FigureResult) -> str:
    """One row per panel, agent and seed: its final number, empty if its TrainNN diverged, and its settings."""
    settings = list(dict.fromkeys(name for panel in result.panels for agent in panel.agents for name in agent.settings))
    rows = (
        [panel.name, agent.agent, seed, _number(final), int(seed in agent.diverged)]
        + [_number(agent.settings.get(name, np.nan)) for name in settings]
        for panel in result.panels
        for agent in panel.agents
        for seed, final in zip(agent.seeds, agent.final.tolist(), strict=True)
    )
    return _csv(["panel", "agent", "seed", result.measure, "diverged", *settings], rows)


def curves_csv(result: FigureResult) -> str:
    """One row per panel, agent and point of its mean curve, with the bounds of its interval."""
    rows = (
        [panel.name, agent.agent, int(t), *(_number(value, 6) for value in values)]
        for panel in result.panels
        for agent in panel.agents
        if (found := band(agent))
        for t, *values in zip(found.t, *found.interval, strict=True)
    )
    return _csv(["panel", "agent", "t", "mean", "low", "high"], rows)


def draw(result: FigureResult, path: Path) -> None:
    """Draw the picture, PNG or SVG by the path's suffix. The same numbers give the same bytes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    rows, columns = (1 + max(getattr(panel, of) for panel in result.panels) for of in ("row", "column"))
    with mpl.rc_context({"svg.hashsalt": _SALT, "font.size": 9.0}):
        figure = Figure(figsize=(3.4 * max(columns, 2), 2.5 * rows + 1.0), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
        empty = {(r, c) for r in range(rows) for c in range(columns)}
        for panel in result.panels:
            _draw_panel(axes[panel.row, panel.column], panel, MEASURES[result.measure], rows)
            _draw_floors(axes[panel.row, panel.column], [f for f in result.floors if f.panel == panel.name])
            empty.discard((panel.row, panel.column))
        for r, c in empty:
            axes[r, c].set_axis_off()
        _legend(figure, result)
        over = over_seeds(seeds_of(result), result.measure == CTR.name)
        figure.suptitle(f"{result.title}\n{over}", fontsize="medium")
        figure.savefig(path, dpi=150, metadata=metadata(path))


def metadata(path: Path) -> dict[str, Any]:
    """What a picture says of itself: neither when nor with what it was made."""
    return {"Date": None, "Creator": None} if path.suffix == ".svg" else {"Software": None}


def style(agent: str) -> Style:
    """How an agent is drawn."""
    return STYLES.get(agent, _OTHER)


def seeds_of(result: FigureResult) -> list[int]:
    """The numbers of seeds that its agents have: one number if they all have the same."""
    return sorted({len(agent.seeds) for panel in result.panels for agent in panel.agents})


def divergence(agent: AgentResult) -> str:
    """How many of an agent's seeds diverged, or nothing."""
    if not agent.diverged:
        return ""
    total = len(agent.seeds)
    count = f"{len(agent.diverged)} of {total} seeds" if len(agent.diverged) < total else f"all {total} seeds"
    return f"{count} of {agent.agent} diverged"


def _draw_panel(axes: "Axes", panel: PanelResult, measure: Measure, rows: int) -> None:
    shade = 0.18 if len(panel.agents) <= 5 else 0.12
    last = 1
    for agent in panel.agents:
        found, look = band(agent), style(agent.agent)
        if found is None:
            continue
        last = max(last, int(found.t[-1]))
        axes.plot(found.t, found.interval.mean, color=look.colour, linestyle=look.line, linewidth=1.5)
        if not np.isnan(found.interval.low).all():
            low, high = found.interval.low, found.interval.high
            axes.fill_between(found.t, low, high, color=look.colour, alpha=shade, linewidth=0)
    axes.set(xlim=(0, last), ylim=(0, None))
    axes.set_title(panel.title, fontsize="medium")
    axes.grid(alpha=0.3)
    axes.locator_params(axis="x", nbins=5)
    if panel.row == rows - 1:
        axes.set_xlabel("accepted events t" if measure is CTR else "round t")
    if panel.column == 0:
        axes.set_ylabel(measure.text)
    lost = "\n".join(filter(None, map(divergence, panel.agents)))
    if lost:
        box = {"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 1.5}
        axes.text(0.02, 0.98, lost, transform=axes.transAxes, fontsize="x-small", va="top", bbox=box)


def _draw_floors(axes: "Axes", floors: Sequence[Floor]) -> None:
    """A mark at the last round for each model that was fitted in hindsight."""
    for floor in floors:
        at = [axes.get_xlim()[1]], [float(floor.final.mean())]
        axes.plot(*at, clip_on=False, zorder=5, **_FLOORS.get(floor.model, _OTHER_FLOOR))


def _legend(figure: Any, result: FigureResult) -> None:
    """Draw one legend for all panels, below them."""
    from matplotlib.lines import Line2D

    named = dict.fromkeys(agent.agent for panel in result.panels for agent in panel.agents)
    styles = [(agent, style(agent)) for agent in named]
    lines = [
        Line2D([], [], color=look.colour, linestyle=look.line, linewidth=1.8, label=agent) for agent, look in styles
    ]
    for model in dict.fromkeys(floor.model for floor in result.floors):
        lines.append(Line2D([], [], label=f"{model} in hindsight", **_FLOORS.get(model, _OTHER_FLOOR)))
    columns = len(lines) if len(lines) <= 5 else -(-len(lines) // 2)
    figure.legend(handles=lines, loc="outside lower center", ncols=columns, frameon=False, handlelength=3.2)


def _csv(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()


def _number(value: float, digits: int | None = None) -> str:
    """The shortest text that reads back exactly, or one with so many digits; empty for NaN."""
    if np.isnan(value):
        return ""
    return repr(float(value)) if digits is None else f"{value:.{digits}g}"
