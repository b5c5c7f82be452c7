"""Whether two reproductions that differ by rounding come to the same verdicts."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from nl_lightning.core.errors import InputError
from nl_lightning.experiments.readings import READINGS
from nl_lightning.experiments.results import FigureResult
from nl_lightning.experiments.storage import load_all

__all__ = ["WANTED", "Agreement", "agreement", "verdicts_of"]

WANTED = 0.95
"""The share of equal verdicts that a reading should reach."""

Place = tuple[str, str, str, str]
"""reading, figure, claim and panel"""


class Agreement(NamedTuple):
    """The verdicts that both have, in one reading."""

    reading: str
    same: int
    total: int
    different: list[str]
    """what differs, in words"""

    @property
    def share(self) -> float:
        return self.same / self.total


def verdicts_of(results: Sequence[FigureResult]) -> dict[Place, str]:
    return {(r.reading, r.name, v.claim, v.panel): v.verdict for r in results for v in r.verdicts}


def agreement(one: Path, other: Path) -> list[Agreement]:
    """How many verdicts two directories of results share, by reading."""
    found = []
    for path in (one, other):
        results = [stored.result for stored in load_all(path)] if path.is_dir() else []
        if not results:
            raise InputError(f"{path} must be a directory with results of `reproduce`; it has none.")
        found.append(verdicts_of(results))
    first, second = found
    common = [place for place in first if place in second]
    if not common:
        raise InputError(f"{one} and {other} have no verdict in common; reproduce the same figures in both.")
    rows = []
    for reading in READINGS:
        own = [place for place in common if place[0] == reading]
        different = [
            f"{place[1]} {place[3]}, {place[2]}: {first[place]}, {second[place]}"
            for place in own
            if first[place] != second[place]
        ]
        if own:
            rows.append(Agreement(reading, len(own) - len(different), len(own), different))
    return rows
