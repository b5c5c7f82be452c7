"""The result of an evaluation: a table to print, a data frame, JSON."""

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from replay.evaluation.differences import Differences
from replay.evaluation.estimators import METRICS

__all__ = ["Result", "differences_table", "estimates_table"]

_WIDTH = 100
"""Characters of a line where a result is turned into text."""


class Result:
    """Estimates of what policies would have earned on a log. It prints as a table.

    Attributes:
        log: the log, or the part of it: path, events, clicks, ctr, rows.
        level: level of the intervals.
        propensity_floor: the constant c of the propensity correction of the match estimator, None without it.
        seed: seed of choices and of the propensity correction.
        policies: of each policy its name (``policy``), the estimates of its replicas and its notes.
        warnings: sentences that must not be overlooked; they are also the first notes.
        several: whether a data frame names the policy even if there is only one.
        differences: a data frame, each policy against the baseline.
    """

    def __init__(
        self,
        log: Mapping[str, Any],
        level: float,
        propensity_floor: float | None,
        seed: int,
        policies: Sequence[Mapping[str, Any]],
        notes: Sequence[str] = (),
        warnings: Sequence[str] = (),
        differences: Differences | None = None,
    ) -> None:
        self.log, self.level, self.propensity_floor, self.seed = dict(log), level, propensity_floor, seed
        self.policies = [dict(policy) for policy in policies]
        self.warnings = list(warnings)
        self.several = len(self.policies) > 1
        self._notes, self._differences = list(notes), differences

    @property
    def notes(self) -> list[str]:
        """What to know about the estimates, in sentences."""
        several = len(self.policies) > 1
        own = [f"{each['policy']}: {note}" if several else note for each in self.policies for note in each["notes"]]
        return [*self.warnings, *self._notes, *own, *(self._differences.notes if self._differences else [])]

    @property
    def baseline(self) -> str | None:
        """The policy that the others are compared with; None where nothing is compared."""
        return self._differences.baseline if self._differences else None

    @property
    def differences(self) -> pd.DataFrame:
        """A row per policy that is compared with the baseline: the difference of click rates (IPS), paired by event.

        The columns are value, low, high, level (of this interval), verdict (better, worse or cannot tell, by one rule),
        smallest_difference (that these events show with 80% power) and events_needed (for a difference of 10% of the
        baseline's click rate); on a simulated log also exact, the true difference. If a policy has several replicas,
        the index has a level for these; the row of an agent as a whole is its mean over replicas, named ``mean``.
        """
        rows = self._differences.rows if self._differences else []
        columns = ["value", "low", "high", "level", "verdict", "smallest_difference", "events_needed"]
        columns += ["exact"] if any("exact" in row for row in rows) else []
        several = any(row["replica"] is not None for row in rows)
        keys = [(row["policy"], "mean" if row["mean"] else row["replica"] or 0) for row in rows]
        index = pd.MultiIndex.from_tuples(keys, names=["policy", "replica"]) if rows else None
        frame = pd.DataFrame([[row.get(name) for name in columns] for row in rows], index=index, columns=columns)
        return frame if several or not rows else frame.droplevel("replica")

    def to_dict(self) -> dict[str, Any]:
        """The whole result as plain values, which JSON can hold."""
        about = {"log": self.log, "propensity_floor": self.propensity_floor, "seed": self.seed, "level": self.level}
        compared = {"differences": self._differences.to_dict()} if self._differences else {}
        return {**about, "policies": self.policies, **compared, "notes": self.notes}

    def to_pandas(self) -> pd.DataFrame:
        """A row per estimate (match, ips, snips, ...), with the columns value, low and high.

        If several policies were asked for, the first level of the index is the policy; if any of them has several
        replicas, there is a level for these as well. ``exact``, the true value, is there for simulated logs.
        """
        found = [
            (
                (policy["policy"], replica["replica"], name),
                [replica.get(f"{name}{end}") for end in ("", "_low", "_high")],
            )
            for policy in self.policies
            for replica in policy["replicas"]
            for name in (*METRICS, "exact")
            if name in replica
        ]
        levels = ["policy", "replica", "estimator"]
        frame = pd.DataFrame(
            [values for _, values in found],
            index=pd.MultiIndex.from_tuples([key for key, _ in found], names=levels),
            columns=["value", "low", "high"],
            dtype=float,
        )
        unused = [] if self.several else ["policy"]
        unused += [] if any(len(policy["replicas"]) > 1 for policy in self.policies) else ["replica"]
        return frame.droplevel(unused) if unused else frame

    def table(self) -> Table:
        """The estimates as a table of rich, a row per policy and replica."""
        rows = [
            (policy["policy"] + (f"\nreplica {row['replica']}" if len(policy["replicas"]) > 1 else ""), row)
            for policy in self.policies
            for row in policy["replicas"]
        ]
        return estimates_table(self.log, self.level, "policy", rows)

    def tables(self) -> list[Table]:
        """The tables to print: the estimates, and the differences if there are any."""
        return [self.table(), *([differences_table(self._differences)] if self._differences else [])]

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=_WIDTH, color_system=None, force_jupyter=False)
        for table in self.tables():
            console.print(table)
        for note in self.notes:
            console.print(note, markup=False, highlight=False)
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue().rstrip("\n")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        notes = "".join(f"<li>{_escaped(note)}</li>" for note in self.notes)
        compared = self.differences.to_html() if self._differences else ""
        return f"{self.to_pandas().to_html()}{compared}<ul>{notes}</ul>"


_LABEL_WIDTH = 16
"""Labels of so many letters, such as the names of the agents, stay on one line. Where there are longer ones, all are
folded if the terminal is narrow."""


def estimates_table(
    log: Mapping[str, Any],
    level: float,
    head: str,
    rows: Iterable[tuple[str, Mapping[str, Any]]],
    title: str = "Estimates",
) -> Table:
    """A table with one row per pair of a label, under ``head``, and the estimates of a replica."""
    rows = list(rows)
    on = f"{log['events']:,} events with {log['clicks']:,} clicks"
    estimated = "; propensities are estimated" if log["logging"] == "estimated" else ""
    shown = Table(title=f"{title} on {on}; {level:.0%} intervals{estimated}", title_justify="left")
    exact = ["exact"] if any("exact" in row for _, row in rows) else []
    short = all(len(label) <= _LABEL_WIDTH for label, _ in rows)
    shown.add_column(head, justify="left" if head == "policy" else "right", overflow="fold", no_wrap=short)
    for name in ("match CTR", "IPS", "SNIPS", "accepted", "eff. size", *exact):
        shown.add_column(name, justify="right")
    for label, row in rows:
        cells = [
            f"{_digits(row[n])}\n{_digits(row[n + '_low'])} to {_digits(row[n + '_high'])}" for n in list(METRICS)[:3]
        ]
        size = row["effective_sample_size"]
        truth = [_digits(row.get(name)) for name in exact]
        shown.add_row(
            escape(label), *cells, f"{row['acceptance']:.2%}", "-" if size is None else f"{size:,.0f}", *truth
        )
    return shown


def differences_table(differences: Differences) -> Table:
    """A row per policy, and per replica where there are several: its click rate less that of the baseline."""
    levels = sorted({row["level"] for row in differences.rows})
    each = " and ".join(f"{level:.4g}" for level in (100 * level for level in levels))
    title = f"Differences from {escape(differences.baseline)} (IPS, paired by event); {each}% intervals"
    shown = Table(title=title, title_justify="left")
    shown.add_column("policy", overflow="fold")
    exact = ["exact"] if any("exact" in row for row in differences.rows) else []
    for name in ("difference", "interval", "verdict", "detectable\nat 80% power", *exact):
        shown.add_column(name, justify="right")
    for row in differences.rows:
        of_replica = "" if row["replica"] is None else f", replica {row['replica']}"
        label = f"{row['policy']}{', mean of replicas' if row['mean'] else of_replica}"
        size = row["smallest_difference"]
        cells = (
            f"{_signed(row['low'])} to {_signed(row['high'])}",
            row["verdict"],
            "-" if size is None else f"{size:.4f}",
            *(_signed(row.get(name)) for name in exact),
        )
        shown.add_row(escape(label), _signed(row["value"]), *cells)
    return shown


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.4f}"


def _digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
