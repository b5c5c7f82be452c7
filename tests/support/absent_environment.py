"""An environment whose data cannot be read, by import path."""

from collections.abc import Sequence

from nl_lightning.core.errors import InputError
from nl_lightning.environments import ChunkedSimulation, Deal


class Absent(ChunkedSimulation):
    """A data set that is not there; that is seen when it is read."""

    dim = 5

    def reset(self, seeds: Sequence[int]) -> None:
        raise InputError("nothing.parquet is not here; put it there.")

    def deal_chunk(self, chunk: int) -> Deal:
        raise AssertionError("nothing was prepared")
