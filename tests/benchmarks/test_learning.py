"""How well agents learn: the numbers behind the marks."""

import numpy as np
import pytest

from benchmarks import learning
from nl_lightning.agents import AGENTS


def test_the_error_of_a_ratio_of_means_is_that_of_drawn_ratios() -> None:
    """Over many draws of paired regrets, as uneven as those with fixed arms."""
    random = np.random.default_rng(0)
    n, ratios, errors = 100, [], []
    for _ in range(1000):
        shared = random.exponential(40, n)
        a, b = shared + random.exponential(20, n), 2 * shared + random.exponential(50, n)
        ratio, error = learning.ratio_of_means(a, b)
        assert ratio == pytest.approx(sum(a.tolist()) / sum(b.tolist()))
        ratios.append(ratio)
        errors.append(error)
    assert np.mean(errors) == pytest.approx(np.std(ratios), rel=0.08)


def test_fixed_arms_are_judged_on_all_their_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int, int]] = []

    def regrets(problem: learning.Problem, agent: str, replicas: int, seed: int) -> tuple[np.ndarray, None]:
        asked.append((agent, replicas, seed))
        return np.full(replicas, 5.0 if agent == "Greedy" else 3.5) + np.arange(replicas) % 2, None

    monkeypatch.setattr(learning, "regrets", regrets)
    rows, detail = learning.fixed_arms(lambda text: None)
    assert [(row[1], row[3]) for row in rows] == [("0.73 +- 0.00 (4 / 6)", False)] * 4
    assert list(detail) == list(learning.FIXED_ARMS)
    for agent in ("NeuralLog-UCB-2", "Greedy"):
        seeds = [first + r for name, replicas, first in asked[:8] if name == agent for r in range(replicas)]
        assert seeds == list(range(2000, 2400))
        assert len(detail["h1"][agent]) == 400
    assert set(detail["h1"]) <= set(AGENTS)
