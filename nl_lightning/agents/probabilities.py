"""The chance of every arm, given the scores: which one is best, and how ties are shared.

Scores count as equal up to a relative tolerance, as in ``Exploration.choose``, which breaks ties uniformly. The chances
are therefore exact for given scores; only where scores are drawn (Thompson sampling) they are means over draws.
"""

from functools import lru_cache
from math import comb

import torch
from torch import Tensor

__all__ = ["DRAWS", "best_of_all", "best_of_random_sets", "logged_best_of_all", "logged_best_of_random_sets"]

DRAWS = 20
"""Monte Carlo draws for the action probabilities of a Thompson agent, where nothing else is said."""


def best_of_all(score: Tensor, tolerance: float) -> Tensor:
    """P(arm is taken) for scores (..., K): arms that tie with the highest score are equally likely. Arms that a round
    does not have come with a score of -inf."""
    best = (score >= _lowest_tied(score.amax(-1, keepdim=True), tolerance)).to(score)
    return best / best.sum(-1, keepdim=True)


def logged_best_of_all(score: Tensor, logged: Tensor, tolerance: float) -> Tensor:
    """(..., N): the entry of ``best_of_all`` for the logged arm (N,) of scores (..., N, K); 0 where it is -1."""
    highest = score.amax(-1, keepdim=True)
    tied = score >= _lowest_tied(highest, tolerance)
    place = logged.clamp_min(0).expand(score.shape[:-1]).unsqueeze(-1)
    taken = tied.gather(-1, place).squeeze(-1) & (logged >= 0)
    return taken.double() / tied.sum(-1)


def best_of_random_sets(score: Tensor, arms: int, tolerance: float) -> Tensor:
    """P(item is taken) from a set of K that is drawn uniformly among n items, for scores (..., n).

    Sort the items by score, the best one first. Let j = 0, ..., n - 1 be the first item of a set, and w the number of
    items behind j whose score counts as equal to that of j. With F(m) = binom(m, K) / binom(n, K)

        P(j is first)                = F(n - j) - F(n - j - 1)
        P(j is first and is taken)   = (F(n - j) - F(n - j - 1 - w)) / (w + 1)

    and each of the w items is taken with 1/w of the difference. The second line is the mean of 1 / (1 + X), where X
    of the w items are in the set too: X is hypergeometric, and binom(w, x) / (x + 1) = binom(w + 1, x + 1) / (w + 1).
    """
    n = score.shape[-1]
    F = torch.tensor(_inside(n, arms), dtype=score.dtype, device=score.device)
    ranked, order = score.sort(dim=-1, descending=True)
    j = torch.arange(n, device=score.device)
    # the end of the items that count as equal to j
    end = torch.searchsorted(-ranked, -_lowest_tied(ranked, tolerance), right=True)
    first = F[n - j] - F[n - j - 1]
    own = (F[n - j] - F[n - end]) / (end - j)
    shared = (first - own) / (end - j - 1).clamp_min(1)
    # sum over j of what j shares with the items j + 1, ..., end - 1
    steps = torch.nn.functional.pad(shared, (1, 0)).scatter_add(-1, end, -shared)
    taken = own + steps.cumsum(-1)[..., :n]
    return torch.zeros_like(score).scatter(-1, order, taken)


def logged_best_of_random_sets(
    score: Tensor, logged: Tensor, arms: int, tolerance: float, mask: Tensor | None = None
) -> Tensor:
    """(..., N): the chance that the logged arm (N,) is in a set of ``arms`` drawn uniformly from the candidates, and is
    taken from it, for scores (..., N, n) of all candidates; 0 where ``logged`` is -1.

    With g candidates that are better and t others that tie with it, and F as in ``best_of_random_sets``:

        (F(n - g) - F(n - g - t - 1)) / (t + 1)

    ``mask`` (N, n) is False for padding, whose score is -inf. Of an event with fewer candidates all are in the set.
    """
    place = logged.clamp_min(0).expand(score.shape[:-1]).unsqueeze(-1)
    own = score.gather(-1, place)
    better = (_lowest_tied(score, tolerance) > own).sum(-1)
    worse = (score < _lowest_tied(own, tolerance)).sum(-1)
    width = score.shape[-1]
    tied = width - better - worse
    n = torch.full_like(logged, width) if mask is None else mask.sum(-1)
    # a row of F for every number of candidates
    sizes, row = n.unique(return_inverse=True)
    F = score.new_zeros(len(sizes), width + 1, dtype=torch.float64)
    for number, size in enumerate(sizes.tolist()):
        F[number, : size + 1] = torch.tensor(_inside(size, min(arms, size)), dtype=torch.float64)
    row = row.expand(score.shape[:-1])
    chance = (F[row, n - better] - F[row, n - better - tied]) / tied
    return chance * (logged >= 0)


@lru_cache(maxsize=256)
def _inside(n: int, arms: int) -> tuple[float, ...]:
    """F(0), ..., F(n): the chance that a set of K among n items lies within m given ones."""
    return tuple(comb(m, arms) / comb(n, arms) for m in range(n + 1))


def _lowest_tied(highest: Tensor, tolerance: float) -> Tensor:
    """The lowest score that counts as equal to the highest one; see ``Exploration.choose``."""
    return highest.sub(highest.abs(), alpha=tolerance)
