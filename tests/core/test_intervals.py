"""Intervals from weighted clicks against slow twins, which loop over events and ask scipy's chi2."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import chi2, norm

from nl_lightning.core.intervals import (
    Ends,
    PseudoClick,
    difference_interval,
    gamma_interval,
    ips_interval,
    mean_or,
    pseudo_click,
    snips_interval,
)

ALPHA = 0.05
Events = list[tuple[float, float, float]]
"""pi, p and r of each event"""


def events(seed: int, n: int, rate: float, kind: str = "any") -> Events:
    random = np.random.default_rng(seed)
    pi = random.random(n) * (random.random(n) < 0.6) if kind == "any" else (random.random(n) < 0.3).astype(float)
    return list(zip(pi, random.uniform(0.05, 0.9, n), (random.random(n) < rate).astype(float), strict=True))


def twin_pseudo(log: Events) -> tuple[float, float]:
    a = sum(pi * (pi / p) ** 2 for pi, p, _ in log) / sum(pi * pi / p for pi, p, _ in log)
    return a, a * a


def twin_gamma(y: float, v: float, y_up: float, v_up: float) -> tuple[float, float]:
    low = v / (2 * y) * chi2.ppf(ALPHA / 2, 2 * y * y / v) if y > 0 else 0.0
    return low, v_up / (2 * y_up) * chi2.ppf(1 - ALPHA / 2, 2 * y_up * y_up / v_up)


def twin_ips(log: Events) -> tuple[float, float]:
    n, (a, b) = len(log), twin_pseudo(log)
    y = sum(pi / p * r for pi, p, r in log) / n
    v = sum((pi / p) ** 2 * r for pi, p, r in log) / n**2
    low, high = twin_gamma(y, v, y + a / n, v + b / n**2)
    return low, min(high, 1.0)


def twin_snips(log: Events) -> tuple[float, float]:
    a, b = twin_pseudo(log)
    total = sum(pi / p for pi, p, _ in log)
    s = sum(pi / p * r for pi, p, r in log) / total
    if s > 0.5:
        low, high = twin_snips([(pi, p, 1 - r) for pi, p, r in log])
        return 1 - high, 1 - low
    u = s + a / total
    v = sum((pi / p * (r - s)) ** 2 for pi, p, r in log) / total**2
    # the pseudo-click raises sum w^2 r, not sum w^2
    v_up = (sum((pi / p * (r - u)) ** 2 for pi, p, r in log) + b * (1 - 2 * u)) / total**2
    low, high = twin_gamma(s, v, u, v_up)
    return low, min(high, 1.0)


def sums(log: Events) -> tuple[np.ndarray, ...]:
    pi, p, r = np.array(log).T
    w = pi / p
    return w.sum(), (w**2).sum(), (w * r).sum(), (w**2 * r).sum(), pseudo_click(pi @ w, pi @ w**2)  # type: ignore[return-value]


def ips(log: Events) -> Ends:
    _, _, clicks, clicks2, more = sums(log)
    return ips_interval(clicks, clicks2, len(log), more)  # type: ignore[arg-type]


def snips(log: Events) -> Ends:
    return snips_interval(*sums(log))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["any", "deterministic"])
@pytest.mark.parametrize("rate", [0.0, 0.03, 0.3])
@pytest.mark.parametrize(("ours", "twin"), [(ips, twin_ips), (snips, twin_snips)])
def test_intervals_are_those_of_the_twin(
    ours: Callable[[Events], Ends], twin: Callable[[Events], tuple[float, float]], rate: float, kind: str
) -> None:
    for seed in range(5):
        log = events(seed, 200, rate, kind)
        low, high = ours(log)
        assert (float(low), float(high)) == pytest.approx(twin(log), rel=1e-9)
        assert low < high
        assert (low == 0) == (rate == 0 or not any(pi * r for pi, _, r in log))


def test_frequent_clicks_are_reflected() -> None:
    log = events(0, 300, 0.9)
    low, high = snips(log)
    assert (float(low), float(high)) == pytest.approx(twin_snips(log), rel=1e-9)
    other_low, other_high = snips([(pi, p, 1 - r) for pi, p, r in log])
    assert float(low) == pytest.approx(1 - float(other_high), rel=1e-12)
    assert float(high) == pytest.approx(1 - float(other_low), rel=1e-12)
    assert 0.5 < low < 0.9 < high < 1


def test_every_click_leaves_room_below() -> None:
    low, high = snips([(1.0, 0.5, 1.0)] * 40)
    assert high == 1
    # 40 of 40: the reflected interval of 0 of 40, near 1 - 3.7/40
    assert 0.85 < low < 0.95


def test_ips_above_one_keeps_its_interval() -> None:
    """Where the estimate is no click rate, its interval is not cut to one that has no width."""
    low, high = ips([(1.0, 0.1, 1.0)] * 30)
    assert 1 < low < 10 < high
    assert ips([(1.0, 0.9, 1.0)] * 2 + [(0.0, 0.9, 0.0)] * 2).high == 1


def test_without_a_match_nothing_is_known() -> None:
    nothing = pseudo_click(0, 0)
    assert [float(end) for end in ips_interval(0, 0, 100, nothing)] == [0, 1]
    assert [float(end) for end in snips_interval(0, 0, 0, 0, nothing)] == [0, 1]
    assert [float(end) for end in ips_interval(0, 0, 0, nothing)] == [0, 1]
    assert [float(end) for end in difference_interval(0, 0, 100, np.nan, np.nan)] == [-1, 1]
    assert [float(end) for end in difference_interval(0, 0, 0, 1.0, 1.0)] == [-1, 1]


def test_unknown_propensities_stay_unknown() -> None:
    unknown = pseudo_click(np.nan, np.nan)
    assert np.isnan(ips_interval(np.nan, np.nan, 9, unknown)).all()
    assert np.isnan(snips_interval(np.nan, np.nan, np.nan, np.nan, unknown)).all()
    assert np.isnan(difference_interval(np.nan, np.nan, 9, np.nan, np.nan)).all()


def test_one_matched_event_without_a_click_tells_nothing() -> None:
    """u = 1 has no variance; the end is u itself and not NaN."""
    low, high = snips([(1.0, 0.1, 0.0)])
    assert (float(low), float(high)) == (0, 1)


def test_replicas_are_entries() -> None:
    logs = [events(seed, 80, 0.1) for seed in range(3)] + [[(0.0, 0.5, 1.0)] * 80]
    found = [sums(log) for log in logs]
    w, w2, clicks, clicks2 = (np.array([each[k] for each in found]) for k in range(4))
    more = PseudoClick(*(np.array([each[4][k] for each in found]) for k in range(2)))
    for together, alone in (
        (ips_interval(clicks, clicks2, 80, more), ips),
        (snips_interval(w, w2, clicks, clicks2, more), snips),
    ):
        for replica, log in enumerate(logs):
            assert [float(end[replica]) for end in together] == [float(end) for end in alone(log)]
    assert together.low[3] == 0
    assert together.high[3] == 1


def test_differences_are_those_of_the_twin() -> None:
    random = np.random.default_rng(0)
    n = 400
    first, second = events(1, n, 0.1), events(2, n, 0.1)
    log = [(a, b, p, float(random.random() < 0.1)) for (a, p, _), (b, _, _) in zip(first, second, strict=True)]
    clicks = clicks2 = 0.0
    mass, square = {1: 0.0, -1: 0.0}, {1: 0.0, -1: 0.0}
    for one, other, p, r in log:
        d = one / p - other / p
        clicks += d * r
        clicks2 += d * d * r
        if d:
            mass[int(np.sign(d))] += abs(one - other)
            square[int(np.sign(d))] += abs(one - other) * d * d
    plus, minus = square[1] / mass[1], square[-1] / mass[-1]
    half = norm.ppf(0.975) * (clicks2 + plus + minus) ** 0.5 / n
    low, high = difference_interval(clicks, clicks2, n, plus, minus)
    assert (float(low), float(high)) == pytest.approx((clicks / n - half, clicks / n + half), rel=1e-12)
    wide = difference_interval(clicks, clicks2, n, plus, minus, level=0.99)
    assert wide.low < low < high < wide.high


def test_a_difference_that_no_click_shows_has_a_width() -> None:
    low, high = difference_interval(0, 0, 1000, 80.0**2, 80.0**2)
    assert low == -high
    assert float(high) == pytest.approx(1.959964 * 80 * 2**0.5 / 1000, rel=1e-6)


def test_gamma_interval_of_equal_weights_is_the_exact_one_of_a_count() -> None:
    """Garwood's interval of a Poisson count k: chi2(0.025; 2k)/2 to chi2(0.975; 2k + 2)/2."""
    k = np.array([0.0, 1.0, 4.0, 50.0])
    low, high = gamma_interval(k, k, k + 1, k + 1)
    np.testing.assert_allclose(low[1:], chi2.ppf(0.025, 2 * k[1:]) / 2, rtol=1e-12)
    assert low[0] == 0
    np.testing.assert_allclose(high, chi2.ppf(0.975, 2 * k + 2) / 2, rtol=1e-12)


def test_mean_or() -> None:
    np.testing.assert_array_equal(mean_or([7.0, 8.0], [0.0, 6.0], [0.0, 3.0]), [7.0, 2.0])
