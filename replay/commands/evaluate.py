"""Estimate what a trained agent would have earned on a log, and how certain that is. The agent does not learn.

match   click rate among the events whose logged item the agent picks, with Wilson's interval
IPS     inverse propensity scoring, with a bootstrap interval over blocks of rows
SNIPS   self-normalised IPS, with a bootstrap interval over blocks of rows

All of them take one pass over the log. --obp adds the estimators of the Open Bandit Pipeline (DM, IPW, SNIPW, DR,
Replay), which hold the whole log in memory.

An agent that does not come with nl_lightning is given by the import path of its class. Modules in the current
directory can be imported.

examples:
  python -m replay evaluate --checkpoint runs/obd/ID/checkpoints/last.ckpt --candidates all
  python -m replay evaluate --log data/mine --checkpoint last.ckpt --model my_module.MyAgent --output result.json
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from nl_lightning.agents.base import Agent
from nl_lightning.core.errors import InputError
from nl_lightning.core.files import write_beside
from nl_lightning.core.imports import import_callable, import_class
from nl_lightning.core.threads import LARGE_WORK, default_threads
from nl_lightning.core.whole import check_whole
from replay.evaluation.estimators import METRICS
from replay.evaluation.evaluate import DRAWS, describe, load, measure
from replay.evaluation.processes import ACCELERATORS, Processes
from replay.formats.sample import bundled_log
from replay.logs.reader import Log
from replay.protocol.candidates import PROTOCOLS, check_protocol
from replay.protocol.events import ReplaySettings
from replay.protocol.obd_features import ObdFeatures
from replay.protocol.rejection import RULES, check_rule

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log", help="directory of the log: a path or an address such as s3://bucket/log (default: the sample of obp)"
    )
    parser.add_argument(
        "--checkpoint", type=Path, required=True, help="checkpoint of a run on a log, checkpoints/last.ckpt"
    )
    parser.add_argument(
        "--model", help="class of the agent, for agents that do not come with nl_lightning", metavar="MODULE.CLASS"
    )
    parser.add_argument("--exploration", help="exploration rule of your own that it was trained with: my_module.MyRule")
    parser.add_argument("--design", help="design matrix of your own that it was trained with: my_module.MyDesign")
    parser.add_argument("--network", help="network of your own that it was trained with: my_module.MyNetwork")
    parser.add_argument("--features", help="function of your own that computed its features", metavar="MODULE:FUNCTION")
    meanings = "; ".join(f"{name}: {text}" for name, text in PROTOCOLS.items())
    parser.add_argument(
        "--candidates", choices=PROTOCOLS, help=f"items that an event offers. {meanings} (default: as in training)"
    )
    parser.add_argument("--arms", type=int, help="number of items that an event offers (default: as in training)")
    meanings = "; ".join(f"{name}: {text}" for name, text in RULES.items())
    parser.add_argument(
        "--rejection", choices=RULES, default="propensity", help=f"which events the match estimator uses. {meanings}"
    )
    parser.add_argument(
        "--propensity-floor", type=float, help="the constant c (default: the log's smallest propensity)"
    )
    parser.add_argument("--draws", type=int, default=DRAWS, help="Monte Carlo draws of a Thompson agent's choices")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of random candidate sets and of the propensity correction"
    )
    parser.add_argument("--devices", type=int, default=1, help="number of processes on each machine")
    parser.add_argument(
        "--threads", type=int, help="threads of each process (default: OMP_NUM_THREADS, or else those of this machine)"
    )
    parser.add_argument("--num-nodes", type=int, default=1, help="number of machines")
    parser.add_argument("--accelerator", choices=ACCELERATORS, default="cpu", help="device that each process uses")
    parser.add_argument("--obp", action="store_true", help="also run obp's estimators, for the first replica")
    parser.add_argument("--output", type=Path, help="file to write the result to, as JSON")


def run(options: argparse.Namespace) -> None:
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
    model = import_class(options.model, Agent, "--model") if options.model else None
    agent, features, trained = load(options.checkpoint, model, options.features, frozen=True, **_own(options))
    log = Log(options.log or bundled_log())
    features.check(log)
    settings = _settings(options, log, trained)
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
    console = Console()
    console.print(_table(result))
    for note in result["notes"]:
        console.print(note, soft_wrap=True)
    _save(result, options.output)
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


def _settings(options: argparse.Namespace, log: Log, trained: dict[str, Any]) -> ReplaySettings:
    """The settings that the options ask for; what they leave out is as in training."""
    check_whole(0, seed=options.seed)
    check_whole(2, draws=options.draws)
    protocol = options.candidates or trained["candidates"]
    arms = min(trained["arms"], log.n_items) if options.arms is None else options.arms
    arms = check_protocol(protocol, arms, log)
    c = check_rule(options.rejection, options.propensity_floor, log)
    return ReplaySettings(protocol, arms, c, options.seed)


def _save(result: dict[str, Any], output: Path | None) -> None:
    if output:
        write_beside(output, lambda path: path.write_text(json.dumps(result, indent=2) + "\n"))


def _table(result: dict[str, Any]) -> Table:
    """One row per replica."""
    log = result["log"]
    title = f"{result['agent']}, frozen, on {log['events']:,} events with {log['clicks']:,} clicks"
    shown = Table(title=f"{title}; {result['level']:.0%} intervals", title_justify="left")
    exact = ["exact"] if "exact" in result["replicas"][0] else []
    for head in ("replica", "match CTR", "IPS", "SNIPS", "accepted", "eff. size", *exact):
        shown.add_column(head, justify="right")
    for row in result["replicas"]:
        cells = [
            f"{_digits(row[n])}\n{_digits(row[n + '_low'])} to {_digits(row[n + '_high'])}" for n in list(METRICS)[:3]
        ]
        size = row["effective_sample_size"]
        truth = [_digits(row[name]) for name in exact]
        rate = f"{row['acceptance']:.2%}"
        shown.add_row(str(row["replica"]), *cells, rate, "-" if size is None else f"{size:,.0f}", *truth)
    return shown


def _obp_table(asked: dict[str, Any]) -> Table:
    shown = Table(title="obp's estimators, replica 0", title_justify="left")
    for head in ("estimator", "value", "95% interval"):
        shown.add_column(head, justify="right")
    for name, row in asked["estimates"].items():
        shown.add_row(name, _digits(row["value"]), f"{_digits(row['low'])} to {_digits(row['high'])}")
    return shown


def _digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
