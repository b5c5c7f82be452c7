"""Convert logs of the Open Bandit Dataset from CSV to Parquet."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nl_lightning.core.errors import InputError
from replay.formats.obd import ITEM_CONTEXT, find_log, fingerprint
from replay.formats.obd_rows import CsvBlock, Damage, ObdRows
from replay.logs.description import read_description
from replay.logs.layout import LOG_FILE
from replay.logs.obd import OBD
from replay.logs.writer import LogWriter, locked

__all__ = ["MAX_LISTED", "ON_ERROR", "PREFETCH", "convert_log", "is_converted"]


PREFETCH = 4
"""Blocks that are parsed ahead while a part is written."""
MAX_LISTED = 20
"""Damaged rows that a log lists; further ones are only counted."""

ON_ERROR = ("stop", "skip")


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
    if on_error not in ON_ERROR:
        raise InputError(f"on_error is {on_error!r}, expected one of {', '.join(ON_ERROR)}.")
    path = find_log(source)
    rows = ObdRows(path)
    origin = _origin(path)
    if _holds(target, origin):
        return
    with locked(target):
        writer = LogWriter(target, OBD, rows.items, origin)
        resumed = writer.progress or {"offset": rows.start, "line": 2, "skipped": {"rows": 0, "first": []}}
        skipped: dict[str, Any] = resumed["skipped"]
        for block, (events, damages) in _prefetched(rows.events, rows.blocks(resumed["offset"], resumed["line"])):
            if damages and on_error == "stop":
                raise InputError(_damage_message(path, block, damages))
            skipped = _with_damages(skipped, path, damages)
            if events.num_rows:
                place = {"offset": block.end, "line": block.line + block.lines, "skipped": skipped}
                writer.add(events, place)
            if progress:
                progress(block.end, rows.size)
        if _origin(path) != origin:
            raise InputError(f"{path} has changed while it was converted. Remove {target} and start over.")
        if skipped["rows"] and writer.progress is None:
            raise InputError(f"{path} has no intact row. {path.parent / skipped['first'][0]}.")
        writer.finish(policy=policy or _policy(path), campaign=path.stem, skipped=skipped)


def is_converted(source: Path, target: Path) -> bool:
    """Whether ``target`` already holds the finished log of ``source``; a log of another source is an error."""
    return _holds(target, _origin(find_log(source)))


def _prefetched(work: Callable[[CsvBlock], Any], blocks: Iterator[CsvBlock]) -> Iterator[tuple[CsvBlock, Any]]:
    """Each block with the result of ``work``, in order; a second thread computes the results ahead of time."""
    with ThreadPoolExecutor(1) as pool:
        waiting: deque[tuple[CsvBlock, Future[Any]]] = deque()
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


def _origin(path: Path) -> dict[str, Any]:
    return {"log": fingerprint(path), "items": fingerprint(path.parent / ITEM_CONTEXT)}


def _holds(target: Path, origin: dict[str, Any]) -> bool:
    if not (target / LOG_FILE).exists():
        return False
    if read_description(target)["source"] != origin:
        raise InputError(
            f"{target} holds a log from another source, or its source has changed. "
            "Choose another directory, or remove this one."
        )
    return True


def _with_damages(skipped: dict[str, Any], path: Path, damages: list[Damage]) -> dict[str, Any]:
    texts = [f"{path.name}:{damage.line}: {damage.reason}" for damage in damages]
    return {"rows": skipped["rows"] + len(texts), "first": (skipped["first"] + texts)[:MAX_LISTED]}


def _damage_message(path: Path, block: CsvBlock, damages: list[Damage]) -> str:
    line, reason = damages[0]
    last = block.line + block.lines - 1
    others = f" {len(damages) - 1} more rows are damaged up to line {last}." if len(damages) > 1 else ""
    return f"{path}:{line}: {reason}.{others} Repair the row, or skip damaged rows with --on-error skip."


def _policy(path: Path) -> str:
    """The policy's name in the published layout, policy/campaign/campaign.csv."""
    directory = path.resolve().parent
    return directory.parent.name or "unknown" if directory.name == path.stem else "unknown"
