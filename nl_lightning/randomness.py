"""Random numbers as functions of (seed, stream, index), so that there is no generator state to keep or to lose.

Each replica has its own seed, hence its own numbers, whatever runs beside it. Numbers are drawn on the CPU in
float64 and then moved, so that they do not depend on the device or the precision of a run.
"""

from collections.abc import Sequence
from enum import IntEnum

import torch
from numpy.random import SeedSequence
from torch import Tensor

CHUNK = 256
"""Rounds whose random numbers are drawn at once; one call of a generator a chunk costs nothing, one a round would."""


class Stream(IntEnum):
    """What the numbers are for; two streams of one seed are independent. The values are part of a run's result."""

    INITIAL_WEIGHTS = 0
    ACTIONS = 1
    PROBLEM = 2
    ROUNDS = 3


def generator(seed: int, stream: Stream, *index: int) -> torch.Generator:
    """The generator of one stream of one seed at an index."""
    state = SeedSequence([seed, stream, *index]).generate_state(2)
    return torch.Generator().manual_seed(int(state[0]) << 32 | int(state[1]))


class ActionNoise:
    """What the draws number 0, 1, 2, ... of an agent's ``act`` use: per arm a uniform and, if asked for, a normal number.

    ``position`` counts the draws and is the only state.
    """

    def __init__(self, seeds: Sequence[int], normal: bool) -> None:
        self.seeds = list(seeds)
        self.normal = normal
        self.position = 0
        self._drawn: tuple[int, int] = (-1, 0)
        self._uniform: tuple[Tensor, ...] = ()
        self._normal: tuple[Tensor, ...] = ()

    def next(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        """Uniform numbers in (0, 1] and standard normal ones (None unless asked for), each (R, K) as ``like``."""
        chunk, offset = divmod(self.position, CHUNK)
        drawn = (chunk, like.shape[1])
        if drawn != self._drawn:
            self._fill(chunk, like)
            self._drawn = drawn
        self.position += 1
        return self._uniform[offset], self._normal[offset] if self.normal else None

    def forget(self) -> None:
        """Draw again for another device or precision: the same numbers."""
        self._drawn = (-1, 0)

    def _fill(self, chunk: int, like: Tensor) -> None:
        arms = like.shape[-1]
        generators = [generator(seed, Stream.ACTIONS, chunk, arms) for seed in self.seeds]

        def rounds(draw: torch._C._VariableFunctionsClass) -> tuple[Tensor, ...]:
            drawn = torch.stack([draw(CHUNK, arms, generator=g, dtype=torch.float64) for g in generators], dim=1)
            return drawn.to(like).unbind(0)

        self._uniform = tuple(1 - u for u in rounds(torch.rand))
        if self.normal:
            self._normal = rounds(torch.randn)
