"""The claims of the paper's text about its figures and its table, and what the numbers say about them."""

from collections.abc import Sequence
from typing import NamedTuple

from nl_lightning.core.errors import InputError
from nl_lightning.experiments.paper import CONTROL, PAPER_AGENTS
from nl_lightning.experiments.results import Control, PanelResult, Verdict
from nl_lightning.experiments.rules import (
    ALLOWANCE,
    Rule,
    better,
    competitive,
    control,
    lower_at_low_dimension,
    moderate,
    one_among_first,
    same_in_all_panels,
)
from nl_lightning.runs.summary import CTR, REGRET, Measure

__all__ = [
    "ALL",
    "BASELINES",
    "CLAIMS",
    "ECOLOG",
    "FIVE",
    "LINEAR",
    "LOGISTIC",
    "NCBF",
    "NEURAL",
    "TS1",
    "TS2",
    "UCB1",
    "UCB2",
    "Claim",
    "controls",
    "measure_of",
    "verdicts",
]

ALL = PAPER_AGENTS
NCBF, LOGISTIC, ECOLOG, UCB1, UCB2, TS1, TS2 = ALL
FIVE = ALL[:5]
"""The agents of figures 1 to 3."""
LINEAR = (LOGISTIC, ECOLOG)
BASELINES = (NCBF, *LINEAR)
NEURAL = (NCBF, UCB1, UCB2, TS1, TS2)
"""The agents that explore with a network."""


class Claim(NamedTuple):
    """A claim, where it comes from, and how it is tested."""

    text: str
    words: str
    """of the paper; empty if only its table says so"""
    tested: str
    """what must be significant for the claim, in plain words"""
    rule: Rule


def _others(agents: Sequence[str], first: Sequence[str]) -> list[str]:
    return [agent for agent in agents if agent not in first]


_REGRET_WORDS = "our proposed methods, especially (5), yield the best results"
_LINEAR_WORST = Claim(
    "the linear agents are worst",
    "the algorithms using linear assumptions on the latent reward function h(x), namely (2) and (3), exhibit the "
    "lowest performance",
    f"each of {NCBF}, {UCB1} and {UCB2} has less regret than each of {LOGISTIC} and {ECOLOG}",
    better([NCBF, UCB1, UCB2], LINEAR),
)
_MODERATE = Claim(
    f"{NCBF} is moderate",
    "algorithm (1) can handle nonlinear reward functions and achieves moderate performance",
    f"{NCBF} has less regret than each of {LOGISTIC} and {ECOLOG}, and not significantly less than both {UCB1} and "
    f"{UCB2}",
    moderate(NCBF, LINEAR, [UCB1, UCB2]),
)


def _proposed_best(words: str) -> Claim:
    return Claim(
        f"{UCB1} and {UCB2} are better than the baselines",
        words,
        f"each of {UCB1} and {UCB2} has less regret than each of {', '.join(BASELINES)}",
        better([UCB1, UCB2], BASELINES),
    )


def _ucb_2_best(agents: Sequence[str], words: str) -> Claim:
    return Claim(
        f"{UCB2} is best",
        words,
        f"{UCB2} has less regret than each of the {len(agents) - 1} others",
        better([UCB2], _others(agents, [UCB2])),
    )


def _competitive(agent: str, words: str) -> Claim:
    return Claim(
        f"{agent} is competitive",
        words,
        f"{agent} has at most {ALLOWANCE:g} times the regret of each of {', '.join(BASELINES)}, and so of the best of "
        "them",
        competitive(agent, BASELINES),
    )


def _follows_dimension(agents: Sequence[str], words: str) -> Claim:
    return Claim(
        "the regret of the data-adaptive agents follows the effective dimension",
        words,
        f"each of {', '.join(agents)} has less regret at the low than at the high effective dimension",
        lower_at_low_dimension(agents),
    )


_FIGURE_3 = (
    "our algorithm, especially algorithm (5), performs best across all those settings and adapts effectively to "
    "different environments of the effective dimensions"
)
_FIGURE_45 = "our NeuralLog-UCB-2 algorithm steadily achieves the best performance across the considered settings"
_THOMPSON = "the two Thompson sampling-based variants also exhibit competitive performance compared to the baselines"
_FIGURE_6 = "demonstrates the influence of d on data-adaptive algorithms"


def _thompson_first(words: str) -> Claim:
    return Claim(
        f"{TS1} and {TS2} have the two highest CTRs",
        words,
        f"each of {TS1} and {TS2} has a higher CTR than each of the five others",
        better([TS1, TS2], _others(ALL, [TS1, TS2])),
    )


def _one_ucb_in_three(words: str) -> Claim:
    return Claim(
        f"{UCB1} or {UCB2} is among the top three",
        words,
        "one of them has a higher CTR than four of the six others",
        one_among_first([UCB1, UCB2], 3, ALL),
    )


def _same(agents: Sequence[str], parameter: str, why: str) -> Claim:
    *most, last = agents
    return Claim(
        f"{', '.join(most)} and {last} do not depend on {parameter}",
        "",
        f"every seed's CTR is the same to the last bit; {why}",
        same_in_all_panels(agents),
    )


_TOP_THREE = Claim(
    f"{TS1}, {TS2} and {UCB2} are the top three",
    "NeuralLog-TS-1, NeuralLog-TS-2, and NeuralLog-UCB-2 are the top three methods for all tested values",
    "each of them has a higher CTR than each of the four others",
    better([TS1, TS2, UCB2], _others(ALL, [TS1, TS2, UCB2])),
)
_FIGURE_12 = (_LINEAR_WORST, _MODERATE, _proposed_best(_REGRET_WORDS), _ucb_2_best(FIVE, _REGRET_WORDS))
_COMPETITIVE = (_competitive(TS1, _THOMPSON), _competitive(TS2, _THOMPSON))
_REPLAY: dict[str, tuple[Claim, ...]] = {
    "m": (
        _thompson_first("NeuralLog-TS-1 and NeuralLog-TS-2, consistently achieve the highest final CTR"),
        _one_ucb_in_three("one of NeuralLog-UCB-1 or NeuralLog-UCB-2 is also among the top three methods"),
        _same(LINEAR, "m", "linear agents have no network, so that it holds by construction"),
    ),
    "kappa": (_TOP_THREE, _same([ECOLOG, UCB2, TS2], "kappa", "kappa is in none of their formulas")),
    "S": (
        _thompson_first("the two Thompson sampling-based variants remain the strongest performers"),
        _one_ucb_in_three("one of the UCB-based variants remains competitive"),
    ),
}

CLAIMS: dict[str, tuple[Claim, ...]] = {
    "fig1": _FIGURE_12,
    "fig2": _FIGURE_12,
    "fig3": (_proposed_best(_FIGURE_3), _ucb_2_best(FIVE, _FIGURE_3), _follows_dimension([UCB1, UCB2], _FIGURE_3)),
    "fig4": (_ucb_2_best(ALL, _FIGURE_45), *_COMPETITIVE),
    "fig5": (_ucb_2_best(ALL, _FIGURE_45), *_COMPETITIVE),
    # About figure 6 the text says only the last; the others are those of figures 4 and 5, on the same functions.
    "fig6": (
        _ucb_2_best(ALL, _FIGURE_45),
        *_COMPETITIVE,
        _follows_dimension([UCB1, UCB2, TS1, TS2], _FIGURE_6),
    ),
    # Not in the paper: its claims where the arms are fixed.
    "fixed": (_LINEAR_WORST, _proposed_best(_REGRET_WORDS), _ucb_2_best(ALL, _FIGURE_45), *_COMPETITIVE),
    **{f"{log}-{parameter}": claims for log in ("obd", "simulated") for parameter, claims in _REPLAY.items()},
}
"""The claims of every figure, in the order in which figures are shown."""


def measure_of(name: str) -> Measure:
    """What a figure shows: regret, or in a replay the CTR."""
    return REGRET if name.startswith("fi") else CTR


def verdicts(name: str, panels: Sequence[PanelResult]) -> list[Verdict]:
    """What the numbers of a figure's panels say about every claim about it."""
    if name not in CLAIMS:
        raise InputError(f"There are claims about the figures {', '.join(CLAIMS)}; got {name!r}. Choose one of these.")
    return [
        Verdict(claim.text, finding.panel, *finding.judgement)
        for claim in CLAIMS[name]
        for finding in claim.rule(panels, measure_of(name))
    ]


def controls(name: str, panels: Sequence[PanelResult]) -> list[Control]:
    """Which panels need exploration, where Greedy was run."""
    there = [panel for panel in panels if any(agent.agent == CONTROL for agent in panel.agents)]
    return [control(panel, measure_of(name), NEURAL) for panel in there]
