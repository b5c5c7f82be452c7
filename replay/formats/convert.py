"""Convert the Open Bandit Dataset's CSV logs to Parquet.

SRC is a log's directory, with its CSV beside item_context.csv, or a directory above such ones; then every log is
converted, into the same place below DST. Without SRC the samples are converted that the obp package carries.
A conversion that was stopped goes on where it was when it is started again.
"""

import argparse
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from nl_lightning.core.errors import InputError
from replay.formats.obd import ITEM_CONTEXT, find_log, find_logs, fingerprint, sample, samples
from replay.formats.obd_rows import Block, Damage, Rows
from replay.logs.schema import LOG_FILE
from replay.logs.statistics import Contents, read_description
from replay.logs.writer import LogWriter, claimed

__all__ = ["convert_log", "sample"]

AHEAD = 4
"""Blocks that are parsed while a part is written."""
KEPT = 20
"""Damaged rows that a log names; the others are counted."""

ON_ERROR = ("stop", "skip")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    # SUPPRESS keeps "(default: None)" out of the help.
    parser.add_argument(
        "src",
        metavar="SRC",
        nargs="?",
        default=argparse.SUPPRESS,
        help="directory of a log, or above several (without it: the samples of the obp package)",
    )
    parser.add_argument("dst", metavar="DST", type=Path, help="directory to write to")
    parser.add_argument("--on-error", choices=ON_ERROR, default="stop", help="stop at a damaged row, or leave it out")
    parser.add_argument(
        "--policy",
        metavar="NAME",
        default=argparse.SUPPRESS,
        help="what showed the items (without it: the name of the directory above the campaign's)",
    )


def run(options: argparse.Namespace) -> None:
    source = Path(options.src) if getattr(options, "src", None) else samples()
    logs = find_logs(source)
    alone = source.is_file() or logs[0].parent == source
    for log in logs:
        target = options.dst if alone else options.dst / log.parent.relative_to(source)
        _show(log, target, options.on_error, getattr(options, "policy", None))


def convert_log(
    source: Path,
    target: Path,
    on_error: str = "stop",
    policy: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Convert one log into the directory ``target``; if that holds it already, nothing is done.

    ``progress`` is told the bytes that are done and those of the whole.
    """
    if on_error not in ON_ERROR:
        raise InputError(f"on_error is {on_error!r}, expected one of {', '.join(ON_ERROR)}.")
    path = find_log(source)
    rows = Rows(path)
    origin = _origin(path)
    if _is_done(target, origin):
        return
    with claimed(target):
        writer = LogWriter(target, rows.items, origin)
        stood = writer.progress or {"offset": rows.start, "line": 2, "skipped": {"rows": 0, "first": []}}
        skipped: dict[str, Any] = stood["skipped"]
        for block, (events, damages) in _ahead(rows.events, rows.blocks(stood["offset"], stood["line"])):
            if damages and on_error == "stop":
                raise InputError(_stop_text(path, block, damages))
            skipped = _with(skipped, path, damages)
            if events.num_rows:
                place = {"offset": block.end, "line": block.line + block.lines, "skipped": skipped}
                writer.add(events, place)
            if progress:
                progress(block.end, rows.size)
        if _origin(path) != origin:
            raise InputError(f"{path} has changed while it was converted. Remove {target}, and begin anew.")
        if skipped["rows"] and writer.progress is None:
            raise InputError(f"{path} has no whole row. {path.parent / skipped['first'][0]}.")
        writer.finish(policy=policy or _policy(path), campaign=path.stem, skipped=skipped)


def _ahead(work: Callable[[Block], Any], blocks: Iterator[Block]) -> Iterator[tuple[Block, Any]]:
    """Each block with what ``work`` makes of it, in order; a thread works on those to come."""
    with ThreadPoolExecutor(1) as pool:
        waiting: deque[tuple[Block, Future[Any]]] = deque()
        try:
            for block in blocks:
                waiting.append((block, pool.submit(work, block)))
                if len(waiting) > AHEAD:
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


def _is_done(target: Path, origin: dict[str, Any]) -> bool:
    if not (target / LOG_FILE).exists():
        return False
    if read_description(target)["source"] != origin:
        raise InputError(
            f"{target} holds a log from another source, or its source has changed. "
            "Choose another directory, or remove this one."
        )
    return True


def _with(skipped: dict[str, Any], path: Path, damages: list[Damage]) -> dict[str, Any]:
    texts = [f"{path.name}:{damage.line}: {damage.reason}" for damage in damages]
    return {"rows": skipped["rows"] + len(texts), "first": (skipped["first"] + texts)[:KEPT]}


def _stop_text(path: Path, block: Block, damages: list[Damage]) -> str:
    line, reason = damages[0]
    last = block.line + block.lines - 1
    others = f" {len(damages) - 1} more rows are damaged up to line {last}." if len(damages) > 1 else ""
    return f"{path}:{line}: {reason}.{others} Mend the row, or leave damaged rows out with --on-error skip."


def _policy(path: Path) -> str:
    """The policy's name in the published layout, policy/campaign/campaign.csv."""
    directory = path.resolve().parent
    return directory.parent.name or "unknown" if directory.name == path.stem else "unknown"


def _show(path: Path, target: Path, on_error: str, policy: str | None) -> None:
    """Convert a log under a progress bar and say in one line what came of it."""
    if _is_done(target, _origin(path)):
        print(f"{target} already holds {path}: nothing to do.")
        return
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TextColumn("left"), TimeRemainingColumn())
    name = TextColumn("{task.description}", markup=False)
    with Progress(name, *columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(path.name, total=None)
        convert_log(path, target, on_error, policy, lambda done, size: bar.update(task, completed=done, total=size))
    log = read_description(target)
    counts, skipped = Contents.of(target, log), log["skipped"]
    before = sum(file["bytes"] for file in log["source"].values())
    after = sum(file.stat().st_size for file in target.iterdir())
    print(
        f"{target}: {counts.rows:,} rows, {counts.clicks:,} clicks, CTR {counts.ctr:.3%}, "
        f"{skipped['rows']:,} rows skipped, {before / 1e6:.1f} MB before, {after / 1e6:.1f} MB after"
    )
    for text in skipped["first"]:
        print(f"  skipped {text}")
    if skipped["rows"] > len(skipped["first"]):
        print(f"  and {skipped['rows'] - len(skipped['first']):,} more")
