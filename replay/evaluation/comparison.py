"""Evaluate policies of any kind on a log, several of them in one pass."""

import warnings
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

import lightning as L

from nl_lightning.core.arguments import suggest
from nl_lightning.core.errors import InputError
from nl_lightning.core.statistics import CLICK_LEVEL
from nl_lightning.core.whole import check_whole
from replay.evaluation.contenders import AgentContender, Comparison, ComparisonData, Contender, PolicyContender
from replay.evaluation.description import about_log, estimated_note, propensity_notes
from replay.evaluation.differences import Differences, compare_sums
from replay.evaluation.evaluate import DRAWS, TrainedAgent
from replay.evaluation.policies import LoggedPolicy, Policy
from replay.evaluation.processes import ONE, Processes, ending_together
from replay.evaluation.resolve import as_policies
from replay.evaluation.result import Result
from replay.logs.address import Address
from replay.logs.reader import Log
from replay.protocol.candidates import Protocol, check_protocol, default_protocol
from replay.protocol.events import ReplaySettings
from replay.protocol.features import Features
from replay.protocol.rejection import Rule, check_rule

__all__ = ["EvaluationSettings", "compare", "evaluate"]

_ARMS = 5
"""Arms of a round for an agent whose settings are not known, as in ``ReplayLog``."""


class EvaluationSettings(NamedTuple):
    """How policies are evaluated."""

    candidates: Protocol | None = None
    """what an event offers to an agent; None: as in training. Other policies choose among all candidates."""
    arms: int | None = None
    """number of arms that an event offers to an agent; None: as in training"""
    rejection: Rule = "propensity"
    """which events the match estimator uses"""
    propensity_floor: float | None = None
    draws: int = DRAWS
    """Monte Carlo draws for the action probabilities of a Thompson agent"""
    seed: int = 0
    """of the policies' choices, of drawn candidates and of the propensity correction"""

    def of_agent(self, log: Log, trained: TrainedAgent, c: float | None) -> ReplaySettings:
        """How events are shown to an agent; what is not set is as in training."""
        check_whole(0, seed=self.seed)
        check_whole(2, draws=self.draws)
        before = trained.settings or {"candidates": default_protocol(log), "arms": _ARMS}
        protocol = self.candidates or before["candidates"]
        arms = min(before["arms"], log.n_items) if self.arms is None else self.arms
        return ReplaySettings(protocol, check_protocol(protocol, arms, log), c, self.seed)


def evaluate(
    log: Log | str | Address,
    policy: Any,
    rows: str | None = None,
    *,
    features: Features | None = None,
    candidates: Protocol | None = None,
    arms: int | None = None,
    rejection: Rule = "propensity",
    propensity_floor: float | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    baseline: str | None = None,
    progress: bool = False,
    processes: Processes = ONE,
) -> Result:
    """Estimate what a policy would have earned on a log, and how certain that is.

    Args:
        log: the log, or its directory.
        policy: ``"logged"`` (the logging policy itself), ``"uniform"``, ``"best-fixed"`` (the best single action,
            chosen on other rows than it is evaluated on), ``"column:NAME"`` (a column of the log with another system's
            choices or probabilities), a function, as an object or as ``"module:function"``, that maps a DataFrame of N
            events to their probabilities (N, actions) over ``log.actions``, a ``Policy``, an agent, a pair of an agent
            and its features, or an agent's checkpoint. A dict or a list of these compares them in one pass over the
            log.
        rows: the part of the log to evaluate on, like ``"5000:"``; None for all of it.
        features: the features that an agent was trained with.
        candidates: what an event offers to an agent (default: as in training). Other policies choose among all
            candidates of the event.
        arms: number of arms that an event offers to an agent (default: as in training).
        rejection: which events the match estimator uses.
        propensity_floor: the constant c of the propensity correction (default: the smallest propensity).
        draws: Monte Carlo draws for the action probabilities of a Thompson agent.
        seed: seed of the policies' choices, of drawn candidates and of the propensity correction.
        baseline: name of the policy that the others are compared with (default: ``"logged"`` if it is among them, else
            the first one).
        progress: whether to show a progress bar.
        processes: the devices to evaluate on.
    """
    whole = log if isinstance(log, Log) else Log(log)
    settings = EvaluationSettings(candidates, arms, rejection, propensity_floor, draws, seed)
    asked, several = as_policies(policy, features)
    result = compare(whole.part(rows), asked, settings, processes.trainer(progress), baseline)
    result.several = several
    for warning in result.warnings:
        warnings.warn(warning, stacklevel=2)
    return result


def compare(
    log: Log,
    policies: Mapping[str, Policy | TrainedAgent],
    settings: EvaluationSettings,
    trainer: L.Trainer,
    baseline: str | None = None,
) -> Result:
    """Evaluate policies, given by name, on a log or a part of one, and compare them with the baseline.

    The result is the same in every process.
    """
    check_whole(0, seed=settings.seed)
    first = _baseline(policies, baseline)
    corrected = any(isinstance(each, TrainedAgent) or each.corrected for each in policies.values())
    c = check_rule(settings.rejection, settings.propensity_floor, log) if corrected else None
    contenders: list[Contender] = []
    for name, each in policies.items():
        if isinstance(each, TrainedAgent):
            each.features.check(log)
            contenders.append(AgentContender(name, each, log, settings.of_agent(log, each, c), settings.draws))
        else:
            # the caller's object stays as it is
            own = copy(each)
            own.name = name
            own.prepare(log)
            contenders.append(PolicyContender(own, log, c, settings.seed))
    compared, not_compared = _comparable(list(policies), contenders, first)
    comparison = Comparison([contender.evaluation for contender in contenders], first, compared)
    with ending_together(trainer):
        trainer.test(comparison, ComparisonData(log, contenders, first), verbose=False)
    names = list(policies)
    sums = zip((names[number] for number in compared), comparison.difference_sums(), strict=True)
    differences = compare_sums(names[first], list(sums), CLICK_LEVEL) if compared else None
    described = [contender.describe(log) for contender in contenders]
    if differences is not None:
        _add_truth(differences, described)
    notes = propensity_notes(log, c) if corrected else estimated_note(log)
    if "world" in log.description and any("exact" in each["replicas"][0] for each in described):
        notes.append("The log is simulated: exact is the true CTR in that world.")
    learned = [
        each.learned.warning(log, name)
        for name, each in policies.items()
        if isinstance(each, TrainedAgent) and each.learned is not None
    ]
    loud = [warning for warning in learned if warning]
    return Result(about_log(log), CLICK_LEVEL, c, settings.seed, described, [*notes, *not_compared], loud, differences)


def _add_truth(differences: Differences, described: Sequence[Mapping[str, Any]]) -> None:
    """Put the true differences beside those estimated on a simulated log, where the truth of both policies is known."""
    exact = {each["policy"]: [replica.get("exact") for replica in each["replicas"]] for each in described}
    baseline = exact[differences.baseline]
    for row in differences.rows:
        own = exact[row["policy"]] if row["replica"] is None else [exact[row["policy"]][row["replica"]]]
        if None not in own + baseline:
            row["exact"] = sum(own) / len(own) - sum(baseline) / len(baseline)


def _baseline(policies: Mapping[str, Policy | TrainedAgent], name: str | None) -> int:
    """The number of the policy that the others are compared with."""
    names = list(policies)
    if name is None:
        logged = [number for number, each in enumerate(policies.values()) if isinstance(each, LoggedPolicy)]
        return logged[0] if logged else 0
    if len(names) < 2:
        raise InputError(f"A baseline ({name}) needs another policy that is compared with it, and there is only one.")
    if name not in names:
        known = ", ".join(names)
        raise InputError(f"The baseline must be one of the policies, {known}; got {name!r}.{suggest(name, names)}")
    return names.index(name)


def _comparable(names: Sequence[str], contenders: Sequence[Contender], first: int) -> tuple[list[int], list[str]]:
    """The numbers of the policies that can be compared with the baseline, and notes on the others."""
    if len(names) < 2:
        return [], []
    if contenders[first].not_compared:
        return [], [f"Nothing is compared with {names[first]}: {contenders[first].not_compared}."]
    others = [number for number in range(len(names)) if number != first]
    notes = [
        f"{names[number]} is not compared with {names[first]}: {why}."
        for number in others
        if (why := contenders[number].not_compared)
    ]
    return [number for number in others if not contenders[number].not_compared], notes
