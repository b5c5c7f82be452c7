"""What an agent promises."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor

from nl_lightning.agents.base import Agent
from nl_lightning.agents.callbacks import RoundCallback
from nl_lightning.core import lightning_logging
from nl_lightning.core.replicas import Share
from nl_lightning.core.types import History
from nl_lightning.environments import Synthetic
from nl_lightning.rollout.data import BanditData

__all__ = ["check_agent"]

_CPU = torch.device("cpu")
_DIM, _ARMS, _ROUNDS, _EVERY = 4, 4, 60, 20
_TRAINER: dict[str, Any] = {
    "max_epochs": 1,
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def check_agent(agent: Callable[..., Agent], **settings: Any) -> None:
    """Check the promises of an agent.

    Choices have the right shapes; to act changes nothing but random draws; replicas that do not accept a round learn
    nothing from it; a seed repeats; replicas do not depend on each other; a stored state continues to the same bits; a
    fit is acting, observing and training by hand; and a fit that is stopped and resumed ends with the same bits.

    Args:
        agent: class of the agent.
        settings: settings it is made with, beside ``dim``, ``replicas``, ``seed`` and ``update_every``.
    """
    lightning_logging.silence()
    suite = _Suite(agent, settings)
    suite.acts()
    suite.respects_what_is_accepted()
    suite.keeps_replicas_apart()
    suite.stores_its_state()
    suite.fits_as_by_hand()
    suite.resumes()


class _Keep(RoundCallback):
    """Keeps the rounds of a fit."""

    def __init__(self) -> None:
        self.history: list[History] = []

    def on_rounds_end(self, trainer: L.Trainer, agent: Any, history: History) -> None:
        self.history.append(history)

    def column(self, name: str) -> Tensor:
        return torch.cat([getattr(history, name) for history in self.history], dim=1)


class _StopAndSave(L.Callback):
    """Stores the state after two calls of TrainNN and stops."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step == 2:
            trainer.save_checkpoint(self.path, weights_only=False)
            trainer.should_stop = True


class _Suite:
    def __init__(self, agent: Callable[..., Agent], settings: dict[str, Any]) -> None:
        self.agent, self.settings = agent, {"lr": 0.001, "steps": 10, **settings}

    def make(self, seeds: Sequence[int] = (7, 8, 9)) -> Agent:
        settings = {"update_every": _EVERY, **self.settings, "seed": list(seeds)}
        return self.agent(dim=_DIM, **settings).double()

    def arms(self, t: int) -> Tensor:
        g = torch.Generator(_CPU).manual_seed(t)
        return 2 * torch.rand(3, _ARMS, _DIM, generator=g, dtype=torch.float64, device=_CPU) - 1

    def reward(self, t: int) -> Tensor:
        return torch.randint(2, (3,), generator=torch.Generator(_CPU).manual_seed(1000 + t), device=_CPU)

    def play(self, agent: Agent, rounds: range, replicas: Sequence[int] = (0, 1, 2)) -> list[Tensor]:
        """Rounds by hand; what was chosen."""
        chosen = []
        for t in rounds:
            choice = agent.act(self.arms(t)[list(replicas)])
            agent.observe(choice, self.reward(t)[list(replicas)])
            chosen.append(choice.arm)
            if t % 10 == 9:
                agent.train_nn()
        return chosen

    def acts(self) -> None:
        agent = self.make()
        before = _tensors(agent)
        choice = agent.act(self.arms(0))
        assert choice.arm.shape == (3,), f"act must choose one arm a replica, (3,), got {tuple(choice.arm.shape)}"
        assert ((choice.arm >= 0) & (choice.arm < _ARMS)).all(), "act has chosen an arm that is not there"
        for name in ("score", "mean", "bonus"):
            values = getattr(choice, name)
            assert values.shape == (3, _ARMS), f"{name} must be (R, K) = (3, {_ARMS}), got {tuple(values.shape)}"
            assert values.isfinite().all(), f"{name} must be finite"
        _same(_tensors(agent), before, "act must change nothing but random draws")
        masked = torch.tensor([True, False, True, False], device=_CPU)
        picked = [agent.act(self.arms(t), masked).arm for t in range(20)]
        assert masked[torch.stack(picked)].all(), "act has chosen an arm that its mask excludes"

    def respects_what_is_accepted(self) -> None:
        agent = self.make()
        before = _tensors(agent)
        accepted = torch.tensor([True, False, True], device=_CPU)
        agent.observe(agent.act(self.arms(0)), self.reward(0), accepted)
        after = _tensors(agent)
        assert agent.rounds.tolist() == [1, 0, 1], "observe must count the round for replicas that accepted it"
        for name in ("radius", "effective_dimension"):
            assert torch.equal(after[name][1], before[name][1]), f"{name} has changed in a replica that did not accept"

    def keeps_replicas_apart(self) -> None:
        together, alone = self.make(), self.make([8])
        chosen = self.play(together, range(30))
        single = self.play(alone, range(30), [1])
        same = all(torch.equal(a[1:2], b) for a, b in zip(chosen, single, strict=True))
        assert same, "a replica chooses otherwise beside other replicas"
        for mine, theirs in zip(alone.weights(0), together.weights(1), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-9)

    def stores_its_state(self) -> None:
        agent, loaded = self.make(), self.make()
        self.play(agent, range(25))
        loaded.load_state_dict(agent.state_dict())
        chosen, again = (self.play(each, range(25, 45)) for each in (agent, loaded))
        same = all(torch.equal(a, b) for a, b in zip(chosen, again, strict=True))
        assert same, "a loaded state must continue with the same choices: is a part of the state not in a buffer?"
        _same(_tensors(loaded), _tensors(agent), "a loaded state must continue to the same bits")
        part = agent.part(Share([2, 0], 2, 3))
        for place, replica in enumerate((2, 0)):
            for mine, theirs in zip(part.weights(place), agent.weights(replica), strict=True):
                assert torch.equal(mine, theirs), "a part of an agent must have the state of its replicas"

    @staticmethod
    def fit(agent: Agent, ckpt_path: Path | None = None, callbacks: Sequence[L.Callback] = ()) -> _Keep:
        keep, data = _Keep(), BanditData(Synthetic("h1", dim=_DIM, arms=_ARMS, pool=30), _ROUNDS)
        trainer = L.Trainer(**_TRAINER, callbacks=[keep, *callbacks], enable_checkpointing=False)
        trainer.fit(agent, data, ckpt_path=ckpt_path, weights_only=False)
        return keep

    def fits_as_by_hand(self) -> None:
        by_hand, agent = self.make(), self.make()
        by_hand.fit_horizon = _ROUNDS
        keep = self.fit(agent)
        environment = Synthetic("h1", dim=_DIM, arms=_ARMS, pool=30)
        environment.prepare([7, 8, 9], by_hand.network.weights[0])
        for t in range(_ROUNDS):
            deal = environment.deal(t, 1)
            choice = by_hand.act(deal.arms[:, 0])
            assert torch.equal(choice.arm, keep.column("arm")[:, t]), f"a fit chooses otherwise than act, in round {t}"
            by_hand.observe(choice, choice.chosen(deal.reward[:, 0]))
            radius = keep.column("radius")[:, t]
            torch.testing.assert_close(by_hand.radius, radius, rtol=1e-7, atol=1e-9, msg="a fit has another radius")
            if t % _EVERY == _EVERY - 1:
                by_hand.train_nn()
        assert torch.equal(agent.rounds, by_hand.rounds), "a fit must observe every round once"
        for mine, theirs in zip(agent.network.weights, by_hand.network.weights, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-8, msg="a fit trains otherwise than train_nn")

    def resumes(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            whole, first, second = (self.make() for _ in range(3))
            stored = Path(directory) / "stored.ckpt"
            expected = self.fit(whole)
            self.fit(first, callbacks=[_StopAndSave(stored)])
            found = self.fit(second, ckpt_path=stored)
        later = found.column("arm")
        assert torch.equal(later, expected.column("arm")[:, -later.shape[1] :]), "a resumed fit chooses otherwise"
        _same(_tensors(second), _tensors(whole), "a resumed fit must end with the same bits")


def _tensors(agent: Agent) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in agent.state_dict().items() if isinstance(value, Tensor)}


def _same(found: dict[str, Tensor], expected: dict[str, Tensor], promise: str) -> None:
    for name, value in expected.items():
        assert torch.equal(found[name], value), f"{promise}: {name} differs"
