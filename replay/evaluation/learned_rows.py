"""The rows of a log that an agent has learned from, so that nobody evaluates on them unawares."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from nl_lightning.agents.base import Agent
from nl_lightning.rollout.fitted import fits_of
from replay.logs.digest import digest
from replay.logs.reader import Log

__all__ = ["LearnedRows"]


class LearnedRows(NamedTuple):
    """Rows of a log that an agent has learned from."""

    rows: tuple[tuple[int, int], ...]
    """[start, stop) pairs, which may overlap"""
    parts: list[int]
    """rows of each file of the log"""
    digest: str
    """of the log's files"""

    @classmethod
    def from_state(cls, environment: Mapping[str, Any]) -> "LearnedRows | None":
        """Those of the stored state of a ``ReplayLog``; None if it does not tell its log.

        A state without ``learned_rows`` is that of a run that replays a log from its first row: all the rows that a
        replica has passed count as learned from.
        """
        log = environment.get("log")
        if not isinstance(log, Mapping) or not isinstance(log.get("digest"), str):
            return None
        if "learned_rows" in environment:
            rows = [(int(start), int(stop)) for start, stop in environment["learned_rows"]]
        else:
            # a place is (row group, offset, accepted, [rows passed, ...])
            rows = [(0, max((int(place[3][0]) for place in environment["places"]), default=0))]
        return cls(tuple(pair for pair in rows if pair[0] < pair[1]), list(log["parts"]), log["digest"])

    @classmethod
    def of_agent(cls, agent: Agent) -> "LearnedRows | None":
        """Those of the fits of an agent in this process, on the log that it was fitted on last; None if none is known.

        What an agent learned in another process, or by calling ``learn`` or ``observe``, is not known.
        """
        found = [learned for state in fits_of(agent) if (learned := cls.from_state(state)) is not None]
        same = [learned.rows for learned in found if learned.digest == found[-1].digest]
        return found[-1]._replace(rows=tuple(pair for rows in same for pair in rows)) if found else None

    def overlap(self, log: Log) -> int:
        """The number of rows of a log, or of a part of one, that were learned from; 0 if it is another log."""
        first, stop = log.first_row, log.first_row + log.rows
        inside = sorted((max(low, first), min(high, stop)) for low, high in self.rows)
        count, behind = 0, first
        for low, high in inside:
            count += max(0, high - max(low, behind))
            behind = max(behind, high)
        # the digest takes a second per gigabyte
        if not count or log.description["parts"] != self.parts or digest(log.path) != self.digest:
            return 0
        return count

    def warning(self, log: Log, name: str) -> str | None:
        """What to say if an agent is evaluated on rows that it has learned from; None if it is not."""
        count = self.overlap(log)
        if not count:
            return None
        end, whole = max(stop for _, stop in self.rows), sum(self.parts)
        ranges = ", ".join(f"{start}:{stop}" for start, stop in sorted(set(self.rows)))
        other = f"other rows, such as {end}:" if end < whole else "another log, or fit again with fewer rows"
        return (
            f"WARNING: {name} has learned from {count:,} of the {log.rows:,} rows that it is evaluated on (it learned "
            f"from rows {ranges}). Its estimates are probably too high: do not trust them. Evaluate on {other}."
        )
