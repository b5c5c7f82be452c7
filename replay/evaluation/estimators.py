"""What an evaluation tells of a frozen agent, as torchmetrics metrics.

For event i with click r_i, logged with probability p_i, let m_i say whether the agent picks the logged item, and pi_i
be the probability that it does (m_i itself, or for Thompson sampling a mean over Monte Carlo draws); w_i = pi_i / p_i.

    match   sum m r / sum m            Wilson's interval
    IPS     1/N sum w r                bootstrap over blocks of rows
    SNIPS   sum w r / sum w            bootstrap over blocks of rows
    acceptance rate  1/N sum m;   effective sample size  (sum w)^2 / sum w^2

Everything is a function of sums over blocks of rows, so a log of any length is seen once and shards are added up.
"""

from abc import abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from nl_lightning.core.rng import Stream, generator
from nl_lightning.core.statistics import CLICK_LEVEL, wilson

BLOCKS = 1000
"""A log is cut into so many blocks of rows; a bootstrap draws them with replacement."""

RESAMPLES = 2000

_COLUMNS = ("events", "matches", "match_clicks", "weight", "weight2", "weighted_clicks", "monte_carlo")


class Estimate(NamedTuple):
    """Of each replica (R,); NaN where there is no interval."""

    value: Tensor
    low: Tensor
    high: Tensor


class BlockSums(Metric):
    """Sums (R, blocks, columns) of what the estimates need.

    Args:
        replicas: number R.
        rows: of the whole log.
    """

    full_state_update = False
    sums: Tensor

    def __init__(self, replicas: int, rows: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rows = rows
        self.add_state("sums", torch.zeros(replicas, BLOCKS, len(_COLUMNS), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, row: Tensor, click: Tensor, match: Tensor, counts: Tensor, weight: Tensor, spread: Tensor) -> None:
        """Events of the log: row, click (N,), match (R, N), counts (N,), weight w (R, N), spread (R, N).

        ``counts`` is False for events that the match estimator leaves out (the propensity correction), ``spread`` the
        Monte Carlo variance of w r.
        """
        clicks, matched = click.to(weight), (match & counts).to(weight)
        ones = torch.ones_like(weight)
        columns = (ones, matched, matched * clicks, weight, weight.square(), weight * clicks, spread)
        # rows are whole numbers below 2^53: exact
        block = row * BLOCKS // self.rows
        self.sums.index_add_(1, block, torch.stack(columns, dim=-1))

    def total(self, name: str) -> Tensor:
        """(R,)"""
        return self.sums[..., _COLUMNS.index(name)].sum(1)

    @abstractmethod
    def compute(self) -> Any:
        """Of each replica; in every process that of all of them."""

    def counted(self, successes: str, trials: str) -> Estimate:
        """A ratio of counts, with Wilson's interval."""
        k, n = self.total(successes), self.total(trials)
        ends = [wilson(*pair) for pair in zip(k.tolist(), n.tolist(), strict=True)]
        low, high = torch.tensor(ends, dtype=k.dtype, device=k.device).T
        return Estimate(k / n, low, high)

    def bootstrapped(self, numerator: str, denominator: str) -> Estimate:
        """A ratio of sums, and the quantiles of the same ratio over resampled blocks."""
        ratio = self.total(numerator) / self.total(denominator)
        used = self.sums[0, :, 0] > 0
        blocks = int(used.sum())
        if blocks < 2:
            return Estimate(ratio, *[torch.full_like(ratio, torch.nan)] * 2)
        pair = self.sums[:, used][..., [_COLUMNS.index(numerator), _COLUMNS.index(denominator)]]
        top, bottom = (_times_drawn(blocks).to(pair) @ pair).unbind(-1)
        # a resample without any weight says nothing
        ends = torch.tensor([(1 - CLICK_LEVEL) / 2, (1 + CLICK_LEVEL) / 2], dtype=pair.dtype, device=pair.device)
        low, high = (top / bottom).nanquantile(ends, dim=1)
        return Estimate(ratio, low, high)


@lru_cache(maxsize=1)
def _times_drawn(blocks: int) -> Tensor:
    """(resamples, blocks): how often each block is drawn; the same for every estimate."""
    g = generator(0, Stream.BOOTSTRAP, blocks)
    drawn = torch.randint(blocks, (RESAMPLES, blocks), generator=g, device="cpu")
    times = torch.zeros(RESAMPLES, blocks, dtype=torch.float64, device="cpu")
    return times.scatter_add_(1, drawn, torch.ones_like(times))


@final
class MatchCTR(BlockSums):
    """sum m r / sum m, with Wilson's interval."""

    def compute(self) -> Estimate:
        return self.counted("match_clicks", "matches")


@final
class IPS(BlockSums):
    """1/N sum w r"""

    def compute(self) -> Estimate:
        return self.bootstrapped("weighted_clicks", "events")


@final
class SelfNormalisedIPS(BlockSums):
    """sum w r / sum w"""

    def compute(self) -> Estimate:
        return self.bootstrapped("weighted_clicks", "weight")


@final
class AcceptanceRate(BlockSums):
    """1/N sum m, with Wilson's interval."""

    def compute(self) -> Estimate:
        return self.counted("matches", "events")


@final
class EffectiveSampleSize(BlockSums):
    """(sum w)^2 / sum w^2"""

    def compute(self) -> Estimate:
        size = self.total("weight").square() / self.total("weight2")
        return Estimate(size, *[torch.full_like(size, torch.nan)] * 2)


@final
class Totals(BlockSums):
    """The sums over all blocks, by their names."""

    def compute(self) -> dict[str, Tensor]:
        return {name: self.total(name) for name in _COLUMNS}


def monte_carlo_error(totals: Mapping[str, Tensor]) -> Tensor:
    """(R,), standard error of IPS that comes from estimated action probabilities."""
    return totals["monte_carlo"].sqrt() / totals["events"]


class Counted(NamedTuple):
    """Events, whatever the agent chooses, and values of their users."""

    outside: int
    """events whose logged item was not shown"""
    corrected: int
    """events that the propensity correction left out"""
    unknown: int
    """values of user features that are missing or that the fit has not seen"""


@final
class EventCounts(Metric):
    """Counts what is ``Counted``."""

    full_state_update = False
    counted: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("counted", torch.zeros(len(Counted._fields), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, logged: Tensor, kept: Tensor, unknown: Tensor) -> None:
        """Of events: the logged item's arm or -1, whether the correction keeps it (N,), and whether each value of a
        user feature is unknown (N, 4)."""
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


def estimates(replicas: int, rows: int, **others: type[BlockSums]) -> MetricCollection:
    """All of them, and others that are named, over one set of sums.

    What they compute is that of all processes: whatever is asked, is asked of ``compute``.
    """
    chosen = {**METRICS, **others}
    metrics: dict[str, Metric | MetricCollection] = {name: metric(replicas, rows) for name, metric in chosen.items()}
    return MetricCollection(metrics, compute_groups=[list(metrics)])
