"""The answer that RESULTS.md opens with: what the numbers say about the paper, in at most ten lines."""

from collections.abc import Sequence

import numpy as np

from nl_lightning.experiments import tables
from nl_lightning.experiments.claims import BASELINES, NCBF, NEURAL, UCB2
from nl_lightning.experiments.comparisons import counted
from nl_lightning.experiments.paper import CONTROL
from nl_lightning.experiments.readings import READINGS
from nl_lightning.experiments.results import FigureResult
from nl_lightning.experiments.rules import NEEDLESS, PAYS
from nl_lightning.experiments.sweeps import growths, over_kappa, with_which_nu
from nl_lightning.runs.summary import REGRET

__all__ = ["lines"]

_MAIN = ("the linear agents are worst", f"{UCB2} is best", "the regret of the data-adaptive agents follows")
"""Claims that the answer names, by how they begin."""


def lines(results: Sequence[FigureResult]) -> list[str]:
    """At most ten sentences, each from the stored numbers alone."""
    regrets = [result for result in results if result.name.startswith("fig")]
    fixed = [result for result in results if result.name == "fixed"]
    found = [_sentences(_counts(regrets), _diverged(results)), *_main(regrets), _hindsight(regrets)]
    found += _exploration([*regrets, *fixed])
    for result in fixed:
        found += [_where_it_pays(result), _kappa(result)]
    found.append(_replay([result for result in results if result.measure != REGRET.name]))
    return [line for line in found if line][:10]


def _verdicts(results: Sequence[FigureResult], reading: str, begins: str = "") -> list[str]:
    own = (verdict for result in results if result.reading == reading for verdict in result.verdicts)
    return [verdict.verdict for verdict in own if verdict.claim.startswith(begins)]


def _by_reading(results: Sequence[FigureResult], begins: str = "") -> str:
    """Each reading's verdicts; those of ``literal`` and ``stable`` only where a claim is named."""
    shown = [name for name in (("stable", "literal") if begins else READINGS) if name in READINGS]
    given = {READINGS[name].title: _verdicts(results, name, begins) for name in shown}
    return "; ".join(f"{title}: {tables.counted(found)}" for title, found in given.items() if found)


def _counts(results: Sequence[FigureResult]) -> str:
    found = _by_reading(results)
    return f"The paper's figures, one verdict a claim and panel. {_capital(found)}." if found else ""


def _main(results: Sequence[FigureResult]) -> list[str]:
    said = []
    for begins in _MAIN:
        found = _by_reading(results, begins)
        claims = (v.claim for result in results for v in result.verdicts if v.claim.startswith(begins))
        if found:
            said.append(f"{_capital(next(claims))}. {_capital(found)}.")
    return said


def _diverged(results: Sequence[FigureResult]) -> str:
    parts = []
    for name, reading in READINGS.items():
        agents = [a for result in results if result.reading == name for panel in result.panels for a in panel.agents]
        lost, total = sum(len(agent.diverged) for agent in agents), sum(len(agent.seeds) for agent in agents)
        if agents:
            parts.append(f"{reading.title}: {lost:,} of {total:,}")
    return f"Seeds whose TrainNN diverged, which count as the worst: {'; '.join(parts)}." if parts else ""


def _sentences(*texts: str) -> str:
    return " ".join(filter(None, texts))


def _hindsight(results: Sequence[FigureResult]) -> str:
    """What the models allow, beside the best agent."""
    shares: dict[str, list[float]] = {}
    for result in results:
        panels = {panel.name: counted(panel, REGRET) for panel in result.panels}
        for floor in result.floors:
            best = min(float(agent.final.mean()) for agent in panels[floor.panel].agents)
            if best > 0:
                shares.setdefault(floor.model, []).append(float(floor.final.mean()) / best)
    parts = [f"{model} {np.median(own):.2f} times" for model, own in shares.items()]
    said = (
        "What a model allows that knew the click probabilities beforehand, as a share of the regret of the panel's "
        "best agent (median over panels)"
    )
    return f"{said}: {', '.join(parts)}." if parts else ""


def _exploration(results: Sequence[FigureResult]) -> list[str]:
    """Which panels need exploration, in the stable reading or else in the first that there is."""
    readings = [name for name in ("stable", *READINGS) if any(r.reading == name and r.controls for r in results)]
    if not readings:
        return []
    own = {
        f"{result.name} {control.panel}": control.finding
        for result in results
        if result.reading == readings[0]
        for control in result.controls
    }
    needless, pays = ([panel for panel, finding in own.items() if finding == kind] for kind in (NEEDLESS, PAYS))
    rest = len(own) - len(needless) - len(pays)
    said = (
        f"Exploration ({READINGS[readings[0]].title}): of {len(own)} panels {len(needless)} need none, because no "
        f"agent that explores is better than {CONTROL} by 5% ({_listed(needless)}); it pays in {len(pays)} "
        f"({_listed(pays)}); {rest} are undecided."
    )
    follows = (
        "Where a panel needs no exploration, agents differ by what they learn and by chance, not by their bonus: the "
        "paper's comparison of bonuses can say nothing there."
    )
    return [said, follows] if needless else [said]


def _where_it_pays(result: FigureResult) -> str:
    parts = []
    for panel in result.panels:
        means = {a.agent: float(a.final.mean()) for a in counted(panel, REGRET).agents}
        if CONTROL in means:
            best = min((name for name in means if name != CONTROL), key=lambda name: means[name])
            mine = f", {UCB2} {means[UCB2]:.0f}" if UCB2 in means and best != UCB2 else ""
            parts.append(f"{panel.name}: {CONTROL} {means[CONTROL]:.0f}, best {best} {means[best]:.0f}{mine}")
    return f"With a fixed set of arms, which is ours, mean regret is {'; '.join(parts)}." if parts else ""


def _kappa(result: FigureResult) -> str:
    found = [f"{with_which_nu(varied)}, {_exponents(result, varied)}" for varied in over_kappa(result.sweeps)]
    return f"There regret grows with kappa to a power of (over the panels): {'; '.join(found)}." if found else ""


def _exponents(result: FigureResult, varied: str) -> str:
    fits, parts = growths(result.sweeps, varied), []
    for agent in (NCBF, *(a for a in NEURAL if a not in BASELINES)):
        own = [growth.exponent for (_, name), growth in fits.items() if name == agent]
        if own:
            parts.append(f"{agent} {np.min(own):.2f} to {np.max(own):.2f}")
    return ", ".join(parts)


def _replay(results: Sequence[FigureResult]) -> str:
    found = []
    for log, title in (("obd", "the bundled sample"), ("simulated", "the simulated log")):
        given = [v.verdict for result in results if result.name.startswith(f"{log}-") for v in result.verdicts]
        if given:
            found.append(f"on {title} {tables.counted(given)}")
    return f"The table on the Open Bandit Dataset: {'; '.join(found)}." if found else ""


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "none"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
