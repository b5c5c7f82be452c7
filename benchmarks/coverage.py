"""How often intervals contain the truth, and how wide they are, on simulated logs with rare clicks.

A world has 100 kinds of visitors, 80 items and a click rate of 0.4%. A log is drawn as counts of (visitor, item) and of
their clicks, which is the same as event by event. Thompson weights are frequencies over 20 draws, one set an event.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import Row
from nl_lightning.core.intervals import (
    Ends,
    difference_interval,
    ips_interval,
    mean_or,
    pseudo_click,
    snips_interval,
)

Floats = NDArray[np.float64]
USERS, ITEMS, CTR, DRAWS, AGREEMENT, Z = 100, 80, 0.004, 20, 0.8, 1.959964
LOGS, ROWS = 1000, (20_000, 50_000, 100_000)
LOGGING, AGENTS = ("uniform", "softmax"), ("deterministic", "Thompson")


class World(NamedTuple):
    """Click rates, propensities and the chances of two policies, each (visitors, items)."""

    rate: Floats
    propensity: Floats
    first: Floats
    second: Floats


class Found(NamedTuple):
    """Of every log the ends of an interval, and those of the normal one, or of two separate ones."""

    truth: float
    ends: Ends
    other: Ends

    def coverage(self) -> float:
        return 1 - sum(self.misses())

    def misses(self) -> tuple[float, float]:
        """The shares of logs whose interval lies above, and below, the truth."""
        return float((self.ends.low > self.truth).mean()), float((self.ends.high < self.truth).mean())

    def other_coverage(self) -> float:
        return float(((self.other.low <= self.truth) & (self.truth <= self.other.high)).mean())

    def width(self) -> float:
        """The mean width, as a multiple of that of the other interval."""
        return float((self.ends.high - self.ends.low).mean() / (self.other.high - self.other.low).mean())


def world(logging: str, agent: str, seed: int = 0) -> World:
    """Two policies agree for 80% of the visitors."""
    random = np.random.default_rng(seed)
    liking = random.standard_normal((USERS, ITEMS))
    rate = np.exp(0.7 * liking)
    rate *= CTR / rate.mean()
    known = liking + random.standard_normal((2, USERS, ITEMS))
    known[1, : int(AGREEMENT * USERS)] = known[0, : int(AGREEMENT * USERS)]
    # a softmax logger that knows a little, with propensities over a factor of about a thousand
    preference = 0.5 * liking + random.standard_normal((USERS, ITEMS))
    propensity = _softmax(preference if logging == "softmax" else np.zeros_like(preference))
    if agent == "Thompson":
        first, second = _softmax(3 * known[0]), _softmax(3 * known[1])
    else:
        first, second = (np.eye(ITEMS)[each.argmax(1)] for each in known)
    return World(rate, propensity, first, second)


def simulate(logging: str, agent: str, rows: int, logs: int = LOGS, seed: int = 0) -> dict[str, Found]:
    """The intervals of IPS, SNIPS and a difference on many logs."""
    made = world(logging, agent, seed)
    random = np.random.default_rng([seed, rows])
    sums = _stacked([_sums(made, agent, rows, random) for _ in range(logs)])
    n, w, w2, wr, w2r = (sums[name] for name in ("n", "w", "w2", "wr", "w2r"))
    more = pseudo_click(sums["pi_w"], sums["pi_w2"])
    value = [float((pi * made.rate).sum(1).mean()) for pi in (made.first, made.second)]
    with np.errstate(invalid="ignore"):
        y, s = wr / n, wr / w
        half = Z * np.sqrt(np.maximum(w2r / n - y**2, 0) / n)
        own = Z * np.sqrt(np.maximum(w2r * (1 - 2 * s) + s**2 * w2, 0)) / w
    ips = ips_interval(wr, w2r, n, more)
    second = ips_interval(sums["vr"], sums["v2r"], n, pseudo_click(sums["pi2_w"], sums["pi2_w2"]))
    # two separate intervals, as if nothing were shared
    apart = np.hypot(ips.high - ips.low, second.high - second.low) / 2
    plus, minus = (
        mean_or(mean_or(np.nan, sums[f"{pi}_w2"], sums[pi]), sums[f"{side}2"], sums[side])
        for side, pi in (("plus", "pi"), ("minus", "pi2"))
    )
    difference = difference_interval(sums["dr"], sums["d2r"], n, plus, minus)
    middle = sums["dr"] / n
    return {
        "IPS": Found(value[0], ips, Ends(y - half, y + half)),
        "SNIPS": Found(value[0], snips_interval(w, w2, wr, w2r, more), Ends(s - own, s + own)),
        "difference": Found(value[0] - value[1], difference, Ends(middle - apart, middle + apart)),
    }


def _sums(made: World, agent: str, rows: int, random: np.random.Generator) -> dict[str, float]:
    """What the intervals need of one log."""
    cells = random.multinomial(rows, (made.propensity / USERS).ravel())
    clicks = random.binomial(cells, made.rate.ravel())
    p, pi1, pi2 = (each.ravel() for each in (made.propensity, made.first, made.second))
    if agent == "Thompson":
        # one entry an event: its frequencies over draws
        cell = np.repeat(np.arange(len(cells)), cells)
        r = np.arange(rows) - np.repeat(cells.cumsum() - cells, cells) < clicks[cell]
        one, other = (random.binomial(DRAWS, pi[cell]) / DRAWS for pi in (pi1, pi2))
        # an event that neither picked in any draw adds to the number of events only
        met = (one > 0) | (other > 0)
        found = total(np.ones(met.sum()), r[met].astype(np.float64), p[cell[met]], one[met], other[met])
        return {**found, "n": float(rows)}
    seen = cells > 0
    return total(*(each[seen].astype(np.float64) for each in (cells, clicks, p, pi1, pi2)))


def total(n: Floats, r: Floats, p: Floats, pi1: Floats, pi2: Floats) -> dict[str, float]:
    """Sums over entries of n events each, r of them clicked."""
    w, v, apart = pi1 / p, pi2 / p, np.abs(pi1 - pi2)
    d = w - v
    more, less = apart * (d > 0), apart * (d < 0)
    columns = {
        "n": (n, np.ones_like(p)),
        "w": (n, w),
        "w2": (n, w**2),
        "wr": (r, w),
        "w2r": (r, w**2),
        "vr": (r, v),
        "v2r": (r, v**2),
        "pi": (n, pi1),
        "pi_w": (n, pi1 * w),
        "pi_w2": (n, pi1 * w**2),
        "pi2": (n, pi2),
        "pi2_w": (n, pi2 * v),
        "pi2_w2": (n, pi2 * v**2),
        "dr": (r, d),
        "d2r": (r, d**2),
        "plus": (n, more),
        "plus2": (n, more * d**2),
        "minus": (n, less),
        "minus2": (n, less * d**2),
    }
    return {name: float(count @ value) for name, (count, value) in columns.items()}


def measure(
    say: Callable[[str], None], logs: int = LOGS, sizes: tuple[int, ...] = ROWS
) -> tuple[list[Row], dict[str, Any]]:
    """What is to be reached, and a line per setting and interval."""
    lines: list[dict[str, Any]] = []
    for logging in LOGGING:
        for agent in AGENTS:
            for rows in sizes:
                say(f"{logging}, {agent}, {rows:,} rows")
                for name, found in simulate(logging, agent, rows, logs).items():
                    above, below = found.misses()
                    told = {"logging": logging, "agent": agent, "rows": rows, "interval": name}
                    numbers = {"coverage": found.coverage(), "above": above, "below": below, "width": found.width()}
                    lines.append({**told, **numbers, "other_coverage": found.other_coverage()})
    return marks(lines), {"logs": logs, "lines": lines}


def marks(lines: list[dict[str, Any]]) -> list[Row]:
    """The marks, each over all settings that it holds for."""

    def chosen(**asked: Any) -> list[dict[str, Any]]:
        return [line for line in lines if all(line[name] in wanted for name, wanted in asked.items())]

    def at_least(what: str, some: list[dict[str, Any]], limit: float) -> Row:
        value = min(line["coverage"] for line in some)
        return what, f"{value:.1%}", f">= {limit:.0%}", value >= limit

    def at_most(what: str, some: list[dict[str, Any]], limit: float) -> Row:
        value = max(line["width"] for line in some)
        return what, f"{value:.2f}", f"<= {limit:g}", value <= limit

    values = ["IPS", "SNIPS"]
    rows = {line["rows"] for line in lines}
    few, many = [n for n in rows if n <= 50_000], [n for n in rows if n > 50_000]
    side = max(max(line["above"], line["below"]) for line in chosen(interval=values))
    found = [
        at_least("coverage of IPS and SNIPS, up to 50,000 rows", chosen(interval=values, rows=few), 0.95),
        at_least("coverage of IPS and SNIPS, above", chosen(interval=values, rows=many), 0.94),
        ("misses on one side, IPS and SNIPS", f"{side:.1%}", "<= 4.5%", side <= 0.045),
    ]
    for logging, limit in (("uniform", 1.8), ("softmax", 2.0)):
        some = chosen(interval=values, rows=[20_000], logging=[logging])
        found.append(at_most(f"width to the normal interval, 20,000 rows of a {logging} log", some, limit))
    found.append(at_most("width to the normal interval, 100,000 rows", chosen(interval=values, rows=[100_000]), 1.25))
    found.append(at_least("coverage of differences", chosen(interval=["difference"]), 0.95))
    some = chosen(interval=["difference"], rows=[100_000], logging=["uniform"])
    return [*found, at_most("width of a difference to two separate intervals, 80% agreement", some, 0.6)]


def _softmax(values: Floats) -> Floats:
    weight = np.exp(values - values.max(1, keepdims=True))
    return np.asarray(weight / weight.sum(1, keepdims=True))


def _stacked(found: list[dict[str, float]]) -> dict[str, Floats]:
    return {name: np.array([each[name] for each in found]) for name in found[0]}
