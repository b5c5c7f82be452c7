"""What happens when TrainNN diverges: stop with a message, or mark the replica and continue with the others."""

from collections.abc import Sequence

import torch
from torch import Tensor

from nl_lightning.core.errors import TrainNNDiverged
from nl_lightning.core.replicas import ReplicaSettings, Share
from nl_lightning.models.base import Descent

__all__ = ["Divergence"]


class Divergence:
    """What is known of the replicas of an agent whose TrainNN diverged.

    Args:
        mark: whether such replicas are marked and the others continue, or all stop.
    """

    def __init__(self, mark: bool) -> None:
        self.mark = mark
        self.any_diverged = False
        self.failure: str | None = None
        """why the agent cannot continue: TrainNN diverged in one replica or, where they are marked, in all"""

    def record(
        self,
        failed: Tensor,
        diverged_at: Tensor,
        rounds: Tensor,
        settings: ReplicaSettings,
        share: Share,
        unused: Sequence[str],
        descent: Descent,
    ) -> Tensor:
        """Note that TrainNN failed in these replicas (R,); returns the new ``diverged_at``."""
        if self.mark:
            diverged_at = torch.where(failed, rounds.clamp_min(1), diverged_at)
            self.any_diverged = True
            if not (diverged_at > 0).all():
                return diverged_at
        replicas = failed.nonzero().flatten().tolist()
        first = replicas[0]
        used = {name: value for name, value in settings.of(first).items() if name not in unused}
        listed = ", ".join(f"{name} = {value:g}" for name, value in used.items())
        more = len({share.replicas[replica] for replica in replicas}) - 1
        others = f" (so did {more} other replicas)" if more else ""
        # The first failure counts: until processes synchronise, the same replica fails again and again.
        self.failure = self.failure or (
            f"TrainNN diverged in replica {share.replicas[first]} ({listed}) at round {int(rounds[first])}"
            f"{others}: {descent.why_diverged(first)}. Its parameters are those from before this call."
        )
        return diverged_at

    def check(self) -> None:
        """Raise if the agent cannot continue."""
        if self.failure is not None:
            raise TrainNNDiverged(self.failure)

    def settle(self, diverged_at: Tensor) -> None:
        """A state may have been stored when others could still continue."""
        if self.failure is None and self.any_diverged and bool((diverged_at > 0).all()):
            self.failure = "TrainNN has diverged in all replicas; take a smaller lr, or other values of lam."
