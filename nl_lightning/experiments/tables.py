"""The tables of RESULTS.md: pure functions from stored results to Markdown."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from nl_lightning.core.statistics import interval, wilson
from nl_lightning.experiments import paper_table
from nl_lightning.experiments.claims import tally
from nl_lightning.experiments.comparisons import VERDICTS
from nl_lightning.experiments.paper import LR
from nl_lightning.experiments.results import AgentResult, FigureResult, Verdict
from nl_lightning.runs.summary import CTR, MEASURES, Measure

__all__ = [
    "cell",
    "chosen",
    "estimate",
    "finals",
    "grids",
    "markdown",
    "named",
    "replay_table",
    "summary",
    "verdict_table",
]


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
    """Agents by panels: the mean over seeds and its interval."""
    measure = MEASURES[result.measure]
    return _by_panel(result, lambda agent: estimate(agent, measure))


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


def summary(results: Sequence[FigureResult], headings: dict[str, str]) -> str:
    """Every claim in every figure: how many panels agree, disagree and cannot tell."""
    rows = [
        [counts.claim, headings[result.name], *(str(n) if n else "" for n in counts[1:])]
        for result in results
        for counts in tally(result.verdicts)
    ]
    return markdown(["claim", "where", *VERDICTS], rows, right=2)


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
                found.append((f"{panel.name}, {agent.agent}, lr = {lr:g}", markdown(head, body, right=1)))
    return found


def _other_step(agent: AgentResult) -> bool:
    """Whether TrainNN's step is not the paper's."""
    return agent.settings.get("lr", LR[0]) != LR[0]


def replay_table(results: Sequence[FigureResult], with_paper: bool) -> str:
    """The paper's table of final CTRs: a row a value of m, kappa or S; in brackets what the paper has.

    The three highest of a row are bold, as in the paper; those as high as the third are as well.
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
                own = f"{means[agent]:.4f}" if agent in means else "-"
                own = f"**{own}**" if agent in means and means[agent] >= third else own
                cells.append(f"{own} ({printed[agent]:.4f})" if agent in printed else own)
            rows.append([parameter, value, *cells])
    return markdown(["parameter", "value", *agents], rows, right=1)


def _by_panel(result: FigureResult, show: Callable[[AgentResult], str]) -> str:
    rows = []
    for name in named(result):
        shown = [[show(agent) for agent in panel.agents if agent.agent == name] for panel in result.panels]
        rows.append([name, *(cells[0] if cells else "-" for cells in shown)])
    return markdown(["agent", *(panel.name for panel in result.panels)], rows, right=1)


def _grid_cell(row: dict[str, object], digits: int) -> str:
    mean = "" if row["mean"] is None else f"{row['mean']:.{digits}f}"
    text = " ".join(filter(None, [mean, f"x {row['diverged']} of {row['seeds']}" if row["diverged"] else ""]))
    return f"**{text}**" if row["chosen"] else text
