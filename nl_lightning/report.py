"""Curves and tables of a run: what people look at."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from lightning.pytorch.loggers import Logger, WandbLogger
from numpy.typing import NDArray
from rich.table import Table

from nl_lightning.settings import SETTINGS
from nl_lightning.statistics import LEVEL, Interval, interval

_POINTS = 400
"""Points of a plotted curve: more than a screen shows."""

_SHOWN = 8
"""Settings shown in a plot or a table, the best ones; more could not be told apart."""


class Curves(NamedTuple):
    """Cumulative regret of R replicas at rounds t (P,): (R, P), NaN behind a replica's end."""

    t: NDArray[np.int64]
    regret: NDArray[np.float64]


def read_curves(rounds: Path) -> Curves:
    """The curves of a run's rounds.parquet, thinned to what a plot can show; one row group in memory at a time."""
    file = pq.ParquetFile(rounds)
    groups = range(file.metadata.num_row_groups)
    statistics = [file.metadata.row_group(g).column(file.schema.names.index("t")).statistics for g in groups]
    last = max(s.max for s in statistics)
    t = np.unique(np.linspace(1, last, min(last, _POINTS)).round().astype(np.int64))
    regret: dict[int, NDArray[np.float64]] = {}
    for g in groups:
        columns = file.read_row_group(g, columns=["replica", "t", "cumulative_regret"])
        rows_t = columns["t"].to_numpy()
        place = np.searchsorted(t, rows_t)
        kept = t[np.minimum(place, len(t) - 1)] == rows_t
        replica, value = columns["replica"].to_numpy()[kept], columns["cumulative_regret"].to_numpy()[kept]
        for r in np.unique(replica):
            curve = regret.setdefault(int(r), np.full(len(t), np.nan))
            curve[place[kept][replica == r]] = value[replica == r]
    return Curves(t, np.stack([regret[r] for r in sorted(regret)]))


def groups(replicas: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """The replicas of every setting, by what tells it from the others (``nu = 0.1, lam = 1``, or nothing)."""
    differing = [name for name in SETTINGS if len({replica[name] for replica in replicas}) > 1]
    found: dict[str, list[int]] = {}
    for number, replica in enumerate(replicas):
        label = ", ".join(f"{name} = {replica[name]:g}" for name in differing)
        found.setdefault(label, []).append(number)
    return found


def over_replicas(replicas: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mean regret of every setting with its interval over seeds, best first; settings that diverged come last."""
    rows = []
    for numbers in groups(replicas).values():
        members = [replicas[number] for number in numbers]
        alive = [member["regret"] for member in members if member["diverged_at"] is None]
        band = interval(np.array(alive)) if alive else None
        rows.append(
            {
                **{str(name): members[0][name] for name in SETTINGS},
                "replicas": numbers,
                "diverged": len(members) - len(alive),
                "regret": _number(band.mean) if band else None,
                "regret_low": _number(band.low) if band else None,
                "regret_high": _number(band.high) if band else None,
                "level": LEVEL,
            }
        )
    return sorted(rows, key=lambda row: (row["regret"] is None, row["diverged"], row["regret"] or 0.0))


def plot_regret(curves: Curves, summary: dict[str, Any], path: Path) -> None:
    """Mean regret and its band, one curve a setting."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    bands = _bands(curves, summary)
    shade = 0.2 if len(bands) <= 3 else 0.07
    for row, band in bands:
        (line,) = axes.plot(curves.t, band.mean, label=_label(row, summary))
        if not np.isnan(band.low).all():
            axes.fill_between(curves.t, band.low, band.high, color=line.get_color(), alpha=shade, linewidth=0)
    axes.set(xlabel="round t", ylabel="cumulative regret", xlim=(0, curves.t[-1]), ylim=(0, None))
    hidden = len(summary["over_replicas"]) - _SHOWN
    more = f", best {_SHOWN} of {len(summary['over_replicas'])} settings" if hidden > 0 else ""
    seeds = max(len(row["replicas"]) for row in summary["over_replicas"])
    over = f"mean and {LEVEL:.0%} band over {seeds} seeds" if seeds > 1 else "one seed"
    axes.set_title(f"{summary['agent']}: {over}{more}", fontsize="medium")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)


def table(summary: dict[str, Any]) -> Table:
    """The result as a short table."""
    title = f"{summary['agent']} after {summary['rounds']} rounds, {summary['seconds']:.1f} s"
    result = Table(title=title, title_justify="left")
    for name in SETTINGS:
        result.add_column(name, justify="right")
    result.add_column("seeds", justify="right")
    result.add_column("regret", justify="right")
    result.add_column(f"{LEVEL:.0%} interval", justify="right")
    result.add_column("diverged", justify="right")
    for row in summary["over_replicas"][:_SHOWN]:
        band = "-" if row["regret_low"] is None else f"{row['regret_low']:.1f} to {row['regret_high']:.1f}"
        regret = "-" if row["regret"] is None else f"{row['regret']:.1f}"
        cells = [f"{row[name]:g}" for name in SETTINGS]
        result.add_row(*cells, str(len(row["replicas"])), regret, band, str(row["diverged"]))
    left_out = len(summary["over_replicas"]) - _SHOWN
    if left_out > 0:
        result.caption = f"and {left_out} more settings in summary.json"
    return result


def log_result(loggers: Iterable[Logger], curves: Curves, summary: dict[str, Any], curve: Path) -> None:
    """The final numbers to every logger; to W&B the plot and the curves with their bands as well."""
    best = summary["over_replicas"][0]
    final = {f"final/{name}": best[name] for name in ("regret", "regret_low", "regret_high") if best[name] is not None}
    for logger in loggers:
        if not isinstance(logger, WandbLogger):
            logger.log_metrics(final, step=summary["rounds"])
            continue
        import wandb

        columns = [
            (f"{_label(row, summary)} {name}", getattr(band, name).tolist())
            for row, band in _bands(curves, summary)
            for name in ("low", "mean", "high")
            if not np.isnan(getattr(band, name)).all()
        ]
        chart = wandb.plot.line_series(
            xs=curves.t.tolist(),
            ys=[values for _, values in columns],
            keys=[key for key, _ in columns],
            title="cumulative regret, mean and band",
            xname="round",
        )
        logger.experiment.log({"regret curves": chart, "curve": wandb.Image(str(curve))})
        logger.experiment.summary.update({**final, "finished": summary["finished"], "result": summary["over_replicas"]})


def _bands(curves: Curves, summary: dict[str, Any]) -> list[tuple[dict[str, Any], Interval]]:
    """The band of each of the best settings over its replicas that did not diverge."""
    diverged = {row["replica"] for row in summary["replicas"] if row["diverged_at"] is not None}
    bands = []
    for row in summary["over_replicas"][:_SHOWN]:
        members = [r for r in row["replicas"] if r not in diverged]
        if members:
            bands.append((row, interval(curves.regret[members])))
    return bands


def _label(row: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """What tells this setting from the others, or else the agent."""
    found = groups(summary["replicas"])
    return next(label for label, numbers in found.items() if numbers == row["replicas"]) or summary["agent"]


def _number(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)
