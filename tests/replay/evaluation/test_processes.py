"""A frozen evaluation by several processes: the same numbers, no event lost or counted twice, and nothing hangs."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.fabric.plugins.environments.lightning import find_free_network_port

from nl_lightning.cli.main import main as nl_lightning
from nl_lightning.core.errors import InputError
from replay.__main__ import main
from replay.evaluation.evaluate import describe
from replay.evaluation.evaluator import Evaluation
from replay.evaluation.processes import Processes
from replay.evaluation.shards import LogData, partition
from replay.logs.reader import Log
from replay.protocol.events import CandidateEvents
from replay.protocol.obd_features import ObdFeatures
from replay.simulation.simulated_world import SimulatedWorld
from tests.support.devices_worker import SETTINGS, agents, evaluated
from tests.support.fits import QUIET
from tests.support.paths import ROOT
from tests.support.replay_logs import SMALL, damaged, write_log

# one at a time, for each has two processes and more
pytestmark = pytest.mark.xdist_group("processes")

SOFTMAX = SimulatedWorld(**SMALL, policy="softmax", temperature=2.0)


@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 9))
def test_shards_are_a_partition_and_about_equal(rows: list[int], parts: int) -> None:
    shares = partition(rows, parts)
    assert len(shares) == parts
    assert sorted(number for share in shares for number in share) == list(range(len(rows)))
    assert all(share == sorted(share) for share in shares)
    loads = [sum(rows[number] for number in share) for share in shares]
    assert max(loads) - min(loads) <= max(rows, default=0)
    # the first process speaks, and has something to do
    assert not rows or shares[0]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """Five row groups of 250 events and one of 50."""
    return write_log(tmp_path_factory.mktemp("logs") / "log", SOFTMAX, 1300, group=250)


@pytest.fixture(scope="module")
def checkpoint(log: Log, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a Thompson agent, so that a pass is as long as its draws."""
    runs = tmp_path_factory.mktemp("runs")
    where = [f"--data.environment.log={log.path}", f"--run.dir={runs}", "--run.id=x", "--model=NeuralLogTS1"]
    small = ["--model.replicas=2", "--model.steps=5", "--data.rounds=60", "--trainer.enable_progress_bar=false"]
    nl_lightning(["fit", f"--config={ROOT / 'configs' / 'obd.yaml'}", *where, *small])
    return runs / "obd" / "x" / "checkpoints" / "last.ckpt"


def assert_same(found: Any, expected: Any, place: str = "result") -> None:
    """Counts are equal, other numbers to 1e-12."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), place
        for name in expected:
            assert_same(found[name], expected[name], f"{place}.{name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), place
        for number, pair in enumerate(zip(found, expected, strict=True)):
            assert_same(*pair, f"{place}[{number}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-12), place
    else:
        assert found == expected, place


@pytest.mark.slow
def test_three_processes_find_what_one_finds(log: Log, tmp_path: Path) -> None:
    """Also on a log with two row groups, of which the third process has none."""
    short = write_log(tmp_path / "short", SOFTMAX, 300, group=250)
    paths = [str(log.path), str(short.path)]
    alone = evaluated(1, paths)
    port = str(find_free_network_port())
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, "-m", "tests.support.devices_worker", "3", str(tmp_path / "found"), *paths]
    processes = [subprocess.Popen(command, cwd=ROOT, env={**environment, "LOCAL_RANK": str(rank)}) for rank in range(3)]
    try:
        assert [process.wait(timeout=300) for process in processes] == [0, 0, 0]
    finally:
        for process in processes:
            process.kill()
    for rank in range(3):
        together = json.loads((tmp_path / f"found-{rank}.json").read_text())
        idle = "1 processes had nothing to do: the log has only 2 row groups."
        assert [idle in result["notes"] for result in together] == [False] * 6 + [True] * 7
        for one, three in zip(alone, together, strict=True):
            three["notes"] = [note for note in three["notes"] if note != idle]
            assert one["replicas"][0]["seen"] in (1300, 300)
            assert_same(three, one)
    assert_same(alone[-1], alone[-2])


def test_an_empty_shard_is_a_batch_without_events(log: Log) -> None:
    features, setting = ObdFeatures.fit(log), SETTINGS[0]
    data = LogData(log, features, setting)
    some = next(iter(data.test_dataloader()))
    nothing = CandidateEvents.empty(log, features, setting)
    for name, none, column in zip(CandidateEvents._fields, nothing, some, strict=True):
        assert none.shape == (0, *column.shape[1:]), name
        assert none.dtype == column.dtype, name
    evaluation = Evaluation(agents()[0], features)
    evaluation.on_test_start()
    evaluation.test_step(nothing, 0)
    assert not evaluation.estimates["match"].sums.any()


def test_a_part_of_a_log_is_refused(log: Log) -> None:
    features = ObdFeatures.fit(log)
    evaluation = Evaluation(agents()[0], features)
    trainer = L.Trainer(**QUIET, enable_checkpointing=False, limit_test_batches=2)
    trainer.test(evaluation, LogData(log, features, SETTINGS[0], 2), verbose=False)
    assert evaluation.totals()["events"].tolist() == [500, 500]
    with pytest.raises(InputError, match="has 1,300 events, but 500 were evaluated"):
        describe(evaluation, log, SETTINGS[0])


@pytest.mark.parametrize(
    ("processes", "variables", "text"),
    [
        (Processes(devices=0), {}, "devices must be a whole number of at least 1"),
        (Processes(num_nodes=0), {}, "num_nodes must be a whole number of at least 1"),
        (Processes(accelerator="tpu"), {}, "accelerator must be one of cpu, cuda, gpu, auto"),
        (Processes(num_nodes=2), {}, "does not know the other machines. Start it with torchrun or srun"),
        (
            Processes(devices=2),
            {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "3"},
            "torchrun has started 3 processes, but --devices 2 on each of --num-nodes 1 machines would be 2",
        ),
        (Processes(), {"SLURM_STEP_NUM_TASKS": "8", "SLURM_JOB_NAME": "job"}, "srun has started 8 processes"),
    ],
)
def test_impossible_processes_are_refused(
    processes: Processes, variables: dict[str, str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=text):
        processes.trainer()


@pytest.mark.skipif(torch.cuda.is_available(), reason="it is refused where there is none")
def test_cuda_is_refused_where_there_is_none() -> None:
    with pytest.raises(InputError, match="--accelerator cuda --devices 1: .*CUDA"):
        Processes(accelerator="cuda").trainer()


def start(launcher: list[str], *options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", *launcher, "replay", "evaluate", "--devices=2", *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: "subprocess.Popen[str]") -> tuple[str, str]:
    """What a command and its children have said, once they all have ended."""
    try:
        return process.communicate(timeout=240)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("launcher", [[], ["torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "--"]])
def test_the_command_shares_a_log_out(launcher: list[str], log: Log, checkpoint: Path, tmp_path: Path) -> None:
    asked = [f"--checkpoint={checkpoint}", f"--log={log.path.as_uri()}", "--draws=3", "--candidates=uniform"]
    process = start(launcher, *asked, f"--output={tmp_path / 'two.json'}")
    main(["evaluate", *asked, f"--output={tmp_path / 'one.json'}"])
    shown, errors = ended(process)
    assert process.returncode == 0, errors
    assert shown.count("NeuralLog-TS-1, frozen, on 1,300 events") == shown.count("Result: ") == 1
    one, two = (json.loads((tmp_path / name).read_text()) for name in ("one.json", "two.json"))
    assert_same(two, one)


def test_a_damaged_row_group_ends_all_processes(log: Log, checkpoint: Path, tmp_path: Path) -> None:
    """It is in the share of the second one."""
    broken = shutil.copytree(log.path, tmp_path / "log")
    file = broken / "events-00000.parquet"
    file.write_bytes(damaged(file.read_bytes(), 1))
    (tmp_path / "out").mkdir()
    process = start([], f"--checkpoint={checkpoint}", f"--log={broken}", f"--output={tmp_path / 'out' / 'x.json'}")
    shown, errors = ended(process)
    assert process.returncode == 1
    assert errors.count(f"error: Process 1 of 2: {file}, row group 1, column item_id: cannot be read") == 1
    assert "Traceback" not in errors
    assert "frozen, on" not in shown
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.slow
def test_a_killed_process_ends_the_others(log: Log, checkpoint: Path) -> None:
    process = start([], f"--checkpoint={checkpoint}", f"--log={log.path}", "--draws=1000000")
    children = ["pgrep", "-P", str(process.pid)]
    while process.poll() is None and not (found := subprocess.run(children, capture_output=True, text=True).stdout):
        time.sleep(0.2)
    # by then it has met the first one, on a quiet machine
    time.sleep(8)
    os.kill(int(found), signal.SIGKILL)
    killed = time.monotonic()
    _, errors = ended(process)
    assert process.returncode == 1
    assert time.monotonic() - killed < 60
    assert "error: process 1 of 2 was killed by signal 9 (SIGKILL)" in errors
    assert "Start it again" in errors or "start the command again" in errors
