"""Random numbers as functions of (seed, stream, index), so that there is no generator state to keep or to lose.

Each replica has its own seed, hence its own numbers, whatever runs beside it. Numbers are drawn on the CPU in
float64 and then moved, so that they do not depend on the device or the precision of a run.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

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
    CANDIDATES = 4
    REJECTION = 5
    LOGGED_ACTIONS = 6
    BOOTSTRAP = 7


def generator(seed: int, stream: Stream, *index: int) -> torch.Generator:
    """The generator of one stream of one seed at an index."""
    state = SeedSequence([seed, stream, *index]).generate_state(2)
    return torch.Generator("cpu").manual_seed(int(state[0]) << 32 | int(state[1]))


_ROWS = 1024
"""Rows of a log whose random numbers are drawn at once."""


def row_numbers(
    rows: range, columns: int, seed: int, stream: Stream, *index: int, draw: Callable[..., Tensor] = torch.rand
) -> Tensor:
    """(rows, columns) float64 numbers of some rows of a log: the same, whichever rows are asked for together."""
    chunks = range(rows.start // _ROWS, (rows.stop - 1) // _ROWS + 1)
    generators = [generator(seed, stream, chunk, columns, *index) for chunk in chunks]
    drawn = [draw(_ROWS, columns, generator=g, dtype=torch.float64, device="cpu") for g in generators]
    start = rows.start - chunks.start * _ROWS
    return (torch.cat(drawn) if len(drawn) > 1 else drawn[0])[start : start + len(rows)]


Numbers = list[tuple[Tensor, Tensor | None]]
"""Of each draw uniform numbers and, for Thompson sampling, normal ones, (R, K)."""


class ActionNoise:
    """The numbers of an agent's draws 0, 1, 2, ...: per arm a uniform and, if asked for, a normal one.

    ``position`` counts the draws and is the only state.
    """

    def __init__(self, seeds: Sequence[int], normal: bool) -> None:
        self.seeds = list(seeds)
        self.normal = normal
        self.position = 0
        self._drawn: dict[int, tuple[int, Numbers]] = {}

    def take(self, draws: int, like: Tensor, arms: int) -> Numbers:
        """For each of the next draws uniform numbers in (0, 1] and normal ones (or None), (R, arms), as ``like``."""
        taken: Numbers = []
        while len(taken) < draws:
            chunk, offset = divmod(self.position, CHUNK)
            drawn_chunk, numbers = self._drawn.get(arms, (-1, []))
            if drawn_chunk != chunk:
                numbers = self._draw(chunk, like, arms)
                self._drawn[arms] = (chunk, numbers)
            new = numbers[offset : offset + draws - len(taken)]
            self.position += len(new)
            taken += new
        return taken

    def of_rows(self, replica: int, rows: Tensor, arms: int, draw: int = 0) -> tuple[Tensor, Tensor | None]:
        """A replica's numbers for ascending rows (N,) of a log: uniform in (0, 1], and normal or None, (N, arms), on
        the CPU.

        They belong to the row and not to the number of draws before it. ``draw`` numbers repeated draws for one row.
        """
        seed, stream = self.seeds[replica], Stream.LOGGED_ACTIONS
        uniform: list[Tensor] = []
        normal: list[Tensor] = []
        start = 0
        for chunk, count in zip(
            *(t.tolist() for t in (rows // _ROWS).unique_consecutive(return_counts=True)), strict=True
        ):
            inside = range(chunk * _ROWS, (chunk + 1) * _ROWS)
            index = rows[start : start + count] - inside.start
            start += count
            uniform.append(1 - row_numbers(inside, arms, seed, stream, draw, 0)[index])
            if self.normal:
                normal.append(row_numbers(inside, arms, seed, stream, draw, 1, draw=torch.randn)[index])
        return torch.cat(uniform), torch.cat(normal) if self.normal else None

    def forget(self) -> None:
        """Draw again for another device or precision: the same numbers."""
        self._drawn = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_drawn": {}}

    def _draw(self, chunk: int, like: Tensor, arms: int) -> Numbers:
        generators = [generator(seed, Stream.ACTIONS, chunk, arms) for seed in self.seeds]

        def rounds(draw: Callable[..., Tensor]) -> Tensor:
            numbers = [draw(CHUNK, arms, generator=g, dtype=torch.float64, device="cpu") for g in generators]
            return torch.stack(numbers, dim=1).to(device=like.device, dtype=like.dtype)

        uniform = (1 - rounds(torch.rand)).unbind(0)
        normal = rounds(torch.randn).unbind(0) if self.normal else [None] * CHUNK
        return list(zip(uniform, normal, strict=True))
