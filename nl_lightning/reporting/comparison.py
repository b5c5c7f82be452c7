"""Several runs side by side: the best setting of every agent, as a table, a picture and numbers."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from nl_lightning.agents import AGENTS
from nl_lightning.core.errors import InputError
from nl_lightning.core.files import write_beside
from nl_lightning.reporting.curves import bands, read_curves
from nl_lightning.reporting.plots import draw, over_seeds
from nl_lightning.reporting.tables import estimate, notes, value_cells, value_columns
from nl_lightning.runs.directory import RunDirectory
from nl_lightning.runs.summary import CTR, MEASURES, REGRET, Measure

__all__ = ["ComparisonReport", "agent_rank", "compare_runs"]


class ComparisonReport(NamedTuple):
    """What is shown of a comparison; its picture and its numbers are in files."""

    table: Table
    lines: list[str]


def agent_rank(name: str, own: Sequence[str] = ()) -> int:
    """The place of an agent in tables and legends: ``AGENTS`` in their order, then ``own`` in theirs, then others."""
    order = [*AGENTS, *own]
    return order.index(name) if name in order else len(order)


def compare_runs(
    runs: Sequence[tuple[RunDirectory, dict[str, Any]]], where: Path, own: Sequence[str] = ()
) -> ComparisonReport:
    """Compare the best setting of every run; write comparison.png and comparison.json to the directory ``where``.

    Args:
        runs: the run directories with their summaries.
        where: the directory of the comparison.
        own: names of agents that are not in ``AGENTS``, in the order in which they are shown.
    """
    measures = {summary["measure"] for _, summary in runs}
    if len(measures) > 1:
        raise InputError(f"{where} holds runs in simulations and on logs, which cannot be compared.")
    measure = MEASURES[measures.pop()]
    runs = sorted(runs, key=lambda run: agent_rank(run[1]["agent"], own))
    summaries = [summary for _, summary in runs]
    log = summaries[0].get("log")
    # The first and the last note are about one agent's events, which are in the table.
    lines = list(dict.fromkeys(note for summary in summaries for note in notes(summary)[1:-1]))
    if measure is CTR and log:
        lines.append(_remark(summaries))
    shown = []
    for run, summary in runs:
        curves = read_curves(run.rounds, len(summary["replicas"]), measure)
        shown += [(summary["agent"], curves.t, band) for _, band in bands(curves, summary)[:1]]
    seeds = max(len(summary["over_replicas"][0]["replicas"]) for summary in summaries)
    title = f"{where.name}: {over_seeds(seeds, log)}"
    picture = where / "comparison.png"
    write_beside(picture, lambda path: draw(shown, measure, title, log, path))
    result = [{"agent": summary["agent"], **summary["over_replicas"][0]} for summary in summaries]
    write_beside(where / "comparison.json", lambda path: path.write_text(json.dumps(result, indent=2) + "\n"))
    return ComparisonReport(_table(summaries, measure), [*lines, f"Picture: {picture}"])


def _table(summaries: list[dict[str, Any]], measure: Measure) -> Table:
    rows = [summary["over_replicas"][0] for summary in summaries]
    counted = [] if measure is REGRET else ["clicks", "accepted"]
    diverged = ["diverged"] if any(row["diverged"] for row in rows) else []
    table = Table(title="The agents, each with its best setting", title_justify="left")
    interval = f"{rows[0]['level']:.0%} interval"
    valued = value_columns(rows)
    for head in ["agent", "seeds", *counted, measure.name.replace("ctr", "CTR"), interval, *valued, *diverged]:
        table.add_column(head, justify="left" if head == "agent" else "right", no_wrap=True)
    for summary, row in zip(summaries, rows, strict=True):
        counts = [f"{row[name]:,.{1 if name == 'clicks' else 0}f}" if name in row else "-" for name in counted]
        lost = [str(row["diverged"])] if diverged else []
        agent = summary["agent"] + ("" if summary["finished"] else " *")
        estimates = [*estimate(row, measure), *(value_cells(row) if valued else ())]
        table.add_row(agent, str(len(row["replicas"])), *counts, *estimates, *lost)
    if not all(summary["finished"] for summary in summaries):
        table.caption = "* stopped before its end"
    return table


def _remark(summaries: list[dict[str, Any]]) -> str:
    """How much the clicks of this log can tell about the agents."""
    log = summaries[0]["log"]
    rows = [summary["over_replicas"][0] for summary in summaries if summary["over_replicas"][0]["ctr"] is not None]
    text = f"The log has {log['clicks']:,} clicks in {log['events']:,} events (CTR {log['ctr']:.5f})."
    if not rows:
        return text
    # values over all events say more than the clicks of those that were accepted
    name = "value" if all("value" in row for row in rows) else "ctr"
    lowest_high, highest_low = min(row[f"{name}_high"] for row in rows), max(row[f"{name}_low"] for row in rows)
    settings = max(len(summary["over_replicas"]) for summary in summaries)
    if settings > 1:
        text += f" Each agent is shown with the best of {settings} settings on these same clicks, which flatters it."
    few = f" An agent met {min(r['clicks'] for r in rows):.0f} to {max(r['clicks'] for r in rows):.0f} of them."
    if len(rows) == 1:
        return text
    if highest_low <= lowest_high:
        return text + few + " All intervals overlap: this log cannot tell which of these agents is better."
    return text + few + " Some intervals do not overlap."
