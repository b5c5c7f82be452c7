"""What happens after every round of a fit."""

from typing import TYPE_CHECKING

import lightning as L

if TYPE_CHECKING:
    from nl_lightning.agents.base import Agent
    from nl_lightning.core.types import History, Round
    from nl_lightning.rollout.lookahead import Window


class RoundCallback(L.Callback):
    """A Lightning callback with three more hooks."""

    def on_round_end(self, trainer: L.Trainer, agent: "Agent", played: "Round") -> None:
        """Called after every round; ``played.t`` (R,) is its number, from 1 on.

        In a replay, replicas wait for each other: it counts for those with ``played.accepted``, at times for none.
        """

    def on_window_end(self, trainer: L.Trainer, agent: "Agent", window: "Window") -> None:
        """Called instead of ``on_round_end`` after rounds that were played at once (``ahead``).

        A callback that has ``on_round_end`` and not this one is called after every round: they are played one by one.
        So is a class that has a new ``on_round_end`` and inherits this one.
        """

    def on_rounds_end(self, trainer: L.Trainer, agent: "Agent", history: "History") -> None:
        """Called once for the rounds between two calls of TrainNN, before the latter."""


class Confidence(RoundCallback):
    """Maintains the design matrix and the radii: an agent brings it along (``configure_callbacks``)."""

    def on_round_end(self, trainer: L.Trainer, agent: "Agent", played: "Round") -> None:
        agent.update_confidence(played.observed, played.accepted)

    def on_window_end(self, trainer: L.Trainer, agent: "Agent", window: "Window") -> None:
        agent.take(window)


def overrides(callback: RoundCallback, hook: str) -> bool:
    """Whether a callback does something at this hook."""
    return _definer(callback, hook) is not RoundCallback


def contented(callback: RoundCallback) -> bool:
    """Whether a callback can do without single rounds: its ``on_window_end`` is as new as its ``on_round_end``."""
    order = type(callback).__mro__
    return order.index(_definer(callback, "on_window_end")) <= order.index(_definer(callback, "on_round_end"))


def _definer(callback: RoundCallback, hook: str) -> type:
    """The class that a callback has a hook from."""
    return next(kind for kind in type(callback).__mro__ if hook in vars(kind))
