"""A reproduction of the paper's experiments: runs their parts, and judges each of the paper's claims."""

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from rich.console import Console
from rich.table import Table

from nl_lightning.core.errors import InputError
from nl_lightning.experiments import (
    claims,
    document,
    fits,
    further,
    hindsight,
    obd,
    paper,
    parts,
    plans,
    pool,
    power,
    storage,
    tables,
    tracking,
)
from nl_lightning.experiments.display import Display, duration
from nl_lightning.experiments.further import FurtherPart
from nl_lightning.experiments.hindsight import HindsightPart
from nl_lightning.experiments.obd import ReplayPart
from nl_lightning.experiments.parts import Part
from nl_lightning.experiments.readings import READINGS, Reading
from nl_lightning.experiments.results import FigureResult, PanelResult
from nl_lightning.runs.summary import REGRET

__all__ = ["Asked", "Reproduction", "finish", "results"]

_ORDER = [(reading, name) for reading in READINGS for name in claims.CLAIMS]
"""order of results, whichever finishes first"""

Key = tuple[str, str]
"""a reading, and a figure or a log"""

AnyPart = Part | FurtherPart | HindsightPart | ReplayPart


class Asked(NamedTuple):
    """The readings that are run, and the options that ask for them."""

    readings: list[Reading]
    options: list[str]


class Reproduction:
    """The figures to reproduce, their parts and their results."""

    def __init__(self, wanted: Sequence[str], asked_for: Asked, out: Path, resume: bool, wandb: bool) -> None:
        readings, self.options = asked_for
        self.readings = {reading.name: reading for reading in readings}
        self.out, self.root = out, out / "runs"
        self.console = Console()
        self.missing: dict[str, str] = {}
        """figures without a result, with the reason"""
        self.results: list[FigureResult] = []
        keys: list[Key] = []
        for reading in readings:
            keys += [(reading.name, name) for name in wanted if name in paper.FIGURES and reading.runs(name)]
            if "obd" in wanted and reading.runs("obd"):
                keys += [(reading.name, log) for log in obd.logs(reading)]
        if not keys:
            raise InputError(
                f"The readings {', '.join(self.readings)} do not run {', '.join(wanted)}; choose another --reading."
            )
        asked = {key: plans.plan(key[1], self.readings[key[0]]) for key in keys}
        for name in self.readings:
            own = {figure: plan for (reading, figure), plan in asked.items() if reading == name}
            plans.check(self.root / name, own, resume)
        without = {name for name in wanted if name in paper.FIGURES and not self._has_data(paper.FIGURES[name])}
        keys = [key for key in keys if key[1] not in without]
        self.tracked = tracking.WandbGroup.of(plans.identity(self.root)) if wandb else None
        self.parts: dict[Key, Sequence[AnyPart]] = {}
        for key in keys:
            plans.store(self.root / key[0], {key[1]: asked[key]})
            self.parts[key] = self._parts(*key)
        self._waiting: dict[Key, set[str]] = {}
        """the unfinished parts of every figure"""
        self.started = time.monotonic()

    def _parts(self, reading: str, name: str) -> Sequence[AnyPart]:
        how, root = self.readings[reading], self.root / reading
        if name in obd.LOGS:
            return obd.parts(name, how, root, self.tracked)
        figure = paper.FIGURES[name]
        own = parts.of_figure(figure, how, root, self.tracked)
        return [*own, *further.of_parts(own), *hindsight.of_figure(figure, how, root)]

    def _has_data(self, figure: paper.Figure) -> bool:
        """Whether the data are there, before anything runs."""
        for panel in figure.panels:
            try:
                # data are read when an environment is prepared for its replicas
                fits.environment_of(panel.environment).prepare([0], torch.empty(0, device="cpu"))
            except InputError as error:
                self.missing[figure.name] = str(error)
                self.console.print(f"{figure.name} cannot be run: {error}", style="red", soft_wrap=True, markup=False)
                return False
        return True

    # ---- run ------------------------------------------------------------------------------------------------------

    def run(self, jobs: int) -> bool:
        """Run what is not finished, and show the results. Returns whether nothing is missing."""
        left = {name: [part for part in own if not part.finished] for name, own in self.parts.items()}
        every = [part for own in left.values() for part in own]
        kept = sum(len(own) for own in self.parts.values()) - len(every)
        if kept:
            self.console.print(f"Parts: {kept} finished and kept, {len(every)} left.", highlight=False)
        self._waiting = {key: {part.name for part in own} for key, own in left.items()}
        for key, own in left.items():
            if not own:
                self._complete(key)
        with Display(len(every), sum(part.cost for part in every), self.console, self._on_done) as display:
            for part in every:
                display.expect(part)
            pool.run(self._stages(left, display.failures), min(jobs, max(1, len(every))), display)
        for key, own in left.items():
            lost = [part.name for part in own if part.name in display.failures]
            if lost:
                self.missing[_title(key)] = f"no result of {', '.join(lost)}; the reason is above"
        self._show()
        return not self.missing

    def _stages(self, left: Mapping[Key, list[AnyPart]], failures: Mapping[str, str]) -> list[pool.Stage]:
        """Further seeds depend on the first ones. The replay comes last: it takes nu and lam from the others' grids."""
        figures = [part for key, own in left.items() if key[1] not in obd.LOGS for part in own]
        first = [part for part in figures if not isinstance(part, FurtherPart)]
        later = [part for part in figures if isinstance(part, FurtherPart)]
        replays = [part for key, own in left.items() if key[1] in obd.LOGS for part in own]

        def settle() -> None:
            for own in self.parts.values():
                further.settle([part for part in own if isinstance(part, Part)])

        def prepare() -> None:
            if failures:
                # It would settle on other values than a reproduction in which nothing fails.
                raise InputError("the replay takes nu and lam from the grids of the figures, of which parts failed.")
            for name, reading in self.readings.items():
                logs = [log for log in obd.LOGS if (name, log) in left]
                if "simulated" in logs and reading.events is None:
                    said = power.sentence(paper.SIMULATED_LOG["ctr"], paper.REPLAY["arms"])
                    self.console.print(said, soft_wrap=True, highlight=False)
                if logs:
                    obd.prepare(logs, reading, self.root / name)

        return [pool.Stage(first), pool.Stage(later, settle), pool.Stage(replays, prepare)]

    def _on_done(self, task: pool.Task) -> None:
        """Save a figure as soon as its last part is finished."""
        part = cast("AnyPart", task)
        key = part.reading.name, part.figure
        self._waiting[key].discard(task.name)
        if not self._waiting[key]:
            self._complete(key)

    def _complete(self, key: Key) -> None:
        reading = self.readings[key[0]]
        try:
            for result in results(key[1], self.parts[key], reading, self.root / reading.name):
                judged = finish(result, self.out, self._command(key))
                self.results.append(judged)
                self.console.print(f"{_title((reading.name, judged.name))} is finished.", highlight=False)
                if self.tracked is not None:
                    tracking.log_figure(self.tracked, judged, self.out)
        except Exception as error:
            # The runs are there, and those of other figures go on.
            self.missing[_title(key)] = pool.reason(error)
        try:
            document.write(self.out)
        except InputError as error:
            self.missing["RESULTS.md"] = str(error)

    def _command(self, key: Key) -> str:
        """The command that makes these numbers again."""
        what = "obd" if key[1] in obd.LOGS else key[1]
        return " ".join(["python -m nl_lightning reproduce", what, "--reading", key[0], *self.options])

    # ---- the end --------------------------------------------------------------------------------------------------

    def _show(self) -> None:
        self.results.sort(key=lambda result: _ORDER.index((result.reading, result.name)))
        if any(result.verdicts for result in self.results):
            self.console.print(_table(self.results))
        if self.results:
            names = ", ".join(_title((result.reading, result.name)) for result in self.results)
            self.console.print(f"Results: {self.out / 'RESULTS.md'}", soft_wrap=True, highlight=False)
            self.console.print(f"Pictures and numbers in {self.out}: {names}", soft_wrap=True, highlight=False)
        if self.tracked is not None and self.tracked.offline:
            upload = f"find {shlex.quote(str(self.out))} -name 'offline-run-*' -exec wandb sync {{}} +"
            self.console.print(f"W&B runs are offline; upload them with: {upload}", soft_wrap=True, highlight=False)
        self.console.print(f"{duration(time.monotonic() - self.started)} in all.", highlight=False)
        for name, reason in self.missing.items():
            print(f"error: {name} is missing: {reason}", file=sys.stderr)
        if self.missing:
            print("Once that is mended, the same command with --resume runs only what is missing.", file=sys.stderr)


def results(name: str, own: Sequence[AnyPart], reading: Reading, root: Path) -> list[FigureResult]:
    """The results of the parts of a figure or of a log, without verdicts."""
    if name in obd.LOGS:
        return obd.results(name, reading, root)
    figure, figure_parts = paper.FIGURES[name], [part for part in own if isinstance(part, Part)]
    panels = [
        PanelResult(
            panel.name,
            panel.title,
            [part.result() for part in figure_parts if part.panel.name == panel.name],
            panel.row,
            panel.column,
        )
        for panel in reading.panels(figure)
    ]
    tuning: list[dict[str, Any]] = [row for part in figure_parts for row in part.tuning_rows()]
    notes = [
        *_reductions(reading),
        *further.note(figure_parts),
        *figure.notes,
        *filter(None, (part.note() for part in figure_parts)),
    ]
    notes += _edges(tuning, reading)
    seconds = sum(part.seconds() for part in own)
    swept = [result for part in figure_parts for result in part.sweep_results()]
    floors = [floor for part in own if isinstance(part, HindsightPart) for floor in part.floors()]
    return [
        FigureResult(
            name=name,
            title=figure.title,
            measure=REGRET.name,
            panels=panels,
            verdicts=[],
            tuning=tuning,
            notes=notes,
            seconds=seconds,
            reading=reading.name,
            sweeps=swept,
            floors=floors,
        )
    ]


def _reductions(reading: Reading) -> list[str]:
    """Notes on the tuning seeds, and on what is not as in the paper."""
    printed = READINGS["literal"]
    first, last = paper.FIRST_TUNING_SEED, paper.FIRST_TUNING_SEED + reading.tuning_seeds - 1
    tuned = f"seeds {first} to {last}" if last > first else f"seed {first}"
    notes = [
        f"nu and lam are tuned for each agent and panel on {tuned}; the final runs have seeds 0 to {reading.seeds - 1}"
        f"{', and further ones' if reading.most_seeds > reading.seeds else ''}."
    ]
    if reading.seeds != printed.seeds:
        notes.append(f"{reading.seeds} seeds{' or more' if reading.most_seeds else ''} (the paper: {printed.seeds}).")
    if reading.horizon != printed.horizon:
        notes.append(f"T = {reading.horizon:,} (the paper: {printed.horizon:,}).")
    if (reading.nu, reading.lam) != (paper.GRID, paper.GRID):
        chosen = [f"{name} from {_listed(values)}" for name, values in (("nu", reading.nu), ("lam", reading.lam))]
        notes.append(f"{' and '.join(chosen)} (the paper: both from {_listed(paper.GRID)}).")
    return notes


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _edges(tuning: Sequence[Mapping[str, Any]], reading: Reading) -> list[str]:
    """A note if the best nu is at the edge of the grid: a better value may lie outside."""
    chosen = [row for row in tuning if row["chosen"] and row["agent"] != paper.CONTROL]
    ends = min(reading.nu), max(reading.nu)
    least, most = (sum(row["nu"] == end for row in chosen) for end in ends)
    if len(reading.nu) == 1 or not least + most:
        return []
    return [
        f"In {least} of {len(chosen)} grids the smallest nu, {ends[0]:g}, was the best one, and in {most} the largest, "
        f"{ends[1]:g}: there a value outside the grid might be better still."
    ]


def finish(result: FigureResult, out: Path, command: str) -> FigureResult:
    """Judge a figure, and write its files."""
    judged = claims.verdicts(result.name, result.panels)
    result = result._replace(verdicts=judged, controls=claims.controls(result.name, result.panels))
    storage.save(result, out, command)
    return result


def _title(key: Key) -> str:
    """As a user writes it."""
    return f"{key[1]} ({key[0]})"


def _table(results: Sequence[FigureResult]) -> Table:
    """One row per claim and figure, one column per reading: how many panels have which verdict."""
    table = Table(title="The paper's claims, and the verdicts by panel", title_justify="left")
    head, rows = tables.claims_by_reading(results)
    for name in head:
        table.add_column(name)
    for row in rows:
        table.add_row(*row)
    return table
