"""Speed and memory of a replay: a frozen agent, conversion, learning."""

import tempfile
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import torch

from benchmarks.measure import Row, interleaved, peak_memory, trainer
from nl_lightning import NeuralLogUCB2
from nl_lightning.rollout.data import BanditData
from replay import Log, ReplayLog
from replay.evaluation.evaluate import evaluate_agent
from replay.formats.convert import convert_log
from replay.formats.obd import sample
from replay.logs.layout import ROW_GROUP
from replay.logs.obd import AFFINITY, OBD
from replay.logs.writer import LogWriter
from replay.protocol.events import ReplaySettings
from replay.protocol.fitting import fit_features
from replay.simulation.simulated_world import SimulatedWorld


def simulated(path: Path, rows: int) -> Log:
    """A log of the Open Bandit Dataset's shape."""
    world = SimulatedWorld(ctr=0.005)
    writer = LogWriter(path, OBD, world.item_table(), {})
    for start in range(0, rows, ROW_GROUP):
        writer.add(world.draw(start, min(ROW_GROUP, rows - start)), progress=start)
    writer.finish(policy="uniform", campaign="simulated")
    return Log(path)


def agent(replicas: int = 1) -> NeuralLogUCB2:
    return NeuralLogUCB2(42, width=20, nu=0.1, lam=1.0, kappa=50.0, replicas=replicas)


def frozen(rows: int) -> list[Row]:
    """A frozen agent from Parquet to CTR, beside reading alone: our columns, and one column an item as published."""
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as directory:
        log = simulated(Path(directory) / "log", rows)
        published = Path(directory) / "published.parquet"
        _write_published(log, published)
        features, setting, asked = fit_features(log), ReplaySettings("affinity", 5, None, 0), agent()

        def whole() -> None:
            evaluate_agent(asked, features, log, setting)

        def read() -> None:
            for group in log.groups:
                log.read(group)

        def read_published() -> None:
            file = pq.ParquetFile(published)
            for group in range(file.num_row_groups):
                file.read_row_group(group)

        times = interleaved([whole, read, read_published], repetitions=1, rounds=5)
        speed, ours, theirs = (median(column) for column in times)
    return [
        (
            f"frozen agent, {rows:,} events, from Parquet to CTR",
            f"{rows / speed:,.0f} events/s",
            ">= 200,000",
            rows / speed >= 2e5,
        ),
        (
            "the whole / reading the published columns alone",
            f"{speed / theirs:.1f} ({speed:.2f} s / {theirs:.2f} s)",
            "-",
            True,
        ),
        (
            "the whole / reading our columns alone",
            f"{speed / ours:.1f} ({speed:.2f} s / {ours:.2f} s)",
            "-",
            True,
        ),
    ]


def _write_published(log: Log, path: Path) -> None:
    """The same events with one affinity column an item, as the data set is published."""
    writer = None
    for group in log.groups:
        events, table = log.events(group), log.read(group)
        dense = np.zeros((group.rows, log.n_items), dtype=np.float32)
        value, liked = events.pair[AFFINITY]
        assert liked is not None
        dense[liked.owner, liked.values] = value.values
        table = table.drop_columns(["affinity_item", "affinity"])
        for item in range(log.n_items):
            table = table.append_column(f"user-item_affinity_{item}", pa.array(dense[:, item]))
        writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table)
    assert writer is not None
    writer.close()


def conversion(repeated: int = 20) -> list[Row]:
    """Our conversion beside pyarrow's CSV reader feeding its Parquet writer."""
    torch.set_num_threads(2)
    source = sample()
    with tempfile.TemporaryDirectory() as directory:
        long = Path(directory) / "long"
        long.mkdir()
        header, _, rows = (source / "all.csv").read_text().partition("\n")
        (long / "all.csv").write_text(header + "\n" + rows * repeated)
        (long / "item_context.csv").write_bytes((source / "item_context.csv").read_bytes())
        number = 0

        def ours() -> None:
            nonlocal number
            number += 1
            convert_log(long, Path(directory) / f"log{number}")

        def theirs() -> None:
            reader = pyarrow.csv.open_csv(long / "all.csv")
            with pq.ParquetWriter(Path(directory) / "theirs.parquet", reader.schema, compression="zstd") as writer:
                for batch in reader:
                    writer.write_batch(batch)

        mine, peer = interleaved([ours, theirs], repetitions=1, rounds=5)
        size = (long / "all.csv").stat().st_size / 1e6
    ratio = median(b / a for a, b in zip(mine, peer, strict=True))
    note = f"{ratio:.1f} times ({size / median(mine):,.0f} MB/s)"
    return [(f"conversion of {size:,.0f} MB of CSV / pyarrow's reader and writer", note, ">= 0.5", ratio >= 0.5)]


def memory(*lengths: int) -> list[Row]:
    """Peak resident size of a process that evaluates and then learns on logs of several lengths."""
    rows = []
    for length in lengths:
        with tempfile.TemporaryDirectory() as directory:
            simulated(Path(directory) / "log", length)
            for what, call in (("evaluating", "evaluating"), ("learning, R=10", "learning_on")):
                peak = peak_memory("benchmarks.replay", f"{call}(r'{directory}/log')")
                rows.append((f"peak memory of {what}, {length:,} events", f"{peak:.2f} GB", "< 1 GB", peak < 1))
    return rows


def evaluating(path: str) -> None:
    log = Log(path)
    evaluate_agent(agent(), fit_features(log), log, ReplaySettings("affinity", 5, None, 0))


def learning_on(path: str) -> None:
    trainer().fit(agent(10), BanditData(ReplayLog(path), 2000, threads=torch.get_num_threads()))
