"""Several runs side by side: the best setting of every agent, as a table, a picture and numbers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from nl_lightning.agents import AGENTS
from nl_lightning.core.errors import InputError
from nl_lightning.core.files import write_beside
from nl_lightning.reporting.contenders import Contender
from nl_lightning.reporting.curves import bands, read_curves
from nl_lightning.reporting.differences import Differences, compare, default_baseline
from nl_lightning.reporting.discovery import StoredRun
from nl_lightning.reporting.plots import Curve, Estimate, draw_comparison
from nl_lightning.reporting.tables import estimate, notes, value_cells
from nl_lightning.runs.directory import RunDirectory
from nl_lightning.runs.summary import CTR, MEASURES, REGRET, Measure

__all__ = ["ComparisonReport", "agent_rank", "compare_runs"]


class ComparisonReport(NamedTuple):
    """What is shown of a comparison; its picture and its numbers are in files."""

    table: Table
    lines: list[str]
    result: list[dict[str, Any]]
    """the content of comparison.json"""
    picture: Path


def agent_rank(name: str, own: Sequence[str] = ()) -> int:
    """The place of an agent in tables and legends: ``AGENTS`` in their order, then ``own`` in theirs, then others."""
    order = [*AGENTS, *own]
    return order.index(name) if name in order else len(order)


def compare_runs(
    runs: Sequence[tuple[RunDirectory, dict[str, Any]]],
    where: Path,
    own: Sequence[str] = (),
    baseline: str | None = None,
) -> ComparisonReport:
    """Compare the best setting of every run; write comparison.png and comparison.json to the directory ``where``.

    Args:
        runs: the run directories with their summaries.
        where: the directory of the comparison.
        own: names of agents that are not in ``AGENTS``, in the order in which they are shown.
        baseline: the agent that the others are compared with; left out, Greedy if it is among them, or else the first.
    """
    measures = {summary["measure"] for _, summary in runs}
    if len(measures) > 1:
        raise InputError(f"{where} holds runs in simulations and on logs, which cannot be compared.")
    measure = MEASURES[measures.pop()]
    runs = sorted(runs, key=lambda run: agent_rank(run[1]["agent"], own))
    contenders = []
    for run, summary in runs:
        stored = StoredRun(run.path.name, run, summary, run.read_config() if run.config.exists() else {})
        contenders.append(Contender(summary["agent"], stored, summary["over_replicas"][0]))
    labels = [each.label for each in contenders]
    # an agent that failed has no run
    place = labels.index(baseline) if baseline in labels else default_baseline(labels)
    differences = compare(contenders, place)
    picture = where / "comparison.png"
    write_beside(picture, lambda path: _draw(contenders, differences, measure, path))
    result = [
        {"agent": each.label, **each.row, "baseline": labels[place], "difference": row}
        for each, row in zip(contenders, differences.rows, strict=True)
    ]
    write_beside(where / "comparison.json", lambda path: path.write_text(json.dumps(result, indent=2) + "\n"))
    summaries = [summary for _, summary in runs]
    # The first and the last note are about one agent's events, which are in the table.
    lines = list(dict.fromkeys(note for summary in summaries for note in notes(summary)[1:-1]))
    lines += [*_about_log(summaries), *differences.notes, f"Picture: {picture}"]
    return ComparisonReport(_table(contenders, differences, measure), lines, result, picture)


# ---- the table -------------------------------------------------------------------------------------------------------


def _table(contenders: Sequence[Contender], differences: Differences, measure: Measure) -> Table:
    """At most a hundred characters wide."""
    rows = [each.row for each in contenders]
    valued = any(each.valued for each in contenders)
    seeds = sorted({len(row["replicas"]) for row in rows})
    every = f", {_seeds(seeds[0])} each" if len(seeds) == 1 else ""
    best = any(len(each.run.summary["over_replicas"]) > 1 for each in contenders)
    table = Table(title=f"Agents{', each with its best setting' if best else ''}{every}", title_justify="left")
    counted = [] if measure is REGRET else ["clicks of\naccepted"]
    what = "value over\nall events" if valued else measure.name.replace("ctr", "CTR")
    heads = ["agent", *(["seeds"] if len(seeds) > 1 else []), *counted, what, f"{rows[0]['level']:.0%} interval"]
    compared = next((row for row in differences.rows if row is not None), None)
    if compared is not None:
        base = contenders[differences.baseline].label
        heads += [f"minus {base}\n{100 * compared['level']:.4g}% interval", "verdict"]
    heads += ["diverged"] if any(row["diverged"] for row in rows) else []
    for head in heads:
        table.add_column(head, justify="left" if head in ("agent", "verdict") else "right", no_wrap=head == "agent")
    for each, difference in zip(contenders, differences.rows, strict=True):
        row, summary = each.row, each.run.summary
        cells = [each.label + ("" if summary["finished"] else " *")]
        cells += [str(len(row["replicas"]))] if len(seeds) > 1 else []
        cells += [f"{row['clicks']:,.1f} of {row['accepted']:,.0f}" if "clicks" in row else "-"] if counted else []
        cells += value_cells(row) if valued else estimate(row, measure)
        if compared is not None:
            cells += ["", "baseline"] if difference is None else _difference_cells(difference, measure)
        cells += [str(row["diverged"])] if "diverged" in heads else []
        table.add_row(*cells)
    if not all(each.run.summary["finished"] for each in contenders):
        table.caption = "* stopped before its end"
    return table


def _difference_cells(difference: Mapping[str, Any], measure: Measure) -> list[str]:
    low, high = difference["low"], difference["high"]
    ends = "-" if low is None else f"{low:+.{measure.digits}f} to {high:+.{measure.digits}f}"
    return [ends, difference["verdict"]]


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def _about_log(summaries: list[dict[str, Any]]) -> list[str]:
    """What there is of clicks, said once for all agents."""
    log = summaries[0].get("log")
    rows = [
        summary["over_replicas"][0] for summary in summaries if summary["over_replicas"][0].get("clicks") is not None
    ]
    if not log:
        return []
    text = f"The log has {log['clicks']:,} clicks in {log['events']:,} events (CTR {log['ctr']:.5f})"
    met = [f"{clicks:,.1f}" for clicks in sorted(row["clicks"] for row in rows)]
    if met:
        text += f"; an agent met {met[0] if met[0] == met[-1] else f'{met[0]} to {met[-1]}'} of them"
    settings = max(len(summary["over_replicas"]) for summary in summaries)
    if settings > 1:
        text += f". Each agent is shown with the best of {settings} settings on these same clicks, which flatters it"
    return [f"{text}."]


# ---- the picture -----------------------------------------------------------------------------------------------------


def _draw(contenders: Sequence[Contender], differences: Differences, measure: Measure, path: Path) -> None:
    curves, estimates = [], []
    name = "value" if any(each.valued for each in contenders) else measure.name
    for each, difference in zip(contenders, differences.rows, strict=True):
        summary, row = each.run.summary, each.row
        read = read_curves(each.run.directory.rounds, len(summary["replicas"]), measure)
        found = [band for shown, band in bands(read, summary)[:1] if shown["replicas"] == row["replicas"]]
        curves += [Curve(each.label, summary["agent"], read.t, band) for band in found]
        word = "baseline" if difference is None else difference["verdict"]
        value, low, high = (row.get(f"{name}{end}") for end in ("", "_low", "_high"))
        estimates.append(Estimate(each.label, value, low, high, word if len(contenders) > 1 else ""))
    log = contenders[0].run.summary.get("log")
    draw_comparison(curves, estimates, measure, _titles(contenders, differences, measure), log, path)


def _titles(contenders: Sequence[Contender], differences: Differences, measure: Measure) -> tuple[str, str, str]:
    """Of the picture, of its intervals and of the verdicts."""
    run, row = contenders[0].run, contenders[0].row
    log = run.summary.get("log")
    seeds = max(len(each.row["replicas"]) for each in contenders)
    if log:
        title = f"Agents that learn on a log of {log['events']:,} events with {log['clicks']:,} clicks, {_seeds(seeds)}"
    else:
        title = f"{measure.text.capitalize()} {_in_environment(run)}, {run.summary['rounds']:,} rounds, {_seeds(seeds)}"
    what = "value over all events" if any(each.valued for each in contenders) else "CTR of accepted events"
    against = f"vs {contenders[differences.baseline].label}" if len(contenders) > 1 else ""
    return title, f"{what if measure is CTR else 'at the end'}, {row['level']:.0%} interval", against


def _in_environment(run: StoredRun) -> str:
    """The environment by its class and the names that it was given."""
    kind = str(run.environment.get("class_path", "")).rpartition(".")[2]
    given = (run.environment.get("init_args") or {}).values()
    words = " ".join([kind, *(value for value in given if isinstance(value, str) and len(value) < 30)]).strip()
    return f"in {words}" if words else "in a simulation"
