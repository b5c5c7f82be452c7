"""Convert logs of the Open Bandit Dataset from CSV to Parquet."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from nl_lightning.core.errors import InputError
from replay.formats.conversion import MAX_LISTED, ON_ERROR, PREFETCH, check_on_error, holds, write_events
from replay.formats.csv_blocks import CsvBlock, Damage
from replay.formats.fingerprint import fingerprint
from replay.formats.obd import ITEM_CONTEXT, find_log
from replay.formats.obd_rows import ObdRows
from replay.logs.obd import OBD
from replay.logs.writer import locked

__all__ = ["MAX_LISTED", "ON_ERROR", "PREFETCH", "convert_log", "is_converted"]


def convert_log(
    source: Path,
    target: Path,
    on_error: str = "stop",
    policy: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Convert one log. A conversion that was interrupted is resumed; a finished one is left as it is.

    Args:
        source: CSV file of the log, or its directory.
        target: directory of the new log.
        on_error: ``stop`` at a damaged row with an error, or ``skip`` it.
        policy: name of the logging policy; by default the name of the directory above the campaign's.
        progress: called with the number of bytes done and in total.
    """
    check_on_error(on_error)
    path = find_log(source)
    log = _ObdSource(path, target)
    if holds(target, log.is_mine):
        return
    with locked(target):
        write_events(log, target, on_error, progress, str(path), policy=policy or _policy(path), campaign=path.stem)


def is_converted(source: Path, target: Path) -> bool:
    """Whether ``target`` already holds the finished log of ``source``; a log of another source is an error."""
    origin = _origin(find_log(source))
    return holds(target, lambda stored: stored == origin)


class _ObdSource:
    """A log of the Open Bandit Dataset as a source of events."""

    schema = OBD

    def __init__(self, path: Path, target: Path) -> None:
        self.path, self.target = path, target
        self.rows = ObdRows(path)
        self.items = self.rows.items
        self.origin = _origin(path)

    def is_mine(self, stored: dict[str, Any]) -> bool:
        return stored == self.origin

    def blocks(self, place: dict[str, Any] | None) -> Iterator[CsvBlock]:
        start = place or {"offset": self.rows.start, "line": 2}
        return self.rows.blocks(start["offset"], start["line"])

    def events(self, block: CsvBlock) -> tuple[pa.Table, list[Damage]]:
        return self.rows.events(block)

    def complete(self, events: pa.Table, row: int) -> pa.Table:
        return events

    def place(self, block: CsvBlock) -> dict[str, Any]:
        return {"offset": block.end, "line": block.line + block.lines}

    def where(self, block: CsvBlock, line: int | None = None, whole: bool = False) -> str:
        if line is None:
            return f"line {block.line + block.lines - 1}"
        return f"{self.path if whole else self.path.name}:{line}"

    def done(self, block: CsvBlock) -> tuple[int, int]:
        return block.end, self.rows.size

    def check_unchanged(self) -> None:
        if _origin(self.path) != self.origin:
            raise InputError(f"{self.path} has changed while it was converted. Remove {self.target} and start over.")


def _origin(path: Path) -> dict[str, Any]:
    return {"log": fingerprint(path), "items": fingerprint(path.parent / ITEM_CONTEXT)}


def _policy(path: Path) -> str:
    """The policy's name in the published layout, policy/campaign/campaign.csv."""
    directory = path.resolve().parent
    return directory.parent.name or "unknown" if directory.name == path.stem else "unknown"
