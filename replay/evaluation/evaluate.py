"""Evaluate a trained agent, frozen, on a log: load its checkpoint, run it over the events, describe the result.

``replay.evaluate`` (``replay.evaluation.comparison``) evaluates any policy.
"""

from pathlib import Path
from typing import Any, NamedTuple

from nl_lightning.agents import AGENTS
from nl_lightning.agents.base import Agent
from nl_lightning.agents.probabilities import DRAWS
from nl_lightning.agents.state import from_checkpoint, stored_name
from nl_lightning.core.checkpoint import read_checkpoint, restoring
from nl_lightning.core.differences import plain_number
from nl_lightning.core.errors import InputError
from nl_lightning.core.rejections import fate_of_events
from nl_lightning.core.statistics import CLICK_LEVEL
from nl_lightning.rollout.data import BanditData
from replay.evaluation.description import (
    about_log,
    propensity_notes,
    replica_estimates,
    small_sample_note,
)
from replay.evaluation.estimators import monte_carlo_error
from replay.evaluation.evaluator import Evaluation, rejected
from replay.evaluation.learned_rows import LearnedRows
from replay.evaluation.processes import ONE, Processes, ending_together
from replay.evaluation.shards import LogData
from replay.logs.reader import Log
from replay.protocol.events import ReplaySettings
from replay.protocol.features import Features, digest
from replay.protocol.fitting import Given, features_from_state
from replay.protocol.obd_features import ObdFeatures
from replay.simulation.ground_truth import exact_ctr
from replay.simulation.simulated_world import SimulatedWorld

__all__ = ["DRAWS", "TrainedAgent", "describe", "evaluate_agent", "load", "load_trained", "measure"]


class TrainedAgent(NamedTuple):
    """An agent and what it was trained with."""

    agent: Agent
    features: Features
    settings: dict[str, Any] | None = None
    """``candidates`` and ``arms`` of its training; None if they are not known"""
    learned: LearnedRows | None = None
    """the rows that it has learned from, if they are known"""


def load(
    checkpoint: Path, model: type[Agent] | None = None, features: Given = None, frozen: bool = False, **own: Any
) -> tuple[Agent, Features, dict[str, Any]]:
    """Load an agent that was trained on a log, as ``load_trained`` does.

    Returns:
        the agent, its features, and the settings it was trained with (``candidates`` and ``arms``).
    """
    trained = load_trained(checkpoint, model, features, frozen, **own)
    assert trained.settings is not None
    return trained.agent, trained.features, trained.settings


def load_trained(
    checkpoint: Path, model: type[Agent] | None = None, features: Given = None, frozen: bool = False, **own: Any
) -> TrainedAgent:
    """Load an agent that was trained on a log.

    Args:
        checkpoint: file of the checkpoint.
        model: class of the agent; by default it is looked up by its name among ``nl_lightning.AGENTS``. The checkpoint
            itself never decides which class is imported.
        features: the function that computes features of one's own, or its path ``my_module:function``.
        frozen: whether the agent only chooses, so that an optimiser of one's own need not be given again.
        own: settings that a checkpoint does not store because they are objects, such as ``exploration`` and ``design``.
    """
    stored = read_checkpoint(checkpoint)
    name = stored_name(checkpoint, stored)
    chosen = AGENTS.get(name) if model is None else model
    if chosen is None:
        raise InputError(
            f"{checkpoint} holds the agent {name!r}, which does not come with nl_lightning; give its class with "
            "--model my_module.MyAgent."
        )
    with restoring("the log", checkpoint):
        environment = stored.get(BanditData.__qualname__, {}).get("environment", {})
        if not environment.get("features"):
            raise InputError(f"{checkpoint} holds an agent that was not trained on a log: it has no features of a log.")
        fitted = features_from_state(environment["features"], features)
        settings = {name: environment["settings"][name] for name in ("candidates", "arms")}
        learned = LearnedRows.from_state(environment)
    return TrainedAgent(from_checkpoint(chosen, checkpoint, stored, own, frozen), fitted, settings, learned)


def evaluate_agent(
    agent: Agent,
    features: Features,
    log: Log,
    settings: ReplaySettings,
    draws: int = DRAWS,
    progress: bool = False,
    processes: Processes = ONE,
) -> dict[str, Any]:
    """Evaluate a frozen agent on a log; the result is the same in every process.

    Args:
        agent: the agent; all of its replicas are evaluated.
        features: the features it was trained with.
        log: the log.
        settings: how events are shown.
        draws: Monte Carlo draws for the action probabilities of a Thompson agent.
        progress: whether to show a progress bar.
        processes: the devices to evaluate on.
    """
    return describe(measure(agent, features, log, settings, draws, progress, processes), log, settings)


def measure(
    agent: Agent,
    features: Features,
    log: Log,
    settings: ReplaySettings,
    draws: int = DRAWS,
    progress: bool = False,
    processes: Processes = ONE,
) -> Evaluation:
    """Run the agent over the log once, sharded over the processes."""
    evaluation = Evaluation(agent, features, draws if agent.draws_choices else 1)
    trainer = processes.trainer(progress)
    with ending_together(trainer):
        trainer.test(evaluation, LogData(log, features, settings, agent.replicas), verbose=False)
    return evaluation


def describe(evaluation: Evaluation, log: Log, settings: ReplaySettings) -> dict[str, Any]:
    """The result of an evaluation as JSON: estimates and event counts of each replica, and notes."""
    agent, features = evaluation.agent, evaluation.features
    results = evaluation.results()
    exact = None
    # an exact value needs the scores to decide: an agent or a rule with a choice of its own has none
    if "world" in log.description and agent.decides_by_score and isinstance(features, ObdFeatures):
        world = SimulatedWorld.from_description(log.description)
        exact = exact_ctr(agent, features, world, settings.protocol, settings.arms, draws=200).tolist()
    replicas = []
    for replica, counts in enumerate(rejected(evaluation, log)):
        row = {"replica": replica, **agent.settings.of(replica), **replica_estimates(results, replica)}
        if evaluation.draws > 1:
            row["ips_monte_carlo_error"] = float(monte_carlo_error(evaluation.totals())[replica])
        if exact is not None:
            row["exact"] = plain_number(exact[replica])
        replicas.append({**row, "diverged_at": int(agent.diverged_at[replica]) or None, **counts})
    shown = {
        "candidates": settings.protocol,
        "arms": settings.arms,
        "propensity_floor": settings.c,
        "seed": settings.seed,
    }
    result = {
        "agent": agent.name,
        "log": about_log(log),
        **shown,
        "level": CLICK_LEVEL,
        "draws": evaluation.draws,
        "replicas": replicas,
    }
    return {**result, "notes": _notes(result, evaluation, log)}


def _notes(result: dict[str, Any], evaluation: Evaluation, log: Log) -> list[str]:
    counted = result["replicas"][0]
    who = "Replica 0: " if len(result["replicas"]) > 1 else ""
    notes = [f"{who}{fate_of_events(counted['seen'], counted['accepted'], counted['rejected'])}."]
    if counted["bad_rows"]:
        notes.append(f"{counted['bad_rows']:,} damaged rows were skipped when the log was converted.")
    diverged = [str(row["replica"]) for row in result["replicas"] if row["diverged_at"]]
    if diverged:
        notes.append(f"TrainNN diverged in replica {', '.join(diverged)}.")
    notes += small_sample_note(result["replicas"])
    idle = evaluation.trainer.world_size - len(log.groups)
    if idle > 0:
        notes.append(f"{idle} processes had nothing to do: the log has only {len(log.groups)} row groups.")
    unknown = evaluation.counts.compute().unknown
    if unknown:
        notes.append(f"{unknown:,} values of the context are missing or unknown to the agent; they count as zeros.")
    features = evaluation.features
    if features.items_digest not in (None, digest(log.items)):
        notes.append("The items of this log have other features than those of training; the agent uses the latter.")
    if result["candidates"] == "affinity":
        notes.append(
            "With candidates: affinity the logged item is always shown, so these numbers are not those of any single "
            "policy, and IPS, which ignores this, is far too large. With candidates: uniform or all they are unbiased."
        )
    if "exact" in counted:
        sets = f"the {result['arms']} items of highest affinity" if result["candidates"] == "affinity" else "such sets"
        notes.append(f"The log is simulated: exact is the agent's true CTR in that world, choosing from {sets}.")
    notes += propensity_notes(log, result["propensity_floor"])
    if "ips_monte_carlo_error" in counted:
        error = counted["ips_monte_carlo_error"]
        notes.append(
            f"Action probabilities are means over {result['draws']} draws. The standard error of {error:.2g} that this "
            "adds to IPS is part of its interval."
        )
    return notes
