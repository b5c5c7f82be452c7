"""What a result says whatever was evaluated: estimates as plain numbers, the log, notes on its propensities."""

from collections.abc import Mapping, Sequence
from typing import Any

from replay.evaluation.estimators import Estimate
from replay.logs.reader import Log
from replay.logs.schema import LOGGING
from replay.protocol.rejection import floor_note

__all__ = [
    "FEW_CLICKS",
    "about_log",
    "estimated_note",
    "few_clicks_note",
    "plain_number",
    "propensity_notes",
    "replica_estimates",
]

FEW_CLICKS = 10
"""Matched clicks below which bootstrap intervals are too narrow."""


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


def few_clicks_note(replicas: Sequence[Mapping[str, Any]], who: str) -> list[str]:
    """A note if so few clicks were matched that bootstrap intervals are too narrow."""
    clicks = min((row["match"] or 0) * row["accepted"] for row in replicas)
    if clicks >= FEW_CLICKS:
        return []
    return [f"{who} matched only {clicks:.0f} clicks: its bootstrap intervals are too narrow; Wilson's are not."]


def estimated_note(log: Log) -> list[str]:
    """A note if the propensities of a log are estimated."""
    if log.schema.logging != "estimated":
        return []
    return [
        f"Propensities are estimated: {LOGGING['estimated']}. IPS and SNIPS are as right as that model is, and the "
        "intervals do not contain its error."
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


def plain_number(value: float) -> float | None:
    """A number for JSON, which has no NaN."""
    return None if value != value else value
