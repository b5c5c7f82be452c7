"""Where the truth is known: estimates are unbiased, intervals cover, and a replay is like being online."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import lightning as L
import numpy as np
import pytest
import torch
from torch import Tensor

from nl_lightning import NeuralLogUCB2
from nl_lightning.agents.asking import mean_and_bonus
from nl_lightning.agents.base import Agent
from nl_lightning.agents.exploration import Exploration, make_exploration
from nl_lightning.rollout.data import BanditData
from replay import Online, ReplayLog
from replay.evaluation.estimators import Estimate, estimates
from replay.evaluation.evaluator import FrozenAgent, batches
from replay.logs.reader import Log
from replay.protocol import rejection
from replay.protocol.candidates import Protocol
from replay.protocol.events import ReplaySettings
from replay.protocol.obd_features import ObdFeatures
from replay.simulation import ground_truth as truth
from replay.simulation.ground_truth import choice_probability, exact_ctr
from replay.simulation.simulated_world import SimulatedWorld
from tests.support import replay_twin as twin
from tests.support.fits import QUIET, Keep
from tests.support.replay_agents import offered, trained
from tests.support.replay_logs import SMALL, write_log

LOGS, ROWS = 2000, 1500
"""Many logs of a moderate length; their events are independent, so one long log is cut into them."""


class Simulated(NamedTuple):
    world: SimulatedWorld
    log: Log
    agent: Agent
    features: ObdFeatures


@pytest.fixture(scope="module", params=["uniform", "softmax"])
def simulated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    world = SimulatedWorld(**SMALL, policy=request.param, temperature=3.0)
    log = write_log(tmp_path_factory.mktemp("logs") / "log", world, LOGS * ROWS, group=65536)
    # trained on other events of the same world
    other = write_log(tmp_path_factory.mktemp("logs") / "log", world, 4000, start=LOGS * ROWS, group=4000)
    return Simulated(world, log, taught(other), ObdFeatures.fit(other))


def taught(log: Log) -> Agent:
    """An agent that knows the first events of a log, whoever chose them."""
    agent = NeuralLogUCB2(42, nu=0.01, lr=0.0005, steps=1500).double()
    events, features = log.events(log.groups[0]), ObdFeatures.fit(log)
    _, x = offered(events, features, "affinity", 1, log)
    agent.buffer.append(x.squeeze(1).unsqueeze(0), torch.from_numpy(events.click).unsqueeze(0))
    agent.train_nn()
    return agent


def many(given: Simulated, protocol: Protocol, arms: int, c: float | None = None) -> dict[str, Estimate]:
    """The estimates of every one of the logs."""
    frozen = FrozenAgent(given.agent, given.features)
    columns: list[list[Tensor]] = [[], [], [], []]
    for batch in batches(given.log, given.features, ReplaySettings(protocol, arms, c, 0), 1):
        match = next(frozen.choices(batch, 1))[0] == batch.logged
        for column, values in zip(columns, (match, batch.click, batch.propensity, batch.kept), strict=True):
            column.append(values)
    match, click, propensity, counts = (torch.cat(column).view(LOGS, ROWS) for column in columns)
    weight = match / propensity
    metrics = estimates(LOGS)
    metrics.update(click, match, counts, weight, match.double(), torch.zeros_like(weight))
    return {name: Estimate(*value) for name, value in metrics.compute().items()}


def z(values: Tensor, rate: float) -> float:
    return float((values.mean() - rate) / (values.std() / len(values) ** 0.5))


def coverage(estimate: Estimate, rate: float) -> float:
    return float(((estimate.low <= rate) & (rate <= estimate.high)).double().mean())


@pytest.mark.parametrize(("protocol", "arms"), [("all", 12), ("uniform", 4)])
def test_unbiased_and_covered(simulated: Simulated, protocol: Protocol, arms: int) -> None:
    rate = float(exact_ctr(simulated.agent, simulated.features, simulated.world, protocol, arms))
    # an agent that is no better than chance would test little
    assert rate > 1.2 * simulated.world.rates()["uniform"]
    found = many(simulated, protocol, arms)
    checked = ["ips", "snips", "match"] if simulated.world.policy == "uniform" else ["ips", "snips"]
    for name in checked:
        assert abs(z(found[name].value, rate)) < 3, name
        assert 0.93 < coverage(found[name], rate) < (0.97 if name == "match" else 0.99), name
    if simulated.world.policy == "softmax":
        # plain matches are biased, and that is why they are refused
        assert abs(z(found["match"].value, rate)) > 10
        c = rejection.check_rule("propensity", None, simulated.log)
        corrected = many(simulated, protocol, arms, c)["match"]
        enough = ~corrected.value.isnan()
        assert abs(z(corrected.value[enough], rate)) < 3
        assert 0.93 < coverage(Estimate(*(part[enough] for part in corrected)), rate) < 0.97


def test_the_bias_of_the_affinity_protocol(simulated: Simulated) -> None:
    """Against the policy that chooses from the items of highest affinity, whatever was logged."""
    if simulated.world.policy != "uniform":
        pytest.skip("shown on the uniform log")
    rate = float(exact_ctr(simulated.agent, simulated.features, simulated.world, "affinity", 3))
    found = many(simulated, "affinity", 3)
    assert abs(z(found["match"].value, rate)) > 10
    # IPS takes it for chance that the logged item is shown, which it always is: a click rate above 1
    assert float(found["ips"].value.mean()) > 1


class Coarse(Exploration):
    """Scores in steps, so that most items are tied."""

    def __init__(self, step: float) -> None:
        self.step = step

    def score(self, mean: Tensor, bonus: Tensor, normal: Tensor | None) -> Tensor:
        return (mean / self.step).floor() * self.step


def plain_sum(agent: Agent, given: Simulated, choose: Callable[[list[float], Tensor], np.ndarray]) -> float:
    """The click rate over every user and position, one arm at a time; ``choose`` takes scores and affinities."""
    world, features = given.world, given.features
    rates, profiles = [], world.profiles()
    for user in range(world.users):
        for position in range(world.positions):
            item, liked = torch.arange(12), torch.from_numpy(world.affinity[user])
            codes = torch.cat([features.encode_profiles([profiles[user]])[0], torch.tensor([position])])
            x = features.arms(codes, torch.empty(0), item, liked.unsqueeze(-1))
            mean, bonus = mean_and_bonus(agent, x.unsqueeze(0))
            chosen = choose(agent.exploration.score(mean, bonus, None)[0].tolist(), liked)
            rates.append((chosen * world.probability[user, position]).sum())
    return float(np.mean(rates))


def test_the_exact_rate_of_thompson_sampling(simulated: Simulated) -> None:
    """It lies between worst and best, and more draws do not change it much."""
    world, agent = simulated.world, trained("NeuralLog-TS-2", simulated.log)
    exact = float(exact_ctr(agent, simulated.features, world, "uniform", 3, draws=50))
    assert world.probability.min() < exact < world.rates()["best"]
    again = float(exact_ctr(agent, simulated.features, world, "uniform", 3, draws=400))
    assert exact == pytest.approx(again, rel=0.02)


@pytest.mark.parametrize("exploration", ["ucb", Coarse(0.25), Coarse(100.0)], ids=["ucb", "many ties", "all tied"])
@pytest.mark.parametrize(("protocol", "arms"), [("uniform", 3), ("all", 12), ("affinity", 5)])
def test_the_exact_rate_is_that_of_a_plain_sum(
    protocol: Protocol, arms: int, exploration: str | Exploration, simulated: Simulated
) -> None:
    agent = trained("NeuralLog-UCB-1", simulated.log)
    agent.exploration = make_exploration(exploration)
    tolerance = agent.tie_tolerance
    tied = 0

    def choose(scores: list[float], liked: Tensor) -> np.ndarray:
        nonlocal tied
        tied += scores.count(max(scores)) > 1
        if protocol == "uniform":
            return twin.best_in_random_subset(scores, arms, tolerance)
        shown = sorted(range(12), key=lambda i: (-float(liked[i]), i))[:arms]
        chosen = np.zeros(12)
        chosen[shown] = twin.best_in_random_subset([scores[i] for i in shown], len(shown), tolerance)
        return chosen

    exact = float(exact_ctr(agent, simulated.features, simulated.world, protocol, arms))
    assert exact == pytest.approx(plain_sum(agent, simulated, choose), rel=1e-12)
    assert (tied > 0) == isinstance(exploration, Coarse)


def test_the_exact_rate_breaks_ties_like_the_evaluator(simulated: Simulated) -> None:
    """An agent that finds all items equal is the uniform policy."""
    agent = trained("NeuralLog-UCB-1", simulated.log)
    agent.exploration = Coarse(100.0)
    exact = float(exact_ctr(agent, simulated.features, simulated.world, "all", 12))
    assert exact == pytest.approx(simulated.world.rates()["uniform"], rel=1e-12)


def test_the_exact_rate_is_computed_in_parts(simulated: Simulated, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = (simulated.agent, simulated.features, simulated.world, "uniform", 4)
    whole = float(exact_ctr(*asked))
    monkeypatch.setattr(truth, "ARMS_AT_ONCE", 100)
    assert float(exact_ctr(*asked)) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("arms", [1, 3, 6])
@pytest.mark.parametrize("step", [0.0, 0.1, 0.5, 2.0])
def test_choice_probabilities(arms: int, step: float) -> None:
    """With a tolerance of ``step`` some scores count as equal to a second one, which counts as equal to a third one."""
    score = 1 + torch.rand(4, 6, generator=torch.Generator().manual_seed(arms), dtype=torch.float64)
    score[3] = -score[3]
    affinity = torch.tensor([[0.0, 3, 0, 3, 1, 0]]).expand(4, -1)
    found = choice_probability(score, "uniform", arms, affinity, step)
    liked = choice_probability(score, "affinity", arms, affinity, step)
    whole = choice_probability(score, "all", arms, affinity, step)
    allowed = [1, 3, 4, 0, 2, 5][:arms]
    for row in range(4):
        scores = score[row].tolist()
        np.testing.assert_allclose(found[row], twin.best_in_random_subset(scores, arms, step), atol=1e-14)
        np.testing.assert_allclose(whole[row], twin.best_in_random_subset(scores, 6, step), atol=1e-14)
        expected = twin.best_in_random_subset([scores[i] for i in allowed], arms, step)
        np.testing.assert_allclose(liked[row, allowed], expected, atol=1e-14)
        assert liked[row].sum() == pytest.approx(1)


def test_a_replay_is_like_being_online(tmp_path: Path) -> None:
    """The CTR of a learner over time: on long uniform logs, and in the same world played online."""
    rounds, runs = 600, 48
    world = SimulatedWorld(**SMALL)

    def agent(seed: int, replicas: int = 1) -> NeuralLogUCB2:
        return NeuralLogUCB2(42, nu=0.01, lr=0.003, update_every=50, seed=seed, replicas=replicas)

    def clicks(agent: Agent, data: BanditData) -> Tensor:
        keep = Keep()
        L.Trainer(**QUIET, enable_checkpointing=False, callbacks=[keep]).fit(agent, data)
        assert (agent.rounds == rounds).all()
        return keep.reward

    replayed = []
    for run in range(runs):
        log = write_log(tmp_path / f"{run}", world, 16 * rounds, start=run * 16 * rounds, group=65536)
        environment = ReplayLog(str(log.path), candidates="uniform", arms=8)
        replayed.append(clicks(agent(run), BanditData(environment, rounds)))
    online = clicks(agent(10_000, runs), BanditData(Online(str(log.path), "uniform", arms=8), rounds))
    curves = [values.unflatten(1, (5, rounds // 5)).mean(2).double() for values in (torch.cat(replayed), online)]
    means, errors = [c.mean(0) for c in curves], [c.std(0) / runs**0.5 for c in curves]
    distance = (means[0] - means[1]) / (errors[0] ** 2 + errors[1] ** 2).sqrt()
    assert distance.abs().max() < 3, (means, distance)
    # what is compared is a learner: at the end it is better than at the start, by more than chance
    for mean, error in zip(means, errors, strict=True):
        assert mean[-1] - mean[0] > 3 * (error[-1] ** 2 + error[0] ** 2) ** 0.5, means


def test_online_worlds_are_for_simulated_logs_only(tmp_path: Path) -> None:
    from nl_lightning.core.errors import InputError
    from replay.formats.convert import convert_log
    from replay.formats.obd import sample

    convert_log(sample(), tmp_path / "log")
    with pytest.raises(InputError, match="is not a simulated log"):
        Online(str(tmp_path / "log"))


@pytest.mark.parametrize("protocol", ["affinity", "uniform", "all"])
def test_online_deals_the_world(protocol: Protocol, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", SimulatedWorld(**SMALL), 800)
    online = Online(str(log.path), protocol, arms=4)
    online.prepare([0, 1], torch.empty(0, dtype=torch.float64))
    deal = online.deal(0, 4000)
    assert deal.arms.shape == (2, 4000, 12 if protocol == "all" else 4, 42)
    assert (deal.regret.min(-1).values == 0).all()
    if protocol != "affinity":
        rate = deal.reward.mean()
        assert abs(float(rate) - 0.3) < 4 * (0.3 * 0.7 / 8000) ** 0.5
