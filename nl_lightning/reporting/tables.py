"""The result of a run as a table, and the notes that belong to it."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from rich.table import Table

from nl_lightning.core.rejections import fate_of_events
from nl_lightning.core.replicas import SETTINGS
from nl_lightning.core.statistics import CLICK_LEVEL
from nl_lightning.reporting.curves import SHOWN
from nl_lightning.runs.summary import MEASURES, REGRET, Measure

__all__ = ["estimate", "notes", "table", "value_cells", "value_columns"]


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
    valued = value_columns(rows)
    for name in [*settings, "seeds", *counted, measure.name, f"{rows[0]['level']:.0%} interval", *valued, "diverged"]:
        result.add_column(name.upper() if name == "ctr" else name, justify="right")
    for row in rows[:SHOWN]:
        cells = [f"{row[name]:g}" for name in settings]
        counts = [_rounded(row.get(name), 1) for name in counted]
        estimates = [*estimate(row, measure), *(value_cells(row) if valued else ())]
        result.add_row(*cells, str(len(row["replicas"])), *counts, *estimates, str(row["diverged"]))
    left_out = len(rows) - SHOWN
    if left_out > 0:
        result.caption = f"and {left_out} more settings in summary.json"
    return result


def notes(summary: dict[str, Any]) -> list[str]:
    """What a reader of a replay's CTR must know: what happened to the events, and what the number does not tell."""
    log = summary.get("log")
    if log is None:
        return []
    counted = [replica for replica in summary["replicas"] if replica["diverged_at"] is None] or summary["replicas"]

    def mean(values: Iterable[float]) -> float:
        return float(np.mean(list(values)))

    rejected = {why: mean(r["rejected"][why] for r in counted) for why in counted[0]["rejected"]}
    fate = fate_of_events(mean(r["seen"] for r in counted), mean(r["accepted"] for r in counted), rejected)
    skipped = f" {log['bad_rows']:,} damaged rows were skipped when the log was converted." if log["bad_rows"] else ""
    lines = [f"Of a replica: {fate}.{skipped}"]
    if summary["candidates"] == "affinity":
        lines.append(
            "With `candidates: affinity` the items that an event offers depend on the logged item, so this CTR is not "
            "that of any single policy. `candidates: uniform` and `candidates: all` are unbiased."
        )
    if summary["rejection"] == "biased-match" and not log["uniform"]:
        lines.append("rejection: biased-match on a log that is not uniform favours what the log showed often.")
    if summary["propensity_note"]:
        lines.append(summary["propensity_note"])
    lines += [summary[name] for name in ("learner_note", "resample_note") if summary.get(name)]
    if "quantiles" in summary["over_replicas"][0]:
        found = ", ".join(f"{value:.4f} ({name})" for name, value in summary["over_replicas"][0]["quantiles"].items())
        lines.append(f"Quantiles of the CTR over resamples{_of_best(summary)}: {found}.")
    if summary["unseen_categories"]:
        lines.append(
            f"{summary['unseen_categories']:,} values of user features in the rows that were read were not seen when "
            "features were fitted; they count as zeros."
        )
    clicks = np.mean([r["clicks"] for r in counted])
    lines.append(
        f"The log has {log['clicks']:,} clicks in {log['events']:,} events (CTR {log['ctr']:.5f}); a replica met "
        f"{clicks:.1f} of them."
        + (" That is too few to tell agents apart: look at the intervals." if clicks < 100 else "")
    )
    return lines


def _of_best(summary: Mapping[str, Any]) -> str:
    return ", of the best setting" if len(summary["over_replicas"]) > 1 else ""


def value_columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The columns of the value over all events, where a row has one."""
    return ["value", f"{CLICK_LEVEL:.0%} interval of the value"] if any("value" in row for row in rows) else []


def value_cells(row: Mapping[str, Any]) -> tuple[str, str]:
    """The value over all events and its interval as text."""
    if row.get("value") is None:
        return "-", "-"
    return f"{row['value']:.4f}", f"{row['value_low']:.4f} to {row['value_high']:.4f}"


def estimate(row: Mapping[str, Any], measure: Measure) -> tuple[str, str]:
    """A mean and its interval as text."""
    low, high = row[f"{measure.name}_low"], row[f"{measure.name}_high"]
    band = "-" if low is None else f"{low:.{measure.digits}f} to {high:.{measure.digits}f}"
    return _rounded(row[measure.name], measure.digits), band


def _rounded(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
