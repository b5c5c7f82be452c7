"""Several rounds at once: a guess of all their arms, checked until it bears itself out.

Between two calls of TrainNN the network stands still, and the arm of a round depends on the arms before it only through
the design matrices. Given arms a_1, ..., a_C, their diagonals before every round are cumulative sums,

    D_t = D + sum_{i < t} w_i g_i(a_i)^2,

and with them the arms a'_t that an agent would choose are computed for all rounds at once. Where a' = a these are the
arms that rounds one by one would have given: a'_1 does not depend on the guess, and a'_t is right if those before it
are. Else a' is right for at least one round more than a was, and is the next guess. One or two checks are what it
takes, for what an agent chooses depends little on the last rounds.
"""

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from nl_lightning.core.types import View
from nl_lightning.designs.diagonal import DiagonalDesign

if TYPE_CHECKING:
    from nl_lightning.agents.base import Agent

_ENTRIES = 110_000
"""Of the diagonals of all rounds at once, for all replicas of a run: with more, memory takes the time that is saved."""
FEWEST, _MOST = 12, 64
"""Rounds at once. For fewer a guess costs more than it saves; with more it is right less often."""


class Window(NamedTuple):
    """C rounds that were played at once, each tensor (R, C)."""

    arm: Tensor
    score: Tensor
    """of the chosen arm, like mean and bonus"""
    mean: Tensor
    bonus: Tensor
    radius: Tensor
    """after the round, like effective_dimension"""
    effective_dimension: Tensor
    filled: Tensor | None
    """False where there was no such round: in a replay replicas accept different numbers of events; None for all"""
    after: "Confidences"
    checks: int
    """how often a guess was checked"""


class Confidences(NamedTuple):
    """What follows from C observations, before each of them and after the last."""

    design: Tensor
    """(R, C + 1, p), the diagonal of the design matrix"""
    information: Tensor
    """(R, C + 1, p), that of the matrix of the effective dimension"""
    effective_dimension: Tensor
    """(R, C + 1)"""
    radius: Tensor
    """(R, C + 1)"""


def rounds_at_once(agent: "Agent", count: int) -> int:
    """How many of so many rounds are worth a guess; 1 where they are better played one by one.

    It is asked of all replicas of the run and not of those that a process has, so that any number of processes has the
    same result.
    """
    if not isinstance(agent.design, DiagonalDesign):
        return 1
    most = min(_ENTRIES // (agent.share.total * agent.design.diagonal.shape[1]), _MOST)
    if min(most, count) < FEWEST:
        return 1
    # as many windows as are needed, of equal length
    return -(-count // -(-count // most))


def foresee(agent: "Agent", view: View, accepted: Tensor | None = None) -> Window:
    """Play the rounds of a view (R, C, K, ...); the agent stays as it is.

    Replicas with ``accepted`` (R,) False choose, but do not learn.
    """
    # the guess: as if no round changed a design matrix
    norm = agent.design.norm(tuple(factor.flatten(1, 2) for factor in view.factors)).view_as(view.mean)
    score, _ = agent.score_of(view.mean, norm, agent.radius[:, None, None], view.normal)
    guess = agent.best(score, view.uniform)
    score, bonus, after = _given(agent, view, guess, accepted)
    arm = agent.best(score, view.uniform)
    wrong, checks = _differ(guess, arm), 1
    while len(wrong):
        # replicas know nothing of each other: those that were right stay as they are
        checks += 1
        some, guess = view.of(wrong), arm.index_select(0, wrong)
        may_learn = None if accepted is None else accepted.index_select(0, wrong)
        *found, found_after = _given(agent, some, guess, may_learn, wrong)
        found_arm = agent.best(found[0], some.uniform)
        for values, new in zip((arm, score, bonus, *after), (found_arm, *found, *found_after), strict=True):
            values.index_copy_(0, wrong, new)
        wrong = wrong[_differ(guess, found_arm)]
    score, mean, bonus = (values.gather(2, arm.unsqueeze(2)).squeeze(2) for values in (score, view.mean, bonus))
    radius, dimension = after.radius[:, 1:], after.effective_dimension[:, 1:]
    return Window(arm, score, mean, bonus, radius, dimension, None, after, checks)


def _given(
    agent: "Agent", view: View, arm: Tensor, accepted: Tensor | None, replicas: Tensor | None = None
) -> tuple[Tensor, Tensor, Confidences]:
    """Score and bonus of all arms (R, C, K) if these (R, C) are chosen, and what follows from them.

    All may be of some ``replicas`` only, by number.
    """
    assert isinstance(agent.design, DiagonalDesign)
    index = arm[..., None, None].expand(-1, -1, 1, view.observation.shape[-1])
    observed = view.observation.gather(2, index).squeeze(2)
    if accepted is not None:
        observed = observed * accepted.view(-1, 1, 1)
    after = agent.confidences(observed, replicas)
    norm = agent.design.norm_with(after.design[:, :-1], view.factors)
    return *agent.score_of(view.mean, norm, after.radius[:, :-1, None], view.normal), after


def _differ(guess: Tensor, arm: Tensor) -> Tensor:
    """The numbers of replicas whose arms (R, C) are not those of the guess."""
    return (guess != arm).any(1).nonzero().flatten()
