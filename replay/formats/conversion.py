"""The loop of a conversion: blocks of a source become events, and these become the parts of a log."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from nl_lightning.core.errors import InputError
from replay.formats.csv_blocks import Damage
from replay.logs.description import read_description
from replay.logs.layout import LOG_FILE
from replay.logs.schema import Schema
from replay.logs.writer import LogWriter, other_schema

__all__ = [
    "MAX_LISTED",
    "ON_ERROR",
    "PREFETCH",
    "Source",
    "check_on_error",
    "damage_message",
    "holds",
    "prefetched",
    "write_events",
]


PREFETCH = 4
"""Blocks that are parsed ahead while a part is written."""
MAX_LISTED = 20
"""Damaged rows that a log lists; further ones are only counted."""

ON_ERROR = ("stop", "skip")

B = TypeVar("B")


class Source(Protocol[B]):
    """A source of events, which are read in blocks."""

    schema: Schema
    items: pa.Table
    origin: dict[str, Any]
    """what identifies the source, as JSON"""

    def blocks(self, place: dict[str, Any] | None) -> Iterator[B]:
        """The blocks from a place on; from the first one if it is None."""

    def events(self, block: B) -> tuple[pa.Table, list[Damage]]:
        """The events of the block's intact rows, and its damaged rows."""

    def complete(self, events: pa.Table, row: int) -> pa.Table:
        """Events of which the first is this row of the log, with the columns that the source does not have."""

    def place(self, block: B) -> dict[str, Any]:
        """Where the source stands after a block, as JSON."""

    def where(self, block: B, line: int | None = None, whole: bool = False) -> str:
        """A row of a block for a message, or its last one; with the whole path or the name of its file."""

    def done(self, block: B) -> tuple[int, int]:
        """The number of bytes up to the block's end, and in total."""

    def check_unchanged(self) -> None:
        """Raise an InputError if the source is no longer what it was."""


def check_on_error(on_error: str) -> None:
    if on_error not in ON_ERROR:
        raise InputError(f"on_error is {on_error!r}, expected one of {', '.join(ON_ERROR)}.")


def holds(target: Path, is_source: Callable[[dict[str, Any]], bool], identity: Mapping[str, Any] | None = None) -> bool:
    """Whether a directory holds the finished log of a source; a log of another source is an error.

    Args:
        target: the directory.
        is_source: whether a log's description of its source is this one.
        identity: this source, if it has a schema, so that an error can tell another schema from other files.
    """
    if not (target / LOG_FILE).exists():
        return False
    stored = read_description(target)["source"]
    if not is_source(stored):
        if identity is not None and other_schema(stored, dict(identity)):
            raise InputError(
                f"{target} holds a log of this source with another schema. Choose another directory, or remove it."
            )
        raise InputError(
            f"{target} holds a log from another source, or its source has changed. "
            "Choose another directory, or remove this one."
        )
    return True


def write_events(
    source: Source[B],
    target: Path,
    on_error: str,
    progress: Callable[[int, int], None] | None,
    name: str,
    **description: Any,
) -> None:
    """Write the log of a source, or resume it. The caller holds the lock of ``target``.

    Args:
        source: where the events come from.
        target: directory of the log.
        on_error: ``stop`` at a damaged row with an error, or ``skip`` it.
        progress: called with the number of bytes done and in total.
        name: the source in errors.
        description: further entries of log.json.
    """
    writer = LogWriter(target, source.schema, source.items, source.origin)
    place = dict(writer.progress) if writer.progress else None
    skipped: dict[str, Any] = place.pop("skipped") if place else {"rows": 0, "first": []}
    row = writer.rows
    for block, (events, damages) in prefetched(source.events, source.blocks(place)):
        if damages and on_error == "stop":
            source.check_unchanged()
            raise InputError(damage_message(source, block, damages))
        skipped = _with_damages(skipped, [f"{source.where(block, line)}: {reason}" for line, reason in damages])
        if events.num_rows:
            writer.add(source.complete(events, row), {**source.place(block), "skipped": skipped})
            row += events.num_rows
        if progress:
            progress(*source.done(block))
    source.check_unchanged()
    if skipped["rows"] and writer.progress is None:
        raise InputError(f"{name} has no intact row. {skipped['first'][0]}.")
    writer.finish(**description, skipped=skipped)


def prefetched(work: Callable[[B], Any], blocks: Iterator[B]) -> Iterator[tuple[B, Any]]:
    """Each block with the result of ``work``, in order; a second thread computes the results ahead of time."""
    with ThreadPoolExecutor(1) as pool:
        waiting: deque[tuple[B, Future[Any]]] = deque()
        try:
            for block in blocks:
                waiting.append((block, pool.submit(work, block)))
                if len(waiting) > PREFETCH:
                    first, future = waiting.popleft()
                    yield first, future.result()
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
        finally:
            for _, future in waiting:
                future.cancel()


def damage_message(source: Source[B], block: B, damages: Sequence[Damage]) -> str:
    line, reason = damages[0]
    others = f" {len(damages) - 1} more rows are damaged up to {source.where(block)}." if len(damages) > 1 else ""
    return (
        f"{source.where(block, line, whole=True)}: {reason}.{others} "
        "Repair the row, or skip damaged rows with --on-error skip."
    )


def _with_damages(skipped: dict[str, Any], texts: list[str]) -> dict[str, Any]:
    return {"rows": skipped["rows"] + len(texts), "first": (skipped["first"] + texts)[:MAX_LISTED]}
