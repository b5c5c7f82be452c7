"""Models in hindsight: what they are fitted to, and the regret of what they choose."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from nl_lightning.agents import Greedy
from nl_lightning.environments import Synthetic
from nl_lightning.experiments import answer, hindsight, paper, tables
from nl_lightning.experiments.hindsight import HindsightPart, Rounds
from nl_lightning.experiments.paper import Description, Panel
from nl_lightning.experiments.readings import READINGS, quick
from nl_lightning.experiments.results import AgentResult, FigureResult, Floor, PanelResult
from nl_lightning.experiments.storage import from_json, to_json

SMALL = Synthetic("h6", dim=3, arms=3, pool=7)


def test_rounds_are_those_that_agents_play() -> None:
    """Of more rounds than a chunk has, with h as the function says."""
    rounds = hindsight.rounds_of(SMALL, [4, 5], 300)
    assert rounds.arms.shape == (2, 300, 3, 3)
    SMALL.prepare([4, 5], torch.empty(0))
    for t in (0, 255, 256, 299):
        deal, h = SMALL.next_deal(t, 1), SMALL.latent(t, 1)
        assert torch.equal(deal.arms[:, 0], rounds.arms[:, t])
        assert torch.allclose(1 / (1 + torch.exp(-h[:, 0])), rounds.probability[:, t], rtol=1e-14)
        assert deal.regret is not None
        assert torch.equal(deal.regret[:, 0], rounds.regret[:, t])


def test_every_arm_counts_as_often_as_it_was_shown() -> None:
    rounds = hindsight.rounds_of(SMALL, [0, 1], 40)
    x, shown, clicks = hindsight.distinct(rounds)
    for replica in range(2):
        expected: dict[tuple[float, ...], list[float]] = {}
        for t in range(40):
            for k in range(3):
                both = expected.setdefault(tuple(rounds.arms[replica, t, k].tolist()), [0.0, 0.0])
                both[0] += 1
                both[1] += float(rounds.probability[replica, t, k])
        found = {
            tuple(arm.tolist()): [float(n), float(c)]
            for arm, n, c in zip(x[replica], shown[replica], clicks[replica], strict=True)
            if n > 0
        }
        assert found.keys() == expected.keys()
        for arm, both in expected.items():
            assert found[arm] == pytest.approx(both, rel=1e-12)


def test_the_linear_model_is_the_best_direction() -> None:
    """In two dimensions all directions can be tried, one by one."""
    rounds = hindsight.rounds_of(Synthetic("h3", dim=2, arms=4, pool=60), [0, 1, 2], 150)
    found, scale = hindsight.linear_regret(rounds, 1), rounds.regret.mean(-1).sum(-1)
    for replica in range(3):
        x, regret = (values[replica].double().numpy() for values in (rounds.arms, rounds.regret))
        of_directions = []
        for angle in np.linspace(0, 2 * np.pi, 720, endpoint=False):
            theta = np.array([np.cos(angle), np.sin(angle)])
            of_directions.append(sum(regret[t, int(np.argmax(x[t] @ theta))] for t in range(150)))
        assert min(of_directions) - 1e-9 <= float(found[replica]) <= min(of_directions) + 0.03 * float(scale[replica])


def test_the_network_is_fitted_to_every_arm_of_every_round() -> None:
    """The twin is told of every round's arms, one by one, merging nothing. They train to the same choices."""
    rounds = hindsight.rounds_of(Synthetic("h6", dim=2, arms=3, pool=9), [0, 1], 80)
    found = hindsight.network_regret(rounds, 1)
    agent = Greedy(dim=2, replicas=2, update_every=10**6, **hindsight.NETWORK)
    x, p = rounds.arms.flatten(1, 2), rounds.probability.flatten(1, 2)
    clicks = torch.cat([torch.ones_like(p), torch.zeros_like(p)], 1)
    agent.learn(torch.cat([x, x], 1), clicks, torch.cat([p, 1 - p], 1))
    total = torch.zeros(2, dtype=torch.float64)
    for t in range(80):
        f, _, _ = agent.evaluate(rounds.arms[:, t])
        for replica in range(2):
            total[replica] += rounds.regret[replica, t, int(f[replica].argmax())]
    assert torch.allclose(found, total, atol=1e-9)


def test_a_network_can_what_a_linear_model_cannot() -> None:
    """h4 is even in x: the best arm lies on either side, and a linear model knows only one."""
    rounds = hindsight.rounds_of(Synthetic("h4", dim=2, arms=3, pool=20), [0, 1], 200)
    linear, network = hindsight.linear_regret(rounds, 1), hindsight.network_regret(rounds, 1)
    assert (network < 0.05 * rounds.regret.mean(-1).sum(-1)).all()
    assert (linear > 5 * network).all()


@pytest.mark.parametrize("model", hindsight.MODELS)
def test_certain_clicks_and_blocks(model: str) -> None:
    """Arms (x, k) have parameters for each block: the right class is learned from its label."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(1, 60, 1, 2, generator=g).expand(1, 60, 2, 2)
    arms = torch.cat([x, torch.arange(2.0).view(1, 1, 2, 1).expand(1, 60, 2, 1)], -1)
    right = (x[..., 0] > 0) == torch.tensor([True, False])
    rounds = Rounds(arms, right.double(), (~right).double())
    assert float(hindsight.MODELS[model](rounds, 2)) <= 1


def test_a_part_writes_its_floors_once(tmp_path: Path) -> None:
    panel = Panel("tiny", "", Description("nl_lightning.environments.Synthetic", {"dim": 3, "pool": 9}), 3, 0, 0)
    reading = READINGS["stable"]._replace(horizon=30, hindsight_seeds=2)
    part = HindsightPart("fig1", panel, reading, tmp_path)
    assert not part.finished
    ticks = []
    assert part.run(ticks.append).startswith("regret linear ")
    assert [tick.fraction for tick in ticks] == [0, 0.5]
    assert part.finished
    assert [path.name for path in tmp_path.rglob("*.*")] == ["hindsight.json"]
    floors = part.floors()
    assert [(floor.panel, floor.model, floor.seeds) for floor in floors] == [
        ("tiny", "linear", [0, 1]),
        ("tiny", "network", [0, 1]),
    ]
    assert part.seconds() == json.loads(part.file.read_text())["seconds"] > 0


def test_readings_with_other_problems_have_floors_of_their_own() -> None:
    counts = {name: len(hindsight.of_figure(paper.FIGURES["fig2"], r, Path())) for name, r in READINGS.items()}
    assert counts == {"literal": 0, "stable": 3, "paper-grid": 0, "one-nu": 0, "vector": 2}
    assert quick(READINGS["literal"]).hindsight_seeds == 0
    assert quick(READINGS["stable"]).hindsight_seeds == 2


def _result() -> FigureResult:
    def agent(name: str, final: list[float]) -> AgentResult:
        return AgentResult(name, {}, [0, 1], np.array([1]), np.zeros((2, 1)), np.array(final), [])

    panel = PanelResult("h1", "h1", [agent("Greedy", [10.0, 14.0]), agent("NeuralLog-UCB-2", [20.0, 20.0])])
    floors = [Floor("h1", "linear", [0, 1], np.array([23.0, 25.0])), Floor("h1", "network", [0, 1], np.array([3.0, 3]))]
    return FigureResult("fig1", "", "regret", [panel], [], [], [], 0.0, "stable", floors=floors)


def test_floors_are_stored_and_shown() -> None:
    result = _result()
    again = from_json(json.loads(json.dumps(to_json(result)))).result
    assert [(f.panel, f.model, f.seeds, f.final.tolist()) for f in again.floors] == [
        ("h1", "linear", [0, 1], [23.0, 25.0]),
        ("h1", "network", [0, 1], [3.0, 3.0]),
    ]
    assert tables.finals(again).splitlines()[-2:] == [
        "| linear in hindsight | 24.0 |",
        "| network in hindsight | 3.0 |",
    ]
    said = [line for line in answer.lines([again]) if "beforehand" in line]
    # the best agent has 12
    assert len(said) == 1
    assert said[0].endswith("(median over panels): linear 2.00 times, network 0.25 times.")
