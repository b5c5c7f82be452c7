"""What a summary is made of: the measure of a run, and the statistics of every setting over its replicas."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nl_lightning.core.replicas import SETTINGS
from nl_lightning.core.statistics import CLICK_LEVEL, LEVEL, interval, wilson

__all__ = ["CTR", "MEASURES", "REGRET", "VALUE", "Measure", "groups", "over_replicas"]


class Measure(NamedTuple):
    """What a run is judged by, and how it is written."""

    name: str
    """in a summary; the bounds of its interval have the suffixes ``_low`` and ``_high``"""
    column: str
    """of rounds.parquet"""
    text: str
    digits: int
    better: int
    """-1: lower is better, 1: higher is better"""


REGRET = Measure("regret", "cumulative_regret", "cumulative regret", 1, -1)
CTR = Measure("ctr", "cumulative_reward", "cumulative reward", 4, 1)
VALUE = ("value", "value_low", "value_high")
"""of a learning agent over all events of a log, where it was estimated"""
QUANTILES = (0.025, 0.25, 0.5, 0.75, 0.975)
MEASURES = {measure.name: measure for measure in (REGRET, CTR)}


def groups(replicas: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """The replicas of every setting, by the label that distinguishes it (``nu = 0.1, lam = 1``, or nothing)."""
    differing = [name for name in SETTINGS if len({replica[name] for replica in replicas}) > 1]
    found: dict[str, list[int]] = {}
    for number, replica in enumerate(replicas):
        label = ", ".join(f"{name} = {replica[name]:g}" for name in differing)
        found.setdefault(label, []).append(number)
    return found


def over_replicas(
    replicas: Sequence[dict[str, Any]], measure: Measure = REGRET, resample: int | None = None
) -> list[dict[str, Any]]:
    """The mean of every setting with its interval, best first; settings that diverged come last.

    For regret the interval is Student's t over seeds. For the CTR it is Wilson's for the events of one replica: seeds
    share the clicks of the log and add no evidence. Student's t over seeds is reported beside it. With ``resample``
    replicas played events drawn so many times from a log: quantiles over them stand beside the interval.
    """
    rows, times = [], resample or 1
    for numbers in groups(replicas).values():
        members = [replicas[number] for number in numbers]
        alive = [member for member in members if member["diverged_at"] is None]
        known = [member[measure.name] for member in alive if member[measure.name] is not None]
        band = interval(np.array(known)) if known else None
        low, high, level = (band.low, band.high, LEVEL) if band else (np.nan, np.nan, LEVEL)
        row: dict[str, Any] = {
            **{str(name): members[0][name] for name in SETTINGS},
            "replicas": numbers,
            "diverged": len(members) - len(alive),
            measure.name: _number(band.mean) if band else None,
        }
        if measure is CTR and alive:
            row |= {name: float(np.mean([member[name] for member in alive])) for name in ("clicks", "accepted", "seen")}
            row |= {"over_seeds_low": _number(low), "over_seeds_high": _number(high)}
            # a log that was drawn several times has the evidence of one
            (low, high), level = wilson(row["clicks"] / times, row["accepted"] / times), CLICK_LEVEL
            row[measure.name] = row["clicks"] / row["accepted"] if row["accepted"] else None
        row |= {f"{measure.name}_low": _number(low), f"{measure.name}_high": _number(high), "level": level}
        if resample is not None and known:
            row["quantiles"] = {f"{q:g}": float(np.quantile(known, q)) for q in QUANTILES}
        valued = [member for member in alive if member.get("value") is not None]
        if valued:
            # the ends are means over seeds: these share the log's clicks and add no evidence
            row |= {name: float(np.mean([member[name] for member in valued])) for name in VALUE}
        rows.append(row)

    def place(row: dict[str, Any]) -> tuple[bool, int, float]:
        # a value over all events says more than the clicks of those that were accepted
        judged = row.get("value", row[measure.name])
        return judged is None, row["diverged"], -measure.better * (judged or 0.0)

    return sorted(rows, key=place)


def _number(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)
