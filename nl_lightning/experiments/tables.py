"""The tables of RESULTS.md: pure functions from stored results to Markdown."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from nl_lightning.core.statistics import interval, wilson
from nl_lightning.experiments import paper_table
from nl_lightning.experiments.claims import CLAIMS
from nl_lightning.experiments.comparisons import VERDICTS
from nl_lightning.experiments.paper import LR
from nl_lightning.experiments.readings import READINGS
from nl_lightning.experiments.results import AgentResult, Control, FigureResult, Verdict
from nl_lightning.experiments.sweeps import Growth
from nl_lightning.runs.summary import CTR, MEASURES, REGRET, Measure

__all__ = [
    "cell",
    "chosen",
    "claims_by_reading",
    "control_table",
    "counted",
    "estimate",
    "finals",
    "grids",
    "growth_table",
    "markdown",
    "named",
    "replay_table",
    "verdict_table",
]

_ORDER = list(CLAIMS)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], right: int = 0) -> str:
    """A Markdown table; the columns from ``right`` on are right-aligned."""
    rule = ["---" if place < right else "--:" for place in range(len(head))]
    return "\n".join("| " + " | ".join(map(cell, row)) + " |" for row in [head, rule, *rows])


def cell(text: str) -> str:
    """Escape a text so that it cannot end its cell."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def named(result: FigureResult) -> list[str]:
    """The agents of a figure, in the order of its panels."""
    return list(dict.fromkeys(agent.agent for panel in result.panels for agent in panel.agents))


def finals(result: FigureResult) -> str:
    """Agents by panels: the mean over seeds and its interval; below them the models that were fitted in hindsight."""
    measure = MEASURES[result.measure]
    return _by_panel(result, lambda agent: estimate(agent, measure), _in_hindsight(result))


def estimate(agent: AgentResult, measure: Measure) -> str:
    """The mean over the seeds that did not diverge, with an interval.

    Of a regret it is Student's over seeds. Seeds of a replay share the log's clicks and are no new evidence: there
    it is Wilson's for the events of one seed, where their number is known.
    """
    known = ~np.isnan(agent.final)
    if not known.any():
        return "diverged" if agent.diverged else "-"
    values, digits = agent.final[known], measure.digits
    mean, low, high = (float(value) for value in interval(values))
    if measure is CTR and agent.accepted is not None:
        events = np.array(agent.accepted, dtype=np.float64)[known]
        clicks = float((values * events).mean())
        mean, (low, high) = clicks / float(events.mean()), wilson(clicks, float(events.mean()))
    if np.isnan(low):
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def chosen(result: FigureResult) -> str:
    """Agents by panels: the settings of the final runs."""

    def show(agent: AgentResult) -> str:
        shown = [f"{agent.settings[name]:g}" if name in agent.settings else "-" for name in ("nu", "lam")]
        return ", ".join([*shown, *([f"lr {agent.settings['lr']:g}"] if _other_step(agent) else [])])

    return _by_panel(result, show)


def verdict_table(verdicts: Sequence[Verdict]) -> str:
    rows = [[v.claim, v.panel, f"**{v.verdict}**", v.reason] for v in verdicts]
    return markdown(["claim", "panel", "verdict", "the test that says so"], rows, right=4)


def claims_by_reading(results: Sequence[FigureResult]) -> tuple[list[str], list[list[str]]]:
    """Every claim in every figure by reading, as head and rows: how many panels have which verdict."""
    readings = [name for name in READINGS if any(result.reading == name for result in results)]
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for result in results:
        for verdict in result.verdicts:
            by_reading = found.setdefault((verdict.claim, result.name), {})
            by_reading.setdefault(result.reading, []).append(verdict.verdict)
    rows = [
        [claim, figure, *(counted(by_reading.get(reading, [])) for reading in readings)]
        for (claim, figure), by_reading in sorted(found.items(), key=lambda item: _ORDER.index(item[0][1]))
    ]
    return ["claim", "where", *(READINGS[reading].title for reading in readings)], rows


def counted(given: Sequence[str]) -> str:
    """How often each verdict was given: "agrees 2, undecided 1"."""
    return ", ".join(f"{verdict} {given.count(verdict)}" for verdict in VERDICTS if verdict in given)


def control_table(controls: Sequence[Control]) -> str:
    rows = [[control.panel, f"**{control.finding}**", control.reason] for control in controls]
    return markdown(["panel", "does exploration pay?", "the test that says so"], rows, right=3)


def growth_table(found: dict[tuple[str, str], Growth]) -> str:
    """Agents by panels: the exponent of kappa with its interval, and the law that fits."""
    panels, agents = (list(dict.fromkeys(key[place] for key in found)) for place in (0, 1))

    def show(fit: Growth) -> str:
        return f"{fit.exponent:.2f} ({fit.low:.2f} to {fit.high:.2f}): {fit.law}"

    rows = [[agent, *(show(found[panel, agent]) for panel in panels)] for agent in agents]
    return markdown(["agent", *panels], rows, right=1)


def grids(result: FigureResult) -> list[tuple[str, str]]:
    """The grid searches of every panel and agent, nu by lam: heading and table.

    A cell is the mean over the tuning seeds; "x" marks a setting that diverged, with how many of its seeds; the
    chosen setting is bold.
    """
    digits = MEASURES[result.measure].digits
    found = []
    for panel in result.panels:
        for agent in panel.agents:
            own = [row for row in result.tuning if (row["panel"], row["agent"]) == (panel.name, agent.agent)]
            for lr in dict.fromkeys(row["lr"] for row in own):
                rows = [row for row in own if row["lr"] == lr]
                cells = {(row["nu"], row["lam"]): _grid_cell(row, digits) for row in rows}
                nus, lams = (sorted({row[name] for row in rows}) for name in ("nu", "lam"))
                body = [[f"nu = {nu:g}", *(cells.get((nu, lam), "") for lam in lams)] for nu in nus]
                head = ["", *(f"lam = {lam:g}" for lam in lams)]
                step = "" if lr is None else f", lr = {lr:g}"
                found.append((f"{panel.name}, {agent.agent}{step}", markdown(head, body, right=1)))
    return found


def _other_step(agent: AgentResult) -> bool:
    """Whether TrainNN's step is not the paper's."""
    return agent.settings.get("lr", LR[0]) != LR[0]


def replay_table(results: Sequence[FigureResult], with_paper: bool) -> str:
    """The paper's table of final CTRs: a row a value of m, kappa or S; in square brackets what the paper has.

    The three highest of a row are bold, as in the paper; those as high as the third are as well. Intervals are
    those of ``replay``: Wilson's for the clicks of one seed.
    """
    agents = list(dict.fromkeys(agent for result in results for agent in named(result)))
    rows = []
    for result in results:
        for panel in result.panels:
            parameter, _, value = panel.name.partition("=")
            means = {a.agent: float(np.nanmean(a.final)) for a in panel.agents if not np.isnan(a.final).all()}
            third = sorted(means.values(), reverse=True)[:3][-1] if means else np.nan
            printed = paper_table.CTR[paper_table.TableSetting(**{parameter: int(value)})] if with_paper else {}
            cells = []
            for agent in agents:
                own, _, ends = estimate(panel.of(agent), CTR).partition(" ") if agent in means else ("-", "", "")
                own = f"**{own}**" if agent in means and means[agent] >= third else own
                cells.append(" ".join(filter(None, [own, ends, f"[{printed[agent]:.4f}]" if agent in printed else ""])))
            rows.append([parameter, value, *cells])
    return markdown(["parameter", "value", *agents], rows, right=1)


def _in_hindsight(result: FigureResult) -> list[list[str]]:
    """A row a model."""
    models = list(dict.fromkeys(floor.model for floor in result.floors))
    means = {(floor.model, floor.panel): f"{floor.final.mean():.{REGRET.digits}f}" for floor in result.floors}
    return [[f"{m} in hindsight", *(means.get((m, panel.name), "-") for panel in result.panels)] for m in models]


def _by_panel(result: FigureResult, show: Callable[[AgentResult], str], below: Sequence[Sequence[str]] = ()) -> str:
    rows = []
    for name in named(result):
        shown = [[show(agent) for agent in panel.agents if agent.agent == name] for panel in result.panels]
        rows.append([name, *(cells[0] if cells else "-" for cells in shown)])
    return markdown(["agent", *(panel.name for panel in result.panels)], [*rows, *below], right=1)


def _grid_cell(row: dict[str, object], digits: int) -> str:
    mean = "" if row["mean"] is None else f"{row['mean']:.{digits}f}"
    text = " ".join(filter(None, [mean, f"x {row['diverged']} of {row['seeds']}" if row["diverged"] else ""]))
    return f"**{text}**" if row["chosen"] else text
