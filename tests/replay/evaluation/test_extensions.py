"""Agents, rules and designs of a user's own learn on a log, and are evaluated as they are."""

import json
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from nl_lightning import Agent, NeuralLogUCB2
from nl_lightning.agents.exploration import UCB
from nl_lightning.rollout.data import BanditData
from replay import Log, ReplayLog, fit_features
from replay.__main__ import main
from replay.evaluation.evaluate import load, measure
from replay.protocol.events import CandidateEvents, ReplaySettings
from replay.simulation.simulated_world import SimulatedWorld
from tests.support import extensions as own
from tests.support.fits import QUIET, Keep
from tests.support.replay_logs import SMALL, write_log


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    return write_log(tmp_path_factory.mktemp("logs") / "log", SimulatedWorld(**SMALL), 900, group=400)


def make(kind: type[Agent] = NeuralLogUCB2, **settings: Any) -> Any:
    given = {"nu": 1.0, "lr": 0.002, "steps": 4, "width": 4, "update_every": 20, "replicas": 2, **settings}
    return kind(42, **given).double()


def learn(agent: Agent, log: Log, checkpoint: Path | None = None) -> Keep:
    keep = Keep()
    trainer = L.Trainer(**QUIET, enable_checkpointing=False, callbacks=[keep])
    trainer.fit(agent, BanditData(ReplayLog(str(log.path)), rounds=45))
    if checkpoint is not None:
        trainer.save_checkpoint(checkpoint)
    return keep


def test_an_agent_that_takes_the_first_arm_accepts_the_events_that_log_it(log: Log) -> None:
    agent = make(own.FirstArm)
    keep = learn(agent, log)
    shown, _ = zip(
        *(CandidateEvents.read(log, group, fit_features(log), _settings()) for group in log.groups), strict=True
    )
    logged = torch.cat([events.logged for events in shown])
    expected = (logged == 0).nonzero().flatten()[:45]
    assert len(expected) == 45
    assert keep.event.tolist() == [expected.tolist()] * 2
    assert not keep.arm.any()
    # one call an event, until the last of them
    assert agent.calls == int(expected[-1]) + 1


def _settings() -> ReplaySettings:
    return ReplaySettings("affinity", 5, None, 0)


@pytest.mark.parametrize("kind", [own.RandomAgent, own.Pessimist, own.Observer, own.SlowConfidence])
def test_a_method_of_ones_own_is_what_runs(kind: Any, log: Log) -> None:
    agent, plain = make(kind), make()
    mine, theirs = learn(agent, log), learn(plain, log)
    assert agent.calls >= 45
    assert agent.rounds.tolist() == [45, 45]
    assert (
        not torch.equal(mine.event, theirs.event) or not torch.equal(mine.score, theirs.score) or kind is own.Observer
    )
    if kind is own.Observer:
        # steps in which no replica accepts anything are told as well
        assert not torch.equal(agent.buffer.rows()[1], plain.buffer.rows()[1])
    if kind is own.SlowConfidence:
        assert (mine.effective_dimension > theirs.effective_dimension).all()


def test_an_agent_that_picks_at_random_accepts_one_event_in_five(log: Log) -> None:
    agent = make(own.RandomAgent, replicas=8)
    trainer = L.Trainer(**QUIET, enable_checkpointing=False)
    trainer.fit(agent, data := BanditData(ReplayLog(str(log.path)), rounds=10**6))
    counts = data.environment.counts()["replicas"]
    accepted = sum(count["accepted"] for count in counts)
    # 7,200 events: 1,440 accepted, with a standard deviation of 34
    assert abs(accepted - 1440) < 136


@pytest.mark.parametrize("design", ["diagonal", own.DenseDesign, own.DoubledNorm])
@pytest.mark.parametrize("rule", [None, own.HalfBonus(0.1), own.EpsilonGreedy(0.4)])
def test_rules_and_designs_of_ones_own(rule: Any, design: Any, log: Log) -> None:
    """However events are played: many at once, or match by match."""
    fast, slow = (make(exploration=rule, design=design, replicas=3) for _ in range(2))
    keep, again = learn(fast, log), Keep()
    trainer = L.Trainer(**QUIET, enable_checkpointing=False, callbacks=[again, own.CountRounds()])
    trainer.fit(slow, BanditData(ReplayLog(str(log.path)), rounds=45))
    assert torch.equal(keep.event, again.event)
    torch.testing.assert_close(keep.score, again.score, rtol=1e-8, atol=1e-10)
    if isinstance(rule, own.HalfBonus):
        torch.testing.assert_close(keep.score, keep.mean + 0.1 * keep.bonus)


def by_hand(agent: Agent, log: Log) -> torch.Tensor:
    """(R, N): whether an agent without random choices picks the logged item, one event at a time."""
    features, matches = fit_features(log).to(agent.network.weights[0]), []
    for group in log.groups:
        events, _ = CandidateEvents.read(log, group, features, _settings())
        arms = events.arms(features)
        for row, event, logged in zip(events.row, arms, events.logged, strict=True):
            if "act" in agent.own_choice:
                choice = agent.act(event)
            else:
                drawn = [agent.noise.of_rows(r, row.view(1), 5)[0] for r in range(agent.replicas)]
                choice = agent.choose(
                    agent.featurize(event.expand(agent.replicas, -1, -1), noise=(torch.cat(drawn), None))
                )
            matches.append(choice.arm == logged)
    return torch.stack(matches, dim=1)


@pytest.mark.parametrize(
    "settings", [{"kind": own.FirstArm}, {"kind": own.Pessimist}, {"exploration": own.HalfBonus(0.2)}]
)
def test_a_frozen_agent_chooses_as_it_acts(settings: dict[str, Any], log: Log) -> None:
    agent = make(**settings)
    learn(agent, log)
    evaluation = measure(agent, fit_features(log), log, _settings(), draws=2)
    expected = by_hand(agent, log).sum(1)
    assert evaluation.totals()["matches"].tolist() == expected.tolist()


def test_parts_of_ones_own_are_given_again(log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agent = make(exploration=own.HalfBonus(), design=own.DenseDesign)
    learn(agent, log, tmp_path / "last.ckpt")
    asked = [
        "evaluate",
        f"--log={log.path}",
        f"--checkpoint={tmp_path / 'last.ckpt'}",
        f"--output={tmp_path / 'a.json'}",
    ]
    with pytest.raises(SystemExit):
        main(asked)
    assert "parts of your own are given again" in capsys.readouterr().err
    path = "tests.support.extensions"
    main([*asked, f"--exploration={path}.HalfBonus", f"--design={path}.DenseDesign"])
    result = json.loads((tmp_path / "a.json").read_text())
    assert result["replicas"][0]["accepted"] > 0
    loaded, _, _ = load(tmp_path / "last.ckpt", exploration=own.HalfBonus(), design=own.DenseDesign)
    assert torch.equal(loaded.radius, agent.radius)
    with pytest.raises(SystemExit):
        main([*asked, f"--exploration={path}.EpsilonGreedy", f"--design={path}.DenseDesign"])
    assert "its exploration is tests.support.extensions.HalfBonus(factor=0.5)" in capsys.readouterr().err


def test_a_view_of_ones_own_is_what_is_scored(log: Log) -> None:
    class Shifted(NeuralLogUCB2):
        def featurize(self, *args: Any, **kwargs: Any) -> Any:
            view = super().featurize(*args, **kwargs)
            return view._replace(mean=view.mean + 100)

    for replicas in (2, 12):
        assert (learn(make(Shifted, replicas=replicas), log).mean > 90).all()


def test_a_second_fit_trains_those_that_still_have_rounds(log: Log) -> None:
    """Alone or beside others, a replica ends with the same weights."""

    def twice(seeds: list[int]) -> Any:
        agent = make(seed=seeds, replicas=len(seeds))
        for _ in range(2):
            trainer = L.Trainer(**QUIET, enable_checkpointing=False)
            trainer.fit(agent, BanditData(ReplayLog(str(log.path)), rounds=10**6))
        return agent

    together = twice([0, 1, 2, 3])
    assert len(set(together.rounds.tolist())) > 1
    for replica in range(4):
        alone = twice([replica])
        for mine, theirs in zip(alone.weights(0), together.weights(replica), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-9)


def test_a_rule_that_weighs_arms_against_each_other_is_evaluated_as_it_is(log: Log) -> None:
    class Relative(UCB):
        def score(self, mean: torch.Tensor, bonus: torch.Tensor, normal: Any) -> torch.Tensor:
            return mean + bonus / bonus.amax(-1, keepdim=True)

    agent = make(exploration=Relative())
    learn(agent, log)
    evaluation = measure(agent, fit_features(log), log, _settings())
    assert evaluation.totals()["matches"].tolist() == by_hand(agent, log).sum(1).tolist()
