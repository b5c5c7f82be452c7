"""DR-ns: an agent learns on a log that is not uniform, and its value is estimated over all events.

The settings and their checks; the state is ``nl_lightning.environments.learner_value``.
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from nl_lightning.core.errors import InputError
from nl_lightning.environments.learner_value import LearnerSettings, lower_quantile
from replay.logs.reader import Log
from replay.protocol.candidates import Protocol
from replay.protocol.rejection import RULES

__all__ = ["DR_NS", "LEARNING_RULES", "LearningRule", "check_learning", "learner_note"]

LearningRule = Literal["propensity", "match", "biased-match", "dr-ns"]

DR_NS: Literal["dr-ns"] = "dr-ns"

LEARNING_RULES: dict[LearningRule, str] = {
    "propensity": RULES["propensity"],
    "match": RULES["match"],
    "biased-match": RULES["biased-match"],
    DR_NS: "keep an event with probability c pi / propensity, pi the agent's chance of the logged action and c a small "
    "quantile of propensity / pi, and estimate the value over all events (any log)",
}
"""Each rule by which an agent that learns accepts events, with its meaning."""

QUANTILE, C_MAX = 0.01, 1.0


def check_learning(
    rule: LearningRule, log: Log, protocol: Protocol, given: Mapping[str, Any]
) -> LearnerSettings | None:
    """Check the settings of DR-ns, as far as they are given; None for another rule, which has none of them."""
    if rule not in LEARNING_RULES:
        raise InputError(f"rejection must be one of {', '.join(LEARNING_RULES)}; got {rule!r}.")
    named = [name for name, value in given.items() if value is not None]
    if rule != DR_NS:
        own = [name for name in named if name != "propensity_floor"]
        if own:
            raise InputError(f"{own[0]} is a setting of rejection: dr-ns and has no effect with rejection: {rule}.")
        return None
    if given["propensity_floor"] is not None:
        raise InputError(
            "propensity_floor has no effect with rejection: dr-ns, whose c follows from quantile and c_max."
        )
    quantile, c_max, carry = given["quantile"], given["c_max"], given["carry_weights"]
    quantile = QUANTILE if quantile is None else quantile
    if not 0 <= quantile < 1:
        raise InputError(f"quantile must lie in [0, 1), got {quantile!r}.")
    if c_max is not None and not 0 < c_max < np.inf:
        raise InputError(f"c_max must be a number above 0, got {c_max!r}.")
    if quantile == 0:
        for name in ("c_max", "carry_weights"):
            if given[name] is not None:
                raise InputError(
                    f"{name} has no effect with quantile 0, where c stays the smallest propensity and no weight is "
                    "above 1."
                )
    if protocol == "affinity":
        raise InputError(
            "rejection: dr-ns divides by the propensity of the logged action, and candidates: affinity shows sets that "
            "depend on it; use candidates: uniform or all."
        )
    missing, statistics = log.missing_propensities, log.statistics
    if missing or statistics.propensity_low is None:
        raise InputError(
            f"{log.path}: {missing} of {statistics.rows} events have no propensity, which rejection: dr-ns needs. "
            "Convert the log with propensities, or accept biased matches with rejection: biased-match."
        )
    limit = C_MAX if c_max is None else c_max
    start = min(limit, _propensity_quantile(log, quantile)) if quantile else statistics.propensity_low
    carry = quantile > 0 if carry is None else carry
    modelled = given["reward_model"] != "none"
    return LearnerSettings(start, quantile, limit, carry, modelled, log.rows, statistics.propensity_low)


def _propensity_quantile(log: Log, quantile: float) -> float:
    """The quantile of the log's propensities: only so many of the lowest are held."""
    assert log.statistics.propensity_low is not None
    if log.statistics.uniform and log.statistics.propensity_low == log.statistics.propensity_high:
        return log.statistics.propensity_low
    place = lower_quantile(quantile, log.rows)
    lowest = np.empty(0)
    for group in log.groups:
        column = log.read(group, [log.schema.propensity_column])[0].to_numpy()
        lowest = np.concatenate([lowest, column])
        if len(lowest) > place + 1:
            lowest = np.partition(lowest, place)[: place + 1]
    return float(np.sort(lowest)[place])


def learner_note(settings: LearnerSettings) -> str:
    """What the reader of a value must know."""
    how = "the doubly robust" if settings.modelled else "the IPS"
    text = f"The value is {how} estimate of what this agent earns while it learns, over all events that it saw."
    if not settings.quantile:
        return f"{text} With quantile 0 it is unbiased."
    weights = "which weights make up for in part" if settings.carry_weights else "without weights"
    return (
        f"{text} With quantile {settings.quantile:g} about that share of the matched events is accepted less often "
        f"than it should be, {weights}: a little bias for many more accepted events."
    )
