"""What happens after every round of a fit."""

from typing import Any

import lightning as L

from nl_lightning.core.imports import as_new_as, overridden
from nl_lightning.core.types import History, Round, Window

__all__ = ["Confidence", "RoundCallback"]


class RoundCallback(L.Callback):
    """A Lightning callback with three more hooks; ``agent`` is the fit's agent."""

    def on_round_end(self, trainer: L.Trainer, agent: Any, played: Round) -> None:
        """Called after every round; ``played.t`` (R,) is its number, counted from 1.

        In a replay, replicas wait for each other: a round counts for those with ``played.accepted``, sometimes none.
        """

    def on_window_end(self, trainer: L.Trainer, agent: Any, window: Window) -> None:
        """Called instead of ``on_round_end`` after rounds that were looked ahead and played together.

        A callback that defines ``on_round_end`` and not this one gets every round: they are played one by one. So does
        a class that redefines ``on_round_end`` and inherits this one.
        """

    def on_rounds_end(self, trainer: L.Trainer, agent: Any, history: History) -> None:
        """Called once for the rounds between two calls of TrainNN, before the latter."""

    @property
    def supports_windows(self) -> bool:
        """Whether this callback can do without single rounds."""
        return as_new_as(self, "on_window_end", "on_round_end")

    @property
    def lacks_rounds(self) -> bool:
        """Whether this callback defines ``on_window_end`` and has no ``on_round_end`` of its own beside it."""
        base = Confidence if isinstance(self, Confidence) else RoundCallback
        return bool(overridden(self, base, "on_window_end")) and not overridden(self, base, "on_round_end")


class Confidence(RoundCallback):
    """Maintains design matrix and radius: it alone tells the agent what was observed.

    An agent brings it along (``configure_callbacks``). Pass an instance of a subclass to the Trainer to replace it.
    """

    def on_round_end(self, trainer: L.Trainer, agent: Any, played: Round) -> None:
        if played.weight is not None:
            weight, importance = played.weight, played.importance
            if importance is None:
                importance = weight if played.accepted is None else weight * played.accepted
            if played.rows_follow:
                agent.update_confidence(played.observed, importance > 0, importance=importance)
            else:
                agent.observe(played.choice, played.reward, played.accepted, weight=weight, importance=importance)
        elif played.rows_follow:
            agent.update_confidence(played.observed, played.accepted)
        else:
            agent.observe(played.choice, played.reward, played.accepted)

    def on_window_end(self, trainer: L.Trainer, agent: Any, window: Window) -> None:
        agent.observe_window(window)
