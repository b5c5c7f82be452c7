"""What a result says whatever was evaluated: estimates as plain numbers, the log, notes on its propensities."""

from collections.abc import Mapping, Sequence
from typing import Any

from nl_lightning.core.differences import plain_number
from replay.evaluation.estimators import Estimate
from replay.logs.reader import Log
from replay.logs.schema import LOGGING
from replay.protocol.rejection import floor_note

__all__ = [
    "SMALL_SAMPLE",
    "about_log",
    "estimated_note",
    "propensity_notes",
    "replica_estimates",
    "small_sample_note",
]

SMALL_SAMPLE = 100
"""Effective sample size below which a few events decide IPS and SNIPS."""


def replica_estimates(results: Mapping[str, Estimate], replica: int) -> dict[str, float | None]:
    """The estimates of a replica by name, such as ``ips``, ``ips_low`` and ``ips_high``; None instead of NaN."""
    row: dict[str, float | None] = {}
    for name, estimate in results.items():
        value, low, high = (float(part[replica]) for part in estimate)
        row |= {name: plain_number(value), f"{name}_low": plain_number(low), f"{name}_high": plain_number(high)}
    return row


def about_log(log: Log) -> dict[str, Any]:
    """The log, or the part of it, that was evaluated on."""
    counted = log.statistics
    return {
        "path": str(log.path),
        "events": counted.rows,
        "clicks": counted.clicks,
        "ctr": counted.ctr,
        "rows": [log.first_row, log.first_row + log.rows],
        "logging": log.schema.logging,
    }


def small_sample_note(replicas: Sequence[Mapping[str, Any]]) -> list[str]:
    """A note if the weights of a replica leave so little of the log that single events decide."""
    # without a match the size is 0/0, and IPS is 0; without propensities both are unknown
    sizes = [0.0 if row["effective_sample_size"] is None else row["effective_sample_size"] for row in replicas]
    small, row = min(zip(sizes, replicas, strict=True), key=lambda pair: pair[0])
    if small >= SMALL_SAMPLE or row["ips"] is None:
        return []
    who = f"Replica {row['replica']}" if len(replicas) > 1 else "It"
    if small == 0:
        return [f"{who} never picks a logged action: the log says nothing about its click rate."]
    return [
        f"{who} is judged by events that are worth {small:,.0f} (effective sample size): single ones decide IPS and "
        "SNIPS, and weights larger than those that were met are missing from the intervals."
    ]


def estimated_note(log: Log) -> list[str]:
    """A note if the propensities of a log are estimated."""
    if log.schema.logging != "estimated":
        return []
    return [
        f"{LOGGING['estimated'].capitalize()}. IPS and SNIPS are as right as that model is, and the intervals do not "
        "contain its error."
    ]


def propensity_notes(log: Log, c: float | None) -> list[str]:
    """Notes on where propensities come from, and what they and the constant c do to the estimates."""
    notes = estimated_note(log)
    if log.missing_propensities:
        notes.append("IPS needs propensities, and some are missing in this log.")
    floor = floor_note(c, log.statistics)
    if floor:
        notes.append(f"Match estimator: {floor}")
    if c is None and not log.statistics.uniform:
        notes.append("The log is not uniform: plain matches favour what it showed often; IPS and SNIPS do not.")
    return notes
