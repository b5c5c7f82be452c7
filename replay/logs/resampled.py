"""A resample of a log: its events drawn with replacement, as a log of its own (Mary, Preux and Nicol 2014).

The log is held in memory once, as it is stored; a resample is a function of its seed and draws 1,024 events at a time.
Events are numbered by their place in the resample, so that an event that comes again has its own random numbers.
"""

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from nl_lightning.core.checks import check_whole
from nl_lightning.core.errors import InputError
from nl_lightning.core.rng import ROWS, Stream, row_numbers
from replay.logs.reader import Log, RowGroup

__all__ = ["HELD_BYTES", "Resample", "check_resample", "hold", "jitter_numbers", "resample_note"]

HELD_BYTES = 1_000_000_000
"""The most that a log may take in memory."""


def check_resample(times: int | None, jitter: float | None, rule: str, log: Log, evenly: bool) -> None:
    """Refuse what cannot be resampled."""
    if times is None:
        if jitter is not None:
            raise InputError("jitter has no effect without resample: give the number of times a log is drawn.")
        return
    check_whole(1, resample=times)
    if jitter is not None and not 0 < jitter < np.inf:
        raise InputError(f"jitter is a standard deviation: it must be above 0, got {jitter!r}; leave it out for none.")
    if rule == "dr-ns":
        raise InputError(
            "resample and rejection: dr-ns exclude each other: dr-ns estimates a value over all events of the log, and "
            "resampled ones would count its evidence several times."
        )
    if not evenly:
        raise InputError(
            f"resample is for logs that were logged uniformly, with as many candidates in each event, and {log.path} "
            "was not; use rejection: dr-ns without resample."
        )


def resample_note(times: int, jitter: float | None, replicas: int) -> str:
    """The caveat that belongs to every result."""
    noise = f" (with noise of sd {jitter:g} on numeric features)" if jitter else ""
    return (
        f"Bootstrapped replay: each replica played events drawn from the log with replacement, {times} times as many "
        f"as it has{noise}. Each click comes about {times} times, so an agent may memorise it, and a CTR may be too "
        f"high; the interval counts the log's evidence once. The quantiles are over {replicas} resamples: they show "
        "how runs of this length spread, and not how far the log is from the truth."
    )


def hold(log: Log) -> pa.Table:
    """All events of a log in memory, as far as a replay reads them."""
    parts, size = [], 0
    for group in log.groups:
        parts.append(log.read(group))
        size += parts[-1].nbytes
        if size > HELD_BYTES:
            raise InputError(
                f"resample draws from all of a log and holds it in memory, at most {HELD_BYTES / 1e9:g} GB; "
                f"{log.path} takes more. Name fewer rows with rows, such as {log.first_row}:{group.first}."
            )
    return pa.concat_tables(parts).unify_dictionaries().combine_chunks()


class Resample(Log):
    """Events drawn from a log with replacement.

    Args:
        log: the log, or a part of it.
        table: its events, the result of ``hold``.
        seed: of the resample.
        times: how many times as many events as the log has.
    """

    def __init__(self, log: Log, table: pa.Table, seed: int, times: int) -> None:
        self.__dict__.update(log.__dict__)
        self._table, self._seed, self._origin = table, seed, log.first_row
        events = times * log.rows
        self.groups = [
            RowGroup(log.path, number, first, min(ROWS, events - first))
            for number, first in enumerate(range(0, events, ROWS))
        ]

    def read(self, group: RowGroup, columns: object = None, use_threads: bool | None = None) -> pa.Table:
        """The drawn events of a group, with the columns that a replay reads."""
        drawn = self._drawn(range(group.first, group.first + group.rows))
        return self._table.take(pa.array(drawn.numpy()))

    def row(self, number: Tensor) -> Tensor:
        """The rows of the log that were drawn as the events of these ascending numbers (N,)."""
        if not len(number):
            return number
        first = int(number[0])
        return self._drawn(range(first, int(number[-1]) + 1))[number - first] + self._origin

    def _drawn(self, numbers: range) -> Tensor:
        """floor(u T) for uniform numbers u: which of the held events each one is."""
        u = row_numbers(numbers, 1, self._seed, Stream.RESAMPLE).squeeze(1)
        return (u * len(self._table)).long().clamp_max(len(self._table) - 1)


def jitter_numbers(numbers: Tensor, rows: range, jitter: float, seed: int) -> Tensor:
    """Scaled numeric features (N, M) with normal noise, a function of the seed and the events' numbers."""
    noise = row_numbers(rows, numbers.shape[1], seed, Stream.JITTER, draw=torch.randn)
    return numbers + jitter * noise.to(numbers)
