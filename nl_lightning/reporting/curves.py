"""Curves and tables of runs: what people look at."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from lightning.pytorch.loggers import Logger, WandbLogger
from numpy.typing import NDArray
from rich.table import Table

from nl_lightning.core.replicas import SETTINGS
from nl_lightning.core.statistics import CLICK_LEVEL, LEVEL, Interval, interval, wilson

_POINTS = 400
"""Points of a plotted curve: more than a screen shows."""

SHOWN = 8
"""Settings of a run shown in a plot or a table, the best ones; more could not be told apart."""


class Measure(NamedTuple):
    """What a run is judged by, and how it is called."""

    name: str
    """in a summary; the ends of its interval have ``_low`` and ``_high`` behind it"""
    column: str
    """of rounds.parquet"""
    text: str
    digits: int
    better: int
    """-1: the lower the better, 1: the higher the better"""


REGRET = Measure("regret", "cumulative_regret", "cumulative regret", 1, -1)
CTR = Measure("ctr", "cumulative_reward", "cumulative reward", 4, 1)
MEASURES = {measure.name: measure for measure in (REGRET, CTR)}


class Curves(NamedTuple):
    """Regret, reward or another column of R replicas at rounds t (P,): (R, P), NaN behind a replica's end."""

    t: NDArray[np.int64]
    value: NDArray[np.float64]


def read_curves(rounds: Path, replicas: int, measure: Measure = REGRET) -> Curves:
    """The curves of a run's rounds.parquet, thinned to what a plot can show."""
    return read_columns(rounds, replicas, [measure.column])[0]


def read_columns(rounds: Path, replicas: int, names: Sequence[str]) -> list[Curves]:
    """Columns of a run's rounds.parquet, thinned to what a plot can show; one row group in memory at a time."""
    file = pq.ParquetFile(rounds)
    groups = range(file.metadata.num_row_groups)
    statistics = [file.metadata.row_group(g).column(file.schema.names.index("t")).statistics for g in groups]
    last = max((s.max for s in statistics), default=1)
    t = np.unique(np.linspace(1, last, min(last, _POINTS)).round().astype(np.int64))
    curves = [Curves(t, np.full((replicas, len(t)), np.nan)) for _ in names]
    for g in groups:
        columns = file.read_row_group(g, columns=["replica", "t", *names])
        rows_t = columns["t"].to_numpy()
        place = np.searchsorted(t, rows_t)
        kept = t[np.minimum(place, len(t) - 1)] == rows_t
        replica = columns["replica"].to_numpy()[kept]
        for name, curve in zip(names, curves, strict=True):
            curve.value[replica, place[kept]] = columns[name].to_numpy()[kept]
    return curves


def groups(replicas: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """The replicas of every setting, by what tells it from the others (``nu = 0.1, lam = 1``, or nothing)."""
    differing = [name for name in SETTINGS if len({replica[name] for replica in replicas}) > 1]
    found: dict[str, list[int]] = {}
    for number, replica in enumerate(replicas):
        label = ", ".join(f"{name} = {replica[name]:g}" for name in differing)
        found.setdefault(label, []).append(number)
    return found


def over_replicas(replicas: Sequence[dict[str, Any]], measure: Measure = REGRET) -> list[dict[str, Any]]:
    """The mean of every setting with its interval, best first; settings that diverged come last.

    Regret: the interval is Student's, over seeds. CTR: seeds share the log's clicks and are no new evidence, so the
    interval is Wilson's for one replica's events; Student's, over seeds, stands beside it.
    """
    rows = []
    for numbers in groups(replicas).values():
        members = [replicas[number] for number in numbers]
        alive = [member for member in members if member["diverged_at"] is None]
        known = [member[measure.name] for member in alive if member[measure.name] is not None]
        band = interval(np.array(known)) if known else None
        low, high, level = (band.low, band.high, LEVEL) if band else (np.nan, np.nan, LEVEL)
        row: dict[str, Any] = {
            **{str(name): members[0][name] for name in SETTINGS},
            "replicas": numbers,
            "diverged": len(members) - len(alive),
            measure.name: _number(band.mean) if band else None,
        }
        if measure is CTR and alive:
            row |= {name: float(np.mean([member[name] for member in alive])) for name in ("clicks", "accepted", "seen")}
            row |= {"over_seeds_low": _number(low), "over_seeds_high": _number(high)}
            (low, high), level = wilson(row["clicks"], row["accepted"]), CLICK_LEVEL
            row[measure.name] = row["clicks"] / row["accepted"] if row["accepted"] else None
        row |= {f"{measure.name}_low": _number(low), f"{measure.name}_high": _number(high), "level": level}
        rows.append(row)

    def place(row: dict[str, Any]) -> tuple[bool, int, float]:
        return row[measure.name] is None, row["diverged"], -measure.better * (row[measure.name] or 0.0)

    return sorted(rows, key=place)


def plot(curves: Curves, summary: dict[str, Any], path: Path) -> None:
    """Mean regret or reward and its band, one curve a setting."""
    shown = [(_label(row, summary), curves.t, band) for row, band in bands(curves, summary)]
    hidden = len(summary["over_replicas"]) - SHOWN
    more = f", best {SHOWN} of {len(summary['over_replicas'])} settings" if hidden > 0 else ""
    seeds = max(len(row["replicas"]) for row in summary["over_replicas"])
    over = over_seeds(seeds, summary.get("log"))
    draw(shown, MEASURES[summary["measure"]], f"{summary['agent']}: {over}{more}", summary.get("log"), path)


def over_seeds(seeds: int, log: object) -> str:
    """What the curves of a picture are."""
    end = " until the first comes to its end" if log else ""
    return f"mean and {LEVEL:.0%} band over {seeds} seeds{end}" if seeds > 1 else "one seed"


def draw(
    shown: Sequence[tuple[str, NDArray[np.int64], Interval]],
    measure: Measure,
    title: str,
    log: Mapping[str, Any] | None,
    path: Path,
) -> None:
    """Curves with their bands; beside those of a replay what the logging policy earned."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    shade = 0.2 if len(shown) <= 3 else 0.07
    for label, t, band in shown:
        (line,) = axes.plot(t, band.mean, label=label)
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


def table(summary: dict[str, Any]) -> Table:
    """The result as a short table."""
    measure, rows = MEASURES[summary["measure"]], summary["over_replicas"]
    theory = summary.get("mode") == "theory"
    mode = ", theory mode," if theory else ""
    title = f"{summary['agent']}{mode} after {summary['rounds']} rounds, {summary['seconds']:.1f} s"
    result = Table(title=title, title_justify="left")
    counted = [] if measure is REGRET else ["clicks", "accepted"]
    # nu and lam have no effect in theory mode
    used = [name for name in SETTINGS if not (theory and name in ("nu", "lam"))]
    settings = [name for name in used if measure is REGRET or len({row[name] for row in rows}) > 1]
    for name in [*settings, "seeds", *counted, measure.name, f"{rows[0]['level']:.0%} interval", "diverged"]:
        result.add_column(name.upper() if name == "ctr" else name, justify="right")
    for row in rows[:SHOWN]:
        cells = [f"{row[name]:g}" for name in settings]
        counts = [_rounded(row.get(name), 1) for name in counted]
        result.add_row(*cells, str(len(row["replicas"])), *counts, *estimate(row, measure), str(row["diverged"]))
    left_out = len(rows) - SHOWN
    if left_out > 0:
        result.caption = f"and {left_out} more settings in summary.json"
    return result


def notes(summary: dict[str, Any]) -> list[str]:
    """What must be said beside the CTR of a replay: what became of the events, and what the number does not tell."""
    log = summary.get("log")
    if log is None:
        return []
    counted = [replica for replica in summary["replicas"] if replica["diverged_at"] is None] or summary["replicas"]

    def mean(values: Iterable[float]) -> str:
        return f"{np.mean(list(values)):,.0f}"

    reasons = [f"{mean(r['rejected'][why] for r in counted)} {why}" for why in counted[0]["rejected"]]
    seen, accepted = (mean(r[name] for r in counted) for name in ("seen", "accepted"))
    lines = [
        f"Events of a replica: {seen} seen, {accepted} accepted; rejected: {', '.join(reasons)}, "
        f"{log['bad_rows']:,} bad rows."
    ]
    if summary["candidates"] == "affinity":
        lines.append(
            "candidates: affinity shows sets that depend on the logged item, so that this CTR is that of no single "
            "policy; uniform and all are unbiased."
        )
    if summary["rejection"] == "biased-match" and not log["uniform"]:
        lines.append("rejection: biased-match on a log that is not uniform favours what the log showed often.")
    if summary["propensity_note"]:
        lines.append(summary["propensity_note"])
    if summary["unseen_categories"]:
        lines.append(
            f"{summary['unseen_categories']:,} values of user features in the rows that were read were not seen when "
            "features were fitted; they count as zeros."
        )
    clicks = np.mean([r["clicks"] for r in counted])
    lines.append(
        f"The log has {log['clicks']:,} clicks in {log['events']:,} events (CTR {log['ctr']:.5f}); a replica met "
        f"{clicks:.1f} of them."
        + (" So few clicks cannot tell agents apart: look at the intervals." if clicks < 100 else "")
    )
    return lines


def estimate(row: Mapping[str, Any], measure: Measure) -> tuple[str, str]:
    """A mean and its interval as texts."""
    low, high = row[f"{measure.name}_low"], row[f"{measure.name}_high"]
    band = "-" if low is None else f"{low:.{measure.digits}f} to {high:.{measure.digits}f}"
    return _rounded(row[measure.name], measure.digits), band


def log_result(loggers: Iterable[Logger], curves: Curves, summary: dict[str, Any], curve: Path) -> None:
    """The final numbers to every logger; to W&B the plot and the curves with their bands as well."""
    best, measure = summary["over_replicas"][0], MEASURES[summary["measure"]]
    names = (f"{measure.name}{end}" for end in ("", "_low", "_high"))
    final = {f"final/{name}": best[name] for name in names if best[name] is not None}
    for logger in loggers:
        if not isinstance(logger, WandbLogger):
            logger.log_metrics(final, step=summary["rounds"])
            continue
        import wandb

        columns = [
            (f"{_label(row, summary)} {name}", getattr(band, name).tolist())
            for row, band in bands(curves, summary)
            for name in ("low", "mean", "high")
            if not np.isnan(getattr(band, name)).all()
        ]
        chart = wandb.plot.line_series(
            xs=curves.t.tolist(),
            ys=[values for _, values in columns],
            keys=[key for key, _ in columns],
            title=f"{measure.text}, mean and band",
            xname="round",
        )
        # The final numbers are logged, so that they are in W&B's history and in its summary: sweeps look there.
        logger.experiment.log({**final, f"{measure.name} curves": chart, "curve": wandb.Image(str(curve))})
        logger.experiment.summary.update({"finished": summary["finished"], "result": summary["over_replicas"]})


def bands(curves: Curves, summary: dict[str, Any]) -> list[tuple[dict[str, Any], Interval]]:
    """The band of each of the best settings over its replicas that did not diverge; it ends with the first of them."""
    diverged = {row["replica"] for row in summary["replicas"] if row["diverged_at"] is not None}
    found = []
    for row in summary["over_replicas"][:SHOWN]:
        members = [r for r in row["replicas"] if r not in diverged and not np.isnan(curves.value[r]).all()]
        if members:
            found.append((row, interval(curves.value[members])))
    return found


def _label(row: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """What tells this setting from the others, or else the agent."""
    found = groups(summary["replicas"])
    return next(label for label, numbers in found.items() if numbers == row["replicas"]) or summary["agent"]


def _rounded(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _number(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)
