"""Random numbers as functions of (seed, stream, index), so that there is no generator state to keep or to lose.

Each replica has its own seed, hence its own numbers, whatever runs beside it. Numbers are drawn on the CPU in
float64 and then moved, so that they do not depend on the device or the precision of a run.
"""

from collections.abc import Callable
from enum import IntEnum

import torch
from numpy.random import SeedSequence
from torch import Tensor

__all__ = ["CHUNK", "ROWS", "Stream", "generator", "row_numbers"]


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
    FRESH_WEIGHTS = 8
    MINIBATCHES = 9
    LAYERS = 10
    POLICY_CHOICES = 11
    PROBABILITIES = 12
    RESAMPLE = 13
    JITTER = 14
    MERGING = 15


def generator(seed: int, stream: Stream, *index: int) -> torch.Generator:
    """The generator of one stream of one seed at an index."""
    state = SeedSequence([seed, stream, *index]).generate_state(2)
    return torch.Generator("cpu").manual_seed(int(state[0]) << 32 | int(state[1]))


ROWS = 1024
"""Rows of a log whose random numbers are drawn at once."""


def row_numbers(
    rows: range, columns: int, seed: int, stream: Stream, *index: int, draw: Callable[..., Tensor] = torch.rand
) -> Tensor:
    """(rows, columns) float64 numbers of some rows of a log: the same, whichever rows are asked for together."""
    chunks = range(rows.start // ROWS, (rows.stop - 1) // ROWS + 1)
    generators = [generator(seed, stream, chunk, columns, *index) for chunk in chunks]
    drawn = [draw(ROWS, columns, generator=g, dtype=torch.float64, device="cpu") for g in generators]
    start = rows.start - chunks.start * ROWS
    return (torch.cat(drawn) if len(drawn) > 1 else drawn[0])[start : start + len(rows)]
