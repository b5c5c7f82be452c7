"""Differences of policies on the same events: the sums they need.

Both policies are asked about the same events, so what is common to them cancels: d = w1 - w2 is 0 wherever they agree.
Replicas of an agent share the clicks of the log and are no independent samples: the agent as a whole is compared by the
mean of its weights in each event.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from nl_lightning.core.differences import ClickSums, bonferroni, click_difference, rule, untold
from nl_lightning.core.intervals import mean_or
from nl_lightning.core.statistics import CLICK_LEVEL
from replay.evaluation.evaluator import Weighed

__all__ = ["DifferenceSums", "Differences", "compare_sums"]

_COLUMNS = ("events", "clicks", "clicks2", "plus", "plus2", "minus", "minus2", "pi1", "pi1_w2", "pi2", "pi2_w2", "base")
"""N, sum d r, sum d^2 r; over d > 0 and over d < 0 the sums of |pi1 - pi2| and of |pi1 - pi2| d^2; of both policies
sum pi and sum pi w^2; and sum w2 r, the clicks of the baseline"""


class DifferenceSums(Metric):
    """Sums (rows, columns) over events: a row for each replica and, if there are several, a last one for their mean.

    Args:
        replicas: number R of replicas of the policy that is compared with the baseline.
    """

    full_state_update = False
    sums: Tensor

    def __init__(self, replicas: int) -> None:
        super().__init__()
        rows = replicas + (replicas > 1)
        self.add_state("sums", torch.zeros(rows, len(_COLUMNS), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, found: Weighed, weight: Tensor, pi: Tensor) -> None:
        """Add N events, given the weights and probabilities (1, N) of the baseline."""
        w1, pi1 = _with_mean(found.weight), _with_mean(found.pi)
        d, apart = w1 - weight, (pi1 - pi).abs()
        clicked, d2 = d * found.click.to(d), d.square()
        columns = (
            torch.ones_like(d),
            clicked,
            clicked * d,
            apart * (d > 0),
            apart * d2 * (d > 0),
            apart * (d < 0),
            apart * d2 * (d < 0),
            pi1,
            pi1 * w1.square(),
            pi.expand_as(d),
            (pi * weight.square()).expand_as(d),
            (weight * found.click.to(d)).expand_as(d),
        )
        self.sums += torch.stack([column.sum(-1, dtype=torch.float64) for column in columns], dim=-1)

    def compute(self) -> Tensor:
        return self.sums.clone()


def _with_mean(values: Tensor) -> Tensor:
    return torch.cat([values, values.mean(0, keepdim=True)]) if len(values) > 1 else values


class Differences(NamedTuple):
    """Policies against a baseline."""

    baseline: str
    rows: list[dict[str, Any]]
    """of each policy, and of each replica where there are several, the difference of click rates (IPS)"""
    level: float
    """at which all comparisons of policies hold together, as do all comparisons of replicas"""
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        return self._asdict()


def compare_sums(baseline: str, found: Sequence[tuple[str, Tensor]], level: float = CLICK_LEVEL) -> Differences:
    """The differences of policies, given by name with the sums of ``DifferenceSums``.

    Each of m comparisons has the level 1 - alpha/m (Bonferroni), so that all of them hold together at the level. The
    replicas' comparisons are a family of their own.
    """
    replicas = sum(len(sums) - 1 for _, sums in found)
    rows: list[dict[str, Any]] = []
    whole: list[tuple[str, dict[str, Any]]] = []
    for name, sums in found:
        several = len(sums) > 1
        for place, values in enumerate(sums.cpu().numpy()):
            mean = place == len(sums) - 1
            own_level = bonferroni(level, len(found) if mean else replicas)
            row = _row(dict(zip(_COLUMNS, values.tolist(), strict=True)), own_level)
            rows.append({"policy": name, "replica": None if mean else place, "mean": several and mean, **row})
        whole.append((name, rows[-1]))
    shared = ["Replicas share the log's clicks: an agent is compared by its mean weights."] if replicas else []
    notes = [rule("A policy", baseline, len(found), level), *shared, *untold(baseline, whole)]
    return Differences(baseline, rows, level, notes)


def _row(sums: dict[str, float], level: float) -> dict[str, Any]:
    n = sums["events"]
    # where the policies never differed in one direction, a click there would have had the size of the policy's own
    plus, minus = (
        float(mean_or(mean_or(np.nan, sums[f"{pi}_w2"], sums[pi]), sums[f"{side}2"], sums[side]))
        for side, pi in (("plus", "pi1"), ("minus", "pi2"))
    )
    rate = sums["base"] / n if n else 0.0
    return click_difference(ClickSums(n, sums["clicks"], sums["clicks2"], plus, minus, rate), level)
