"""Speed and memory of logs of one's own: features of a schema, and the conversion of a table."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import torch

from benchmarks.measure import Row, interleaved, peak_memory, ratio
from benchmarks.replay import agent, simulated
from replay import Log
from replay.evaluation.evaluate import evaluate_agent
from replay.formats.table import convert_table
from replay.logs.obd import OBD
from replay.logs.writer import PART_ROWS, LogWriter
from replay.protocol.events import ReplaySettings
from replay.protocol.features import Features
from replay.protocol.fitting import fit_features
from replay.protocol.table_features import TableFeatures

_NUMERIC = [f"x{number}" for number in range(6)]
_SCHEMA = {
    "action": "item",
    "reward": "click",
    "propensity": "p",
    "context": {"numeric": _NUMERIC, "categorical": ["country"]},
}


def frozen(rows: int) -> list[Row]:
    """A frozen agent with the features of a schema, beside one with the look-ups of the Open Bandit Dataset.

    Both have 42 features, and the same events with the same arms. In the first row all columns are categories or whole
    numbers, as in the data set. In the second row some are continuous: no score can be looked up, and the network
    computes every arm.
    """
    torch.set_num_threads(2)
    rounds, found = 5, []
    with tempfile.TemporaryDirectory() as directory:
        log = simulated(Path(directory) / "log", rows)
        # the categories have 23 dimensions; then the position, two numbers and 15 categories of the item, the affinity
        discrete = _changed(log, Path(directory) / "discrete", (), ("item_feature_4",))
        # 16 of the categories, the position, 8 numbers, one number and 15 categories of the item, the affinity
        continuous = _changed(log, Path(directory) / "continuous", tuple(f"x{number}" for number in range(8)), ())
        lookups = _evaluation(log, fit_features(log))
        for own, components, looked_up in ((discrete, 23, True), (continuous, 16, False)):
            features = TableFeatures.fit(own, components=components)
            assert features.is_discrete == looked_up
            times = interleaved([_evaluation(own, features), lookups], repetitions=1, rounds=rounds)
            value, spread = ratio(*times)
            what = "features of a schema" if looked_up else "the same with 8 continuous columns"
            note = f"{value:.2f} ({spread}) {rows / median(times[0]):,.0f} events/s"
            name = f"frozen agent, {rows:,} events: {what} / the Open Bandit Dataset's, 42 each"
            found.append((name, note, "<= 1.5" if looked_up else "-", not looked_up or value <= 1.5))
    return found


def _evaluation(log: Log, features: Features) -> Callable[[], object]:
    asked = agent()
    assert features.dim == asked.dim
    return lambda: evaluate_agent(asked, features, log, ReplaySettings("uniform", 5, None, 0))


def _changed(log: Log, path: Path, numbers: tuple[str, ...], of_items: tuple[str, ...]) -> Log:
    """The same events in a log that is not the Open Bandit Dataset's: more columns, of events and of items."""
    assert OBD.actions is not None
    schema = replace(
        OBD,
        context=replace(OBD.context, numeric=(*OBD.context.numeric, *numbers)),
        actions=replace(OBD.actions, numeric=(*OBD.actions.numeric, *of_items)),
    )
    writer = LogWriter(path, schema, _with_numbers(log.items, of_items, 0), {})
    for group in log.groups:
        writer.add(_with_numbers(log.read(group, OBD.log_columns), numbers, group.first), progress=group.first)
    writer.finish(policy="uniform", campaign="simulated")
    return Log(path)


def _with_numbers(table: pa.Table, names: tuple[str, ...], seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    for name in names:
        table = table.append_column(name, pa.array(rng.normal(size=table.num_rows)))
    return table


def conversion(rows: int = 1_000_000) -> list[Row]:
    """Our conversion of a table, whose actions are found first, beside pyarrow's reader and writer."""
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "table.csv"
        write_clicks(source, rows)
        number = 0

        def ours() -> None:
            nonlocal number
            number += 1
            convert_table(source, Path(directory) / f"log{number}", _SCHEMA)

        def theirs() -> None:
            reader = pyarrow.csv.open_csv(source)
            with pq.ParquetWriter(Path(directory) / "theirs.parquet", reader.schema, compression="zstd") as writer:
                for batch in reader:
                    writer.write_batch(batch)

        mine, peer = interleaved([ours, theirs], repetitions=1, rounds=5)
        size = source.stat().st_size / 1e6
    value, spread = ratio(peer, mine)
    note = f"{value:.2f} times ({spread}) {size / median(mine):,.0f} MB/s"
    return [(f"conversion of a table of {size:,.0f} MB / pyarrow's reader and writer", note, ">= 0.4", value >= 0.4)]


def memory(rows: int) -> list[Row]:
    """Peak resident size of a process that converts a table of one length, and of one ten times as long.

    Memory grows until two parts of a log have been written, so the shorter table has at least as many rows.
    """
    rows = max(rows, 2 * PART_ROWS)
    found = []
    for length in (rows, 10 * rows):
        with tempfile.TemporaryDirectory() as directory:
            write_clicks(Path(directory) / "table.csv", length)
            found.append(peak_memory("benchmarks.own_log", f"converting(r'{directory}')"))
    short, long = found
    what = f"peak memory of converting a table, {10 * rows:,} rows / {rows:,} rows"
    return [(what, f"{long / short:.2f} ({long:.2f} GB / {short:.2f} GB)", "<= 1.1", long <= 1.1 * short)]


def converting(directory: str) -> None:
    convert_table(Path(directory) / "table.csv", Path(directory) / "log", _SCHEMA)


def write_clicks(path: Path, rows: int) -> None:
    """A table of clicks: twelve items, six numbers, a category, propensities."""
    with pyarrow.csv.CSVWriter(path, _clicks(0, 1).schema) as writer:
        for first in range(0, rows, PART_ROWS):
            writer.write_table(_clicks(first, min(PART_ROWS, rows - first)))


def _clicks(first: int, rows: int) -> pa.Table:
    rng = np.random.default_rng(first)
    return pa.table(
        {
            "item": pa.array(rng.integers(0, 12, rows)),
            "click": pa.array(rng.integers(0, 2, rows)),
            "p": pa.array(rng.uniform(0.1, 1, rows)),
            **{name: pa.array(rng.normal(size=rows)) for name in _NUMERIC},
            "country": pa.array(rng.choice(["de", "fr", "it", "jp"], rows)),
        }
    )
