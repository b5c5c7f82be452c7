"""Write a log of a simulated world."""

from collections.abc import Callable
from pathlib import Path

from nl_lightning.core.whole import check_whole
from replay.logs.description import read_description
from replay.logs.layout import LOG_FILE, ROW_GROUP
from replay.logs.obd import OBD
from replay.logs.writer import LogWriter, locked
from replay.simulation.simulated_world import SimulatedWorld

__all__ = ["make_log"]


def make_log(path: Path, world: SimulatedWorld, rows: int, progress: Callable[[int, int], None] | None = None) -> bool:
    """Simulate a log, or the rest of an interrupted one. Returns False if the log is already complete.

    Args:
        path: directory of the log.
        world: the world whose events are logged.
        rows: number of events.
        progress: called with the number of events done and in total, first with those found on disk.
    """
    check_whole(1, rows=rows)
    source = {"simulated": world.description()["arguments"], "rows": rows}
    if (path / LOG_FILE).exists() and read_description(path)["source"] == source:
        return False
    with locked(path):
        writer = LogWriter(path, OBD, world.item_table(), source)
        done = writer.progress or 0
        if progress:
            progress(done, rows)
        while done < rows:
            events = world.draw(done, min(ROW_GROUP, rows - done))
            done += events.num_rows
            writer.add(events, progress=done)
            if progress:
                progress(done, rows)
        writer.finish(campaign="simulated", policy=world.policy, world=world.description())
    return True
