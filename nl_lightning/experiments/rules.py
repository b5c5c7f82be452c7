"""Rules for claims about one or several panels: functions from final numbers to judgements."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from nl_lightning.experiments.comparisons import (
    AGREES,
    ALPHA,
    DISAGREES,
    EQUAL,
    UNDECIDED,
    Comparison,
    Judgement,
    at_least,
    compare,
    counted,
    describe,
    every,
    holm,
    least_clear,
    noted,
    probability,
    seeds,
    without_numbers,
)
from nl_lightning.experiments.paper import CONTROL
from nl_lightning.experiments.results import Control, PanelResult
from nl_lightning.runs.summary import Measure

__all__ = [
    "ALLOWANCE",
    "NEEDLESS",
    "PAYS",
    "Finding",
    "Panels",
    "Rule",
    "better",
    "competitive",
    "control",
    "in_every_panel",
    "lower_at_low_dimension",
    "moderate",
    "one_among_first",
    "same_in_all_panels",
]

ALLOWANCE = 1.1
"""An agent is competitive with another if it has at most this many times its regret."""


PAYS, NEEDLESS = "exploration pays", "needs no exploration"


class Finding(NamedTuple):
    """A judgement and the panel or panels that it is about."""

    panel: str
    judgement: Judgement


Panels = Sequence[PanelResult]
Rule = Callable[[Panels, Measure], list[Finding]]


def in_every_panel(agents: Sequence[str], judge: Callable[[PanelResult, Measure], Judgement]) -> Rule:
    """The rule of a claim about agents in one panel. It cannot be tested if one of them has no number."""

    def rule(panels: Panels, measure: Measure) -> list[Finding]:
        return [
            Finding(
                panel.name,
                without_numbers(panel, agents) or noted(judge(panel, measure), measure),
            )
            for panel in (counted(panel, measure) for panel in panels)
        ]

    return rule


def better(first: Sequence[str], second: Sequence[str], handicap: float = 1.0) -> Rule:
    """Each of the first is better than each of the second, whose numbers are multiplied by ``handicap``."""

    def judge(panel: PanelResult, measure: Measure) -> Judgement:
        return every(_pairs(panel, first, second, measure, handicap), measure)

    return in_every_panel([*first, *second], judge)


def competitive(agent: str, others: Sequence[str]) -> Rule:
    """The agent has at most 1.1 times the regret of each of the others, and so of the best of them. Where there is next
    to no regret, it may have a click in 10,000 rounds more.

    "Not significantly worse" would not do: whoever measures little would find all agents competitive. So a margin
    is stated, and the numbers must show that the agent stays within it.
    """
    return better([agent], others, ALLOWANCE)


def moderate(agent: str, worse: Sequence[str], proposed: Sequence[str]) -> Rule:
    """The agent is better than each of the worse ones, and not better than the best of the proposed ones.

    Agrees: better than each of the worse ones, and not significantly better than every proposed one.
    Practically equal: the same, but that it is practically equal to some of the worse ones.
    Disagrees: significantly worse than one of the worse ones, or better than every proposed one (whose p-value is
    the largest of its comparisons), after Holm's correction over these; what is practically equal does not count.
    """

    def judge(panel: PanelResult, measure: Measure) -> Judgement:
        over_worse = _pairs(panel, [agent], worse, measure)
        over_proposed = _pairs(panel, [agent], proposed, measure)
        best = least_clear(over_proposed)
        tests = [*over_worse, best]
        against = holm([*(comparison.opposing for comparison in over_worse), best.supporting])
        found = [p if not comparison.equal else 1.0 for p, comparison in zip(against, tests, strict=True)]
        if min(found) <= ALPHA:
            p = f"after Holm's correction over {len(against)} comparisons {probability(min(found))}"
            if found[-1] == min(found):
                return Judgement(DISAGREES, f"better than every proposed agent: {describe(best, measure)} ({p})")
            return Judgement(DISAGREES, f"{describe(over_worse[found.index(min(found))], measure)} ({p})")
        text = f"{describe(least_clear(over_worse), measure)}; against the best proposed: {describe(best, measure)}"
        behind = best.equal or not best.holds
        if not behind or not all(comparison.holds or comparison.equal for comparison in over_worse):
            return Judgement(UNDECIDED, text)
        return Judgement(EQUAL if any(comparison.equal for comparison in over_worse) else AGREES, text)

    return in_every_panel([agent, *worse, *proposed], judge)


def control(panel: PanelResult, measure: Measure, explorers: Sequence[str]) -> Control:
    """Whether a panel needs exploration: the agents that explore with a network, against Greedy, which does not.

    It pays if an explorer is significantly better than Greedy after Holm's correction over the explorers, and not
    practically equal. The panel needs none if no explorer is better by 5% of Greedy's number: the interval of each
    difference ends below that. Otherwise it is undecided.
    """
    known = {agent.agent for agent in panel.agents}
    pairs = _pairs(counted(panel, measure), [a for a in explorers if a in known], [CONTROL], measure)
    p = holm([pair.supporting for pair in pairs])
    winners = [pair for pair, adjusted in zip(pairs, p, strict=True) if adjusted <= ALPHA and not pair.equal]
    best = max(pairs, key=lambda pair: pair.advantage.mean)
    if winners:
        best = max(winners, key=lambda pair: pair.advantage.mean)
        text = f"{describe(best, measure)}; {len(winners)} of {len(pairs)} explorers are better than {CONTROL}"
        return Control(panel.name, PAYS, text)
    text = f"the best explorer: {describe(best, measure)}"
    ends = [pair.advantage.mean if np.isnan(pair.advantage.high) else pair.advantage.high for pair in pairs]
    none = all(pair.advantage.n > 1 and end <= pair.margin for pair, end in zip(pairs, ends, strict=True))
    return Control(panel.name, NEEDLESS if none else UNDECIDED, text)


def one_among_first(candidates: Sequence[str], places: int, agents: Sequence[str]) -> Rule:
    """One of the candidates at least has one of the first places among all agents.

    A candidate has one if it is better than k = len(agents) - places of the others: at_least(k, p-values), and over
    the candidates, any of which would do, Bonferroni's correction. None has one if ``places`` others are better than
    each candidate: the largest over the candidates of at_least(places, p-values against it).
    """

    def judge(panel: PanelResult, measure: Measure) -> Judgement:
        needed = len(agents) - places
        rivals = {c: _pairs(panel, [c], [a for a in agents if a != c], measure) for c in candidates}
        supporting = {c: at_least(needed, [pair.supporting for pair in rivals[c]]) for c in candidates}
        opposing = {c: at_least(places, [pair.opposing for pair in rivals[c]]) for c in candidates}
        p_for, p_against = min(1.0, len(candidates) * min(supporting.values())), max(opposing.values())
        means = {a: float(np.nanmean(panel.of(a).final)) for a in agents}
        leader = max(candidates, key=lambda c: measure.better * means[c])
        place = 1 + sum(measure.better * (means[a] - means[leader]) > 0 for a in agents)
        n = min(pair.advantage.n for pair in rivals[leader])
        text = f"{leader} {means[leader]:.{measure.digits}f} has place {place} of {len(agents)} by its mean; "
        if p_for <= ALPHA:
            surest = min(candidates, key=lambda c: supporting[c])
            proof = f"{surest} is better than {needed} of the {len(agents) - 1} others"
            return Judgement(AGREES, f"{text}{proof}: {probability(p_for)} after correction, {seeds(n)}")
        if p_against <= ALPHA:
            proof = f"{places} others are better than it"
            return Judgement(DISAGREES, f"{text}{proof}: {probability(p_against)} after correction, {seeds(n)}")
        unclear = f"that it, or that no candidate, is among the first {places} is not significant"
        return Judgement(UNDECIDED, f"{text}{unclear} ({probability(p_for)} and {probability(p_against)}), {seeds(n)}")

    return in_every_panel(agents, judge)


def lower_at_low_dimension(agents: Sequence[str]) -> Rule:
    """Each agent's regret is lower at the low than at the high effective dimension of the same function."""

    def rule(panels: Panels, measure: Measure) -> list[Finding]:
        named = {panel.name: counted(panel, measure) for panel in panels}
        findings = []
        for function in dict.fromkeys(name.rpartition("-")[0] for name in named):
            low, high = (named.get(f"{function}-{end}") for end in ("low", "high"))
            if low is None or high is None:
                judgement = Judgement(UNDECIDED, f"{function} was not run at a low and at a high dimension")
            else:
                judgement = (
                    without_numbers(low, agents)
                    or without_numbers(high, agents)
                    or every(
                        [
                            compare(low.of(a), high.of(a), measure, (f"{a} at low dimension", "at high dimension"))
                            for a in agents
                        ],
                        measure,
                    )
                )
            findings.append(Finding(f"{function}: low, high", judgement))
        return findings

    return rule


def same_in_all_panels(agents: Sequence[str]) -> Rule:
    """Every seed's final number is the same, to the last bit, in all panels."""

    def rule(panels: Panels, measure: Measure) -> list[Finding]:
        where = ", ".join(panel.name for panel in panels)
        missing = [judgement for panel in panels if (judgement := without_numbers(panel, agents))]
        if missing or len(panels) < 2:
            return [Finding(where, missing[0] if missing else Judgement(UNDECIDED, "only one value was run"))]
        differing = [text for agent in agents for text in _differences(panels, agent, measure)]
        if differing:
            return [Finding(where, Judgement(DISAGREES, "; ".join(differing)))]
        n = len(panels[0].of(agents[0]).seeds)
        reason = f"the final numbers of {', '.join(agents)} are equal to the last bit in {seeds(n)}"
        return [Finding(where, Judgement(AGREES, reason))]

    return rule


def _differences(panels: Panels, agent: str, measure: Measure) -> list[str]:
    """The first panel and seed in which an agent's number differs from that of the first panel, if there is one."""
    first = dict(zip(panels[0].of(agent).seeds, panels[0].of(agent).final, strict=True))
    for panel in panels[1:]:
        other = dict(zip(panel.of(agent).seeds, panel.of(agent).final, strict=True))
        common = sorted(set(first) & set(other))
        unequal = [s for s in common if not np.array_equal(first[s], other[s], equal_nan=True)]
        if unequal or not common:
            if not common:
                return [f"{agent} has no seed in common in {panels[0].name} and {panel.name}"]
            seed, digits = unequal[0], measure.digits + 2
            return [
                f"{agent}, seed {seed}: {first[seed]:.{digits}f} at {panels[0].name}, {other[seed]:.{digits}f} at "
                f"{panel.name}; {len(unequal)} of {seeds(len(common))} differ"
            ]
    return []


def _pairs(
    panel: PanelResult, first: Sequence[str], second: Sequence[str], measure: Measure, handicap: float = 1.0
) -> list[Comparison]:
    def pair(a: str, b: str) -> Comparison:
        names = None if handicap == 1 else (a, f"{handicap:g} times {b}")
        return compare(panel.of(a), panel.of(b), measure, names, handicap)

    return [pair(a, b) for a in first for b in second]
