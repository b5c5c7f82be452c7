"""The DataModule: environment + buffer -> training batches.

Rounds are played while Lightning asks for the next batch. A batch is the replay buffer after ``update_every`` rounds,
so Lightning's own cost is paid once a call of TrainNN and not once a round.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import lightning as L
import torch
from torch import Tensor

from nl_lightning.agent import Agent, Choice, TrainingBatch
from nl_lightning.callbacks import Confidence, RoundCallback
from nl_lightning.environments import Deal, Environment


class Round(NamedTuple):
    """A round that was played."""

    t: int
    """from 1 on"""
    choice: Choice
    reward: Tensor
    """(R,)"""
    regret: Tensor
    """(R,)"""


class BanditData(L.LightningDataModule):
    """Plays an agent's rounds in an environment and hands the replay buffer to TrainNN.

    Args:
        environment: what deals the rounds.
        rounds: number T of rounds; it bounds the run.
    """

    def __init__(self, environment: Environment, rounds: int = 2000) -> None:
        super().__init__()
        if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
            raise ValueError(f"rounds must be a whole number of at least 1, got {rounds!r}.")
        self.environment = environment
        self.rounds = rounds
        self.played = 0
        """rounds so far"""

    @property
    def dim(self) -> int:
        return self.environment.dim

    def setup(self, stage: str) -> None:
        agent = self._agent
        if agent.dim != self.dim:
            raise ValueError(f"The agent takes {agent.dim} features, the environment's arms have {self.dim}.")
        self.environment.prepare(agent.settings.seeds, agent.network.weights[0])

    def train_dataloader(self) -> "RoundLoader":
        return RoundLoader(self)

    def test_dataloader(self) -> "DealLoader":
        return DealLoader(self)

    @property
    def _agent(self) -> Agent:
        assert self.trainer is not None
        return cast(Agent, self.trainer.lightning_module)

    def play(self, count: int) -> None:
        """Play the next rounds: deal, act, answer, observe."""
        assert self.trainer is not None
        agent, trainer = self._agent, self.trainer
        # Design matrix and radii come first, so that other callbacks see the state after the round.
        callbacks = sorted(
            (callback for callback in trainer.callbacks if isinstance(callback, RoundCallback)),  # type: ignore[attr-defined]
            key=lambda callback: not isinstance(callback, Confidence),
        )
        deal = self.environment.deal(self.played, count)
        chosen, rewards = [], []
        answers = zip(deal.reward.unbind(1), deal.regret.unbind(1), strict=True)
        for view, (reward, regret) in zip(agent.look_ahead(deal.arms), answers, strict=True):
            choice = agent.choose(view)
            self.played += 1
            played = Round(self.played, choice, choice.chosen(reward), choice.chosen(regret))
            for callback in callbacks:
                callback.on_round_end(trainer, agent, played)
            chosen.append(choice.arm)
            rewards.append(played.reward)
        index = torch.stack(chosen, dim=1)[..., None, None].expand(-1, -1, 1, self.dim)
        alive = agent.alive
        accepted = None if alive is None else alive.unsqueeze(1).expand(-1, count)
        agent.buffer.append(deal.arms.gather(2, index).squeeze(2), torch.stack(rewards, dim=1), accepted)

    def state_dict(self) -> dict[str, Any]:
        return {"played": self.played}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.played = state_dict["played"]


class RoundLoader:
    """Each item plays ``update_every`` rounds and is the buffer after them.

    It has a length, or else Lightning would ask for an item ahead of time: before the TrainNN that its rounds need.
    """

    def __init__(self, data: BanditData) -> None:
        self.data = data
        self.agent = data._agent

    def __len__(self) -> int:
        return -(-self.data.rounds // self.agent.update_every)

    def __iter__(self) -> Iterator[TrainingBatch]:
        data, every = self.data, self.agent.update_every
        while data.played < data.rounds:
            count = min(every, data.rounds - data.played)
            data.play(count)
            yield TrainingBatch(*self.agent.buffer.rows(), due=count == every)


class DealLoader:
    """Rounds behind those of the fit, for a frozen agent."""

    BLOCK = 64

    def __init__(self, data: BanditData) -> None:
        self.data = data

    def __len__(self) -> int:
        return -(-self.data.rounds // self.BLOCK)

    def __iter__(self) -> Iterator[Deal]:
        first, stop = self.data.rounds, 2 * self.data.rounds
        for start in range(first, stop, self.BLOCK):
            yield self.data.environment.deal(start, min(self.BLOCK, stop - start))
