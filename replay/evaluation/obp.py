"""A bridge to the Open Bandit Pipeline (obp): a log as an obp dataset, an agent as an obp policy, obp's estimators.

obp holds the whole log in memory, with one entry per (event, item, position), so it suits logs of moderate length.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from nl_lightning.agents.base import Agent
from nl_lightning.core.errors import InputError
from nl_lightning.core.types import Choice
from replay.evaluation.evaluator import FrozenAgent
from replay.evaluation.shown import batches, scored
from replay.logs.obd import AFFINITY, OBD, POSITION
from replay.logs.reader import Log
from replay.protocol.candidates import candidates, pair_values
from replay.protocol.events import ReplaySettings
from replay.protocol.obd_features import USER_DIM, ObdFeatures

try:
    from obp.dataset import OpenBanditDataset
    from obp.ope import (
        DirectMethod,
        DoublyRobust,
        InverseProbabilityWeighting,
        OffPolicyEvaluation,
        RegressionModel,
        ReplayMethod,
        SelfNormalizedInverseProbabilityWeighting,
    )
    from obp.policy import BaseContextualPolicy
except ImportError as error:
    raise InputError(
        f"The bridge to the Open Bandit Pipeline needs obp ({error}). Install it: pip install 'nl-lightning[obp]'."
    ) from error

__all__ = ["AgentPolicy", "LogDataset", "action_distribution", "check_size", "off_policy_estimates"]


_ENTRIES = 100_000_000
"""Largest size of an action distribution, 0.8 GB. Several of them are in memory at a time."""


@dataclass
class LogDataset(OpenBanditDataset):
    """A log as an obp dataset with the features of ``Features``. (obp's own preprocessing does not work with pandas 3.)

    The context of an event is [u (16), position, affinity with each item (n)], scaled like the features. The context of
    an action is the item's v (8).
    """

    log: Log = field(kw_only=True)
    features: ObdFeatures = field(kw_only=True)

    def __post_init__(self) -> None:
        self.load_raw_data()
        self.pre_process()

    def load_raw_data(self) -> None:
        events = [self.log.events(group) for group in self.log.groups]
        self._events = events
        self.data = np.empty((self.log.rows, 0))
        self.action = np.concatenate([part.item for part in events])
        self.position = np.concatenate([part.numeric[POSITION] for part in events]) - 1
        self.reward = np.concatenate([part.click for part in events])
        self.pscore = np.concatenate([part.propensity for part in events])
        if np.isnan(self.pscore).any():
            raise InputError(f"{self.log.path}: obp needs the propensity of every event, and some are missing.")

    def pre_process(self) -> None:
        features, n = self.features, self.log.n_items
        rows = []
        for events in self._events:
            arms = candidates(events, "all", n, self.log, 0)
            user = features.users(features.encode(self.log, events, arms).codes)
            position = features.scaled_position(torch.from_numpy(events.numeric[POSITION])).unsqueeze(1)
            affinity = pair_values(events.pair[AFFINITY], events, arms, n)
            rows.append(torch.cat([user, position, features.scaled_affinity(affinity)], dim=1))
        self.context = torch.cat(rows).numpy()
        self.action_context = features.item.numpy()

    @property
    def n_actions(self) -> int:
        return self.log.n_items


@dataclass
class AgentPolicy(BaseContextualPolicy):
    """An agent as an obp policy, for ``run_bandit_simulation`` on a ``LogDataset``. It chooses among all items.

    The agent must have one replica. TrainNN runs when it would in a fit.
    """

    dim: int = 0
    n_actions: int = 0
    agent: Agent = field(kw_only=True)
    features: ObdFeatures = field(kw_only=True)

    def __post_init__(self) -> None:
        if self.agent.replicas != 1:
            raise InputError(f"An obp policy is a single replica, but this agent has {self.agent.replicas}.")
        self.n_actions = len(self.features.item)
        self.dim = USER_DIM + 1 + self.n_actions
        super().__post_init__()
        self.policy_name = self.agent.name
        self._choice: Choice | None = None
        self._train_at = self._next_training()

    def _next_training(self) -> int:
        """Number of observations after which TrainNN runs next."""
        seen = int(self.agent.rounds[0])
        return seen + self.agent.schedule.rounds_until_next(seen)

    def select_action(self, context: NDArray[np.float64]) -> NDArray[np.int64]:
        """(len_list,): the context includes the position, so all entries of the list are the same item."""
        self._choice = self.agent.act(self._arms(context))
        return np.full(self.len_list, int(self._choice.arm[0]))

    def update_params(self, action: int, reward: float, context: NDArray[np.float64]) -> None:
        """Learn the reward of the action that was selected last."""
        if self._choice is None or int(self._choice.arm[0]) != action:
            raise InputError(f"{self.agent.name} learns from its last choice, which was not item {action}.")
        self.n_trial += 1
        self.agent.observe(self._choice, torch.tensor([reward], device=self.agent.device))
        if int(self.agent.rounds[0]) >= self._train_at:
            self.agent.train_nn()
            self._train_at = self._next_training()

    def _arms(self, context: NDArray[np.float64]) -> torch.Tensor:
        """(n, 42)"""
        user, position, affinity = torch.from_numpy(context[0]).split([USER_DIM, 1, self.n_actions])
        n, a = self.n_actions, affinity.unsqueeze(1)
        item = self.features.item.double().cpu()
        return torch.cat([user.expand(n, -1), item, position.expand(n, 1), a, user * a], dim=1)


def check_size(log: Log) -> None:
    """Raise an InputError if a log is too long for obp's arrays."""
    entries = log.rows * log.n_items * _positions(log)
    if entries > _ENTRIES:
        raise InputError(
            f"{log.path} has {log.rows:,} events: obp would need arrays of {entries:,} entries, and at most "
            f"{_ENTRIES:,} are allowed. Evaluate without obp, or convert a shorter log."
        )


def _positions(log: Log) -> int:
    if log.schema != OBD:
        raise InputError(f"The bridge to obp takes logs of the Open Bandit Dataset, and {log.path} is another log.")
    return int(log.statistics.numeric[POSITION][1])


def action_distribution(
    agent: Agent, features: ObdFeatures, log: Log, settings: ReplaySettings, draws: int = 1, replica: int = 0
) -> tuple[NDArray[np.float64], float]:
    """The probabilities (events, items, positions) with which a frozen agent shows each item, and their standard error.

    They are those that ``evaluate`` uses: ties are shared, and where candidate sets are drawn uniformly, the chance is
    over all such sets. The probabilities of a Thompson agent are means over Monte Carlo draws; the error is the largest
    standard error over all entries. Those of other agents are exact, and the error is 0.
    """
    check_size(log)
    distribution = np.zeros((log.rows, log.n_items, _positions(log)))
    frozen, error = FrozenAgent(agent, features), 0.0
    asked = scored(settings, log) if agent.decides_by_score else settings
    arms = None if asked.protocol == settings.protocol else settings.arms
    for batch in batches(log, features, asked, agent.replicas):
        total, squares = torch.zeros(2, *batch.item.shape, dtype=torch.float64, device=agent.device).unbind()
        for drawn in frozen.distributions(batch, draws, arms):
            total += drawn[replica]
            squares += drawn[replica].square()
        mean = total / draws
        # the sum over items must be 1 to all digits, because obp compares with it
        mean /= mean.sum(1, keepdim=True)
        # The agent knows the position; obp uses the entry at the event's position only.
        places = np.broadcast_to(np.arange(distribution.shape[2]), (len(batch.row), 1, distribution.shape[2]))
        event = batch.row.numpy()[:, None, None] - log.first_row
        np.add.at(distribution, (event, batch.item.numpy()[..., None], places), mean.numpy()[..., None])
        if draws > 1:
            variance = (squares / draws - mean.square()).clamp_min(0) / (draws - 1)
            error = max(error, float(variance.max()) ** 0.5)
    return distribution, error


def off_policy_estimates(
    agent: Agent,
    features: ObdFeatures,
    log: Log,
    settings: ReplaySettings,
    draws: int = 1,
    replica: int = 0,
    seed: int = 0,
) -> dict[str, Any]:
    """obp's DM, IPW, SNIPW, DR and Replay of a frozen agent, with obp's bootstrap intervals over events."""
    check_size(log)
    feedback = LogDataset(
        behavior_policy="random", campaign="all", log=log, features=features
    ).obtain_batch_bandit_feedback()
    distribution, error = action_distribution(agent, features, log, settings, draws, replica)
    model = RegressionModel(
        n_actions=log.n_items,
        len_list=_positions(log),
        action_context=feedback["action_context"],
        base_model=LogisticRegression(max_iter=1000, C=1.0),
    )
    rewards = model.fit_predict(
        context=feedback["context"],
        action=feedback["action"],
        reward=feedback["reward"],
        pscore=feedback["pscore"],
        position=feedback["position"],
        action_dist=distribution,
        n_folds=2,
        random_state=seed,
    )
    estimators = [
        DirectMethod(),
        InverseProbabilityWeighting(),
        SelfNormalizedInverseProbabilityWeighting(),
        DoublyRobust(),
    ]
    if np.isin(distribution, (0, 1)).all():
        # obp's replay method needs deterministic actions
        estimators.append(ReplayMethod())
    evaluation = OffPolicyEvaluation(bandit_feedback=feedback, ope_estimators=estimators)
    arguments = {"action_dist": distribution, "estimated_rewards_by_reg_model": rewards}
    values = evaluation.estimate_policy_values(**arguments)
    bands = evaluation.estimate_intervals(**arguments, alpha=0.05, n_bootstrap_samples=100, random_state=seed)
    found = {
        name: {
            "value": float(value),
            "low": float(bands[name]["95.0% CI (lower)"]),
            "high": float(bands[name]["95.0% CI (upper)"]),
        }
        for name, value in values.items()
    }
    return {"draws": draws, "action_probability_error": error, "estimates": found}
