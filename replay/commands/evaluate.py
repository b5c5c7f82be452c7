"""Estimate what policies would have earned on a log, and how certain that is. Agents do not learn meanwhile.

match   click rate among the events whose logged action the policy picks, with Wilson's interval
IPS     inverse propensity scoring, with a gamma interval, which holds its level also where clicks are rare
SNIPS   self-normalised IPS, with a gamma interval

All of them take one pass over the log, however many policies there are. Several policies are compared with a baseline,
event by event: a difference has its own interval, which is narrower the more they agree, and one rule says what is
better. --obp adds the estimators of the Open Bandit Pipeline (DM, IPW, SNIPW, DR, Replay) for one checkpoint; these
hold the whole log in memory.

A policy of your own is a function that maps a pandas DataFrame of N events (the columns that are known before the
choice) to their probabilities (N, actions), in the order of log.actions. An agent that does not come with nl_lightning
is given by the import path of its class. Modules in the current directory can be imported.

examples:
  python -m replay evaluate --checkpoint runs/obd/ID/checkpoints/last.ckpt --candidates all
  python -m replay evaluate --log data/mine --checkpoint last.ckpt --model my_module.MyAgent --output result.json
  python -m replay evaluate --log data/mine --rows 5000: --policy logged --policy my_module:my_policy
  python -m replay evaluate --log data/mine --checkpoint old.ckpt --checkpoint new.ckpt --policy logged --candidates all
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from nl_lightning.agents.base import Agent
from nl_lightning.core.arguments import program
from nl_lightning.core.errors import InputError
from nl_lightning.core.files import write_beside
from nl_lightning.core.imports import import_callable, import_class, make_current_directory_importable
from nl_lightning.core.threads import LARGE_WORK, default_threads
from nl_lightning.core.whole import check_whole
from nl_lightning.reporting.tracking import log_tables, needs_wandb
from replay.evaluation.comparison import EvaluationSettings, compare
from replay.evaluation.evaluate import DRAWS, TrainedAgent, describe, load_trained, measure
from replay.evaluation.policies import POLICIES, Policy
from replay.evaluation.processes import ACCELERATORS, Processes
from replay.evaluation.resolve import as_policy, unique_name
from replay.evaluation.result import estimates_table
from replay.formats.sample import bundled_log
from replay.logs.reader import Log
from replay.protocol.candidates import PROTOCOLS
from replay.protocol.obd_features import ObdFeatures
from replay.protocol.rejection import RULES, check_rule

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} [--log LOG] [--checkpoint FILE ...] [--policy POLICY ...] [options]"
    what = parser.add_argument_group("what is evaluated")
    what.add_argument(
        "--log", help="directory of the log: a path or an address such as s3://bucket/log (default: the sample of obp)"
    )
    what.add_argument(
        "--checkpoint",
        type=Path,
        action="append",
        default=[],
        help="checkpoint of a run on a log, checkpoints/last.ckpt; may be given several times",
    )
    meanings = "; ".join(f"{name}: {text}" for name, (_, text) in POLICIES.items())
    what.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="POLICY",
        help=f"policy to evaluate; may be given several times. {meanings}; column:NAME: a column of the log with "
        "another system's choices or probabilities; module:function: a function of your own",
    )
    what.add_argument(
        "--baseline",
        metavar="NAME",
        help="policy that the others are compared with, as the table names it (default: logged, or else the first one)",
    )
    what.add_argument("--rows", help="rows to evaluate on, like 5000: or 0:5000 (default: all)")
    own = parser.add_argument_group("parts of your own that an agent was trained with")
    own.add_argument(
        "--model", help="class of the agent, for agents that do not come with nl_lightning", metavar="MODULE.CLASS"
    )
    own.add_argument("--exploration", help="exploration rule of your own that it was trained with: my_module.MyRule")
    own.add_argument("--design", help="design matrix of your own that it was trained with: my_module.MyDesign")
    own.add_argument("--network", help="network of your own that it was trained with: my_module.MyNetwork")
    own.add_argument("--features", help="function of your own that computed its features", metavar="MODULE:FUNCTION")
    how = parser.add_argument_group("how events are used")
    meanings = "; ".join(f"{name}: {text}" for name, text in PROTOCOLS.items())
    how.add_argument(
        "--candidates", choices=PROTOCOLS, help=f"items that an event offers. {meanings} (default: as in training)"
    )
    how.add_argument("--arms", type=int, help="number of items that an event offers (default: as in training)")
    meanings = "; ".join(f"{name}: {text}" for name, text in RULES.items())
    how.add_argument(
        "--rejection", choices=RULES, default="propensity", help=f"which events the match estimator uses. {meanings}"
    )
    how.add_argument("--propensity-floor", type=float, help="the constant c (default: the log's smallest propensity)")
    how.add_argument("--draws", type=int, default=DRAWS, help="Monte Carlo draws of a Thompson agent's choices")
    how.add_argument(
        "--seed", type=int, default=0, help="seed of random candidate sets and of the propensity correction"
    )
    where = parser.add_argument_group("where it runs")
    where.add_argument("--devices", type=int, default=1, help="number of processes on each machine")
    where.add_argument(
        "--threads", type=int, help="threads of each process (default: OMP_NUM_THREADS, or else those of this machine)"
    )
    where.add_argument("--num-nodes", type=int, default=1, help="number of machines")
    where.add_argument("--accelerator", choices=ACCELERATORS, default="cpu", help="device that each process uses")
    result = parser.add_argument_group("result")
    result.add_argument("--obp", action="store_true", help="also run obp's estimators, for the first replica")
    result.add_argument("--output", type=Path, help="file to write the result to, as JSON")
    result.add_argument(
        "--wandb",
        action="store_true",
        help="log the estimates and the differences to Weights & Biases; offline without a key",
    )


def run(options: argparse.Namespace) -> None:
    if options.wandb:
        needs_wandb("--wandb")
    if options.output and not options.output.parent.is_dir():
        raise InputError(f"--output: there is no directory {options.output.parent}.")
    processes = Processes(options.devices, options.num_nodes, options.accelerator)
    processes.check()
    if options.threads is not None:
        check_whole(1, threads=options.threads)
        torch.set_num_threads(options.threads)
    elif processes.number == 1:
        # several processes share the cores: their launcher decides
        torch.set_num_threads(default_threads(LARGE_WORK))
    if not options.checkpoint and not options.policy:
        raise InputError(
            f"--checkpoint is needed, or --policy. What a command takes: {program('replay')} evaluate --help."
        )
    make_current_directory_importable()
    model = import_class(options.model, Agent, "--model") if options.model else None
    agents = {
        path: load_trained(path, model, options.features, frozen=True, **_own(options)) for path in options.checkpoint
    }
    settings = EvaluationSettings(
        options.candidates, options.arms, options.rejection, options.propensity_floor, options.draws, options.seed
    )
    if options.policy or len(agents) > 1:
        _compare(options, agents, settings, processes)
    else:
        if options.baseline is not None:
            raise InputError("--baseline needs another policy to compare with it: give --policy, or more checkpoints.")
        (trained,) = agents.values()
        _evaluate_one(options, trained, settings, processes)


def _compare(
    options: argparse.Namespace, agents: dict[Path, TrainedAgent], settings: EvaluationSettings, processes: Processes
) -> None:
    """Several policies, or one that is no agent."""
    if options.obp:
        raise InputError("--obp evaluates one checkpoint alone. Leave out --policy and other checkpoints.")
    policies: dict[str, Policy | TrainedAgent] = {}
    for given in options.policy:
        if given in policies:
            raise InputError(f"--policy {given} is given twice.")
        policies[given] = as_policy(given)
    names = [trained.agent.name for trained in agents.values()]
    for path, trained in agents.items():
        name = trained.agent.name
        policies[unique_name(name if names.count(name) == 1 else f"{name} {path}", policies)] = trained
    log = Log(options.log or bundled_log()).part(options.rows)
    trainer = processes.trainer(progress=True)
    result = compare(log, policies, settings, trainer, options.baseline)
    if not trainer.is_global_zero:
        return
    console = Console()
    for table in result.tables():
        console.print(table)
    _say(console, result.notes, result.warnings)
    _save(result.to_dict(), options.output)
    if options.output:
        console.print(f"Result: {options.output}", soft_wrap=True)
    if options.wandb:
        estimates = [{"policy": each["policy"], **row} for each in result.policies for row in each["replicas"]]
        differences = [
            {"baseline": result.baseline, **row} for row in result.to_dict().get("differences", {}).get("rows", [])
        ]
        _track(console, log, {"estimates": estimates, "differences": differences})


def _track(console: Console, log: Log, tables: dict[str, list[dict[str, Any]]]) -> None:
    """Log the tables as a W&B run, named after the log."""
    console.print(log_tables(str(log.path).rstrip("/").rpartition("/")[2], "evaluate", Path(), tables), soft_wrap=True)


def _evaluate_one(
    options: argparse.Namespace, trained: TrainedAgent, asked: EvaluationSettings, processes: Processes
) -> None:
    """One checkpoint."""
    agent, features = trained.agent, trained.features
    log = Log(options.log or bundled_log()).part(options.rows)
    features.check(log)
    settings = asked.of_agent(log, trained, check_rule(options.rejection, options.propensity_floor, log))
    draws = options.draws if agent.draws_choices else 1
    if options.obp:
        if not isinstance(features, ObdFeatures):
            raise InputError("--obp takes agents with the paper's features of the Open Bandit Dataset. Leave it out.")
        # obp takes seconds to import.
        from replay.evaluation import obp as bridge

        bridge.check_size(log)
    evaluation = measure(agent, features, log, settings, draws, True, processes)
    if not evaluation.trainer.is_global_zero:
        return
    result = describe(evaluation, log, settings)
    warning = trained.learned.warning(log, agent.name) if trained.learned else None
    loud = [warning] if warning else []
    result["notes"] = [*loud, *result["notes"]]
    console = Console()
    rows = [(str(row["replica"]), row) for row in result["replicas"]]
    title = f"{result['agent']}, frozen,"
    console.print(estimates_table(result["log"], result["level"], "replica", rows, title))
    _say(console, result["notes"], loud)
    _save(result, options.output)
    if options.wandb:
        _track(console, log, {"estimates": [{"policy": agent.name, **row} for row in result["replicas"]]})
    if options.obp:
        try:
            assert isinstance(features, ObdFeatures)
            result["obp"] = bridge.off_policy_estimates(agent, features, log, settings, draws)
        except ValueError as error:
            raise InputError(f"obp cannot evaluate this log: {error}") from error
        console.print(_obp_table(result["obp"]))
        _save(result, options.output)
    if options.output:
        console.print(f"Result: {options.output}", soft_wrap=True)


def _own(options: argparse.Namespace) -> dict[str, Any]:
    """The user's own parts of an agent, which a checkpoint only names."""
    given = {"exploration": options.exploration, "design": options.design}
    network = {} if options.network is None else {"network": import_callable(options.network, "--network")}
    return {name: path for name, path in given.items() if path is not None} | network


def _say(console: Console, notes: Sequence[str], warnings: Sequence[str]) -> None:
    """Print the notes; warnings also go to stderr, where they are seen if the output is not."""
    for note in notes:
        console.print(note, soft_wrap=True, markup=False, style="bold red" if note in warnings else None)
    for warning in warnings:
        print(warning, file=sys.stderr)


def _save(result: dict[str, Any], output: Path | None) -> None:
    if output:
        write_beside(output, lambda path: path.write_text(json.dumps(result, indent=2) + "\n"))


def _obp_table(asked: dict[str, Any]) -> Table:
    shown = Table(title="obp's estimators, replica 0", title_justify="left")
    for head in ("estimator", "value", "95% interval"):
        shown.add_column(head, justify="right")
    for name, row in asked["estimates"].items():
        shown.add_row(name, _digits(row["value"]), f"{_digits(row['low'])} to {_digits(row['high'])}")
    return shown


def _digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
