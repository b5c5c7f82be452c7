"""TrainNN of an agent: on which observations, from which start, with which steps, and when."""

from collections.abc import Sequence

import torch
from torch import Tensor

from nl_lightning.core.errors import InputError
from nl_lightning.core.rng import Stream, generator
from nl_lightning.core.types import TrainingBatch
from nl_lightning.models.base import Descent, Observations, RewardModel
from nl_lightning.models.merging import FEWEST_STEPS, merged
from nl_lightning.models.minibatches import Minibatches
from nl_lightning.models.training import Start, kept, train

__all__ = ["Schedule", "TrainNN"]


class Schedule:
    """When TrainNN runs: after max(update_every, update_growth * n) rounds since the last time, when n were observed.

    Args:
        update_every: the fewest rounds between two calls.
        update_growth: 0 for the paper's fixed schedule. Otherwise calls become geometric, and the cost of a run grows
            with n log n instead of n^2.
        window: the most observations that TrainNN looks at; n is at most that.
    """

    def __init__(self, update_every: int, update_growth: float, window: int | None) -> None:
        self.update_every, self.update_growth, self.window = update_every, update_growth, window

    def rounds_until_next(self, rounds: int) -> int:
        """Rounds from a call of TrainNN, after ``rounds`` of them, to the next one."""
        n = rounds if self.window is None else min(rounds, self.window)
        return max(self.update_every, int(self.update_growth * n))

    def calls(self, start: int, stop: int) -> int:
        """How often TrainNN runs after the rounds behind ``start`` and up to ``stop``, where it runs in any case."""
        count, at = 0, start
        while at < stop:
            every = self.rounds_until_next(at)
            if self.update_growth == 0 or (self.window is not None and at >= self.window):
                # from here on the interval stays as it is: a log may be replayed for "a billion rounds", to its end
                return count - (at - stop) // every
            at, count = at + every, count + 1
        return count


class TrainNN:
    """The settings of TrainNN that do not depend on a mode.

    Args:
        start: parameters that it starts from.
        batch_size: samples of a gradient step; None for all.
        window: the newest observations that it looks at; None for all.
    """

    def __init__(self, start: Start, batch_size: int | None, window: int | None) -> None:
        self.start, self.batch_size, self.window = start, batch_size, window

    def draws(self, model: RewardModel) -> bool:
        """Whether anything is drawn at random: it is a function of a replica's seed and the number of its call."""
        return self.start == "shrink" or self.batch_size is not None or model.draws

    def __call__(
        self,
        model: RewardModel,
        initial: Sequence[Tensor],
        batch: TrainingBatch,
        length: Tensor,
        descent: Descent,
        inactive: Tensor,
        some_inactive: bool,
        seeds: Sequence[int],
        numbers: Sequence[int],
    ) -> Tensor | None:
        """Train all replicas but the ``inactive`` (R,) ones on their ``length`` (R,) observations; returns those that
        diverged, or None. ``numbers`` are those of this call, one a replica, where it ``draws``."""
        data = Observations(batch.x, batch.reward, batch.weight)
        n = data.x.shape[1]
        distinct = batch.distinct if self._merges(model, descent) else None
        if data.weight is None and (model.learns_from_padding or distinct is not None):
            place = torch.arange(n, device=length.device)
            data = data._replace(weight=(place < length.unsqueeze(1)).to(data.x.dtype))
        if distinct is not None:
            data = _merged(data, distinct)
        if self.batch_size is not None and n > self.batch_size and isinstance(descent.steps, int):
            generators = _generators(seeds, Stream.MINIBATCHES, numbers)
            drawn = Minibatches.draw(generators, length, self.batch_size, descent.steps, data.x.dtype)
            descent = descent._replace(batches=drawn)
        begin: Sequence[Tensor] | None = None
        if self.start == "cold":
            begin = initial
        elif self.start == "shrink":
            begin = model.fresh(seeds, numbers)
        keep = kept(length) if self.start == "shrink" else None
        of_layers = [g.initial_seed() for g in _generators(seeds, Stream.LAYERS, numbers)] if model.draws else ()
        return train(model, data, descent, inactive, some_inactive, begin, keep, of_layers)

    def _merges(self, model: RewardModel, descent: Descent) -> bool:
        """Whether equal observations may be put together, and it pays."""
        if not model.sums_over_observations or self.batch_size is not None:
            return False
        return not isinstance(descent.steps, int) or descent.steps >= FEWEST_STEPS


def _merged(data: Observations, distinct: int) -> Observations:
    # one more for the zeros behind a shorter replica
    found = merged(data, distinct + 1)
    if found is None:
        raise InputError(
            f"The environment says that a replica is shown at most {distinct} different arms (distinct_arms), and a "
            "replay buffer has more. Set distinct_arms to the most there can be, or to None where that is not known."
        )
    return found


def _generators(seeds: Sequence[int], stream: Stream, numbers: Sequence[int]) -> list[torch.Generator]:
    return [generator(seed, stream, number) for seed, number in zip(seeds, numbers, strict=True)]
