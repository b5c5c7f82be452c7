"""What varying one setting does to the final regret: its growth with kappa, and the picture over kappa, nu and arms."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from nl_lightning.core.statistics import LEVEL, interval
from nl_lightning.experiments.figures import metadata, style
from nl_lightning.experiments.results import FigureResult, SweepResult

__all__ = ["LAWS", "Growth", "draw", "filled", "growth", "growths", "over_kappa", "with_which_nu"]

LAWS = {0.0: "not at all", 0.5: "as its root", 1.0: "in proportion"}
"""Exponents of kappa that theory names, in words."""

_LABELS = {"kappa": r"$\kappa$", "nu": r"$\nu$", "arms": "number of arms"}
_AT = " at nu = "
"""between what is varied and the nu that all agents have"""


class Growth(NamedTuple):
    """The exponent b of a power law, mean regret ~ value^b, with its interval."""

    exponent: float
    low: float
    high: float

    @property
    def law(self) -> str:
        """The laws that the interval allows."""
        if np.isnan(self.low):
            return "-"
        allowed = [words for exponent, words in LAWS.items() if self.low <= exponent <= self.high]
        below = [words for exponent, words in LAWS.items() if exponent < self.low]
        if allowed:
            return " or ".join(allowed)
        if not below:
            return "it falls"
        return "less than as its root" if len(below) == 1 else f"more than {below[-1]}"


def growth(values: Sequence[float], finals: NDArray[np.float64], level: float = LEVEL) -> Growth:
    """The slope b of least squares of log(mean regret over seeds) on log(value), for finals (values, seeds).

    The interval is the jackknife's over seeds: b +- t_{n-1} e, e^2 = (n - 1)/n sum (b_i - mean b)^2, b_i the slope
    without seed i. Seeds are paired over the values, so leaving out one leaves it out everywhere.
    """
    x = np.log(np.asarray(values, dtype=np.float64))
    x = x - x.mean()
    n = finals.shape[1]

    def slopes(means: NDArray[np.float64]) -> NDArray[np.float64]:
        with np.errstate(divide="ignore", invalid="ignore"):
            # from the first one on, so that equal means have a slope of exactly 0
            y = np.log(means) - np.log(means[0])
            found: NDArray[np.float64] = np.tensordot(x, y, axes=1) / (x**2).sum() + 0.0
        return found

    exponent = float(slopes(finals.mean(axis=1)))
    if n < 2:
        return Growth(exponent, np.nan, np.nan)
    without = slopes((finals.sum(axis=1, keepdims=True) - finals) / (n - 1))
    error = np.sqrt((n - 1) / n * ((without - without.mean()) ** 2).sum())
    half = float(stdtrit(n - 1, (1 + level) / 2) * error)
    return Growth(exponent, exponent - half, exponent + half)


def filled(sweeps: Sequence[SweepResult]) -> list[SweepResult]:
    """With the worst regret of any agent, at the same value and seed of a panel, where TrainNN diverged."""
    found = []
    for sweep in sweeps:
        beside = [s for s in sweeps if (s.panel, s.varied, s.value) == (sweep.panel, sweep.varied, sweep.value)]
        known = np.stack([other.final for other in beside])
        worst = np.where(np.isnan(known), -np.inf, known).max(axis=0)
        worst = np.where(np.isinf(worst), worst.max(), worst)
        found.append(sweep._replace(final=np.where(np.isnan(sweep.final), worst, sweep.final)))
    return found


def over_kappa(sweeps: Sequence[SweepResult]) -> list[str]:
    """The sweeps that vary kappa: with the chosen nu, and with the same one for all agents."""
    return [name for name in dict.fromkeys(sweep.varied for sweep in sweeps) if name.partition(_AT)[0] == "kappa"]


def with_which_nu(varied: str) -> str:
    """In words, which nu agents have while something is varied."""
    nu = varied.partition(_AT)[2]
    return f"with nu = {nu} for all agents" if nu else "with the nu that was chosen"


def growths(sweeps: Sequence[SweepResult], varied: str = "kappa") -> dict[tuple[str, str], Growth]:
    """The growth of regret with a setting, by panel and agent."""
    found: dict[tuple[str, str], list[SweepResult]] = {}
    for sweep in filled(sweeps):
        if sweep.varied == varied:
            found.setdefault((sweep.panel, sweep.agent), []).append(sweep)
    return {
        key: growth([sweep.value for sweep in own], np.stack([sweep.final for sweep in own]))
        for key, own in found.items()
    }


def draw(result: FigureResult, path: Path) -> None:
    """Final regret over each varied setting: a row a panel, a column a setting."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    sweeps = filled(result.sweeps)
    panels = {panel.name: panel.title for panel in result.panels}
    columns = list(dict.fromkeys(sweep.varied for sweep in sweeps))
    agents = list(dict.fromkeys(sweep.agent for sweep in sweeps))
    with mpl.rc_context({"svg.hashsalt": "nl-lightning", "font.size": 9.0}):
        figure = Figure(figsize=(3.4 * max(len(columns), 2), 2.3 * len(panels) + 1.0), layout="constrained")
        axes: Any = figure.subplots(len(panels), len(columns), squeeze=False)
        for row, (panel, title) in enumerate(panels.items()):
            for column, varied in enumerate(columns):
                here = [s for s in sweeps if (s.panel, s.varied) == (panel, varied)]
                _draw_cell(axes[row, column], here, result, panel)
                axes[row, column].set_title(title, fontsize="medium")
                if row == len(panels) - 1:
                    axes[row, column].set_xlabel(_label(varied))
            axes[row, 0].set_ylabel("final regret")
        lines = [
            Line2D([], [], color=style(agent).colour, linestyle=style(agent).line, linewidth=1.8, label=agent)
            for agent in agents
        ]
        figure.legend(handles=lines, loc="outside lower center", ncols=-(-len(lines) // 2), frameon=False)
        seeds = max(len(sweep.seeds) for sweep in sweeps)
        figure.suptitle(f"{result.title}\nmean of {seeds} seeds with its {LEVEL:.0%} interval", fontsize="medium")
        figure.savefig(path, dpi=150, metadata=metadata(path))


def _label(varied: str) -> str:
    name, _, nu = varied.partition(_AT)
    return _LABELS[name] + (rf" at $\nu = {nu}$" if nu else "")


def _draw_cell(axes: Any, here: Sequence[SweepResult], result: FigureResult, panel: str) -> None:
    values = sorted({sweep.value for sweep in here})
    for agent in dict.fromkeys(sweep.agent for sweep in here):
        own = [sweep for sweep in here if sweep.agent == agent]
        mean, low, high = (np.array(x) for x in zip(*(interval(sweep.final) for sweep in own), strict=True))
        x, look = [sweep.value for sweep in own], style(agent)
        axes.plot(x, mean, color=look.colour, linestyle=look.line, linewidth=1.5, marker=".", markersize=4)
        if not np.isnan(low).any():
            axes.fill_between(x, low, high, color=look.colour, alpha=0.12, linewidth=0)
    # without exploration there is no nu: one line for all values
    swept = {sweep.agent for sweep in here}
    for other in next(p for p in result.panels if p.name == panel).agents:
        if other.agent not in swept and not np.isnan(other.final).all():
            look = style(other.agent)
            axes.axhline(float(np.nanmean(other.final)), color=look.colour, linestyle=look.line, linewidth=1.5)
    axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()
    axes.set_ylim(0, None)
    axes.grid(alpha=0.3)
