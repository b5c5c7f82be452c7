"""Fit several agents with one config, and compare them: a table and a picture."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console
from rich.table import Table

from nl_lightning.agents import AGENTS
from nl_lightning.core.errors import InputError
from nl_lightning.core.files import write_beside
from nl_lightning.reporting import curves as report
from nl_lightning.runs.recorder import RunDirectory


def main(arguments: Sequence[str], fit: Callable[[list[str]], None]) -> None:
    """``compare --config FILE [--agents ...] [options of fit]``; ``fit`` takes the options of one run."""
    parser = argparse.ArgumentParser(
        prog="python -m nl_lightning compare",
        description=f"{__doc__} Other options are those of fit, such as --data.rounds 500 or --model.nu 0.1; "
        "runs that are finished are not run again.",
    )
    parser.add_argument("--config", required=True, action="append", help="config of fit; may be given several times")
    parser.add_argument("--agents", nargs="+", metavar="AGENT", default=list(AGENTS), help="default: all seven")
    parser.add_argument("--dir", type=Path, default=Path("runs"), help="directory of all runs")
    parser.add_argument("--name", help="name of the comparison; default: the config's file name")
    parser.add_argument("--id", help="of this comparison; default: the time of its start. An old one goes on.")
    options, rest = parser.parse_known_args(arguments)
    known = {**{agent.__name__: name for name, agent in AGENTS.items()}, **{name: name for name in AGENTS}}
    for agent in options.agents:
        if agent not in known:
            sys.exit(f"error: there is no agent {agent}. The agents: {', '.join(AGENTS)}.")
    name = options.name or Path(options.config[0]).stem
    where: Path = options.dir / f"{name}-{options.id or datetime.now().strftime('%Y%m%d-%H%M%S')}"
    configs = [f"--config={config}" for config in options.config]
    failed = []
    for agent in dict.fromkeys(known[agent] for agent in options.agents):
        label = AGENTS[agent].__name__
        place = [f"--run.dir={where.parent}", f"--run.name={where.name}", f"--run.id={label}"]
        try:
            fit([*configs, f"--model={agent}", *rest, *place])
        except SystemExit as stop:
            if isinstance(stop.__context__, KeyboardInterrupt):
                again = f"--id={where.name.removeprefix(f'{name}-')}"
                sys.exit(f"Stopped. To go on with the agents that are left, give the same command with {again}.")
            if stop.code not in (0, None):
                failed.append(agent)
    if getattr(rank_zero_only, "rank", 0):
        # of several processes the first one shows the result
        return
    summaries = [(path, json.loads(path.read_text())) for path in sorted(where.glob("*/summary.json"))]
    if summaries:
        _show([(RunDirectory(path.parent), summary) for path, summary in summaries], where)
    if failed:
        print(f"error: no result for {', '.join(failed)}; the reason is above.", file=sys.stderr)
        sys.exit(1)


def _show(runs: list[tuple[RunDirectory, dict[str, Any]]], where: Path) -> None:
    """The best setting of every agent."""
    measures = {summary["measure"] for _, summary in runs}
    if len(measures) > 1:
        raise InputError(f"{where} holds runs in simulations and on logs, which cannot be compared.")
    measure = report.MEASURES[measures.pop()]
    runs.sort(key=lambda run: list(AGENTS).index(run[1]["agent"]))
    console = Console()
    console.print(_table([summary for _, summary in runs], measure))
    notes: dict[str, None] = {}
    for _, summary in runs:
        # what is said of one agent's events differs from agent to agent, and stands in the table
        notes |= dict.fromkeys(report.notes(summary)[1:-1])
    for note in notes:
        console.print(note, soft_wrap=True)
    if measure is report.CTR:
        console.print(_remark([summary for _, summary in runs]), soft_wrap=True)
    shown = []
    for run, summary in runs:
        curves = report.read_curves(run.rounds, len(summary["replicas"]), measure)
        shown += [(summary["agent"], curves.t, band) for _, band in report.bands(curves, summary)[:1]]
    seeds = max(len(summary["over_replicas"][0]["replicas"]) for _, summary in runs)
    over = report.over_seeds(seeds, runs[0][1].get("log"))
    picture = where / "comparison.png"
    title = f"{where.name}: {over}"
    write_beside(picture, lambda path: report.draw(shown, measure, title, runs[0][1].get("log"), path))
    result = [{"agent": summary["agent"], **summary["over_replicas"][0]} for _, summary in runs]
    write_beside(where / "comparison.json", lambda path: path.write_text(json.dumps(result, indent=2) + "\n"))
    console.print(f"Picture: {picture}", soft_wrap=True)


def _table(summaries: list[dict[str, Any]], measure: report.Measure) -> Table:
    rows = [summary["over_replicas"][0] for summary in summaries]
    counted = [] if measure is report.REGRET else ["clicks", "accepted"]
    diverged = ["diverged"] if any(row["diverged"] for row in rows) else []
    table = Table(title="The agents, each with its best setting", title_justify="left")
    interval = f"{rows[0]['level']:.0%} interval"
    for head in ["agent", "seeds", *counted, measure.name.replace("ctr", "CTR"), interval, *diverged]:
        table.add_column(head, justify="left" if head == "agent" else "right", no_wrap=True)
    for summary, row in zip(summaries, rows, strict=True):
        counts = [f"{row[name]:,.{1 if name == 'clicks' else 0}f}" if name in row else "-" for name in counted]
        lost = [str(row["diverged"])] if diverged else []
        agent = summary["agent"] + ("" if summary["finished"] else " *")
        table.add_row(agent, str(len(row["replicas"])), *counts, *report.estimate(row, measure), *lost)
    if not all(summary["finished"] for summary in summaries):
        table.caption = "* stopped before its end"
    return table


def _remark(summaries: list[dict[str, Any]]) -> str:
    """How much the clicks of this log can tell."""
    log = summaries[0]["log"]
    rows = [summary["over_replicas"][0] for summary in summaries if summary["over_replicas"][0]["ctr"] is not None]
    text = f"The log has {log['clicks']:,} clicks in {log['events']:,} events (CTR {log['ctr']:.5f})."
    if not rows:
        return text
    lowest_high, highest_low = min(row["ctr_high"] for row in rows), max(row["ctr_low"] for row in rows)
    settings = max(len(summary["over_replicas"]) for summary in summaries)
    if settings > 1:
        text += f" Each agent is shown with the best of {settings} settings on these same clicks, which flatters it."
    few = f" An agent met {min(r['clicks'] for r in rows):.0f} to {max(r['clicks'] for r in rows):.0f} of them."
    if len(rows) == 1:
        return text
    if highest_low <= lowest_high:
        return text + few + " All intervals overlap: this log cannot tell which of these agents is better."
    return text + few + " Some intervals do not overlap."
