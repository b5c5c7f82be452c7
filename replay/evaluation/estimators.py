"""Estimators of the click rate of a policy, such as a frozen agent, as torchmetrics metrics.

Event i has the click r_i and was logged with probability p_i. Let m_i be 1 if the policy picks the logged action, else
0, and pi_i the probability that it does (exact, or for Thompson sampling a mean over Monte Carlo draws), and let
w_i = pi_i / p_i.

    match   sum m r / sum m            Wilson's interval
    IPS     1/N sum w r                gamma interval, see nl_lightning.core.intervals
    SNIPS   sum w r / sum w            gamma interval
    acceptance rate  1/N sum m;   effective sample size  (sum w)^2 / sum w^2

All estimates and intervals are functions of sums over events, so one pass over the log is enough and shards add up.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from nl_lightning.core.intervals import Ends, PseudoClick, ips_interval, pseudo_click, snips_interval
from nl_lightning.core.statistics import wilson

__all__ = [
    "IPS",
    "METRICS",
    "AcceptanceRate",
    "Counted",
    "EffectiveSampleSize",
    "Estimate",
    "EventCounts",
    "EventSums",
    "MatchCTR",
    "SelfNormalisedIPS",
    "Totals",
    "estimates",
    "monte_carlo_error",
]

_COLUMNS = (
    "events",
    "matches",
    "match_clicks",
    "weight",
    "weight2",
    "weighted_clicks",
    "weighted2_clicks",
    "pi_weight",
    "pi_weight2",
    "monte_carlo",
)
"""N, sum m, sum m r, sum w, sum w^2, sum w r, sum w^2 r, sum pi w, sum pi w^2, and the Monte Carlo variance of
sum w r, which is information: it is already within sum w^2 r"""


class Estimate(NamedTuple):
    """An estimate and its confidence interval for each replica, (R,); NaN if there is no interval."""

    value: Tensor
    low: Tensor
    high: Tensor


class EventSums(Metric):
    """Base class of the estimators: sums (R, columns) over events.

    Args:
        replicas: number R of replicas.
    """

    full_state_update = False
    sums: Tensor

    def __init__(self, replicas: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("sums", torch.zeros(replicas, len(_COLUMNS), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, click: Tensor, match: Tensor, counts: Tensor, weight: Tensor, pi: Tensor, spread: Tensor) -> None:
        """Add N events of the log.

        Args:
            click: r (N,).
            match: m (R, N).
            counts: (N,), False for events that the propensity correction removes from the match estimator.
            weight: w (R, N).
            pi: (R, N), the probability of the logged action.
            spread: (R, N), the Monte Carlo variance of w r.
        """
        clicks, matched = click.to(weight), (match & counts).to(weight)
        clicked = weight * clicks
        columns = (
            torch.ones_like(weight),
            matched,
            matched * clicks,
            weight,
            weight.square(),
            clicked,
            clicked * weight,
            pi * weight,
            pi * weight.square(),
            spread,
        )
        self.sums += torch.stack([column.sum(-1, dtype=torch.float64) for column in columns], dim=-1)

    def total(self, name: str) -> Tensor:
        """The sum (R,) of a column."""
        return self.sums[..., _COLUMNS.index(name)]

    @abstractmethod
    def compute(self) -> Any:
        """The result for each replica, over all processes."""

    def counted(self, successes: str, trials: str) -> Estimate:
        """A ratio of counts with Wilson's interval."""
        k, n = self.total(successes), self.total(trials)
        ends = [wilson(*pair) for pair in zip(k.tolist(), n.tolist(), strict=True)]
        low, high = torch.tensor(ends, dtype=k.dtype, device=k.device).T
        return Estimate(k / n, low, high)

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A sum (R,) as NumPy has it."""
        return self.total(name).cpu().numpy()

    def pseudo_click(self) -> PseudoClick:
        """The size of a click that was not met."""
        return pseudo_click(*map(self.numbers, ("pi_weight", "pi_weight2")))

    def within(self, value: Tensor, ends: Ends) -> Estimate:
        """An estimate with its interval."""
        return Estimate(value, *(torch.from_numpy(end).to(value) for end in ends))


class MatchCTR(EventSums):
    """sum m r / sum m, with Wilson's interval."""

    def compute(self) -> Estimate:
        return self.counted("match_clicks", "matches")


class IPS(EventSums):
    """1/N sum w r"""

    def compute(self) -> Estimate:
        clicks, clicks2, events = map(self.numbers, ("weighted_clicks", "weighted2_clicks", "events"))
        value = self.total("weighted_clicks") / self.total("events")
        return self.within(value, ips_interval(clicks, clicks2, events, self.pseudo_click()))


class SelfNormalisedIPS(EventSums):
    """sum w r / sum w"""

    def compute(self) -> Estimate:
        weight, weight2 = self.numbers("weight"), self.numbers("weight2")
        clicks, clicks2 = self.numbers("weighted_clicks"), self.numbers("weighted2_clicks")
        value = self.total("weighted_clicks") / self.total("weight")
        return self.within(value, snips_interval(weight, weight2, clicks, clicks2, self.pseudo_click()))


class AcceptanceRate(EventSums):
    """1/N sum m, with Wilson's interval."""

    def compute(self) -> Estimate:
        return self.counted("matches", "events")


class EffectiveSampleSize(EventSums):
    """(sum w)^2 / sum w^2"""

    def compute(self) -> Estimate:
        size = self.total("weight").square() / self.total("weight2")
        return Estimate(size, *[torch.full_like(size, torch.nan)] * 2)


class Totals(EventSums):
    """The sums by name."""

    def compute(self) -> dict[str, Tensor]:
        return {name: self.total(name).clone() for name in _COLUMNS}


def monte_carlo_error(totals: Mapping[str, Tensor]) -> Tensor:
    """(R,), the standard error of IPS that comes from estimating action probabilities; its interval contains it."""
    return totals["monte_carlo"].sqrt() / totals["events"]


class Counted(NamedTuple):
    """Counts that do not depend on what the policy chooses."""

    outside: int
    """events whose logged item was not a candidate"""
    corrected: int
    """events that the propensity correction removed"""
    unknown: int
    """values of user features that are missing or were not seen by the fit of the features"""


class EventCounts(Metric):
    """Computes ``Counted``."""

    full_state_update = False
    counted: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("counted", torch.zeros(len(Counted._fields), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, logged: Tensor, kept: Tensor, unknown: Tensor) -> None:
        """Add N events.

        Args:
            logged: (N,), the arm of the logged item, or -1.
            kept: (N,), whether the propensity correction keeps the event.
            unknown: (N, C), whether a value of the context is unknown.
        """
        shown = logged >= 0
        self.counted += torch.stack([(~shown).sum(), (shown & ~kept).sum(), unknown.sum()])

    def compute(self) -> Counted:
        return Counted(*self.counted.tolist())


METRICS: dict[str, type[EventSums]] = {
    "match": MatchCTR,
    "ips": IPS,
    "snips": SelfNormalisedIPS,
    "acceptance": AcceptanceRate,
    "effective_sample_size": EffectiveSampleSize,
}


def estimates(replicas: int, **others: type[EventSums]) -> MetricCollection:
    """All estimators, and further ones by name, sharing one set of sums.

    Only ``compute`` gives results over all processes.
    """
    chosen = {**METRICS, **others}
    metrics: dict[str, Metric | MetricCollection] = {name: metric(replicas) for name, metric in chosen.items()}
    return MetricCollection(metrics, compute_groups=[list(metrics)])
