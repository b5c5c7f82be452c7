"""The DataModule: environment + buffer -> training batches.

Rounds are played while Lightning asks for the next batch. A batch is the replay buffer when TrainNN is due, so
Lightning's own cost is paid once a call of TrainNN and not once a round.
"""

from collections.abc import Iterator
from typing import Any, cast

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_warn

from nl_lightning.agents.base import Agent
from nl_lightning.agents.callbacks import Confidence, RoundCallback
from nl_lightning.core.arguments import program
from nl_lightning.core.checkpoint import restoring
from nl_lightning.core.checks import check_finite, check_whole
from nl_lightning.core.errors import InputError
from nl_lightning.core.imports import overridden
from nl_lightning.core.rng import CHUNK
from nl_lightning.core.threads import default_threads
from nl_lightning.core.types import Deal, Round, TrainingBatch, Window
from nl_lightning.distributed.strategy import ReplicaStrategy, collected, gathered
from nl_lightning.environments import Environment, LoggedEnvironment, Simulation
from nl_lightning.rollout.fitted import fit_begins, fit_ended
from nl_lightning.rollout.loop import make_plan, play

__all__ = ["BanditData", "DealLoader", "RoundLoader"]


MOST_ROUNDS = 2**31 - 1
"""The number of a round is written with 32 bits."""
MOST_THREADS = 4096
"""With many more, the process would end without a word."""


class BanditData(L.LightningDataModule):
    """Plays an agent's rounds in an environment and hands the replay buffer to TrainNN.

    Args:
        environment: what deals the rounds.
        rounds: number T of rounds; it bounds the run.
        threads: threads of torch while agents play and train; left out, OMP_NUM_THREADS where it is set, or else by the
            size of the work: one, and more where matrix products are large.
    """

    def __init__(self, environment: Environment, rounds: int = 2000, threads: int | None = None) -> None:
        super().__init__()
        if not isinstance(environment, Environment):
            raise InputError(
                f"environment must be an Environment that was made, such as Synthetic(); got {environment!r:.100}."
            )
        for name, number, most in (("rounds", rounds, MOST_ROUNDS), ("threads", threads, MOST_THREADS)):
            if name == "threads" and number is None:
                continue
            check_whole(1, **{name: number})
            if cast(int, number) > most:
                raise InputError(f"{name} must be at most {most:,}, got {number}.")
        self.threads = threads
        self._threads_before: int | None = None
        self.environment = environment
        self.rounds = rounds
        self.played = 0
        """rounds so far"""
        self._ended = False
        """whether no round is left for any replica"""
        self._warmed_up = False
        """whether the agent has learned what comes before its first round"""

    @property
    def dim(self) -> int:
        return self.environment.dim

    @property
    def blocks(self) -> int:
        return self.environment.blocks

    def setup(self, stage: str) -> None:
        agent = self._agent
        assert self.trainer is not None
        if self.trainer.world_size > 1 and not isinstance(self.trainer.strategy, ReplicaStrategy):
            name = type(self.trainer.strategy).__name__
            raise InputError(f"Several devices share out replicas: take strategy='replica' instead of {name}.")
        if agent.dim != self.dim:
            raise InputError(f"The agent takes {agent.dim} features, the environment's arms have {self.dim}.")
        if agent.blocks != self.blocks:
            raise InputError(
                f"The environment deals arms of {self.blocks} blocks, but the agent has blocks = {agent.blocks}; "
                f"make it with blocks={self.blocks}."
            )
        if stage == "fit":
            self._check_callbacks()
        if self.environment.distinct_arms is not None:
            check_whole(1, distinct_arms=self.environment.distinct_arms)
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(self.threads or default_threads(self._work(agent)))
        # Another agent starts from the beginning; where a run is resumed, the loader's state comes later.
        self.played = 0
        self.environment.prepare(agent.settings.seeds, agent.network.weights[0], agent.share)
        if stage == "fit" and isinstance(self.environment, LoggedEnvironment):
            fit_begins(agent, self.environment)
        self._ended, self._warmed_up = False, False
        agent.rounds_before = max(gathered(self.trainer, int(agent.rounds.max())))

    def _work(self, agent: Agent) -> int:
        """Multiplications of a matrix product of TrainNN's last call, over all replicas of the run."""
        parameters, distinct = agent.design.parameters_count // max(agent.blocks, 1), self.environment.distinct_arms
        observations = self.rounds if distinct is None else min(self.rounds, 2 * distinct)
        return agent.share.total * observations * parameters

    def _check_callbacks(self) -> None:
        """One callback, and only one, tells the agent what it observed."""
        assert self.trainer is not None
        found = [type(c).__name__ for c in self.trainer.callbacks if isinstance(c, Confidence)]  # type: ignore[attr-defined]
        if len(found) != 1:
            what = f"{len(found)} of them ({', '.join(found)})" if found else "none"
            raise InputError(
                f"A fit needs exactly one Confidence callback, which maintains design matrix and radius; got {what}. "
                "Leave configure_callbacks as it is, or let it return one Confidence."
            )
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, RoundCallback) and callback.lacks_rounds:
                self._check_window_callback(callback)

    def _check_window_callback(self, callback: RoundCallback) -> None:
        """Say what becomes of ``on_window_end`` without ``on_round_end`` where rounds are played one by one."""
        name = type(callback).__name__
        if isinstance(callback, Confidence):
            raise InputError(
                f"{name} defines on_window_end without on_round_end, but rounds may be played one by one; define both."
            )
        agent = self._agent
        if not make_plan(agent, self.environment, min(self.rounds, agent.update_every), together=True).ahead:
            rank_zero_warn(
                f"{name}.on_window_end is not called: rounds of this run are played one by one. Define on_round_end."
            )

    def state_dict(self) -> dict[str, Any]:
        assert self.trainer is not None
        states = collected(self.trainer, self.environment.state_dict())
        before = self._agent.rounds_before
        joined = {"rounds_before": before, "warmed_up": self._warmed_up}
        return {"environment": self.environment.join(states), **joined} if states else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        assert self.trainer is not None
        with restoring(type(self.environment).__name__, self.trainer.ckpt_path):
            self.environment.load_state_dict(state_dict["environment"])
            self._agent.rounds_before = int(state_dict["rounds_before"])
            self._warmed_up = bool(state_dict["warmed_up"])
        self._ended = all(gathered(self.trainer, self.environment.ended))

    def on_exception(self, exception: BaseException) -> None:
        """Give torch its threads back."""
        self._restore_threads()

    def _restore_threads(self) -> None:
        if self._threads_before is not None:
            torch.set_num_threads(self._threads_before)
            self._threads_before = None

    def teardown(self, stage: str) -> None:
        """Where replicas were spread over processes, the environment knows of all of them in the end."""
        assert self.trainer is not None
        self._restore_threads()
        if stage == "fit" and self.trainer.world_size > 1:
            states = gathered(self.trainer, self.environment.state_dict())
            agent = self._agent
            self.environment.prepare(agent.settings.seeds, agent.network.weights[0], agent.share)
            self.environment.load_state_dict(self.environment.join(states))
        if stage == "fit":
            fit_ended(self._agent, self.environment)

    def transfer_batch_to_device(self, batch: object, device: torch.device, dataloader_idx: int) -> object:
        """Batches are made on the agent's device."""
        return batch

    def train_dataloader(self) -> "RoundLoader":
        # The agent is on its device now, and a run that is resumed has its state.
        if not self._warmed_up:
            self._warm_up()
        return RoundLoader(self)

    def _warm_up(self) -> None:
        """Let the agent learn what its environment knows already, before the first round."""
        agent, learned = self._agent, 0
        for x, reward, weight in self.environment.warm_start():
            agent.learn(x, reward, weight)
            learned += len(reward)
        if learned:
            agent.rounds_before += learned
        self._warmed_up = True

    def test_dataloader(self) -> "DealLoader":
        if not isinstance(self.environment, Simulation):
            raise InputError(
                "test plays a frozen agent in a simulation. For a log: "
                f"{program('replay')} evaluate --log LOG --checkpoint FILE."
            )
        return DealLoader(self.environment, self.rounds)

    @property
    def _agent(self) -> Agent:
        assert self.trainer is not None
        return cast(Agent, self.trainer.lightning_module)

    @property
    def finished(self) -> bool:
        """Whether no round is left to play."""
        return self.played >= self.rounds or self._ended

    def play(self, count: int) -> None:
        """Play the next rounds: deal, score, accept, update."""
        assert self.trainer is not None
        agent, trainer = self._agent, self.trainer
        # Design matrix and radius come first, so that other callbacks see the state after the round.
        callbacks = sorted(
            (callback for callback in trainer.callbacks if isinstance(callback, RoundCallback)),  # type: ignore[attr-defined]
            key=lambda callback: not isinstance(callback, Confidence),
        )
        # A callback that does not define a hook (like the one that writes files) is not called two thousand times.
        by_round = [callback for callback in callbacks if overridden(callback, RoundCallback, "on_round_end")]
        by_window = [callback for callback in callbacks if overridden(callback, RoundCallback, "on_window_end")]

        def on_round(played: Round) -> None:
            for callback in by_round:
                callback.on_round_end(trainer, agent, played)

        def on_window(window: Window) -> None:
            for callback in by_window:
                callback.on_window_end(trainer, agent, window)

        together = all(callback.supports_windows for callback in by_round)
        watched = any(type(callback) is not Confidence for callback in by_round)
        # Inference mode saves a fifth of a round; what it makes must not stay in the agent's state.
        with torch.inference_mode():
            on_windows = on_window if together else None
            history = play(agent, self.environment, self.played, count, on_round, on_windows, watched)
        _leave_inference_mode(agent)
        # In a replay the replicas of all processes wait for each other at a call of TrainNN; a simulation has no end,
        # and the same rounds for all.
        mine = (len(history.t), self.environment.ended)
        told = gathered(trainer, mine) if isinstance(self.environment, LoggedEnvironment) else [mine]
        self.played += max(rounds for rounds, _ in told)
        self._ended = all(ended for _, ended in told)
        agent.buffer.reserve(agent.rounds_before + self.played)
        if not len(history.t):
            return
        valid = history.valid
        check_finite("scores", history.score if valid is None else history.score[valid])
        for callback in callbacks:
            callback.on_rounds_end(trainer, agent, history)


def _leave_inference_mode(agent: Agent) -> None:
    """Tensors made in inference mode cannot be written outside it: those of the agent's state are copied."""
    for module in agent.modules():
        for name, values in module._buffers.items():
            if values is not None and values.is_inference():
                module._buffers[name] = values.clone()


class RoundLoader:
    """Each item plays the rounds up to the next call of TrainNN and is the buffer after them.

    It has a length, or else Lightning would ask for an item ahead of time: before the TrainNN that its rounds need.
    """

    def __init__(self, data: BanditData) -> None:
        self.data = data
        self.agent = data._agent

    def __len__(self) -> int:
        before = self.agent.rounds_before
        return self.agent.schedule.calls(before, before + self.data.rounds)

    def __iter__(self) -> Iterator[TrainingBatch]:
        data, agent = self.data, self.agent
        while not data.finished:
            before, every = data.played, agent.schedule.rounds_until_next(agent.rounds_before + data.played)
            count = min(every, data.rounds - before)
            for start in range(0, count, CHUNK):
                data.play(min(CHUNK, count - start))
            # a simulation has rounds for all
            inactive = None
            if isinstance(data.environment, LoggedEnvironment):
                behind = [accepted < data.played for accepted in data.environment.accepted]
                inactive = torch.tensor(behind, device=agent.lam.device)
            x, reward, weight = agent.buffer.rows(agent.learner.window)
            due = data.played == before + every
            yield TrainingBatch(x, reward, weight, inactive, due, self._distinct())

    def _distinct(self) -> int | None:
        """The distinct arms of the environment, where each was seen twice on average and nothing else is learned.

        All of it is the same for all replicas: what one computes must not depend on those beside it.
        """
        distinct, window = self.data.environment.distinct_arms, self.agent.learner.window
        if distinct is None or self.agent.rounds_before or overridden(self.agent, Agent, "observe", "observe_window"):
            return None
        n = self.data.played if window is None else min(self.data.played, window)
        return distinct if n >= 2 * distinct else None

    def state_dict(self) -> dict[str, int]:
        return {"played": self.data.played}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        trainer = self.data.trainer
        with restoring("the rounds", trainer.ckpt_path if trainer else None):
            check_whole(0, played=state_dict["played"])
            self.data.played = state_dict["played"]


class DealLoader:
    """Rounds behind those of the fit, for a frozen agent."""

    BLOCK = 64

    def __init__(self, environment: Simulation, rounds: int) -> None:
        self.environment, self.rounds = environment, rounds

    # without a length: an environment may deal fewer rounds than asked for, and none is left out

    def __iter__(self) -> Iterator[Deal]:
        first, stop = self.rounds, 2 * self.rounds
        while first < stop:
            deal = self.environment.next_deal(first, min(self.BLOCK, stop - first))
            first += deal.arms.shape[1]
            yield deal
