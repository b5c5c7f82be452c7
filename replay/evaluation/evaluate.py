"""Evaluate a trained agent, frozen, on a log: what it would have earned, and how sure that is.

match   rate of clicks among the events whose logged item the agent picks, with Wilson's interval
IPS     inverse propensity scoring, and SNIPS, its self-normalised form, with bootstrap intervals over blocks of rows
All in one pass. --obp adds the estimators of the Open Bandit Pipeline (DM, IPW, SNIPW, DR, Replay), which hold the
whole log in memory.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from nl_lightning.agents import AGENTS
from nl_lightning.agents.base import Agent
from nl_lightning.core.checks import check_whole
from nl_lightning.core.errors import InputError
from nl_lightning.core.files import write_beside
from nl_lightning.core.statistics import CLICK_LEVEL
from nl_lightning.rollout.data import BanditData
from replay.evaluation.estimators import METRICS, monte_carlo_error
from replay.evaluation.evaluator import Evaluation, rejected
from replay.evaluation.processes import ACCELERATORS, ONE, Processes, ending_together
from replay.evaluation.shards import LogData
from replay.formats.sample import bundled_log
from replay.logs.reader import Log
from replay.protocol.candidates import PROTOCOLS, check_protocol
from replay.protocol.events import Setting
from replay.protocol.features import Features, digest
from replay.protocol.rejection import RULES, check_rule, floor_note
from replay.simulation.ground_truth import exact_ctr
from replay.simulation.simulated_world import World

DRAWS = 20
"""Monte Carlo draws of a Thompson agent."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log", help="directory of a log, a path or an address (s3://...); left out, the sample that obp carries"
    )
    parser.add_argument("--checkpoint", type=Path, required=True, help="of a run on a log: checkpoints/last.ckpt")
    meanings = "; ".join(f"{name}: {text}" for name, text in PROTOCOLS.items())
    parser.add_argument("--candidates", choices=PROTOCOLS, help=f"{meanings}; left out, as in training")
    parser.add_argument("--arms", type=int, help="number of items that an event shows; left out, as in training")
    meanings = "; ".join(f"{name}: {text}" for name, text in RULES.items())
    parser.add_argument("--rejection", choices=RULES, default="propensity", help=f"of the match estimator. {meanings}")
    parser.add_argument(
        "--propensity-floor", type=float, help="the constant c; left out, the log's smallest propensity"
    )
    parser.add_argument("--draws", type=int, default=DRAWS, help="Monte Carlo draws of a Thompson agent's choice")
    parser.add_argument("--seed", type=int, default=0, help="of random candidate sets and of the propensity correction")
    parser.add_argument("--devices", type=int, default=1, help="processes that share the log, on each machine")
    parser.add_argument("--num-nodes", type=int, default=1, help="machines")
    parser.add_argument("--accelerator", choices=ACCELERATORS, default="cpu", help="what each process computes on")
    parser.add_argument("--obp", action="store_true", help="also ask obp's estimators, for the first replica")
    parser.add_argument("--output", type=Path, help="file for the result as JSON")


def run(options: argparse.Namespace) -> None:
    if options.output and not options.output.parent.is_dir():
        raise InputError(f"--output: there is no directory {options.output.parent}.")
    processes = Processes(options.devices, options.num_nodes, options.accelerator)
    processes.check()
    agent, features, trained = load(options.checkpoint)
    log = Log(options.log or bundled_log())
    features.check(log)
    setting = _setting(options, log, trained)
    draws = options.draws if agent.exploration.stochastic else 1
    if options.obp:
        from replay.evaluation import obp as bridge

        bridge.check_size(log)
    evaluation = measure(agent, features, log, setting, draws, True, processes)
    if not evaluation.trainer.is_global_zero:
        return
    result = describe(evaluation, log, setting)
    console = Console()
    console.print(table(result))
    for note in result["notes"]:
        console.print(note, soft_wrap=True)
    _save(result, options.output)
    if options.obp:
        try:
            result["obp"] = bridge.off_policy_estimates(agent, features, log, setting, draws)
        except ValueError as error:
            raise InputError(f"obp cannot evaluate this log: {error}") from error
        console.print(_obp_table(result["obp"]))
        _save(result, options.output)
    if options.output:
        console.print(f"Result: {options.output}", soft_wrap=True)


def _save(result: dict[str, Any], output: Path | None) -> None:
    if output:
        write_beside(output, lambda path: path.write_text(json.dumps(result, indent=2) + "\n"))


def load(checkpoint: Path) -> tuple[Agent, Features, dict[str, Any]]:
    """The agent of a run on a log, its features, and how the log was shown to it."""
    if not checkpoint.is_file():
        raise InputError(f"There is no checkpoint {checkpoint}.")
    try:
        stored = torch.load(checkpoint, map_location="cpu", weights_only=False)
        name = stored["state_dict"]["_extra_state"]["identity"]["agent"]
    except Exception as error:
        raise InputError(f"{checkpoint} is not a checkpoint of an agent, or is damaged ({error}).") from error
    environment = stored.get(BanditData.__qualname__, {}).get("environment", {})
    if not environment.get("features"):
        raise InputError(
            f"{checkpoint} is of an agent that was not trained on a log: it has no features of users, items."
        )
    agent = AGENTS[name](**stored["hyper_parameters"])
    if any(value.dtype == torch.float64 for key, value in stored["state_dict"].items() if key.startswith("network.")):
        agent.double()
    agent.load_state_dict(stored["state_dict"])
    return agent, Features.from_state_dict(environment["features"]), environment["settings"]


def _setting(options: argparse.Namespace, log: Log, trained: dict[str, Any]) -> Setting:
    check_whole(0, seed=options.seed)
    check_whole(2, draws=options.draws)
    protocol = options.candidates or trained["candidates"]
    asked = options.arms if options.arms is not None else trained["arms"]
    arms = check_protocol(protocol, min(asked, log.n_items) if options.arms is None else asked, log.n_items)
    c = check_rule(options.rejection, options.propensity_floor, log.contents, str(log.path))
    return Setting(protocol, arms, c, options.seed)


def evaluate(
    agent: Agent,
    features: Features,
    log: Log,
    setting: Setting,
    draws: int = DRAWS,
    progress: bool = False,
    processes: Processes = ONE,
) -> dict[str, Any]:
    """The estimates of every replica, and what became of the events; the same in every process."""
    return describe(measure(agent, features, log, setting, draws, progress, processes), log, setting)


def measure(
    agent: Agent,
    features: Features,
    log: Log,
    setting: Setting,
    draws: int = DRAWS,
    progress: bool = False,
    processes: Processes = ONE,
) -> Evaluation:
    """One pass over the log, shared out among the processes."""
    evaluation = Evaluation(agent, features, log.rows, draws if agent.exploration.stochastic else 1)
    trainer = processes.trainer(progress)
    with ending_together(trainer):
        trainer.test(evaluation, LogData(log, features, setting, agent.replicas), verbose=False)
    return evaluation


def describe(evaluation: Evaluation, log: Log, setting: Setting) -> dict[str, Any]:
    """What an evaluation has found."""
    agent, features = evaluation.agent, evaluation.features
    results = evaluation.results()
    exact = None
    if "world" in log.description:
        world = World.from_description(log.description)
        exact = exact_ctr(agent, features, world, setting.protocol, setting.arms, draws=200).tolist()
    replicas = []
    for replica, counts in enumerate(rejected(evaluation, log)):
        row: dict[str, Any] = {"replica": replica, **agent.settings.of(replica)}
        for name, estimate in results.items():
            value, low, high = (float(part[replica]) for part in estimate)
            row |= {name: _number(value), f"{name}_low": _number(low), f"{name}_high": _number(high)}
        if agent.exploration.stochastic:
            row["ips_monte_carlo_error"] = float(monte_carlo_error(evaluation.totals())[replica])
        if exact is not None:
            row["exact"] = exact[replica]
        replicas.append({**row, "diverged_at": int(agent.diverged_at[replica]) or None, **counts})
    contents = log.contents
    about = {"path": str(log.path), "events": contents.rows, "clicks": contents.clicks, "ctr": contents.ctr}
    shown = {"candidates": setting.protocol, "arms": setting.arms, "propensity_floor": setting.c, "seed": setting.seed}
    result = {
        "agent": agent.name,
        "log": about,
        **shown,
        "level": CLICK_LEVEL,
        "draws": evaluation.draws,
        "replicas": replicas,
    }
    return {**result, "notes": _notes(result, evaluation, log)}


def table(result: dict[str, Any]) -> Table:
    """One row a replica."""
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


def _notes(result: dict[str, Any], evaluation: Evaluation, log: Log) -> list[str]:
    counted = result["replicas"][0]
    reasons = ", ".join(f"{number:,} {why}" for why, number in counted["rejected"].items())
    notes = [
        f"Replica 0: {counted['accepted']:,} of {counted['seen']:,} events accepted; rejected: {reasons}; "
        f"{counted['bad_rows']:,} bad rows were left out of the log."
    ]
    diverged = [str(row["replica"]) for row in result["replicas"] if row["diverged_at"]]
    if diverged:
        notes.append(f"TrainNN had diverged in replica {', '.join(diverged)}.")
    clicks = min((row["match"] or 0) * row["accepted"] for row in result["replicas"])
    if clicks < 10:
        notes.append(
            f"A replica matched only {clicks:.0f} clicks: bootstrap intervals of so few are too narrow, Wilson's not."
        )
    idle = evaluation.trainer.world_size - len(log.groups)
    if idle > 0:
        notes.append(f"{idle} processes had nothing to do: the log has {len(log.groups)} row groups to share out.")
    unknown = evaluation.counts.compute().unknown
    if unknown:
        notes.append(f"{unknown:,} values of user features are missing or new to the agent; they count as zeros.")
    if evaluation.features.items_digest != digest(log.items):
        notes.append("The items of this log are described otherwise than those of training, which the agent goes by.")
    if result["candidates"] == "affinity":
        notes.append(
            "candidates: affinity always shows the logged item, so that these are the numbers of no single policy, and "
            "IPS, which takes that for chance, is far too large; uniform and all are unbiased."
        )
    if "exact" in counted:
        sets = f"the {result['arms']} items of highest affinity" if result["candidates"] == "affinity" else "such sets"
        notes.append(f"The log is simulated: exact is the agent's true CTR in its world, choosing from {sets}.")
    if counted["ips"] is None:
        notes.append("IPS needs propensities, and some of this log's are missing.")
    floor = floor_note(result["propensity_floor"], log.contents)
    if floor:
        notes.append(f"Match estimator: {floor}")
    if result["propensity_floor"] is None and not log.contents.uniform:
        notes.append("The log is not uniform: plain matches favour what it showed often. IPS and SNIPS do not.")
    if "ips_monte_carlo_error" in counted:
        error = counted["ips_monte_carlo_error"]
        notes.append(
            f"Action probabilities are means over {result['draws']} draws, which add a standard error of {error:.2g} "
            "to IPS."
        )
    return notes


def _digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _number(value: float) -> float | None:
    return None if value != value else value
