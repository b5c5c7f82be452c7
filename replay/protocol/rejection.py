"""Rejection sampling: which events may be accepted.

An agent accepts an event if it picks the logged item. An item a that was logged with probability p(a) matches more
often the larger p(a) is. To correct for this, an event is kept with probability c / p(a):

    P(a logged and kept) = p(a) c / p(a) = c    for every a,  c <= min p

The events that are kept look as if they had been logged uniformly. Of a uniform log, all events are kept.
"""

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nl_lightning.core.errors import InputError
from nl_lightning.core.rng import Stream, row_numbers
from replay.logs.reader import Events, Log, RowGroup
from replay.logs.statistics import LogStatistics

__all__ = ["RULES", "Rule", "check_rule", "correction_numbers", "floor_note", "kept", "kept_rows", "matched_evenly"]


Rule = Literal["propensity", "match", "biased-match"]

RULES: dict[Rule, str] = {
    "propensity": "keep an event with probability c / propensity, which undoes the preferences of the logging policy",
    "match": "keep every event; an error for a log that is not uniform",
    "biased-match": "keep every event of any log: the result is biased towards what the logging policy preferred",
}
"""Each rule with its meaning, for the help of commands."""


def check_rule(rule: Rule, floor: float | None, log: Log) -> float | None:
    """Check a rule for a log; return its constant c, or None if every event is kept."""
    statistics = log.statistics
    if rule not in RULES:
        raise InputError(f"rejection must be one of {', '.join(RULES)}; got {rule!r}.")
    if floor is not None and not 0 < floor <= 1:
        raise InputError(f"propensity_floor must lie in (0, 1], got {floor!r}.")
    if rule == "match" and not statistics.uniform:
        raise InputError(
            f"{log.path} was not logged uniformly (propensities {_span(log)}), so plain matches favour what it "
            "showed often. Use rejection: propensity, or accept the bias with rejection: biased-match."
        )
    if rule == "match" and not matched_evenly(statistics):
        raise InputError(
            f"{log.path} has events with different numbers of candidates, so plain matches favour events with few of "
            "them. Use rejection: propensity, or accept the bias with rejection: biased-match."
        )
    if rule != "propensity":
        return None
    missing = log.missing_propensities
    if missing or statistics.propensity_low is None:
        raise InputError(
            f"{log.path}: {missing} of {statistics.rows} events have no propensity, which rejection: propensity needs. "
            "Convert the log with propensities, or accept biased matches with rejection: biased-match."
        )
    return statistics.propensity_low if floor is None else floor


def kept(events: Events, c: float | None, seed: int, group: RowGroup) -> Tensor:
    """(N,): whether u < c / p, for a uniform number u of each event. Where p < c, the event is always kept."""
    if c is not None and np.isnan(events.propensity).any():
        row = events.rows[int(np.isnan(events.propensity).argmax())]
        raise InputError(f"{group}: the event in row {row} has no propensity, which rejection: propensity needs.")
    return kept_rows(events.rows, events.propensity, c, seed)


def kept_rows(rows: range, propensity: NDArray[np.float64], c: float | None, seed: int) -> Tensor:
    """(N,): as ``kept``, for rows of a log whose propensities are known."""
    if c is None:
        return torch.ones(len(rows), dtype=torch.bool, device="cpu")
    return correction_numbers(rows, seed) < c / torch.from_numpy(propensity)


def correction_numbers(rows: range, seed: int) -> Tensor:
    """(N,): the uniform number of each event, by which it is kept or not."""
    return row_numbers(rows, 1, seed, Stream.REJECTION).squeeze(1)


def floor_note(c: float | None, statistics: LogStatistics) -> str | None:
    """A note on what the constant c does to a log: how many events it keeps, and how it biases the result."""
    low = statistics.propensity_low
    if c is None or low is None or matched_evenly(statistics):
        return None
    if c > low:
        return (
            f"propensity_floor {c:g} is above the log's smallest propensity, {low:g}: events below it are kept less "
            "often than they should be, so the result is biased towards what the log showed often."
        )
    share = c * statistics.inverse_propensities / statistics.rows
    return (
        f"The propensity correction keeps about {share:.2%} of the events, because the smallest propensity is {low:g}. "
        "A propensity_floor above it keeps more events, but is biased towards what the log showed often."
    )


def matched_evenly(statistics: LogStatistics) -> bool:
    """Whether a policy matches every event with the same probability: 1 / candidates, as many for each event."""
    listed = statistics.candidates
    return statistics.uniform and (listed is None or listed[0] == listed[1])


def _span(log: Log) -> str:
    statistics, missing = log.statistics, log.missing_propensities
    if statistics.propensity_low is None:
        return "are not recorded"
    return f"{statistics.propensity_low:g} to {statistics.propensity_high:g}" + (
        f", {missing} missing" if missing else ""
    )
