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
from nl_lightning.experiments import claims, document, fits, obd, paper, parts, plans, pool, storage, tracking
from nl_lightning.experiments.display import Display, duration
from nl_lightning.experiments.obd import ReplayPart
from nl_lightning.experiments.parts import Part
from nl_lightning.experiments.results import FigureResult, PanelResult, Verdict

__all__ = ["Asked", "Reproduction", "finish", "results"]

_ORDER = [*paper.FIGURES, *(f"{log}-{varied}" for log in obd.LOGS for varied in paper.REPLAY_VARIED)]
"""order of results, whichever finishes first"""


class Asked(NamedTuple):
    """How much is run, and the options that ask for it."""

    scale: paper.Scale
    options: list[str]


class Reproduction:
    """The figures to reproduce, their parts and their results."""

    def __init__(self, wanted: Sequence[str], asked_for: Asked, out: Path, resume: bool, wandb: bool) -> None:
        self.scale, self.options = asked_for
        self.out, self.root, scale = out, out / "runs", self.scale
        self.console = Console()
        self.missing: dict[str, str] = {}
        """figures without a result, with the reason"""
        self.results: list[FigureResult] = []
        logs = list(obd.LOGS) if "obd" in wanted else []
        figures = [name for name in wanted if name != "obd"]
        asked = {name: plans.plan(name, scale) for name in [*figures, *logs]}
        plans.check(self.root, asked, resume)
        for name in figures:
            self._look_for_data(paper.FIGURES[name])
        figures = [name for name in figures if name not in self.missing]
        self.tracked = tracking.WandbGroup.of(plans.identity(self.root)) if wandb else None
        plans.store(self.root, {name: asked[name] for name in [*figures, *logs]})
        self.parts: dict[str, Sequence[Part | ReplayPart]] = {
            **{name: parts.of_figure(paper.FIGURES[name], scale, self.root, self.tracked) for name in figures},
            **{log: obd.parts(log, scale, self.root, self.tracked) for log in logs},
        }
        self._waiting: dict[str, set[str]] = {}
        """the unfinished parts of every figure"""
        self.started = time.monotonic()

    def _look_for_data(self, figure: paper.Figure) -> None:
        """Check that the data are there before anything runs."""
        for panel in figure.panels:
            try:
                # data are read when an environment is prepared for its replicas
                fits.environment_of(panel.environment).prepare([0], torch.empty(0, device="cpu"))
            except InputError as error:
                self.missing[figure.name] = str(error)
                self.console.print(f"{figure.name} cannot be run: {error}", style="red", soft_wrap=True, markup=False)
                return

    # ---- run ------------------------------------------------------------------------------------------------------

    def run(self, jobs: int) -> bool:
        """Run what is not finished, and show the results. Returns whether nothing is missing."""
        left = {name: [part for part in own if not part.finished] for name, own in self.parts.items()}
        every = [part for own in left.values() for part in own]
        kept = sum(len(own) for own in self.parts.values()) - len(every)
        if kept:
            self.console.print(f"Parts: {kept} finished and kept, {len(every)} left.", highlight=False)
        self._waiting = {name: {part.name for part in own} for name, own in left.items()}
        for name, own in left.items():
            if not own:
                self._complete(name)
        with Display(len(every), sum(part.cost for part in every), self.console, self._on_done) as display:
            for part in every:
                display.expect(part)
            pool.run(self._stages(left, display.failures), min(jobs, max(1, len(every))), display)
        for name, own in left.items():
            lost = [part.name for part in own if part.name in display.failures]
            if lost:
                self.missing[name] = f"no result of {', '.join(lost)}; the reason is above"
        self._show()
        return not self.missing

    def _stages(self, left: dict[str, list[Part | ReplayPart]], failures: Mapping[str, str]) -> list[pool.Stage]:
        """The replay comes last: it takes nu and lam from the grids of the others."""
        logs = [name for name in obd.LOGS if name in left]
        figures = [part for name, own in left.items() if name not in obd.LOGS for part in own]
        replays = [part for name in logs for part in left[name]]

        def prepare() -> None:
            if failures:
                # It would settle on other values than a reproduction in which nothing fails.
                raise InputError("the replay takes nu and lam from the grids of the figures, of which parts failed.")
            obd.prepare(logs, self.scale, self.root)

        return [pool.Stage(figures), pool.Stage(replays, prepare)]

    def _on_done(self, task: pool.Task) -> None:
        """Save a figure as soon as its last part is finished."""
        name = cast("Part | ReplayPart", task).figure
        self._waiting[name].discard(task.name)
        if not self._waiting[name]:
            self._complete(name)

    def _complete(self, name: str) -> None:
        try:
            for result in results(name, self.parts[name], self.scale, self.root):
                judged = finish(result, self.out, self._command(name))
                self.results.append(judged)
                self.console.print(f"{judged.name} is finished.", highlight=False)
                if self.tracked is not None:
                    tracking.log_figure(self.tracked, judged, self.out)
        except Exception as error:
            # The runs are there, and those of other figures go on.
            self.missing[name] = pool.reason(error)
        try:
            document.write(self.out)
        except InputError as error:
            self.missing["RESULTS.md"] = str(error)

    def _command(self, name: str) -> str:
        """The command that makes these numbers again."""
        what = "obd" if name in obd.LOGS else name
        return " ".join(["python -m nl_lightning reproduce", what, *self.options])

    # ---- the end --------------------------------------------------------------------------------------------------

    def _show(self) -> None:
        self.results.sort(key=lambda result: _ORDER.index(result.name))
        verdicts = [(result.name, verdict) for result in self.results for verdict in result.verdicts]
        if verdicts:
            self.console.print(_table(verdicts))
        if self.results:
            names = ", ".join(result.name for result in self.results)
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


def results(name: str, own: Sequence[Part | ReplayPart], scale: paper.Scale, root: Path) -> list[FigureResult]:
    """The results of the parts of a figure or of a log, without verdicts."""
    if name in obd.LOGS:
        return obd.results(name, scale, root)
    figure, figure_parts = paper.FIGURES[name], cast("Sequence[Part]", own)
    panels = [
        PanelResult(
            panel.name,
            panel.title,
            [part.result() for part in figure_parts if part.panel.name == panel.name],
            panel.row,
            panel.column,
        )
        for panel in figure.panels
    ]
    tuning: list[dict[str, Any]] = [row for part in figure_parts for row in part.tuning_rows()]
    notes = [*_reductions(scale), *figure.notes, *filter(None, (part.note() for part in figure_parts))]
    notes += _edges(tuning, scale)
    seconds = sum(part.seconds() for part in own)
    return [FigureResult(name, figure.title, "regret", panels, [], tuning, notes, seconds)]


def _reductions(scale: paper.Scale) -> list[str]:
    """Notes on the tuning seeds, and on what is less than in the paper."""
    wanted = paper.PAPER
    first, last = paper.FIRST_TUNING_SEED, paper.FIRST_TUNING_SEED + scale.tuning_seeds - 1
    tuned = f"seeds {first} to {last}" if last > first else f"seed {first}"
    notes = [
        f"nu and lam are tuned for each agent and panel on {tuned}; the final runs have seeds 0 to {scale.seeds - 1}."
    ]
    if scale.seeds != wanted.seeds:
        notes.append(f"{scale.seeds} seeds (the paper: {wanted.seeds}).")
    if scale.horizon != wanted.horizon:
        notes.append(f"T = {scale.horizon:,} (the paper: {wanted.horizon:,}).")
    if scale.grid != wanted.grid:
        values = ", ".join(f"{value:g}" for value in scale.grid)
        notes.append(f"nu and lam are chosen from {values} (the paper: {', '.join(f'{v:g}' for v in wanted.grid)}).")
    return notes


def _edges(tuning: Sequence[Mapping[str, Any]], scale: paper.Scale) -> list[str]:
    """A note if the best nu is at the edge of the grid: a better value may lie outside."""
    chosen = [row for row in tuning if row["chosen"]]
    least = [row for row in chosen if row["nu"] == min(scale.grid)]
    if not least or len(scale.grid) == 1:
        return []
    return [
        f"In {len(least)} of {len(chosen)} grids the smallest nu, {min(scale.grid):g}, was the best one: less "
        "exploration than the grid allows might be better still."
    ]


def finish(result: FigureResult, out: Path, command: str) -> FigureResult:
    """Judge a figure, and write its files."""
    result = result._replace(verdicts=claims.verdicts(result.name, result.panels))
    storage.save(result, out, command)
    return result


def _table(verdicts: Sequence[tuple[str, Verdict]]) -> Table:
    """One row per claim of a figure: in how many panels it holds."""
    table = Table(title="The paper's claims, and in how many panels the numbers agree", title_justify="left")
    heads = ("figure", "claim", "agrees", "disagrees", "not separable")
    for head in heads:
        table.add_column(head, justify="left" if head in heads[:2] else "right")
    rows: dict[tuple[str, str], list[Verdict]] = {}
    for figure, verdict in verdicts:
        rows.setdefault((figure, verdict.claim), []).append(verdict)
    for (figure, claim), found in rows.items():
        kinds = [verdict.verdict for verdict in found]
        counts = [kinds.count(head) for head in heads[2:]]
        table.add_row(figure, claim, *(str(count) if count else "" for count in counts))
    return table
