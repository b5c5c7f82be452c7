"""Whether the numbers of some seeds settle a claim about agents: pure functions from final numbers to a judgement.

"A is better than B" is the paired t test over the seeds that both have, two-sided at 1 - LEVEL = 4%: the claim's
direction is significant where the 96% interval of the difference lies on its side of zero. A and B are practically
equal where that interval lies within MARGIN = 5% of B's mean on both sides of zero: two one-sided tests at 2%. Where
there is next to no regret, a difference of NIL = one click in 10,000 rounds stands for the 5%. A seed whose TrainNN
diverged counts with the worst number that any agent has on it. Seeds of a replay share the log's clicks, so that there
the chance of one seed's clicks is added to the variance over seeds.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nl_lightning.core.statistics import LEVEL, Paired, paired, rate_variance
from nl_lightning.experiments.results import AgentResult, PanelResult
from nl_lightning.runs.summary import CTR, REGRET, Measure

__all__ = [
    "AGREES",
    "ALPHA",
    "DISAGREES",
    "EQUAL",
    "MARGIN",
    "NIL",
    "UNDECIDED",
    "VERDICTS",
    "Comparison",
    "Judgement",
    "at_least",
    "compare",
    "counted",
    "describe",
    "every",
    "holm",
    "least_clear",
    "margin",
    "noted",
    "probability",
    "seeds",
    "signed",
    "without_numbers",
]

ALPHA = 1 - LEVEL
"""A p-value of at most this is significant."""

MARGIN = 0.05
"""Agents whose difference is certainly less than this share of the second one's number are practically equal."""

NIL = 1e-4
"""So are agents whose regret certainly differs by less than this much a round, however little regret there is."""

AGREES, DISAGREES, EQUAL, UNDECIDED = "agrees", "disagrees", "practically equal", "undecided"
VERDICTS = (AGREES, EQUAL, DISAGREES, UNDECIDED)


class Judgement(NamedTuple):
    """What the numbers say, and the test that says so."""

    verdict: str
    reason: str


class Comparison(NamedTuple):
    """The claim that the first is better than the second, on the seeds that both have."""

    first: str
    second: str
    first_mean: float
    second_mean: float
    advantage: Paired
    """of the first: positive if it is better"""
    left_out: int
    """seeds without a number of both"""
    lost: int = 0
    """numbers, of either, that stand for a seed whose TrainNN diverged"""
    margin: float = np.nan
    """the difference below which the two are practically equal; NaN if that is not asked"""

    @property
    def supporting(self) -> float:
        """The p-value for the claim: 1 if the numbers point the other way, or are too few."""
        return self.advantage.p if self.advantage.n > 1 and self.advantage.mean > 0 else 1.0

    @property
    def opposing(self) -> float:
        """The p-value against the claim."""
        return self.advantage.p if self.advantage.n > 1 and self.advantage.mean < 0 else 1.0

    @property
    def equal(self) -> bool:
        """Whether the interval of the difference lies within the margin."""
        low, high = self.advantage.low, self.advantage.high
        if np.isnan(low):
            # the same difference for all seeds has no interval
            low = high = self.advantage.mean if self.advantage.n > 1 else np.nan
        return bool(-self.margin <= low and high <= self.margin)

    @property
    def holds(self) -> bool:
        """Whether it is significant for the claim."""
        return self.supporting <= ALPHA

    @property
    def favour(self) -> float:
        """From -1, significant against the claim, to 1, significant for it."""
        return (1 - self.supporting) - (1 - self.opposing)


def compare(
    first: AgentResult,
    second: AgentResult,
    measure: Measure,
    names: tuple[str, str] | None = None,
    handicap: float = 1.0,
) -> Comparison:
    """The first against the second, whose numbers are multiplied by ``handicap``.

    advantage_i = better (first_i - handicap second_i),  better = -1 for regret, 1 for CTR, i over common seeds.
    With a handicap nobody asks whether they are equal. Where there is next to no regret, so that the handicap allows
    less than NIL a round more, it is second_i + NIL T instead.
    """
    seeds = sorted(set(first.seeds) & set(second.seeds))
    a = np.array([first.final[first.seeds.index(seed)] for seed in seeds], dtype=np.float64)
    b = np.array([second.final[second.seeds.index(seed)] for seed in seeds], dtype=np.float64)
    both = ~(np.isnan(a) | np.isnan(b))
    name, other = names or (first.agent, second.agent)
    nothing = _nil(second, measure)
    if both.any() and handicap > 1 and (handicap - 1) * b[both].mean() < nothing:
        b, other = b + nothing, f"{second.agent} and a click in {1 / NIL:,.0f} rounds"
    else:
        b = handicap * b
    a_mean, b_mean = (float(x[both].mean()) if both.any() else np.nan for x in (a, b))
    shared = 0.0
    if measure is CTR and both.any():
        shared = _click_variance(first, a_mean) + handicap**2 * _click_variance(second, b_mean / handicap)
    advantage = paired(measure.better * a, measure.better * b, shared=shared)
    lost = len(set(first.diverged) & set(seeds)) + len(set(second.diverged) & set(seeds))
    equal = margin(b_mean, second, measure) if handicap == 1 else np.nan
    return Comparison(name, other, a_mean, b_mean, advantage, int((~both).sum()), lost, equal)


def margin(mean: float, agent: AgentResult, measure: Measure) -> float:
    """max(MARGIN |mean|, NIL T), the second for a regret only: within it of ``mean`` an agent is practically equal."""
    return max(MARGIN * abs(mean), _nil(agent, measure))


def _nil(agent: AgentResult, measure: Measure) -> float:
    return NIL * float(agent.t[-1]) if measure is REGRET and len(agent.t) else 0.0


def counted(panel: PanelResult, measure: Measure) -> PanelResult:
    """The panel with a number for every seed that diverged: the worst that any agent has on it.

    Where all agents diverged on a seed it is the worst number of the panel. Without a single number nothing changes.
    """
    by_seed: dict[int, list[float]] = {}
    for agent in panel.agents:
        for seed, final in zip(agent.seeds, agent.final.tolist(), strict=True):
            if not np.isnan(final):
                by_seed.setdefault(seed, []).append(measure.better * final)
    if not by_seed:
        return panel
    worst = {seed: measure.better * min(numbers) for seed, numbers in by_seed.items()}
    worst_of_all = measure.better * min(measure.better * number for number in worst.values())

    def filled(agent: AgentResult) -> AgentResult:
        final = [
            worst.get(seed, worst_of_all) if seed in agent.diverged else number
            for seed, number in zip(agent.seeds, agent.final.tolist(), strict=True)
        ]
        return agent._replace(final=np.array(final, dtype=np.float64))

    return panel._replace(agents=[filled(agent) for agent in panel.agents])


def _click_variance(agent: AgentResult, rate: float) -> float:
    """The variance of a CTR that is due to the randomness of clicks in the events that one seed accepts."""
    accepted = [count for count, final in zip(agent.accepted or [], agent.final, strict=False) if not np.isnan(final)]
    return rate_variance(rate, float(np.mean(accepted))) if accepted else 0.0


def holm(p: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: with p sorted, max over j <= i of min(1, (k - j + 1) p_(j)).

    Rejecting those of at most alpha makes one false rejection or more with a probability of at most alpha, however
    the k tests depend on each other.
    """
    adjusted = [0.0] * len(p)
    largest = 0.0
    for place, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        largest = max(largest, min(1.0, (len(p) - place) * p[i]))
        adjusted[i] = largest
    return adjusted


def at_least(count: int, p: Sequence[float]) -> float:
    """The p-value of "at least ``count`` of the k alternatives are true": (k - count + 1) p_(count).

    Partial conjunction after Bonferroni (Benjamini and Heller, 2008): if fewer are true, at least k - count + 1 nulls
    hold, and ``count`` small p-values need one of theirs.
    """
    return min(1.0, (len(p) - count + 1) * sorted(p)[count - 1])


def every(comparisons: Sequence[Comparison], measure: Measure) -> Judgement:
    """The claim that every one of k comparisons holds.

    Agrees: each is significant, and none is practically equal. No correction is needed (intersection-union): where the
    claim is false one of the comparisons is, and that one alone is found significant with a probability of at most
    alpha.
    Practically equal: each is significant or practically equal, and one at least is the latter. No correction either.
    Disagrees: one that is not practically equal is significant in the other direction after Holm's correction over the
    k comparisons, because any of them would do. Otherwise it is undecided.
    """
    against = holm([comparison.opposing for comparison in comparisons])
    opposed = [p <= ALPHA and not c.equal for p, c in zip(against, comparisons, strict=True)]
    equal = sum(comparison.equal for comparison in comparisons)
    supported = sum(comparison.holds and not comparison.equal for comparison in comparisons)
    of = f" of {len(comparisons)} comparisons"
    if any(opposed):
        least = max((i for i, against_it in enumerate(opposed) if against_it), key=lambda i: -against[i])
        text = describe(comparisons[least], measure)
        if len(comparisons) == 1:
            return Judgement(DISAGREES, text)
        corrected = f" (after Holm's correction over {len(against)} comparisons {probability(against[least])})"
        return Judgement(DISAGREES, f"{text}{corrected}; {sum(opposed)}{of} are significant against the claim")
    least = comparisons.index(least_clear(comparisons))
    if supported == len(comparisons):
        rest = f"; the least clear{of}, all significant" if len(comparisons) > 1 else ""
        return Judgement(AGREES, describe(comparisons[least], measure, _next(comparisons, least, measure)) + rest)
    if all(comparison.holds or comparison.equal for comparison in comparisons):
        least = comparisons.index(least_clear([comparison for comparison in comparisons if comparison.equal]))
        rest = f"; {equal}{of} are practically equal, {supported} significant for the claim"
        within = f", all within {MARGIN:.0%} of {comparisons[least].second}"
        return Judgement(EQUAL, describe(comparisons[least], measure) + within + (rest if len(comparisons) > 1 else ""))
    least = comparisons.index(least_clear([c for c in comparisons if not (c.holds or c.equal)]))
    rest = f"; {supported}{of} are significant for the claim" if len(comparisons) > 1 else ""
    same = f", {equal} practically equal" if equal else ""
    return Judgement(UNDECIDED, describe(comparisons[least], measure) + rest + same)


def _next(comparisons: Sequence[Comparison], decisive: int, measure: Measure) -> str:
    """ "next ", if the decisive comparison is between the best agent and the second best."""
    if len({comparison.first for comparison in comparisons}) > 1 or len(comparisons) == 1:
        return ""
    behind = max(comparisons, key=lambda comparison: measure.better * comparison.second_mean)
    return "next " if behind == comparisons[decisive] else ""


def least_clear(comparisons: Sequence[Comparison]) -> Comparison:
    """The comparison that supports the claim least: it decides a conjunction."""
    return min(comparisons, key=lambda comparison: (comparison.favour, comparison.advantage.mean))


def describe(comparison: Comparison, measure: Measure, before_second: str = "") -> str:
    """A comparison with its numbers; a positive difference is in the claim's favour."""
    first, second, first_mean, second_mean, advantage, left_out, diverged, _ = comparison
    digits = measure.digits
    # CTRs differ by less than their size
    finer = digits + 1 if measure is CTR else digits
    lost = f", {left_out} without a number left out" if left_out else ""
    lost += f", {diverged} diverged and counted as the worst" if diverged else ""
    if advantage.n < 2:
        return f"{first} and {before_second}{second} have {seeds(advantage.n)} in common, too few for a test{lost}"
    ends = f"{signed(advantage.low, finer)} to {signed(advantage.high, finer)}"
    band = "the same for all seeds" if np.isnan(advantage.low) else f"{LEVEL:.0%} interval {ends}"
    return (
        f"{first} {first_mean:.{digits}f}, {before_second}{second} {second_mean:.{digits}f}: difference "
        f"{signed(advantage.mean, finer)} ({band}), {probability(advantage.p)}, {seeds(advantage.n)}{lost}"
    )


def signed(value: float, digits: int) -> str:
    """Rounded, without a negative zero."""
    return f"{round(value, digits) + 0.0:.{digits}f}"


def probability(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3g}"


def seeds(n: int) -> str:
    return "1 seed" if n == 1 else f"{n} seeds"


def without_numbers(panel: PanelResult, agents: Sequence[str]) -> Judgement | None:
    """Why a claim about these agents cannot be tested in a panel, or None."""
    reasons = []
    for agent in agents:
        found = [result for result in panel.agents if result.agent == agent]
        if not found:
            reasons.append(f"{agent} was not run")
        elif np.isnan(found[0].final).all():
            reasons.append(f"no seed ({len(found[0].seeds)}) of {agent} has a number")
    return Judgement(UNDECIDED, "; ".join(reasons)) if reasons else None


def noted(judgement: Judgement, measure: Measure) -> Judgement:
    """For a replay, a note on the variance that seeds do not show."""
    if measure is not CTR:
        return judgement
    return judgement._replace(reason=f"{judgement.reason}; seeds share the log's clicks, whose chance is counted in")
