"""``compare``: fit several agents with one config, and show them side by side."""

import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console

from nl_lightning.agents import AGENTS
from nl_lightning.cli import fit as fit_command
from nl_lightning.cli.agents import NamedAgent, find_agents
from nl_lightning.cli.errors import run_command
from nl_lightning.core import lightning_logging
from nl_lightning.core.arguments import OneLineParser, program, suggest
from nl_lightning.core.errors import InputError
from nl_lightning.reporting.comparison import compare_runs
from nl_lightning.reporting.tracking import flat_differences, log_tables, wandb_logger
from nl_lightning.runs.directory import RunDirectory

__all__ = ["main"]

_WIDTH = 100
"""Characters of a line where the result is not shown in a terminal: what the table needs."""


def fit_one(options: list[str]) -> None:
    """Fit one agent, as ``python -m nl_lightning fit`` does, in few words; an error ends in SystemExit."""
    run_command(partial(fit_command.main, brief=True), ["fit", *options])


def main(arguments: Sequence[str], fit: Callable[[list[str]], None] = fit_one) -> None:
    """``compare --config FILE [--agents ...] [options of fit]``; ``fit`` takes the options of one run."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    lightning_logging.silence()
    agents = find_agents(options.agents)
    baseline = _baseline(options.baseline, agents)
    name = options.name or Path(options.config[0]).stem
    where: Path = options.dir / f"{name}-{options.id or datetime.now().strftime('%Y%m%d-%H%M%S')}"
    configs = [f"--config={config}" for config in options.config]
    place = [f"--run.dir={where.parent}", f"--run.name={where.name}"]
    runs = {agent: [*configs, f"--model={agent.path}", *rest, *place, f"--run.id={agent.label}"] for agent in agents}
    # a wrong option or config is said once, and not by every agent
    fit_command.check(["fit", *runs[agents[0]]], parser.options())
    failed = []
    for agent, options_of_fit in runs.items():
        try:
            fit(options_of_fit)
        except SystemExit as stop:
            terminated = stop.code == fit_command.TERMINATED
            if terminated or isinstance(stop.__context__, KeyboardInterrupt):
                again = f"--id={where.name.removeprefix(f'{name}-')}"
                text = f"Stopped. To go on with the agents that are left, give the same command with {again}."
                print(text, file=sys.stderr)
                sys.exit(stop.code if terminated else 1)
            if stop.code not in (0, None):
                failed.append(agent.name)
    if getattr(rank_zero_only, "rank", 0):
        # only the first of several processes shows the result
        return
    stored = [RunDirectory(path.parent) for path in sorted(where.glob("*/summary.json"))]
    found = [(run, summary) for run in stored if (summary := run.read_summary()) is not None]
    if found:
        own = [agent.name for agent in agents if agent.name not in AGENTS]
        comparison = compare_runs(found, where, own, baseline)
        # a file or a pipe has no width of its own
        console = Console(width=None if sys.stdout.isatty() else _WIDTH)
        console.print(comparison.table)
        for line in comparison.lines:
            console.print(line, soft_wrap=True)
        given = wandb_logger(found[0][0].read_config())
        if given is not None:
            tables = {"differences": flat_differences(comparison.result)}
            console.print(log_tables(where.name, "compare", where, tables, [comparison.picture], given), soft_wrap=True)
    if failed:
        print(f"error: no result for {', '.join(failed)}; the reason is above.", file=sys.stderr)
        sys.exit(1)


def _baseline(given: str | None, agents: Sequence[NamedAgent]) -> str | None:
    """The name of the agent that the others are compared with, as it was given."""
    if given is None:
        return None
    for agent in agents:
        if given in (agent.name, agent.label, agent.path):
            return agent.name
    names = [agent.label for agent in agents]
    raise InputError(f"--baseline must be one of the agents, {', '.join(names)}; got {given}.{suggest(given, names)}")


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog=f"{program('nl_lightning')} compare",
        description="Fit several agents with one config, and compare them: a table and a picture. Other options are "
        f"those of fit, such as --data.rounds 500 or --model.nu 0.1 (all: {program('nl_lightning')} fit --help); runs "
        "that are finished are not run again.",
    )
    parser.add_argument(
        "--config",
        required=True,
        action="append",
        metavar="NAME|FILE",
        help="config of fit, by name or path, such as obd; may be given several times",
    )
    parser.add_argument(
        "--agents",
        nargs="+",
        metavar="AGENT",
        default=list(AGENTS),
        help="names or class names of agents, or import paths of your own, such as my_module.MyAgent; default: "
        + ", ".join(AGENTS),
    )
    parser.add_argument(
        "--baseline",
        metavar="AGENT",
        help="agent that the others are compared with; default: Greedy if it is among them, or else the first",
    )
    parser.add_argument("--dir", type=Path, default=Path("runs"), help="directory of all runs; default: runs")
    parser.add_argument("--name", help="name of the comparison; default: the config's file name")
    parser.add_argument(
        "--id", help="id of the comparison; default: the time of its start. The id of an earlier one resumes it."
    )
    return parser
