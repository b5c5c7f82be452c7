"""Plots of curves with their bands."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nl_lightning.core.statistics import LEVEL, Interval
from nl_lightning.reporting.curves import SHOWN, Curves, bands, setting_label
from nl_lightning.reporting.palette import COLOURS, DASHES, GREY, style_numbers
from nl_lightning.runs.summary import CTR, MEASURES, Measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Curve", "Estimate", "draw_comparison", "over_seeds", "plot"]

_POLICY = "the logging policy"


class Curve(NamedTuple):
    """A curve with its band."""

    label: str
    agent: str
    t: NDArray[np.int64]
    band: Interval


class Estimate(NamedTuple):
    """The final number of a curve, with its interval if there is one."""

    agent: str
    value: float | None
    low: float | None
    high: float | None
    verdict: str
    """as compared with the baseline; empty where nothing is compared"""


def plot(curves: Curves, summary: dict[str, Any], path: Path) -> None:
    """Draw mean regret or reward with its band, one curve per setting."""
    from matplotlib.figure import Figure

    shown = [
        Curve(setting_label(row, summary), summary["agent"], curves.t, band) for row, band in bands(curves, summary)
    ]
    hidden = len(summary["over_replicas"]) - SHOWN
    more = f", best {SHOWN} of {len(summary['over_replicas'])} settings" if hidden > 0 else ""
    seeds = max(len(row["replicas"]) for row in summary["over_replicas"])
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    _curves(axes, shown, MEASURES[summary["measure"]], summary.get("log"))
    axes.set_title(f"{summary['agent']}: {over_seeds([seeds], summary.get('log'))}{more}", fontsize="medium")
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)


def over_seeds(seeds: Sequence[int], log: object) -> str:
    """What the curves of a picture show, for its title; panels may have different numbers of seeds."""
    end = " until the first comes to its end" if log else ""
    if max(seeds) == 1:
        return "one seed"
    return f"mean and {LEVEL:.0%} band over {' to '.join(map(str, sorted({min(seeds), max(seeds)})))} seeds{end}"


def draw_comparison(
    curves: Sequence[Curve],
    estimates: Sequence[Estimate],
    measure: Measure,
    title: tuple[str, str, str],
    log: Mapping[str, Any] | None,
    path: Path,
) -> None:
    """Mean curves with their names at their ends and, below them, the final numbers with their intervals.

    The picture is narrow and its letters are large, so that it can be read on a phone.

    Args:
        curves: the agents' curves; an agent without one has none of its seeds left.
        estimates: the final numbers, of all agents.
        measure: what is measured.
        title: what the picture shows, what the intervals are of, and what the verdicts stand under.
        log: the log, for a replay: what the logging policy earned is drawn too.
        path: the picture.
    """
    from matplotlib.figure import Figure

    heights = [4.0, 1.0 + 0.34 * len(estimates)]
    figure = Figure(figsize=(7, 0.4 + sum(heights)), layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=heights)
    _curves(upper, curves, measure, log, banded=False)
    _end_labels(upper, curves, log)
    until = ", until the first seed ends" if log else ""
    upper.set_title(f"mean over seeds{until}", fontsize="medium", loc="left")
    styles = style_numbers([estimate.agent for estimate in estimates])
    for place, (estimate, (colour, _)) in enumerate(zip(reversed(estimates), reversed(styles), strict=True)):
        if estimate.value is not None:
            if estimate.low is not None and estimate.high is not None:
                lower.plot([estimate.low, estimate.high], [place] * 2, color=COLOURS[colour], linewidth=2.5)
            lower.plot(estimate.value, place, "o", color=COLOURS[colour], markersize=7)
        words = "diverged" if estimate.value is None else estimate.verdict
        lower.annotate(words, (1.02, place), xycoords=("axes fraction", "data"), va="center")
    lower.set_yticks(range(len(estimates)), [estimate.agent for estimate in reversed(estimates)])
    lower.set_ylim(-0.6, len(estimates) - 0.4)
    if log:
        lower.axvline(log["ctr"], linestyle="--", color=GREY, linewidth=1.2)
        lower.annotate(
            _POLICY, (log["ctr"], 1), xycoords=("data", "axes fraction"), xytext=(4, -4), textcoords="offset points",
            va="top", fontsize="small", color=GREY,
        )  # fmt: skip
    if measure is CTR:
        lower.set_xlim(left=0)
    lower.locator_params(axis="x", nbins=6)
    lower.set_title(title[1], fontsize="medium", loc="left")
    lower.annotate(title[2], (1.02, 1), xycoords="axes fraction", xytext=(0, 5), textcoords="offset points")
    lower.set_xlabel("click rate" if measure is CTR else f"final {measure.text}")
    lower.grid(alpha=0.3, axis="x")
    lower.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title[0], fontsize="large", x=0.01, ha="left")
    figure.savefig(path, dpi=150)


def _curves(
    axes: "Axes", curves: Sequence[Curve], measure: Measure, log: Mapping[str, Any] | None, banded: bool = True
) -> None:
    """Curves, with their bands if there is room; for a replay also what the logging policy earned."""
    shade = 0.2 if len(curves) <= 3 else 0.07
    styles = style_numbers([curve.agent for curve in curves])
    for (label, _, t, band), (colour, dash) in zip(curves, styles, strict=True):
        style: dict[str, Any] = {"color": COLOURS[colour], "linestyle": DASHES[dash % len(DASHES)]}
        axes.plot(t, band.mean, label=label, linewidth=1.8, **style)
        if banded and not np.isnan(band.low).all():
            axes.fill_between(t, band.low, band.high, color=COLOURS[colour], alpha=shade, linewidth=0)
    last = max((int(curve.t[-1]) for curve in curves), default=1)
    if log:
        axes.plot([0, last], [0, last * log["ctr"]], "--", color=GREY, linewidth=1.2, label=_POLICY)
    xlabel = "accepted events t" if log else "round t"
    axes.set(xlabel=xlabel, ylabel=measure.text, xlim=(0, last), ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _end_labels(axes: "Axes", curves: Sequence[Curve], log: Mapping[str, Any] | None) -> None:
    """The name of every curve at the right, at the height of its end, moved apart where they would overlap."""
    last, top = axes.get_xlim()[1], axes.get_ylim()[1]
    styles = style_numbers([curve.agent for curve in curves])
    ends = []
    for curve, (colour, _) in zip(curves, styles, strict=True):
        known = np.flatnonzero(~np.isnan(curve.band.mean))
        if len(known):
            place = known[-1]
            ends.append((float(curve.band.mean[place]), float(curve.t[place]), curve.label, COLOURS[colour]))
    if log:
        ends.append((last * log["ctr"], last, _POLICY, GREY))
    ends.sort()
    places = spread([end[0] / top for end in ends], 0.055)
    for (value, t, label, shade), height in zip(ends, places, strict=True):
        axes.annotate(
            label,
            (t, value),
            xytext=(1.03, height),
            textcoords="axes fraction",
            va="center",
            # letters in a light colour would be too pale to read
            color="black",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": shade,
                "linewidth": 1.5,
                "linestyle": ":",
                "relpos": (0, 0.5),
                "shrinkA": 1,
                "shrinkB": 0,
            },
        )


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Ascending places, moved as little as need be so that neighbours are at least ``gap`` apart, and none below 0."""
    groups: list[list[float]] = []
    """of each run of neighbours that touch: the mean of where it wants to be, and how many it has"""
    for place in places:
        groups.append([place, 1.0])
        while len(groups) > 1 and groups[-1][0] - groups[-2][0] < gap * (groups[-1][1] + groups[-2][1]) / 2:
            (above, n), (below, m) = groups.pop(), groups.pop()
            groups.append([(above * n + below * m) / (n + m), n + m])
    found = [middle + gap * (k - (count - 1) / 2) for middle, count in groups for k in range(int(count))]
    for k, place in enumerate(found):
        found[k] = max(place, found[k - 1] + gap if k else 0.0)
    return found
