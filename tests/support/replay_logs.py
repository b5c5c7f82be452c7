"""Small simulated logs for tests."""

import io
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from replay.logs import writer
from replay.logs.obd import OBD
from replay.logs.reader import Log
from replay.logs.writer import LogWriter
from replay.simulation.simulated_world import SimulatedWorld

SMALL: dict[str, Any] = {"items": 12, "users": 40, "ctr": 0.3}


def write_log(path: Path, world: SimulatedWorld, rows: int, group: int = 700, start: int = 0) -> Log:
    """The events start, ..., start + rows - 1 of a world as a log with row groups of a given size, two a file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "ROW_GROUP", group)
        patch.setattr(writer, "PART_ROWS", 2 * group)
        log = LogWriter(path, OBD, world.item_table(), {"start": start, "rows": rows})
        for first in range(0, rows, 2 * group):
            log.add(world.draw(start + first, min(2 * group, rows - first)), progress=first)
        log.finish(campaign="simulated", policy=world.policy, world=world.description())
    return Log(path)


def frame(log: Log) -> pd.DataFrame:
    """The events as the twin takes them: affinities as a dictionary."""
    table = pa.concat_tables([log.read(group).unify_dictionaries() for group in log.groups])
    pairs = zip(table["affinity_item"].to_pylist(), table["affinity"].to_pylist(), strict=True)
    events = table.drop_columns(["affinity_item", "affinity"]).to_pandas()
    events["affinity"] = [dict(zip(items, values, strict=True)) for items, values in pairs]
    return events


def damaged(file: bytes, group: int) -> bytes:
    """A Parquet file of events with a wrong bit in the column item_id of a row group."""
    column = pq.read_metadata(io.BytesIO(file)).row_group(group).column(1)
    content = bytearray(file)
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    return bytes(content)
