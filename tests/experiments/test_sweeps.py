"""Growth of regret with a setting, the power calculation, and the picture of sweeps."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from nl_lightning.experiments import power, sweeps
from nl_lightning.experiments.results import FigureResult, SweepResult
from tests.support.experiment_results import panel, spread

AGENTS = ("NCBF-UCB", "NeuralLog-UCB-2", "Greedy")


def plain_slope(values: list[float], means: list[float]) -> float:
    """Least squares of log(mean) on log(value), by the normal equations."""
    x, y = [math.log(value) for value in values], [math.log(mean) for mean in means]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    above = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return above / sum((a - mean_x) ** 2 for a in x)


def test_growth_equals_its_plain_twin() -> None:
    generator = np.random.default_rng(0)
    values, n = [10.0, 50.0, 200.0], 7
    finals = np.array([[30 * v**0.4 * math.exp(generator.normal(0, 0.3)) for _ in range(n)] for v in values])
    found = sweeps.growth(values, finals)
    slope = plain_slope(values, [sum(row) / n for row in finals.tolist()])
    without = [
        plain_slope(values, [sum(x for j, x in enumerate(row) if j != i) / (n - 1) for row in finals.tolist()])
        for i in range(n)
    ]
    middle = sum(without) / n
    error = math.sqrt((n - 1) / n * sum((b - middle) ** 2 for b in without))
    half = stats.t.ppf(0.98, n - 1) * error
    assert found == pytest.approx((slope, slope - half, slope + half), rel=1e-10)


def test_what_does_not_depend_on_kappa_has_an_exponent_of_exactly_zero() -> None:
    finals = np.tile(np.random.default_rng(3).uniform(1, 2, 9), (3, 1))
    found = sweeps.growth([10, 50, 200], finals)
    assert found == (0, 0, 0)
    assert found.law == "not at all"


def test_the_interval_of_the_exponent_covers() -> None:
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(500):
        problem = np.exp(generator.normal(0, 0.5, 20))
        finals = np.stack([v**0.5 * problem * np.exp(generator.normal(0, 0.3, 20)) for v in (10.0, 50.0, 200.0)])
        _, low, high = sweeps.growth([10, 50, 200], finals)
        covered += low <= 0.5 <= high
    assert 0.92 <= covered / 500 <= 0.99


@pytest.mark.parametrize(
    ("ends", "law"),
    [
        ((0.0, 0.0), "not at all"),
        ((-0.1, 0.6), "not at all or as its root"),
        ((0.4, 0.6), "as its root"),
        ((0.9, 1.2), "in proportion"),
        ((0.1, 0.4), "less than as its root"),
        ((0.6, 0.9), "more than as its root"),
        ((1.1, 1.4), "more than in proportion"),
        ((-0.4, -0.1), "it falls"),
        ((math.nan, math.nan), "-"),
    ],
)
def test_laws_that_an_interval_allows(ends: tuple[float, float], law: str) -> None:
    assert sweeps.Growth(sum(ends) / 2, *ends).law == law


def swept(agent: str, varied: str, value: float, final: list[float]) -> SweepResult:
    return SweepResult("h1", agent, varied, value, list(range(len(final))), np.array(final))


def test_a_lost_seed_of_a_sweep_has_the_worst_regret_at_its_value() -> None:
    nan = math.nan
    given = [
        swept("NCBF-UCB", "kappa", 10, [1.0, nan, nan]),
        swept("Greedy", "kappa", 10, [5.0, 3.0, nan]),
        swept("NCBF-UCB", "kappa", 50, [2.0, 7.0, 8.0]),
    ]
    found = [sweep.final.tolist() for sweep in sweeps.filled(given)]
    assert found == [[1.0, 3.0, 5.0], [5.0, 3.0, 5.0], [2.0, 7.0, 8.0]]


def test_the_picture_of_sweeps_is_the_same_for_the_same_numbers(tmp_path: Path) -> None:
    panels = [panel(spread((100.0, 50.0, 300.0), agents=AGENTS))]
    found = [
        swept(agent, varied, value, [10 * value, 12 * value, 11.0])
        for varied, values in (
            ("kappa", (10, 50)),
            ("kappa at nu = 0.1", (10, 50)),
            ("nu", (0.01, 0.1)),
            ("arms", (5, 20)),
        )
        for value in values
        for agent in AGENTS
        if (varied, agent) != ("nu", "Greedy")
    ]
    result = FigureResult("fixed", "Fixed arms", "regret", panels, [], [], [], 1.0, "stable", sweeps=found)
    for name in ("a.svg", "b.svg", "a.png"):
        sweeps.draw(result, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_so_many_events_have_the_power_that_is_asked_for() -> None:
    """By simulation: a difference of a fifth is found in 80% of logs."""
    n = power.accepted_events(0.05)
    z = stats.norm.ppf(0.98) + stats.norm.ppf(0.8)
    assert n == math.ceil(z**2 * (0.05 * 0.95 + 0.06 * 0.94) / 0.01**2)
    generator = np.random.default_rng(2)
    a, b = (generator.binomial(n, rate, 4000) / n for rate in (0.05, 0.06))
    error = np.sqrt((a * (1 - a) + b * (1 - b)) / n)
    assert np.mean((b - a) / error > stats.norm.ppf(0.98)) == pytest.approx(0.8, abs=0.025)
    assert power.accepted_events(0.05, difference=0.1) > 3.5 * n
    assert power.logged_events(n, 5) >= 1.25 * 5 * n
    assert f"must accept {n:,} events" in power.sentence(0.05, 5)
