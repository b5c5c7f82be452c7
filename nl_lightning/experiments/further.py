"""Further seeds: as many more final runs as a panel needs to tell its agents apart (Stein's two stages).

The first seeds show how much the differences between agents vary. From that, and not from the differences themselves,
follows how many seeds a panel gets, so that the tests over all of them keep their level.

    <root>/<figure>/<panel>/seeds.json             how many seeds the panel gets; settled once
    <root>/<figure>/<panel>/<agent>/further/       the runs of the seeds behind the first ones
"""

import json
import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from scipy.special import stdtrit

from nl_lightning.core.files import write_beside
from nl_lightning.core.statistics import LEVEL
from nl_lightning.experiments import common, paper
from nl_lightning.experiments.claims import NEURAL
from nl_lightning.experiments.comparisons import MARGIN, counted, margin
from nl_lightning.experiments.parts import Part
from nl_lightning.experiments.pool import Tell
from nl_lightning.experiments.readings import Reading
from nl_lightning.experiments.results import PanelResult
from nl_lightning.runs.summary import REGRET

__all__ = ["FurtherPart", "needed", "note", "of_parts", "settle", "settled"]


class FurtherPart(NamedTuple):
    """The further seeds of one agent in one panel."""

    part: Part

    @property
    def name(self) -> str:
        return f"{self.part.name}, further seeds"

    @property
    def figure(self) -> str:
        return self.part.figure

    @property
    def reading(self) -> Reading:
        return self.part.reading

    @property
    def cost(self) -> float:
        """Of as many as there may be, or of as many as there are."""
        reading, panel = self.reading, self.part.panel
        total = settled(self.part.root, self.figure, panel.name) or most(reading, panel)
        size = common.parameters(self.part.agent, panel.features, paper.NETWORK["width"])
        return common.seconds(total - reading.seeds, reading.horizon, size, panel.distinct_arms)

    @property
    def finished(self) -> bool:
        total = settled(self.part.root, self.figure, self.part.panel.name)
        if total is None:
            return False
        return total <= self.reading.seeds or not self.part.chosen or common.finished(self.part.further) is not None

    def run(self, tell: Tell) -> str:
        total = settled(self.part.root, self.figure, self.part.panel.name)
        assert total is not None, self.name
        if total <= self.reading.seeds or not self.part.chosen:
            return "none are needed"
        self.part.run_further(total, tell)
        return f"{total} seeds in all"

    def seconds(self) -> float:
        """Counted by the part itself."""
        return 0.0


def most(reading: Reading, panel: paper.Panel) -> int:
    """The seeds that a panel may get."""
    return max(reading.seeds, min(reading.most_seeds, panel.most_seeds or reading.most_seeds))


def of_parts(of_figure: Sequence[Part]) -> list[FurtherPart]:
    """A part for each that may need further seeds."""
    return [FurtherPart(part) for part in of_figure if most(part.reading, part.panel) > part.reading.seeds]


def needed(panel: PanelResult) -> int:
    """n = max over pairs of explorers of (t_{n_0 - 1} s / (w / 2))^2, from n_0 seeds of each.

    s is the standard deviation of the pair's differences, w the margin within which they are practically equal. With n
    seeds the interval of a difference has a half-width of about w / 2 at most. Such an interval lies on one side of
    zero, or within w of it: the comparison is decided.
    """
    agents = [a for a in counted(panel, REGRET).agents if a.agent in NEURAL and len(a.final) > 1]
    found = 0.0
    for first, second in combinations(agents, 2):
        t = stdtrit(len(first.final) - 1, (1 + LEVEL) / 2)
        w = margin(min(first.final.mean(), second.final.mean()), first, REGRET)
        found = max(found, float(t * (first.final - second.final).std(ddof=1) / (w / 2)) ** 2)
    return math.ceil(found)


def settle(of_figure: Sequence[Part]) -> None:
    """Settle how many seeds each panel gets, once the first seeds of all of its agents are there."""
    panels = {part.panel.name: part for part in of_figure}
    for name, any_part in panels.items():
        own = [part for part in of_figure if part.panel.name == name]
        file = _file(any_part.root, any_part.figure, name)
        if file.exists() or not all(part.finished for part in own):
            continue
        reading = any_part.reading
        wanted = needed(PanelResult(name, "", [part.first_result() for part in own]))
        # in tens, so that the last digits of a regret hardly ever change it
        total = min(max(reading.seeds, 10 * math.ceil(wanted / 10)), most(reading, any_part.panel))
        text = json.dumps({"needed": wanted, "seeds": total}) + "\n"
        write_beside(file, lambda path, text=text: path.write_text(text))  # type: ignore[misc]


def settled(root: Path, figure: str, panel: str) -> int | None:
    """The seeds that a panel gets; None as long as that is not known."""
    file = _file(root, figure, panel)
    return int(json.loads(file.read_text())["seeds"]) if file.exists() else None


def note(of_figure: Sequence[Part]) -> list[str]:
    """How many seeds the panels got, and which would have needed more."""
    if not of_parts(of_figure):
        return []
    reading = of_figure[0].reading
    panels = dict.fromkeys(part.panel.name for part in of_figure)
    files = {name: _file(of_figure[0].root, of_figure[0].figure, name) for name in panels}
    found = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    got = ", ".join(f"{name} {row['seeds']}" for name, row in found.items())
    short = [f"{name} ({row['needed']:,})" for name, row in found.items() if row["needed"] > row["seeds"]]
    said = (
        f"Seeds by panel: {got}. The first {reading.seeds} say how many a panel needs so that the {LEVEL:.0%} interval "
        f"of every difference between two explorers has a half-width of at most {MARGIN / 2:.1%} of their regret, "
        f"which decides every comparison. A panel gets {reading.most_seeds} at most."
    )
    return [f"{said} More would have been needed for {', '.join(short)}." if short else said]


def _file(root: Path, figure: str, panel: str) -> Path:
    return root / figure / panel / "seeds.json"
