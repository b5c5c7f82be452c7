"""The value of a policy that learns while it is evaluated on a log (DR-ns, Dudik et al. 2012).

For every event, with the agent's action probabilities pi now, the logged action a_k, its propensity p_k, the click r_k
and a reward model rhat (0 without one), for every replica:

    V_k = sum_a pi(a) rhat(x, a) + pi(a_k) / p_k (r_k - rhat(x, a_k))
    A += c V_k,   C += c,   and p_k / pi(a_k) joins Q where pi(a_k) > 0

With probability min(1, c pi(a_k) / p_k) the agent learns the event, and then c = min(c_max, q-quantile of Q). The value
is A / C. With q = 0, c stays the smallest propensity of the log, and the value is unbiased.

c also stays at its start, the q-quantile of the log's propensities, until at least 10 numbers in Q are up to the
quantile. The paper has no such limit. But the 0.01-quantile of the first five numbers is their minimum, several times
too large: events that the agent wants to explore are then hardly ever accepted. And where c is that noisy, it follows
the clicks, so that A / C is biased.

The design matrix sees every round that an event stands for, also those whose click nobody knows. Online the agent plays
any arm a that it draws, and its bonus shrinks. In a log an arm with p < c is accepted with probability p and not c. A
weight of c / p for the few that are accepted is right in expectation, but until the first of them comes, the agent
wants that arm again and again: arms that are explored, and bad, are then played more than online. But the design matrix
needs no click. With c carried by weights, it therefore gets the agent's own draw a with probability

    alpha = (c - (1 - p_k) beta) / p_k   where a = a_k, which is then accepted as well, since alpha <= c / p_k
    beta = (c - p_low) / (1 - p_low)     where a is another arm;   p_low, the smallest propensity, makes alpha at most 1

and with beta = 0 where c < p_low. Thus an arm a enters it with probability

    pi(a) (p alpha + (1 - p) beta) = c pi(a)

whatever its propensity p is, and no propensity but the logged one has to be known. Where c = p_low, as in a uniform
log, beta is 0 and alpha = c / p_k: the design matrix gets what is accepted. A number above 1, possible for c > 1,
becomes a weight. An agent whose scores are drawn may accept an event of which it has drawn another arm; where that one
would enter too, the logged one enters in its place.
"""

from bisect import insort
from collections.abc import Sequence
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nl_lightning.core.intervals import Ends, PseudoClick, gamma_interval, ips_interval, pseudo_click

__all__ = [
    "FEWEST_BELOW",
    "SAMPLED_EVENTS",
    "EventRecord",
    "LearnerSettings",
    "LearnerValue",
    "PassedEvents",
    "lower_quantile",
    "sampled",
]

Floats = NDArray[np.float64]

SAMPLED_EVENTS = 4000
"""About so many events of a log are recorded whether clicked or not: the same ones in every run on the log."""

FEWEST_BELOW = 10
"""The fewest numbers up to the quantile of Q by which c moves; it then has a standard error of about a third."""

SUMS = ("A", "C", "clicks", "clicks2", "pi", "pi_w", "pi_w2", "c2_V2", "c2_V", "c2")
"""The sums of a replica: A and C; with w = c pi / p those of w r, w^2 r, pi, pi w and pi w^2; those of c^2 V^2, c^2 V
and c^2."""


class LearnerSettings(NamedTuple):
    """How events are accepted."""

    start: float
    """the first c"""
    quantile: float
    c_max: float
    carry_weights: bool
    """whether an accepted event counts max(1, c pi / p) times in the loss, and the design matrix gets a round with
    probability c"""
    modelled: bool
    """whether there is a reward model"""
    rows: int
    """events of the log, the most that Q can have"""
    lowest: float
    """p_low, the smallest propensity of the log"""


class PassedEvents(NamedTuple):
    """The next W events of R replicas, before any of them is passed; each (R, W)."""

    row: NDArray[np.int64]
    pi: Floats
    """the chance that the agent picks the logged action"""
    p: Floats
    click: Floats
    expected: Floats
    """sum_a pi(a) rhat(x, a)"""
    predicted: Floats
    """rhat of the logged action"""

    def of(self, places: Sequence[int]) -> "PassedEvents":
        """Those of some replicas, by their places."""
        return PassedEvents(*(values[list(places)] for values in self))  # type: ignore[arg-type]


class EventRecord(NamedTuple):
    """An event that comparisons need: every clicked one with w > 0, and of a fixed sample of events all with w > 0."""

    row: int
    weight: float
    """w = c pi / p; e = w / C"""
    pi: float
    click: int


class LearnerValue:
    """c, A, C and Q of R replicas, exactly in the order of their events."""

    def __init__(self, settings: LearnerSettings, replicas: int) -> None:
        self.settings = settings
        self.c = np.full(replicas, settings.start)
        """(R,)"""
        self.sums = np.zeros((len(SUMS), replicas))
        self.matched = np.zeros(replicas, dtype=np.int64)
        """(R,), events with pi > 0: the size of Q"""
        # Q only grows, so that of it no more than the quantile's last place can ever be asked for.
        self._most = ceil(settings.quantile * settings.rows) + 1
        self._lowest: list[list[float]] = [[] for _ in range(replicas)]
        self.records: list[list[EventRecord]] = [[] for _ in range(replicas)]

    def chance(self, replicas: Sequence[int], picked: NDArray[np.bool_], u: Floats, events: PassedEvents) -> Any:
        """(R, W): whether each event is accepted, if none before it is: with probability min(1, c pi / p).

        ``picked`` says whether the agent's own draw is the logged action, and u is uniform. Both decide together, so
        that where c <= p the event is accepted if the agent picks it and u < c / p, as by rejection sampling:

            u' = u pi where picked, else pi + u (1 - pi)   is uniform;   accepted where u' < c pi / p
        """
        c = self.c[list(replicas), None]
        ratio = c / events.p
        return np.where(picked, u < ratio, u * (1 - events.pi) < events.pi * (ratio - 1))

    def rounds(self, replicas: Sequence[int], picked: NDArray[np.bool_], u: Floats, events: PassedEvents) -> Floats:
        """(R, W): how often the agent's own draw in each event enters the design matrix, if nothing before it does.

        The numbers u are those of ``chance``: an event whose logged action the agent picked is accepted if this is
        above 0. Other events are accepted for low numbers, and here the high ones count.
        """
        c, low = self.c[list(replicas), None], self.settings.lowest
        beta = np.maximum(c - low, 0) / (1 - low) if low < 1 else np.zeros_like(c)
        alpha = (c - (1 - events.p) * beta) / events.p
        enters = np.where(picked, u < alpha, u >= 1 - beta)
        return np.asarray(np.where(enters, np.maximum(1.0, np.where(picked, alpha, beta)), 0.0))

    def weights(self, replicas: Sequence[int], events: PassedEvents) -> Floats:
        """(R, W): c pi / p"""
        return np.asarray(self.c[list(replicas), None] * events.pi / events.p)

    def add(self, replicas: Sequence[int], events: PassedEvents, passed: NDArray[np.int64], accepted: Any) -> None:
        """The replicas pass so many (R,) of the events; those with ``accepted`` (R,) learn the last one of them."""
        index = list(replicas)
        c, (row, pi, p, r, expected, predicted) = self.c[index, None], events
        w = c * pi / p
        V = expected + pi / p * (r - predicted)
        ones = np.ones_like(w)
        terms = np.stack(
            [c * V, c * ones, w * r, w * w * r, pi, pi * w, pi * w * w, (c * V) ** 2, c * c * V, c * c * ones]
        )
        here = np.arange(w.shape[1]) < passed[:, None]
        # One event after the other, so that the sums do not depend on how events are divided into windows.
        steps = np.concatenate([self.sums[:, index, None], np.where(here, terms, 0.0)], axis=2)
        self.sums[:, index] = np.add.accumulate(steps, axis=2)[:, :, -1]
        matched = here & (pi > 0)
        self.matched[index] += matched.sum(1)
        kept = matched & ((r > 0) | sampled(row, self.settings.rows))
        for i, replica in enumerate(index):
            self._extend(replica, (p[i, matched[i]] / pi[i, matched[i]]).tolist())
            columns = (row, w, pi, r)
            for event in zip(*(column[i, kept[i]].tolist() for column in columns), strict=True):
                self.records[replica].append(EventRecord(event[0], event[1], event[2], int(event[3])))
            if accepted[i] and self.settings.quantile:
                self.c[replica] = self._quantile(replica)

    def _extend(self, replica: int, values: list[float]) -> None:
        lowest, most = self._lowest[replica], self._most
        if not self.settings.quantile:
            return
        for value in values:
            if len(lowest) < most:
                insort(lowest, value)
            elif value < lowest[-1]:
                insort(lowest, value)
                lowest.pop()

    def _quantile(self, replica: int) -> float:
        place = lower_quantile(self.settings.quantile, int(self.matched[replica]))
        if place + 1 < FEWEST_BELOW:
            return self.settings.start
        return min(self.settings.c_max, self._lowest[replica][place])

    # ---- results --------------------------------------------------------------------------------------------------

    def results(self) -> list[dict[str, Any]]:
        """Of every replica its value with its interval, and what it was computed from."""
        sums = dict(zip(SUMS, self.sums, strict=True))
        C = sums["C"]
        known = C > 0
        with np.errstate(divide="ignore", invalid="ignore"):
            value = np.where(known, sums["A"] / C, np.nan)
            effective = np.where(sums["pi_w2"] > 0, sums["pi_w"] ** 2 / sums["pi_w2"], 0.0)
        low, high = self.interval()
        return [
            {
                "value": _plain(value[r]),
                "value_low": _plain(low[r]),
                "value_high": _plain(high[r]),
                "c": float(self.c[r]),
                "matched": int(self.matched[r]),
                "effective_matches": float(effective[r]),
                "sums": {name: float(column[r]) for name, column in sums.items()},
            }
            for r in range(len(C))
        ]

    def interval(self) -> Ends:
        """(R,): the gamma interval with e = c pi / (p C); with a reward model, with the variance of sum c V / C.

        sum c^2 (V - A/C)^2 / C^2  is that variance. Where A / C > 1/2, it is the reflected interval of 1 - r.
        """
        sums = dict(zip(SUMS, self.sums, strict=True))
        A, C = sums["A"], sums["C"]
        more = pseudo_click(sums["pi_w"], sums["pi_w2"])
        if not self.settings.modelled:
            return ips_interval(sums["clicks"], sums["clicks2"], C, more)
        return _modelled_interval(A, C, sums["c2_V2"], sums["c2_V"], sums["c2"], more)

    # ---- state ----------------------------------------------------------------------------------------------------

    def state(self, replicas: int) -> list[dict[str, Any]]:
        """The state of the first replicas as plain numbers, one entry a replica."""
        return [
            {
                "c": float(self.c[r]),
                "sums": self.sums[:, r].tolist(),
                "matched": int(self.matched[r]),
                "lowest": list(self._lowest[r]),
                "records": [tuple(record) for record in self.records[r]],
            }
            for r in range(replicas)
        ]

    def load(self, states: Sequence[dict[str, Any]]) -> None:
        """Take on the states of all replicas."""
        for r, state in enumerate(states):
            self.c[r], self.matched[r] = state["c"], state["matched"]
            self.sums[:, r] = state["sums"]
            self._lowest[r] = list(state["lowest"])
            self.records[r] = [EventRecord(*record) for record in state["records"]]


def lower_quantile(quantile: float, n: int) -> int:
    """The place of the quantile among n sorted numbers: the first with at least that share of them up to it."""
    # 0.01 * 300 must not be a little more than 3
    return max(0, ceil(quantile * n - 1e-9) - 1)


def sampled(row: NDArray[np.int64], rows: int) -> NDArray[np.bool_]:
    """Whether rows belong to the fixed sample of ``SAMPLED_EVENTS`` of a log, spread evenly and without a period."""
    share = min(1.0, SAMPLED_EVENTS / rows)
    return np.asarray((row.astype(np.uint64) * np.uint64(2654435761)) % np.uint64(2**32) < share * 2**32)


def _modelled_interval(A: Floats, C: Floats, c2_V2: Floats, c2_V: Floats, c2: Floats, more: PseudoClick) -> Ends:
    with np.errstate(divide="ignore", invalid="ignore"):
        value = A / C
        v = np.maximum(c2_V2 - 2 * value * c2_V + value**2 * c2, 0) / C**2
        mirrored = value > 0.5
        y = np.maximum(np.where(mirrored, 1 - value, value), 0)
        low, high = gamma_interval(y, v, y + more.a / C, v + more.b / C**2)
    nothing = np.isnan(more.a) | (C == 0)
    ends = np.where(mirrored, 1 - high, low), np.where(mirrored, 1 - low, high)
    return Ends(
        np.where(nothing, 0.0, np.clip(ends[0], 0, 1)),
        np.where(nothing, 1.0, np.clip(ends[1], 0, 1)),
    )


def _plain(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)
