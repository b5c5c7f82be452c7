"""The one rule for what is better, its words, and how many seeds a difference takes."""

import numpy as np
import pytest
from scipy import stats

from nl_lightning.core.differences import (
    ClickSums,
    bonferroni,
    click_difference,
    rule,
    seed_difference,
    untold,
    verdict,
)
from nl_lightning.core.power import seeds_needed, smallest_over_seeds


@pytest.mark.parametrize(
    ("low", "high", "more", "less"),
    [
        (0.1, 0.2, "better", "worse"),
        (-0.2, -0.1, "worse", "better"),
        (-0.1, 0.1, "cannot tell", "cannot tell"),
        (0.0, 0.1, "cannot tell", "cannot tell"),
        (None, None, "cannot tell", "cannot tell"),
    ],
)
def test_the_rule(low: float | None, high: float | None, more: str, less: str) -> None:
    assert verdict(low, high) == more
    assert verdict(low, high, better=-1) == less


def test_the_rule_in_words() -> None:
    assert rule("An agent", "A", 1, 0.95) == (
        "An agent is better than A if the whole interval of its difference lies above 0."
    )
    assert rule("An agent", "A", 8, 0.96, better=-1).endswith(
        "lies below 0. 8 comparisons: each at 99.5%, so that all hold together at 96% (Bonferroni)."
    )
    assert bonferroni(0.96, 8) == pytest.approx(0.995)


def test_differences_over_seeds_are_those_of_scipy() -> None:
    random = np.random.default_rng(0)
    a, b = random.normal(10, 1, 7), random.normal(12, 1, 7)
    found = seed_difference(a, b, -1, 0.99)
    ends = stats.ttest_rel(a, b).confidence_interval(0.99)
    assert (found["low"], found["high"]) == pytest.approx((ends.low, ends.high))
    assert found["value"] == pytest.approx((a - b).mean())
    # less regret is better
    assert seed_difference(a, b + 100, -1)["verdict"] == "better"
    assert seed_difference(a + 100, b, -1)["verdict"] == "worse"
    alone = seed_difference(a[:1], b[:1], -1)
    assert (alone["verdict"], alone["low"], alone["seeds"], alone["seeds_needed"]) == ("cannot tell", None, 1, None)
    assert seed_difference(a[:0], b[:0], -1)["value"] is None


def test_seeds_needed_have_the_power() -> None:
    """So many seeds tell a difference in about 80% of the cases, and one seed less in fewer."""
    n = seeds_needed(1.0, 1.3, level=0.96)
    assert smallest_over_seeds(n, 1.3, 0.96) <= 1.0 < smallest_over_seeds(n - 1, 1.3, 0.96)
    differences = np.random.default_rng(0).normal(1.0, 1.3, (20_000, n))
    half = stats.t.ppf(0.98, n - 1) * differences.std(axis=1, ddof=1) / n**0.5
    assert float((differences.mean(1) > half).mean()) == pytest.approx(0.8, abs=0.04)


def test_what_cannot_be_told_says_what_it_takes() -> None:
    sums = ClickSums(10_000, 4.0, 40.0, 5.0, 5.0, 0.01)
    row = click_difference(sums)
    assert row["verdict"] == "cannot tell"
    assert row["value"] == pytest.approx(4e-4)
    assert row["high"] == pytest.approx(4e-4 + 1.959964 * 50**0.5 / 1e4, rel=1e-6)
    (text,) = untold("base", [("x", row)])
    assert text.startswith("x cannot be told apart from base: with 80% power these events show differences of 0.002")
    assert "of base's click rate); one of 10% takes about" in text
    assert text.endswith("events of this kind.")
    better = click_difference(sums._replace(clicks=400.0))
    assert better["verdict"] == "better"
    (text,) = untold("base", [("x", row), ("y", better), ("z", click_difference(sums._replace(clicks2=90.0)))])
    assert text.startswith("x and z cannot be told apart from base")
    assert untold("base", [("y", better)]) == []
    nothing = click_difference(ClickSums(0, 0.0, 0.0, np.nan, np.nan, 0.0))
    assert untold("b", [("x", nothing)]) == [
        "x cannot be told apart from b, and there is too little to say how many events it would take."
    ]
