"""The data of the HTML page, as plain lists and numbers that JSON can hold."""

import json
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nl_lightning.core.differences import bonferroni, rule
from nl_lightning.core.errors import InputError
from nl_lightning.core.power import EFFECT
from nl_lightning.core.replicas import SETTINGS
from nl_lightning.core.statistics import LEVEL, Interval
from nl_lightning.reporting.comparison import agent_rank
from nl_lightning.reporting.contenders import Contender
from nl_lightning.reporting.curves import SHOWN, Curves, bands, read_columns
from nl_lightning.reporting.differences import default_baseline, difference, how, level_of
from nl_lightning.reporting.discovery import StoredRun, flat_configs
from nl_lightning.reporting.palette import style_numbers
from nl_lightning.reporting.tables import notes as notes_of
from nl_lightning.runs.summary import CTR, REGRET, VALUE, Measure

__all__ = ["Entry", "gather", "read_entries"]

_POINTS = 8_000
"""Points of all curves of a page: 400 each with 20 curves, 100 each with 160 (20 grids); less than 2 MB."""

_FEWEST_POINTS = 100

_CROWD = 16
"""With more curves than this on several problems, only those of the first problem are switched on at first."""

_SEEDS_SHARE_CLICKS = (
    "All seeds replay the same log and share its clicks. Bands and intervals over seeds show the agent's own "
    "randomness only; they understate the uncertainty, because another log would give other numbers. The interval of "
    "the CTR in the table is Wilson's, for the clicks of one replica."
)


class Entry(NamedTuple):
    """One setting of a run: a curve, and a row of the table."""

    run: StoredRun
    row: dict[str, Any]
    """of the summary's ``over_replicas``"""
    t: NDArray[np.int64]
    """(P,)"""
    bands: dict[str, Interval]
    """(P,) each: ``value`` (regret or reward), ``dimension``, ``radius``, in a replay ``acceptance``; empty if all
    replicas diverged"""


def read_entries(run: StoredRun) -> list[Entry]:
    """The best settings of a run, with the mean and the band of their curves."""
    names = [run.measure.column, "logdet", "radius", *(["event"] if run.measure is CTR else [])]
    try:
        columns = read_columns(run.directory.rounds, len(run.summary["replicas"]), names)
    except (OSError, ValueError, LookupError, pa.ArrowException) as error:
        raise InputError(
            f"{run.directory.rounds} is damaged or not that of a run ({error}). Expected are the columns "
            f"{', '.join(['replica', 't', *names])}: leave this run out, or run it again."
        ) from error
    series = dict(zip(("value", "dimension", "radius", "acceptance"), columns, strict=False))
    if run.measure is CTR:
        # Rows of the log count from 0: when round t was accepted, its row and all rows before it had been seen.
        t, event = series["acceptance"]
        series["acceptance"] = Curves(t, t / (event + 1))
    found: dict[tuple[int, ...], dict[str, Interval]] = {}
    for name, curves in series.items():
        for row, band in bands(curves, run.summary):
            found.setdefault(tuple(row["replicas"]), {})[name] = band
    rows = run.summary["over_replicas"][:SHOWN]
    return [Entry(run, row, columns[0].t, found.get(tuple(row["replicas"]), {})) for row in rows]


def gather(title: str, runs: Sequence[StoredRun], entries: Sequence[Entry], left_out: Sequence[str]) -> dict[str, Any]:
    """Everything that the page shows."""
    points = max(_FEWEST_POINTS, _POINTS // max(len(entries), 1))
    sections = []
    for measure in (REGRET, CTR):
        chosen = [entry for entry in entries if entry.run.measure is measure]
        if chosen:
            sections.append(_section(measure, chosen, runs, points))
    beyond = [
        f"{run.name}: {len(run.summary['over_replicas']) - SHOWN} of {len(run.summary['over_replicas'])} settings; the "
        f"best {SHOWN} are shown, the others are in its summary.json"
        for run in runs
        if len(run.summary["over_replicas"]) > SHOWN
    ]
    versions: dict[str, list[str]] = {}
    for run in runs:
        for name, version in run.summary["versions"].items():
            known = versions.setdefault(name, [])
            known += [] if version in known else [version]
    heads = [
        {"name": r.name, "agent": r.summary["agent"], **{k: r.summary[k] for k in ("measure", "finished", "rounds")}}
        for r in runs
    ]
    return {
        "title": title,
        "level": LEVEL,
        "effect": EFFECT,
        "runs": heads,
        "versions": versions,
        "left_out": [*left_out, *beyond],
        "sections": sections,
        "configs": flat_configs(runs),
    }


# ---- a section: all runs of one measure ------------------------------------------------------------------------------


def _section(measure: Measure, entries: Sequence[Entry], runs: Sequence[StoredRun], points: int) -> dict[str, Any]:
    keys = list(dict.fromkeys(_problem(entry.run) for entry in entries))

    def place(entry: Entry) -> tuple[int, int]:
        return keys.index(_problem(entry.run)), agent_rank(entry.run.summary["agent"])

    entries = sorted(entries, key=place)
    problems = [place(entry)[0] for entry in entries]
    crowded = len(keys) > 1 and len(entries) > _CROWD
    labels = _labels(entries, problems)
    shown = []
    for number, (entry, label) in enumerate(zip(entries, labels, strict=True)):
        rivals = [
            other.run.summary["agent"] for other, its in zip(entries, problems, strict=True) if its == problems[number]
        ]
        colour, dash = style_numbers(rivals)[number - problems.index(problems[number])]
        shown.append(
            {
                "label": label,
                "run": next(i for i, run in enumerate(runs) if run is entry.run),
                "problem": problems[number],
                "colour": colour,
                "dash": dash + problems[number],
                "on": not crowded or problems[number] == 0,
                **_row(entry),
                **_curves(entry, points),
            }
        )
    contenders = [Contender(label, entry.run, entry.row) for label, entry in zip(labels, entries, strict=True)]
    firsts = [entries[problems.index(k)].run for k in range(len(keys))]
    notes = dict.fromkeys([_SEEDS_SHARE_CLICKS] if measure is CTR else [])
    for entry in entries:
        # the notes on one run's events are in the table
        notes |= dict.fromkeys(notes_of(entry.run.summary)[1:-1])
    for log in (run.summary["log"] for run in firsts if run.summary.get("log")):
        notes[f"The log has {log['clicks']:,} clicks in {log['events']:,} events (CTR {log['ctr']:.5f})."] = None
    return {
        "measure": measure.name,
        "text": measure.text,
        "digits": measure.digits,
        "better": measure.better,
        "interval": entries[0].row["level"],
        "problems": [
            {
                "text": _problem_text(run),
                "log": (run.summary.get("log") or {}).get("ctr"),
                **_comparison([number for number, its in enumerate(problems) if its == position], contenders),
            }
            for position, run in enumerate(firsts)
        ],
        "notes": list(notes),
        "entries": shown,
        "pairs": list(_pairs(contenders, problems)),
    }


def _problem(run: StoredRun) -> str:
    """A key that is equal for runs that can be compared: the environment, the log and the number of rounds.

    A finished replay may have had fewer rounds than it was given, because the log ended.
    """
    if not run.environment:
        # the problem is unknown
        return f"unknown {run.directory.path.resolve()}"
    log = run.summary.get("log") or {}
    return json.dumps([run.environment, _rounds(run), log.get("events"), log.get("clicks")], sort_keys=True)


def _rounds(run: StoredRun) -> int:
    given = run.config["data"].get("rounds") if run.measure is CTR and run.summary["finished"] else None
    return int(given or run.summary["rounds"])


def _problem_text(run: StoredRun) -> str:
    if not run.environment:
        return f"unknown: {run.name} has no config.yaml"
    name = str(run.environment.get("class_path", "environment")).rpartition(".")[2]
    given = (run.environment.get("init_args") or {}).items()
    arguments = ", ".join(f"{key} = {value}" for key, value in given if value is not None)
    return f"{name}: {arguments}; {_rounds(run):,} rounds" if arguments else f"{name}; {_rounds(run):,} rounds"


def _labels(entries: Sequence[Entry], problems: Sequence[int]) -> list[str]:
    """The agent, with its setting if it has several in one problem, and with the run if that is not unique."""
    short = []
    for entry, problem in zip(entries, problems, strict=True):
        agent = entry.run.summary["agent"]
        rivals = (other for other, its in zip(entries, problems, strict=True) if its == problem)
        same = [other.row for other in rivals if other.run.summary["agent"] == agent]
        differing = [name for name in SETTINGS if len({row[name] for row in same}) > 1]
        short.append(", ".join([agent, *(f"{name} = {entry.row[name]:g}" for name in differing)]))
    return [
        f"{label} ({entry.run.name})" if short.count(label) > 1 else label
        for label, entry in zip(short, entries, strict=True)
    ]


def _row(entry: Entry) -> dict[str, Any]:
    """The row of the table, with the numbers of the summary."""
    row, summary, measure = entry.row, entry.run.summary, entry.run.measure
    # nu and lam have no effect in theory mode
    used = [name for name in SETTINGS if not (summary.get("mode") == "theory" and name in ("nu", "lam"))]
    counts = {name: row.get(name) for name in ("clicks", "accepted", "seen")} if measure is CTR else {}
    return {
        "agent": summary["agent"],
        "setting": ", ".join([f"{name} = {row[name]:g}" for name in used] + ["theory"] * (len(used) < len(SETTINGS))),
        "seeds": len(row["replicas"]),
        "diverged": row["diverged"],
        "finished": summary["finished"],
        "rounds": summary["rounds"],
        "final": [row[f"{measure.name}{end}"] for end in ("", "_low", "_high")],
        "value": [row.get(name) for name in VALUE] if "value" in row else None,
        "over_seeds": [row.get("over_seeds_low"), row.get("over_seeds_high")] if measure is CTR else None,
        **counts,
        "rate": row["accepted"] / row["seen"] if row.get("seen") else None,
    }


def _curves(entry: Entry, points: int) -> dict[str, Any]:
    """t, and for every series the mean and half the width of its band; thinned further on a page with many curves."""
    kept = np.unique(np.linspace(0, len(entry.t) - 1, min(len(entry.t), points)).round().astype(np.int64))
    series = {
        name: {"mean": _short(band.mean[kept]), "half": _short((band.high - band.mean)[kept])}
        for name, band in entry.bands.items()
    }
    return {"t": entry.t[kept].tolist(), "series": series}


def _short(values: NDArray[np.float64]) -> list[float | None] | None:
    """Rounded to six digits, more than a picture shows. None for values that are not finite, or if none is finite."""
    finite = np.isfinite(values)
    return [float(f"{v:.6g}") if ok else None for v, ok in zip(values, finite, strict=True)] if finite.any() else None


# ---- differences -----------------------------------------------------------------------------------------------------


def _comparison(numbers: Sequence[int], contenders: Sequence[Contender]) -> dict[str, Any]:
    """How the entries of a problem are compared: the baseline at first, the level of each interval, and the rule."""
    own = [contenders[number] for number in numbers]
    measure, count = own[0].run.measure, len(own) - 1
    level = level_of(measure)
    return {
        "baseline": numbers[default_baseline([each.run.summary["agent"] for each in own])],
        "level": bonferroni(level, count),
        "rule": f"{how(own)} {rule('An agent', 'the baseline', count, level, measure.better)}",
    }


def _pairs(contenders: Sequence[Contender], problems: Sequence[int]) -> Iterator[list[float | None]]:
    """first, second, and of first - second the mean, low and high, the seeds that both have, and what it would take.

    The last two numbers are the events (seeds, in a simulation) that a difference of 10% takes where it cannot be told:
    of the second, and of the first.
    """
    for first, second in combinations(range(len(contenders)), 2):
        if problems[first] == problems[second]:
            level = bonferroni(level_of(contenders[first].run.measure), problems.count(problems[first]) - 1)
            found = difference(contenders[first], contenders[second], level)
            needed: list[float | None] = [None, None]
            if found["verdict"] == "cannot tell":
                turned = difference(contenders[second], contenders[first], level)
                needed = [row.get("events_needed", row.get("seeds_needed")) for row in (found, turned)]
            ends = (found[name] for name in ("value", "low", "high"))
            yield [
                first,
                second,
                *(None if x is None else float(f"{x:.6g}") for x in ends),
                found.get("seeds"),
                *needed,
            ]
