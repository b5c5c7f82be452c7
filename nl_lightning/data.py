"""The DataModule: environment + buffer -> training batches.

Rounds are played while Lightning asks for the next batch. A batch is the replay buffer after ``update_every`` rounds,
so Lightning's own cost is paid once a call of TrainNN and not once a round.
"""

from collections.abc import Iterator
from typing import cast

import lightning as L
import torch
from torch import Tensor

from nl_lightning.agent import Agent
from nl_lightning.callbacks import Confidence, RoundCallback
from nl_lightning.checks import check_finite, check_whole
from nl_lightning.environments import Deal, Environment
from nl_lightning.errors import InputError
from nl_lightning.randomness import CHUNK
from nl_lightning.rounds import History, Round, TrainingBatch


class BanditData(L.LightningDataModule):
    """Plays an agent's rounds in an environment and hands the replay buffer to TrainNN.

    Args:
        environment: what deals the rounds.
        rounds: number T of rounds; it bounds the run.
    """

    def __init__(self, environment: Environment, rounds: int = 2000) -> None:
        super().__init__()
        check_whole(1, rounds=rounds)
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
            raise InputError(f"The agent takes {agent.dim} features, the environment's arms have {self.dim}.")
        # Another agent starts anew; where a run goes on, the loader's state comes later.
        self.played = 0
        self.environment.prepare(agent.settings.seeds, agent.network.weights[0])

    def transfer_batch_to_device(self, batch: object, device: torch.device, dataloader_idx: int) -> object:
        """Batches are made on the agent's device."""
        return batch

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
        # A callback that leaves the hook as it is (like the one that writes files) is not called two thousand times.
        hooks = [c.on_round_end for c in callbacks if type(c).on_round_end is not RoundCallback.on_round_end]
        deal = self.environment.deal(self.played, count)
        choices, radius, dimension = [], [], []
        views = agent.look_ahead(deal.arms)
        # Buffers by their dictionary: asked for by name, nn.Module looks for them in three places.
        state = cast(dict[str, Tensor], agent._buffers)
        answers = zip(deal.reward.unbind(1), deal.regret.unbind(1), strict=True)
        # Inference mode saves a fifth of a round; what it makes must not stay in the agent's state.
        with torch.inference_mode():
            for view, (rewards, regrets) in zip(views, answers, strict=True):
                choice = agent.choose(view)
                self.played += 1
                played = Round(self.played, choice, rewards, regrets)
                for on_round_end in hooks:
                    on_round_end(trainer, agent, played)
                choices.append(choice)
                radius.append(state["radius"])
                dimension.append(state["effective_dimension"])
        agent.radius, agent.effective_dimension = agent.radius.clone(), agent.effective_dimension.clone()

        arm = torch.stack([choice.arm for choice in choices], dim=1)

        def chosen(values: Tensor) -> Tensor:
            return values.gather(2, arm.unsqueeze(2)).squeeze(2)

        history = History(
            t=torch.arange(self.played - count + 1, self.played + 1),
            arm=arm,
            reward=chosen(deal.reward),
            regret=chosen(deal.regret),
            score=chosen(torch.stack([choice.score for choice in choices], dim=1)),
            mean=chosen(torch.stack([choice.mean for choice in choices], dim=1)),
            bonus=chosen(torch.stack([choice.bonus for choice in choices], dim=1)),
            radius=torch.stack(radius, dim=1),
            effective_dimension=torch.stack(dimension, dim=1),
        )
        alive = agent.alive
        check_finite("scores", history.score if alive is None else history.score[alive])
        accepted = None if alive is None else alive.unsqueeze(1).expand(-1, count)
        index = arm[..., None, None].expand(-1, -1, 1, self.dim)
        agent.buffer.append(deal.arms.gather(2, index).squeeze(2), history.reward, accepted)
        for callback in callbacks:
            callback.on_rounds_end(trainer, agent, history)


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
            for start in range(0, count, CHUNK):
                data.play(min(CHUNK, count - start))
            yield TrainingBatch(*self.agent.buffer.rows(), due=count == every)

    def state_dict(self) -> dict[str, int]:
        return {"played": self.data.played}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.data.played = state_dict["played"]


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
