"""RESULTS.md: the results of the paper's experiments, written from the files of a directory."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from nl_lightning.core.errors import InputError
from nl_lightning.core.files import write_beside
from nl_lightning.core.statistics import CLICK_LEVEL, LEVEL
from nl_lightning.experiments import tables
from nl_lightning.experiments.claims import CLAIMS, Claim
from nl_lightning.experiments.comparisons import ALPHA, VERDICTS
from nl_lightning.experiments.figures import divergence
from nl_lightning.experiments.results import FigureResult
from nl_lightning.experiments.storage import Stored, load_all
from nl_lightning.runs.summary import CTR

__all__ = ["HEADINGS", "NAME", "document", "write"]

NAME = "RESULTS.md"

_LOGS = {"obd": "Open Bandit Dataset, bundled sample", "simulated": "Simulated log"}
HEADINGS = {name: f"Figure {name.removeprefix('fig')}" for name in CLAIMS if name.startswith("fig")} | {
    f"{log}-{parameter}": f"{text}, over {parameter}"
    for log, text in _LOGS.items()
    for parameter in ("m", "kappa", "S")
}
"""The name of every figure in the text."""

_RULES = f"""\
## How a verdict is reached

"A is better than B" is the paired t test over the seeds that both have (the same seed is the same problem), two-sided \
at {ALPHA:.0%}: the {LEVEL:.0%} interval of the difference lies on one side of zero. Differences are counted so that a \
positive one is in the claim's favour.

- **agrees**: every comparison that the claim consists of is significant. This needs no correction: where the claim is \
false one of them is, and that one alone is found significant with a probability of at most {ALPHA:.0%}.
- **disagrees**: one comparison is significant in the other direction, after Holm's correction over all of them.
- **not separable**: neither. It is no evidence that the agents are alike.

Seeds whose TrainNN diverged have no number and are left out of a comparison, which is then said. "Among the top \
three" is the claim of being better than four of six others (partial conjunction after Bonferroni). Verdicts are not \
corrected for the number of claims and panels: among many, some are due to chance."""

_REPLAY_REMARKS = {
    "obd": (
        "The paper replays the full log `random/all`, which is not here. These runs replay the sample of 10,000 events "
        "that the package obp brings along. It has 38 clicks, of which an agent meets a few: it cannot tell agents "
        "apart, whatever a row's order is. The paper's numbers, in brackets, are shown for their place, not for "
        "comparison."
    ),
    "simulated": (
        "The same settings on a log that was simulated, with a click rate of 5%: a seed meets about a hundred clicks "
        "where it meets a handful in the sample. That is still little for differences between agents that all learn, "
        "and it says nothing of the shop that the paper's log comes from."
    ),
}
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
    parts = [_head(stored), "## The claims", _counted(results), tables.summary(results, HEADINGS), _RULES]
    for figure in stored:
        if figure.result.measure != CTR.name:
            parts += _figure(figure)
    for log, heading in _LOGS.items():
        replays = [figure for figure in stored if figure.result.name.startswith(f"{log}-")]
        if replays:
            table = tables.replay_table([replay.result for replay in replays], with_paper=log == "obd")
            parts += [f"## {heading}", _REPLAY_REMARKS[log], _PROTOCOL]
            parts += ["Final CTR, mean over seeds; bold: the three highest of a row, by their means only.", table]
            for replay in replays:
                parts += _figure(replay, level="###")
    return "\n\n".join(parts) + "\n"


def _head(stored: Sequence[Stored]) -> str:
    commands = dict.fromkeys(f"`{figure.command}`" for figure in stored if figure.command)
    by = f" ({', '.join(commands)})" if commands else ""
    versions = dict.fromkeys(", ".join(f"{n} {v}" for n, v in figure.versions.items()) for figure in stored)
    runs: dict[str, list[str]] = {}
    for figure in stored:
        runs.setdefault(_runs(figure), []).append(HEADINGS[figure.result.name])
    sizes = "\n".join(f"- {'; '.join(names)}: {size}" for size, names in runs.items())
    return (
        "# Results\n\n"
        "What the paper's experiments give when they are run with this library, and whether the numbers bear out what "
        f"the paper's text says of them. Written by `python -m nl_lightning reproduce`{by}; do not edit.\n\n"
        f"Made with {'; '.join(versions)}.\n\n{sizes}"
    )


def _counted(results: Sequence[FigureResult]) -> str:
    counts = Counter(verdict.verdict for result in results for verdict in result.verdicts)
    total = sum(counts.values())
    agreeing, opposing, unclear = (counts[verdict] for verdict in VERDICTS)
    return (
        f"Of {total} verdicts, one a claim and panel, {agreeing} agree with the paper, {opposing} disagree and "
        f"{unclear} are not separable."
    )


def _figure(stored: Stored, level: str = "##") -> list[str]:
    """The section of one figure."""
    result = stored.result
    heading = HEADINGS[result.name]
    parts = [
        f"{level} {heading}",
        f"{result.title}. {_runs(stored)}",
        f"![{heading}]({result.name}.png)",
        f"As [SVG]({result.name}.svg); [final numbers by seed]({result.name}.csv), "
        f"[mean curves]({result.name}-curves.csv).",
        _finals_caption(result),
        tables.finals(result),
    ]
    parts += ["nu, lam of these runs:", tables.chosen(result), _diverged(result)]
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
        return f"Final regret, mean over seeds ({LEVEL:.0%} interval):"
    if all(agent.accepted is not None for panel in result.panels for agent in panel.agents):
        return f"Final CTR ({CLICK_LEVEL:.0%} interval, Wilson's, for the clicks of one seed):"
    return f"Final CTR, mean over seeds ({LEVEL:.0%} interval over seeds, which share the log's clicks):"


def _diverged(result: FigureResult) -> str:
    lost = [f"{panel.name}: {text}" for panel in result.panels for agent in panel.agents if (text := divergence(agent))]
    return f"Diverged seeds, without a number above: {'; '.join(lost)}." if lost else "No seed of these runs diverged."
