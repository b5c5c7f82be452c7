"""What an agent keeps: copies and stored states go on like the original, and failures leave it as it was."""

import copy
import pickle
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from nl_lightning import NeuralLogUCB2
from nl_lightning.core.errors import InputError, TrainNNDiverged
from tests.support.fits import Fit
from tests.support.small_agents import DIM, SETTINGS, VARIANTS, deal, make


@pytest.mark.parametrize(("name", "design"), VARIANTS)
def test_state_dict_holds_everything(name: str, design: str) -> None:
    """A service that stops and starts again goes on as if it had not."""
    arms, rewards = deal(10, replicas=2, rounds=150, dtype=torch.float32)
    agent = make(name, design=design, steps=5, **SETTINGS)
    for t in range(90):
        agent.observe(agent.act(arms[t]), rewards[t])
    agent.train_nn()
    again = make(name, design=design, steps=5, **SETTINGS)
    again.load_state_dict(copy.deepcopy(agent.state_dict()))
    for t in range(90, 150):
        one, other = agent.act(arms[t]), again.act(arms[t])
        assert torch.equal(one.score, other.score)
        assert torch.equal(one.arm, other.arm)
        agent.observe(one, rewards[t])
        again.observe(other, rewards[t])
    agent.train_nn()
    again.train_nn()
    for key, value in agent.state_dict().items():
        other = again.state_dict()[key]
        assert torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other


@pytest.mark.parametrize("design", ["diagonal", "full", "theory"])
@pytest.mark.parametrize("way", ["deepcopy", "pickle", "assign", "double and back"])
def test_a_copy_goes_on_like_the_original(way: str, design: str) -> None:
    arms, rewards = deal(16, replicas=2, rounds=40, dtype=torch.float32)
    agent = make("NeuralLog-TS-2", design=design, steps=5, replicas=2)
    for t in range(20):
        agent.observe(agent.act(arms[t]), rewards[t])
    agent.train_nn()
    if way == "deepcopy":
        again = copy.deepcopy(agent)
    elif way == "pickle":
        stored = pickle.dumps(agent)
        assert len(stored) < 200_000
        again = pickle.loads(stored)
    elif way == "assign":
        again = make("NeuralLog-TS-2", design=design, steps=5, replicas=2)
        again.load_state_dict(copy.deepcopy(agent.state_dict()), assign=True)
    else:
        again = copy.deepcopy(agent).double()
        again.network.float()
        again.initial_weights.float()
        again.buffer.float()
    for t in range(20, 40):
        one, other = agent.act(arms[t]), again.act(arms[t])
        assert torch.equal(one.score, other.score)
        agent.observe(one, rewards[t])
        again.observe(other, rewards[t])
        if t % 10 == 9:
            agent.train_nn()
            again.train_nn()


def test_the_number_of_arms_may_change_from_round_to_round() -> None:
    def play() -> list[int]:
        agent = make("NeuralLog-TS-1")
        g = torch.Generator().manual_seed(0)
        chosen = []
        for t in range(600):
            choice = agent.act(torch.rand(2 + t % 3, DIM, generator=g))
            agent.observe(choice, torch.ones(1))
            chosen.append(int(choice.arm))
        return chosen

    assert play() == play()


def test_a_choice_is_not_changed_by_its_caller() -> None:
    """A service may reuse the tensor of the arms before the reward comes, or have arms from a network of its own."""
    agent = make("NeuralLog-UCB-2")
    arms = torch.rand(3, DIM, requires_grad=True) * 2
    choice = agent.act(arms)
    shown = arms[choice.arm].clone()
    with torch.no_grad():
        arms.zero_()
    agent.observe(choice, torch.ones(1))
    torch.testing.assert_close(agent.buffer.rows()[0][0], shown.detach())
    assert not agent.buffer.x.requires_grad
    copy.deepcopy(agent)


def test_rounds_in_inference_mode_can_go_on_outside() -> None:
    agent, again = make("NeuralLog-UCB-2", steps=3), make("NeuralLog-UCB-2", steps=3)
    arms, rewards = deal(17, replicas=1, rounds=200, dtype=torch.float32)
    with torch.inference_mode():
        for t in range(100):
            agent.observe(agent.act(arms[t]), rewards[t])
        agent.train_nn()
    for t in range(100, 200):
        agent.observe(agent.act(arms[t]), rewards[t])
    agent.train_nn()
    assert int(agent.rounds) == 200
    agent.load_state_dict(again.state_dict())
    assert int(agent.rounds) == 0


def test_an_optimiser_of_ones_own_is_given_again(fit: Fit, tmp_path: Path) -> None:
    """A checkpoint does not store it: without it the agent would go on with another one and say nothing."""

    def optimizer(parameters: Iterable[torch.Tensor], lr: float = 0.002) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=lr)

    path = tmp_path / "last.ckpt"
    agent, _ = fit(NeuralLogUCB2(DIM, optimizer=optimizer, steps=3), rounds=60)
    agent.trainer.save_checkpoint(path)
    with pytest.raises(InputError, match=r"its optimizer is torch.optim.sgd.SGD\(.*here it is Adam"):
        NeuralLogUCB2.load_from_checkpoint(path)
    with pytest.raises(InputError, match="its optimizer is"):
        NeuralLogUCB2.load_from_checkpoint(path, optimizer=lambda parameters: optimizer(parameters, lr=0.1))
    again = NeuralLogUCB2.load_from_checkpoint(path, optimizer=optimizer)
    for one in (agent, again):
        one.train_nn()
    assert all(torch.equal(a, b) for a, b in zip(agent.weights(), again.weights(), strict=True))
    # what a checkpoint does store can be replaced
    agent, _ = fit(NeuralLogUCB2(DIM, lr=0.01, steps=3), rounds=60)
    agent.trainer.save_checkpoint(path)
    assert NeuralLogUCB2.load_from_checkpoint(path, lr=0.02).step_rule.lr == 0.02


def test_choices_of_other_agents_are_refused_and_change_nothing() -> None:
    agent, other = make("NeuralLog-UCB-2"), make("NeuralLog-UCB-2", depth=3)
    with pytest.raises(InputError, match="another agent's"):
        agent.observe(other.act(torch.rand(3, DIM)), torch.ones(1))
    assert int(agent.rounds) == 0


def test_diverging_training_stops_with_replica_round_and_advice() -> None:
    agent = make("NeuralLog-UCB-2", replicas=2, lam=100.0, lr=0.01)
    arms, rewards = deal(11, replicas=2, rounds=4, dtype=torch.float32)
    for t in range(4):
        agent.observe(agent.act(arms[t]), rewards[t])
    before = agent.weights(1)
    with pytest.raises(TrainNNDiverged, match=r"replica 0 .*round 4 .*1 other.* lr \* lam = 1.*lam < 100 or lr < 0.01"):
        agent.train_nn()
    assert all(torch.equal(a, b) for a, b in zip(before, agent.weights(1), strict=True))
    exploding = make("NeuralLog-UCB-2", lr=500.0, lam=1e-6)
    for t in range(4):
        exploding.observe(exploding.act(arms[t, :1]), rewards[t, :1])
    with pytest.raises(TrainNNDiverged, match="the loss grew beyond all bounds; take a smaller lr"):
        exploding.train_nn()


def test_a_grid_marks_what_diverges_and_the_others_go_on() -> None:
    agent = make("NeuralLog-UCB-2", grid={"lam": [1.0, 100.0]}, replicas=2, steps=5)
    alone = make("NeuralLog-UCB-2", lam=1.0, replicas=2, steps=5)
    arms, rewards = deal(12, replicas=4, rounds=8, dtype=torch.float32)
    arms[:, 2:], rewards[:, 2:] = arms[:, :2], rewards[:, :2]
    for t in range(8):
        agent.observe(agent.act(arms[t]), rewards[t], agent.alive)
        alone.observe(alone.act(arms[t, :2]), rewards[t, :2])
        if t == 3:
            agent.train_nn()
            alone.train_nn()
            assert agent.diverged_at.tolist() == [0, 0, 4, 4]
            assert agent.alive.tolist() == [True, True, False, False]
    agent.train_nn()
    alone.train_nn()
    assert agent.diverged_at.tolist() == [0, 0, 4, 4]
    for r in range(2):
        for mine, theirs in zip(agent.weights(r), alone.weights(r), strict=True):
            torch.testing.assert_close(mine, theirs)
    assert all(weight.isfinite().all() for weight in agent.network.weights)


def test_on_divergence_decides_who_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replica 1 explodes, to numbers that are still finite."""

    def explode(weights: list[torch.Tensor], x: object, r: object, lam: object, lr: torch.Tensor, *_: object) -> None:
        # once it has diverged it is not trained any more, and replica 0 is there twice
        if not torch.equal(weights[0][0], weights[0][1]):
            for weight in weights:
                weight[1] += 1e10 * lr[1]

    monkeypatch.setattr("nl_lightning.models.mlp.train_nn", explode)
    arms, rewards = deal(18, replicas=2, rounds=6, dtype=torch.float32)
    for settings, marks in (
        ({"replicas": 2, "on_divergence": "mark"}, True),
        ({"replicas": 2}, False),
        ({"lam": [1.0, 2.0]}, True),
        ({"lam": [1.0, 2.0], "on_divergence": "stop"}, False),
    ):
        agent = make("NeuralLog-UCB-2", start="cold", **settings)
        for t in range(6):
            agent.observe(agent.act(arms[t]), rewards[t] * 0)
        before = agent.weights(1)
        if not marks:
            with pytest.raises(TrainNNDiverged, match="replica 1 .* at round 6: the loss grew"):
                agent.train_nn()
        else:
            agent.train_nn()
            assert agent.diverged_at.tolist() == [0, 6]
            agent.train_nn()
        assert all(torch.equal(a, b) for a, b in zip(before, agent.weights(1), strict=True))


def test_when_nobody_is_left_to_go_on_marking_stops_as_well() -> None:
    arms, rewards = deal(13, replicas=2, rounds=1, dtype=torch.float32)
    agent = make("NeuralLog-UCB-2", replicas=2, lam=100.0, on_divergence="mark")
    agent.observe(agent.act(arms[0]), rewards[0])
    with pytest.raises(RuntimeError, match="diverged in replica 0 .*1 other"):
        agent.train_nn()
