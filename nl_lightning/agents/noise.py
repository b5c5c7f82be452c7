"""The random numbers of an agent's choices."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nl_lightning.core.rng import CHUNK, ROWS, Stream, generator, row_numbers

__all__ = ["ActionNoise", "Numbers"]


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
        self._of_chunk: dict[tuple[int, int], tuple[tuple[int, ...], Tensor]] = {}
        """by seed and kind, the rows of a log whose numbers were asked for last: the next ones are often there"""

    def draw(self, like: Tensor, rounds: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """Uniform numbers in (0, 1] and normal ones (or None) of the next draws, as ``like`` another tensor.

        ``rounds`` is (K,) for one draw, (R, K), or (C, K) for C of them, (R, C, K).
        """
        *several, arms = rounds
        numbers = self._next(several[0] if several else 1, like, arms)
        if not several:
            return numbers[0]
        uniform = torch.stack([drawn for drawn, _ in numbers], dim=1)
        normal = [drawn for _, drawn in numbers if drawn is not None]
        return uniform, torch.stack(normal, dim=1) if normal else None

    def _next(self, draws: int, like: Tensor, arms: int) -> Numbers:
        taken: Numbers = []
        while len(taken) < draws:
            chunk, offset = divmod(self.position, CHUNK)
            drawn_chunk, numbers = self._drawn.get(arms, (-1, []))
            if drawn_chunk != chunk:
                numbers = self._draw_chunk(chunk, like, arms)
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
        uniform = 1 - self._of_rows(replica, rows, arms, draw, 0, torch.rand)
        return uniform, self.normals_of_rows(replica, rows, arms, draw)

    def normals_of_rows(self, replica: int, rows: Tensor, arms: int, draw: int = 0) -> Tensor | None:
        """The normal numbers of ``of_rows`` alone."""
        return self._of_rows(replica, rows, arms, draw, 1, torch.randn) if self.normal else None

    def _of_rows(
        self, replica: int, rows: Tensor, arms: int, draw: int, kind: int, numbers: Callable[..., Tensor]
    ) -> Tensor:
        seed, stream = self.seeds[replica], Stream.LOGGED_ACTIONS
        parts: list[Tensor] = []
        start = 0
        for chunk, count in zip(
            *(t.tolist() for t in (rows // ROWS).unique_consecutive(return_counts=True)), strict=True
        ):
            index = rows[start : start + count] - chunk * ROWS
            start += count
            asked, drawn = self._of_chunk.get((seed, kind), ((), rows))
            if asked != (chunk, arms, draw):
                inside = range(chunk * ROWS, (chunk + 1) * ROWS)
                drawn = row_numbers(inside, arms, seed, stream, draw, kind, draw=numbers)
                self._of_chunk[seed, kind] = (chunk, arms, draw), drawn
            parts.append(drawn.index_select(0, index))
        return torch.cat(parts)

    def forget(self) -> None:
        """Draw again for another device or precision: the same numbers."""
        self._drawn, self._of_chunk = {}, {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_drawn": {}, "_of_chunk": {}}

    def _draw_chunk(self, chunk: int, like: Tensor, arms: int) -> Numbers:
        generators = [generator(seed, Stream.ACTIONS, chunk, arms) for seed in self.seeds]

        def rounds(draw: Callable[..., Tensor]) -> Tensor:
            numbers = [draw(CHUNK, arms, generator=g, dtype=torch.float64, device="cpu") for g in generators]
            return torch.stack(numbers, dim=1).to(device=like.device, dtype=like.dtype)

        uniform = (1 - rounds(torch.rand)).unbind(0)
        normal = rounds(torch.randn).unbind(0) if self.normal else [None] * CHUNK
        return list(zip(uniform, normal, strict=True))
