"""Estimators of the click rate of a policy, such as a frozen agent, as torchmetrics metrics.

Event i has the click r_i and was logged with probability p_i. Let m_i be 1 if the policy picks the logged action, else
0, and pi_i the probability that it does (for an agent m_i itself, or for Thompson sampling a mean over Monte Carlo
draws), and let w_i = pi_i / p_i.

    match   sum m r / sum m            Wilson's interval
    IPS     1/N sum w r                bootstrap over blocks of rows
    SNIPS   sum w r / sum w            bootstrap over blocks of rows
    acceptance rate  1/N sum m;   effective sample size  (sum w)^2 / sum w^2

All estimates are functions of sums over blocks of rows, so one pass over the log is enough and shards add up.
"""

from abc import abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from nl_lightning.core.rng import Stream, generator
from nl_lightning.core.statistics import CLICK_LEVEL, wilson

__all__ = [
    "BLOCKS",
    "IPS",
    "METRICS",
    "RESAMPLES",
    "AcceptanceRate",
    "BlockSums",
    "Counted",
    "EffectiveSampleSize",
    "Estimate",
    "EventCounts",
    "MatchCTR",
    "SelfNormalisedIPS",
    "Totals",
    "estimates",
    "monte_carlo_error",
]


BLOCKS = 1000
"""Number of blocks of rows that a log is divided into; the bootstrap resamples blocks."""

RESAMPLES = 2000
"""Number of bootstrap resamples."""

_COLUMNS = ("events", "matches", "match_clicks", "weight", "weight2", "weighted_clicks", "monte_carlo")


class Estimate(NamedTuple):
    """An estimate and its confidence interval for each replica, (R,); NaN if there is no interval."""

    value: Tensor
    low: Tensor
    high: Tensor


class BlockSums(Metric):
    """Base class of the estimators: sums (R, blocks, columns) over the events of each block.

    Args:
        replicas: number R of replicas.
        rows: number of rows of the whole log, or of the part of it that is evaluated.
        first_row: the first of these rows.
    """

    full_state_update = False
    sums: Tensor

    def __init__(self, replicas: int, rows: int, first_row: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rows, self.first_row = rows, first_row
        self.add_state("sums", torch.zeros(replicas, BLOCKS, len(_COLUMNS), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, row: Tensor, click: Tensor, match: Tensor, counts: Tensor, weight: Tensor, spread: Tensor) -> None:
        """Add N events of the log.

        Args:
            row: (N,), rows of the log.
            click: r (N,).
            match: m (R, N).
            counts: (N,), False for events that the propensity correction removes from the match estimator.
            weight: w (R, N).
            spread: (R, N), the Monte Carlo variance of w r.
        """
        clicks, matched = click.to(weight), (match & counts).to(weight)
        ones = torch.ones_like(weight)
        columns = (ones, matched, matched * clicks, weight, weight.square(), weight * clicks, spread)
        # exact, because the products stay below 2^63
        block = (row - self.first_row) * BLOCKS // self.rows
        self.sums.index_add_(1, block, torch.stack(columns, dim=-1))

    def total(self, name: str) -> Tensor:
        """The sum (R,) of a column over all blocks."""
        return self.sums[..., _COLUMNS.index(name)].sum(1)

    @abstractmethod
    def compute(self) -> Any:
        """The result for each replica, over all processes."""

    def counted(self, successes: str, trials: str) -> Estimate:
        """A ratio of counts with Wilson's interval."""
        k, n = self.total(successes), self.total(trials)
        ends = [wilson(*pair) for pair in zip(k.tolist(), n.tolist(), strict=True)]
        low, high = torch.tensor(ends, dtype=k.dtype, device=k.device).T
        return Estimate(k / n, low, high)

    def bootstrapped(self, numerator: str, denominator: str) -> Estimate:
        """A ratio of sums with the quantiles of the same ratio over resampled blocks."""
        ratio = self.total(numerator) / self.total(denominator)
        used = self.sums[0, :, 0] > 0
        blocks = int(used.sum())
        if blocks < 2:
            return Estimate(ratio, *[torch.full_like(ratio, torch.nan)] * 2)
        pair = self.sums[:, used][..., [_COLUMNS.index(numerator), _COLUMNS.index(denominator)]]
        top, bottom = (_times_drawn(blocks).to(pair) @ pair).unbind(-1)
        # resamples without any weight are NaN and are ignored
        ends = torch.tensor([(1 - CLICK_LEVEL) / 2, (1 + CLICK_LEVEL) / 2], dtype=pair.dtype, device=pair.device)
        low, high = (top / bottom).nanquantile(ends, dim=1)
        return Estimate(ratio, low, high)


@lru_cache(maxsize=1)
def _times_drawn(blocks: int) -> Tensor:
    """(resamples, blocks): how often each block is drawn, the same for every estimator."""
    g = generator(0, Stream.BOOTSTRAP, blocks)
    drawn = torch.randint(blocks, (RESAMPLES, blocks), generator=g, device="cpu")
    times = torch.zeros(RESAMPLES, blocks, dtype=torch.float64, device="cpu")
    return times.scatter_add_(1, drawn, torch.ones_like(times))


class MatchCTR(BlockSums):
    """sum m r / sum m, with Wilson's interval."""

    def compute(self) -> Estimate:
        return self.counted("match_clicks", "matches")


class IPS(BlockSums):
    """1/N sum w r"""

    def compute(self) -> Estimate:
        return self.bootstrapped("weighted_clicks", "events")


class SelfNormalisedIPS(BlockSums):
    """sum w r / sum w"""

    def compute(self) -> Estimate:
        return self.bootstrapped("weighted_clicks", "weight")


class AcceptanceRate(BlockSums):
    """1/N sum m, with Wilson's interval."""

    def compute(self) -> Estimate:
        return self.counted("matches", "events")


class EffectiveSampleSize(BlockSums):
    """(sum w)^2 / sum w^2"""

    def compute(self) -> Estimate:
        size = self.total("weight").square() / self.total("weight2")
        return Estimate(size, *[torch.full_like(size, torch.nan)] * 2)


class Totals(BlockSums):
    """The sums over all blocks, by name."""

    def compute(self) -> dict[str, Tensor]:
        return {name: self.total(name) for name in _COLUMNS}


def monte_carlo_error(totals: Mapping[str, Tensor]) -> Tensor:
    """(R,), the standard error of IPS that comes from estimating action probabilities."""
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


METRICS: dict[str, type[BlockSums]] = {
    "match": MatchCTR,
    "ips": IPS,
    "snips": SelfNormalisedIPS,
    "acceptance": AcceptanceRate,
    "effective_sample_size": EffectiveSampleSize,
}


def estimates(replicas: int, rows: int, first_row: int = 0, **others: type[BlockSums]) -> MetricCollection:
    """All estimators, and further ones by name, sharing one set of sums.

    Only ``compute`` gives results over all processes.
    """
    chosen = {**METRICS, **others}
    metrics: dict[str, Metric | MetricCollection] = {
        name: metric(replicas, rows, first_row) for name, metric in chosen.items()
    }
    return MetricCollection(metrics, compute_groups=[list(metrics)])
