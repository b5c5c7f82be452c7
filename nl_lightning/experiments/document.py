"""RESULTS.md: the results of the paper's experiments, written from the files of a directory."""

from collections.abc import Sequence
from pathlib import Path

from nl_lightning.core.errors import InputError
from nl_lightning.core.files import write_beside
from nl_lightning.core.statistics import CLICK_LEVEL, LEVEL
from nl_lightning.experiments import answer, tables
from nl_lightning.experiments.claims import CLAIMS, Claim
from nl_lightning.experiments.comparisons import ALPHA, MARGIN, NIL
from nl_lightning.experiments.figures import divergence
from nl_lightning.experiments.paper import CONTROL
from nl_lightning.experiments.readings import READINGS
from nl_lightning.experiments.results import FigureResult
from nl_lightning.experiments.storage import Stored, load_all
from nl_lightning.experiments.sweeps import growths, over_kappa, with_which_nu
from nl_lightning.runs.summary import CTR

__all__ = ["HEADINGS", "NAME", "document", "write"]

NAME = "RESULTS.md"

_LOGS = {"obd": "Open Bandit Dataset, bundled sample", "simulated": "Simulated log"}
HEADINGS = (
    {name: f"Figure {name.removeprefix('fig')}" for name in CLAIMS if name.startswith("fig")}
    | {
        "fixed": "Fixed arms (ours)",
    }
    | {
        f"{log}-{parameter}": f"{text}, over {parameter}"
        for log, text in _LOGS.items()
        for parameter in ("m", "kappa", "S")
    }
)
"""The name of every figure in the text."""

_RULES = f"""\
## How a verdict is reached

"A is better than B" is the paired t test over the seeds that both have (the same seed is the same problem), two-sided \
at {ALPHA:.0%}: the {LEVEL:.0%} interval of the difference lies on one side of zero. Differences are counted so that a \
positive one is in the claim's favour.

- **agrees**: every comparison that the claim consists of is significant, and none is practically equal. This needs no \
correction: where the claim is false one of them is, and that one alone is found significant with a probability of at \
most {ALPHA:.0%}.
- **practically equal**: every comparison is significant or practically equal, and one at least is the latter: the \
{LEVEL:.0%} interval of the difference lies within {MARGIN:.0%} of the second one's mean on both sides of zero (two \
one-sided tests at {ALPHA / 2:.0%}). Where there is next to no regret, one click in {1 / NIL:,.0f} rounds stands for \
the {MARGIN:.0%}, and for the tenth more that a competitive agent may have.
- **disagrees**: one comparison is significant in the other direction, after Holm's correction over all of them, and \
not practically equal.
- **undecided**: none of these. It is no evidence that the agents are alike.

A comparison is decided for sure where its interval has a half-width of at most {MARGIN / 2:.1%}: it lies on one side \
of zero, or within {MARGIN:.0%}. In the reading "stable", the first seeds of a panel show how much differences vary, \
and from that alone, not from the differences themselves, follows how many seeds the panel gets (Stein's two stages).

A seed whose TrainNN diverged counts against the agent that lost it: it has the worst number that any agent of the \
panel has on this seed, or where all agents lost it the worst number of the panel. "Among the top three" is the claim \
of being better than four of six others (partial conjunction after Bonferroni). Verdicts are not corrected for the \
number of claims and panels: among many, some are due to chance.

Every panel has {CONTROL} as a control: the same network and TrainNN without a bonus. Exploration **pays** in a panel \
if an agent that explores with a network is significantly better than {CONTROL}, after Holm's correction over these \
agents, and not practically equal. A panel **needs no exploration** if none of them is better by {MARGIN:.0%}: each \
interval of the difference ends below that."""

_REPLAY_REMARKS = {
    "obd": (
        "The paper replays the full log `random/all`, which is not here. These runs replay the sample of 10,000 events "
        "that the package obp brings along. It has 38 clicks, of which an agent meets a few: it cannot tell agents "
        "apart, whatever a row's order is. The paper's numbers, in brackets, are shown for their place, not for "
        "comparison."
    ),
    "simulated": (
        "The same settings on a log that was simulated, with a click rate of 5%, and long enough to tell a fifth more "
        "clicks from chance. It says nothing of the shop that the paper's log comes from."
    ),
}
_SWEEPS = (
    "One setting is varied, and the others stay as they were chosen, but for nu where one is named, which all agents "
    "then have. Growth of regret with kappa: the exponent b of "
    f"the fit mean regret ~ kappa^b, with its {LEVEL:.0%} interval (jackknife over seeds), and which of 0 (not at "
    "all), 1/2 (as its root) and 1 (in proportion) it allows:"
)
_HINDSIGHT = (
    ". In hindsight: about the least regret that a linear model and the network allow, when the click probability of "
    "every arm of all rounds is known beforehand; the network is fitted to these probabilities, the linear model to "
    "the regret of its choices"
)
_PROTOCOL = (
    "In the affinity protocol, the paper's, the candidates depend on the logged item, so that the CTR is that of no "
    "single policy. Seeds share the log's clicks and are no new evidence, so intervals are those of the clicks of one "
    "seed, and tests add the chance of these clicks to the variance over seeds."
)


def write(directory: Path) -> Path:
    """Write RESULTS.md from the figures that the directory has."""
    stored = load_all(directory)
    if not stored:
        raise InputError(
            f"{directory} must hold results of figures, such as fig1.json, and has none. "
            "`python -m nl_lightning reproduce fig1` makes one."
        )
    text = document(stored)
    write_beside(directory / NAME, lambda path: path.write_text(text))
    return directory / NAME


def document(stored: Sequence[Stored]) -> str:
    """The whole text."""
    results = [figure.result for figure in stored]
    head, rows = tables.claims_by_reading(results)
    rows = [[claim, HEADINGS[name], *cells] for claim, name, *cells in rows]
    parts = ["# Results", "\n".join(f"- {line}" for line in answer.lines(results))]
    parts += ["## Claims by reading", tables.markdown(head, rows, right=len(head)), _readings(stored), _RULES]
    parts.append(_made(stored))
    for name in READINGS:
        own = [figure for figure in stored if figure.result.reading == name]
        if own:
            parts += [f"## Reading: {READINGS[name].title}", f"{READINGS[name].words}."]
        for figure in own:
            if figure.result.measure != CTR.name:
                parts += _figure(figure)
        for log, heading in _LOGS.items():
            parts += _replays(log, heading, [figure for figure in own if figure.result.name.startswith(f"{log}-")])
    return "\n\n".join(parts) + "\n"


def _replays(log: str, heading: str, replays: Sequence[Stored]) -> list[str]:
    """The table on a log, and its figures."""
    if not replays:
        return []
    table = tables.replay_table([replay.result for replay in replays], with_paper=log == "obd")
    caption = (
        f"Final CTR, mean over seeds ({CLICK_LEVEL:.0%} interval for the clicks of one seed); bold: the three highest "
        "of a row, by their means only."
    )
    parts = [f"### {heading}", _REPLAY_REMARKS[log], _PROTOCOL, caption, table]
    for replay in replays:
        parts += _figure(replay, level="####")
    return parts


def _readings(stored: Sequence[Stored]) -> str:
    """What each reading is."""
    there = [name for name in READINGS if any(figure.result.reading == name for figure in stored)]
    return "\n".join(f"- **{READINGS[name].title}**: {READINGS[name].words}." for name in there)


def _made(stored: Sequence[Stored]) -> str:
    """How the numbers were made."""
    commands = dict.fromkeys(f"`{figure.command}`" for figure in stored if figure.command)
    by = f" ({', '.join(commands)})" if commands else ""
    versions = dict.fromkeys(", ".join(f"{n} {v}" for n, v in figure.versions.items()) for figure in stored)
    runs: dict[str, list[str]] = {}
    for figure in stored:
        named = f"{HEADINGS[figure.result.name]} ({READINGS[figure.result.reading].title})"
        runs.setdefault(_runs(figure), []).append(named)
    sizes = "\n".join(f"- {'; '.join(names)}: {size}" for size, names in runs.items())
    return (
        f"## How it was made\n\nWritten by `python -m nl_lightning reproduce`{by}; do not edit.\n\n"
        f"Made with {'; '.join(versions)}.\n\n{sizes}"
    )


def _figure(stored: Stored, level: str = "###") -> list[str]:
    """The section of one figure."""
    result = stored.result
    heading, file = HEADINGS[result.name], f"{result.reading}/{result.name}"
    parts = [
        f"{level} {heading}",
        f"{result.title}. {_runs(stored)}",
        f"![{heading}]({file}.png)",
        f"As [SVG]({file}.svg); [final numbers by seed]({file}.csv), [mean curves]({file}-curves.csv).",
        _finals_caption(result),
        tables.finals(result),
    ]
    parts += ["nu, lam of these runs:", tables.chosen(result), _diverged(result)]
    if result.controls:
        parts += [f"Does exploration pay? {CONTROL} against the agents that explore:"]
        parts += [tables.control_table(result.controls)]
    if result.sweeps:
        parts += [f"![{heading}: one setting varied]({file}-sweeps.png)", _SWEEPS]
        for varied in over_kappa(result.sweeps):
            parts += [f"{with_which_nu(varied).capitalize()}:", tables.growth_table(growths(result.sweeps, varied))]
    claims = [f"- **{c.text}**: {_source(c)}. Tested: {c.tested}." for c in CLAIMS[result.name]]
    parts += ["The paper's words and what is tested:", "\n".join(claims), tables.verdict_table(result.verdicts)]
    if result.notes:
        parts += ["What was reduced or differs from the paper:", "\n".join(f"- {note}" for note in result.notes)]
    found = tables.grids(result)
    if found:
        caption = (
            "Mean regret over the tuning seeds, which are not those of the final runs; x: so many of the setting's "
            "seeds diverged; bold: chosen."
        )
        inside = [text for name, table in found for text in (f"{name}:", table)]
        parts += ["<details><summary>The grid search</summary>", caption, *inside, "</details>"]
    return parts


def _source(claim: Claim) -> str:
    return f'"{claim.words}"' if claim.words else "the columns of the paper's table"


def _runs(stored: Stored) -> str:
    seeds = sorted({len(agent.seeds) for panel in stored.result.panels for agent in panel.agents})
    count = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
    what = "accepted events at most" if stored.result.measure == CTR.name else "rounds"
    return f"{count} {'seed' if seeds == [1] else 'seeds'}, {stored.horizon:,} {what}."


def _finals_caption(result: FigureResult) -> str:
    if result.measure != CTR.name:
        return f"Final regret, mean over seeds ({LEVEL:.0%} interval){_HINDSIGHT if result.floors else ''}:"
    if all(agent.accepted is not None for panel in result.panels for agent in panel.agents):
        return f"Final CTR ({CLICK_LEVEL:.0%} interval, Wilson's, for the clicks of one seed):"
    return f"Final CTR, mean over seeds ({LEVEL:.0%} interval over seeds, which share the log's clicks):"


def _diverged(result: FigureResult) -> str:
    lost = [f"{panel.name}: {text}" for panel in result.panels for agent in panel.agents if (text := divergence(agent))]
    return f"Diverged seeds, not in the means above: {'; '.join(lost)}." if lost else "No seed of these runs diverged."
