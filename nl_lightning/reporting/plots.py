"""Plots of curves with their bands."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nl_lightning.core.statistics import LEVEL, Interval
from nl_lightning.reporting.curves import SHOWN, Curves, bands, setting_label
from nl_lightning.runs.summary import MEASURES, Measure

__all__ = ["draw", "over_seeds", "plot"]


def plot(curves: Curves, summary: dict[str, Any], path: Path) -> None:
    """Draw mean regret or reward with its band, one curve per setting."""
    shown = [(setting_label(row, summary), curves.t, band) for row, band in bands(curves, summary)]
    hidden = len(summary["over_replicas"]) - SHOWN
    more = f", best {SHOWN} of {len(summary['over_replicas'])} settings" if hidden > 0 else ""
    seeds = max(len(row["replicas"]) for row in summary["over_replicas"])
    over = over_seeds(seeds, summary.get("log"))
    draw(shown, MEASURES[summary["measure"]], f"{summary['agent']}: {over}{more}", summary.get("log"), path)


def over_seeds(seeds: int, log: object) -> str:
    """What the curves of a picture show, for its title."""
    end = " until the first comes to its end" if log else ""
    return f"mean and {LEVEL:.0%} band over {seeds} seeds{end}" if seeds > 1 else "one seed"


def draw(
    shown: Sequence[tuple[str, NDArray[np.int64], Interval]],
    measure: Measure,
    title: str,
    log: Mapping[str, Any] | None,
    path: Path,
) -> None:
    """Draw curves with their bands; for a replay also what the logging policy earned."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    shade = 0.2 if len(shown) <= 3 else 0.07
    for number, (label, t, band) in enumerate(shown):
        # matplotlib has ten colours before it starts again
        (line,) = axes.plot(t, band.mean, label=label, linestyle=("-", "--", ":")[number // 10 % 3])
        if not np.isnan(band.low).all():
            axes.fill_between(t, band.low, band.high, color=line.get_color(), alpha=shade, linewidth=0)
    last = max((int(t[-1]) for _, t, _ in shown), default=1)
    if log:
        axes.plot([0, last], [0, last * log["ctr"]], "--", color="grey", label="the logging policy")
    xlabel = "accepted events t" if log else "round t"
    axes.set(xlabel=xlabel, ylabel=measure.text, xlim=(0, last), ylim=(0, None))
    axes.set_title(title, fontsize="medium")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
