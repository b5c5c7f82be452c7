"""Several rounds together: a guess of what is chosen, checked until it confirms itself.

Between two calls of TrainNN the network does not change, and the choice of a round depends on earlier ones only through
the design matrices. Given a guess of what is observed in every round, the states of the design matrices before each of
them are prefix sums,

    M_t = M + sum_{i < t} w_i g_i g_i^T,

and with these the choices of all rounds are computed at once. Where they equal the guess, they are those that rounds
one by one would have given: the first does not depend on the guess, and each is right if those before it are. Otherwise
at least one more round is right than before, and the result is the next guess. One or two checks are usually enough,
because a choice depends little on the last few rounds.
"""

from typing import NamedTuple, Protocol

from torch import Tensor

from nl_lightning.agents.base import Agent
from nl_lightning.core.errors import InputError
from nl_lightning.core.types import Prefix, View

__all__ = ["Acceptance", "Resolved", "first_guess", "look_ahead"]


class Acceptance(Protocol):
    """Which rounds of a window count, and what is observed in them."""

    def guess(self, arm: Tensor, replicas: Tensor | None) -> Tensor:
        """(R, W): what a guess consists of, if these arms (R, W) are chosen"""

    def observed(self, view: View, guess: Tensor, replicas: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The observations (R, S, ...) that a guess makes, and how many of them (R, W) come before each round; None
        where every round is one."""


class Resolved(NamedTuple):
    """A guess that has confirmed itself."""

    guess: Tensor
    """(R, W)"""
    score: Tensor
    """(R, W, K)"""
    bonus: Tensor
    """(R, W, K)"""
    prefix: Prefix
    checks: int
    """how often a guess was checked"""


def first_guess(agent: Agent, view: View) -> Tensor:
    """The arms (R, W) that are chosen in the rounds of a view (R, W, K, ...) if no round changes a design matrix."""
    norm = agent.design.norm(tuple(factor.flatten(1, 2) for factor in view.factors)).view_as(view.mean)
    score, _ = _scores(agent, view, norm, agent.radius[:, None, None])
    return agent.best(score, view.uniform, view.normal)


def look_ahead(agent: Agent, view: View, rule: Acceptance, guess: Tensor) -> Resolved:
    """Play the rounds of a view (R, W, K, ...), given a first guess (R, W); the agent stays as it is."""
    score, bonus, prefix = _given(agent, view, rule, guess, None, None)
    found = rule.guess(agent.best(score, view.uniform, view.normal), None)
    wrong, checks = _differing(guess, found), 1
    while len(wrong):
        # Replicas are independent: those that were right stay as they are.
        checks += 1
        if checks > guess.shape[1] + 1:
            # every check confirms at least one more round
            raise InputError(
                f"{agent.exploration!r} gives other answers when it is asked again. An exploration rule takes its "
                "random numbers from `uniform` and `normal`, and keeps no state."
            )
        everybody = len(wrong) == len(found)
        guess = found if everybody else found.index_select(0, wrong)
        some, replicas = (view, None) if everybody else (view.of(wrong), wrong)
        *new, new_prefix = _given(agent, some, rule, guess, replicas, prefix.effective_dimension)
        new_guess = rule.guess(agent.best(new[0], some.uniform, some.normal), replicas)
        if everybody:
            found, score, bonus, prefix = new_guess, new[0], new[1], new_prefix
        else:
            for values, computed in zip((found, score, bonus, *prefix), (new_guess, *new, *new_prefix), strict=True):
                values.index_copy_(0, wrong, computed)
        wrong = wrong[_differing(guess, new_guess)]
    return Resolved(found, score, bonus, prefix, checks)


def _given(
    agent: Agent, view: View, rule: Acceptance, guess: Tensor, replicas: Tensor | None, known: Tensor | None
) -> tuple[Tensor, Tensor, Prefix]:
    """Score and bonus of all arms (R, W, K) under a guess, and the states that follow from it.

    With ``replicas`` (indices) everything belongs to these replicas only.
    """
    observed, before = rule.observed(view, guess, replicas)
    prefix = agent.prefix(observed, replicas, known)
    if before is None:
        norm, radius = agent.design.norm_at(prefix.design[:, :-1], view.factors), prefix.radius[:, :-1]
    else:
        norm, radius = agent.design.norm_at(prefix.design, view.factors, before), prefix.radius.gather(1, before)
    return *_scores(agent, view, norm, radius.unsqueeze(-1)), prefix


def _scores(agent: Agent, view: View, norm: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """Score and bonus of arms with these norms, which become the bonus in place."""
    bonus = norm.mul_(radius)
    return agent.exploration.score(view.mean, bonus, view.normal), bonus


def _differing(guess: Tensor, found: Tensor) -> Tensor:
    """The indices of replicas whose guess (R, W) was wrong."""
    return (guess != found).any(1).nonzero().flatten()
