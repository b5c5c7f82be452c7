"""Intervals on simulated logs with rare clicks: the reduced form of ``python -m benchmarks --only coverage``."""

import re

import numpy as np
import pytest

from benchmarks import coverage
from benchmarks.document import coverage_table
from benchmarks.stored import Part

LOGS = 600
"""The standard error of a coverage of 95% is 0.9%."""


@pytest.mark.parametrize("logging", coverage.LOGGING)
@pytest.mark.parametrize("agent", coverage.AGENTS)
def test_intervals_hold_their_level(logging: str, agent: str) -> None:
    found = coverage.simulate(logging, agent, 20_000, LOGS)
    for name in ("IPS", "SNIPS"):
        assert found[name].coverage() > 0.93, name
        assert max(found[name].misses()) < 0.06, name
        # every interval has a width, and the mean one is not wider than twice the normal one
        assert (found[name].ends.high > found[name].ends.low).all()
        assert 1 < found[name].width() < 2.1, name
    assert found["difference"].coverage() > 0.93
    assert found["difference"].width() < 1
    if agent == "deterministic":
        # the log is hard enough: the normal interval fails on it
        assert found["SNIPS"].other_coverage() < 0.93


def test_a_log_as_counts_is_a_log_of_events() -> None:
    """The sums over cells are those of plain loops over events."""
    made = coverage.world("softmax", "deterministic")
    cells, random = made.rate.size, np.random.default_rng(1)
    counts = random.integers(0, 3, cells)
    clicks = random.binomial(counts, 0.4)
    p, pi1, pi2 = (each.ravel() for each in (made.propensity, made.first, made.second))
    seen = counts > 0
    found = coverage.total(*(each[seen].astype(float) for each in (counts, clicks, p, pi1, pi2)))
    w2r = dr = plus2 = 0.0
    for cell in range(cells):
        for event in range(int(counts[cell])):
            click, w, v = event < clicks[cell], pi1[cell] / p[cell], pi2[cell] / p[cell]
            w2r += w * w * click
            dr += (w - v) * click
            plus2 += abs(pi1[cell] - pi2[cell]) * (w - v) ** 2 * (w > v)
    assert found["n"] == counts.sum()
    assert (found["w2r"], found["dr"], found["plus2"]) == pytest.approx((w2r, dr, plus2), rel=1e-9)


def test_policies_agree_on_as_many_events_as_stated() -> None:
    made = coverage.world("uniform", "deterministic")
    same = (made.first * made.second).sum(1)
    assert same[: int(coverage.AGREEMENT * coverage.USERS)].all()
    assert same.mean() == pytest.approx(coverage.AGREEMENT, abs=0.05)
    assert made.rate.mean() == pytest.approx(coverage.CTR)


def test_marks_and_the_document() -> None:
    rows, detail = coverage.measure(lambda text: None, logs=3, sizes=(20_000, 100_000))
    assert len(detail["lines"]) == 2 * 2 * 2 * 3
    assert len(rows) == 8
    text = "\n".join(coverage_table(Part(rows, detail, {})))
    assert re.search(r"softmax +\| +Thompson +\| +100,000 +\| +difference", text)
    worst = [{**line, "coverage": 0.5} for line in detail["lines"]]
    assert not any(holds for what, _, _, holds in coverage.marks(worst) if what.startswith("coverage"))
