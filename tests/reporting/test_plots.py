"""The pictures of a comparison: colours, and labels that do not overlap."""

import numpy as np
import pytest

from nl_lightning import AGENTS
from nl_lightning.reporting.palette import AGENT_COLOURS, COLOURS, style_numbers
from nl_lightning.reporting.plots import spread


def test_every_agent_has_a_colour_of_its_own() -> None:
    assert list(AGENT_COLOURS) == list(AGENTS)
    assert len(set(COLOURS)) == len(AGENTS)
    assert style_numbers(list(AGENTS)) == [(place, 0) for place in range(len(AGENTS))]
    # the same one whoever else is there
    assert style_numbers(["Greedy", "NeuralLog-TS-2"]) == [(7, 0), (6, 0)]


@pytest.mark.parametrize("agents", [["mine", "NCBF-UCB", "yours"], ["NCBF-UCB"] * 30, ["a"] * 9 + list(AGENTS)])
def test_no_two_curves_look_the_same(agents: list[str]) -> None:
    found = style_numbers(agents)
    assert len(set(found)) == len(agents)
    for agent in set(agents) & set(AGENTS):
        assert found[agents.index(agent)] == (list(AGENTS).index(agent), 0)


@pytest.mark.parametrize("seed", range(5))
def test_labels_are_moved_apart_and_no_further(seed: int) -> None:
    random = np.random.default_rng(seed)
    places = sorted(random.uniform(0.2, 0.9, 8).tolist())
    found = spread(places, 0.05)
    assert np.diff(found).min() >= 0.05 - 1e-12
    assert np.abs(np.array(found) - places).max() <= 0.05 * 4
    assert spread([0.1, 0.5, 0.9], 0.05) == [0.1, 0.5, 0.9]
    assert spread([0.0, 0.0], 0.1) == pytest.approx([0.0, 0.1])
    assert spread([], 0.1) == []
