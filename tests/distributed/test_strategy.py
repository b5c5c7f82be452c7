"""Replicas on several devices: the same result, bit for bit, for any number of them; nothing hangs, nothing is lost."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nl_lightning import NeuralLogTS2, NeuralLogUCB2
from nl_lightning.cli.main import main
from nl_lightning.core.types import View
from nl_lightning.distributed.strategy import share_of
from nl_lightning.runs.directory import RunDirectory
from replay.simulation.simulated_world import SimulatedWorld
from tests.support.launch import SECONDS, finish, free_port, start
from tests.support.paths import ROOT
from tests.support.replay_logs import SMALL, write_log

# one at a time, for each has two processes and more
pytestmark = pytest.mark.xdist_group("processes")

CPU = torch.device("cpu")

FIT = [
    "fit",
    "--model=NeuralLog-UCB-2",
    "--model.width=6",
    "--model.steps=5",
    "--model.optimizer=gd",
    "--model.lr=0.001",
    "--model.nu=0.1",
    "--model.update_every=10",
    "--data.environment=Synthetic",
    "--data.environment.dim=4",
    "--data.environment.pool=60",
    "--data.environment.noise_seed=[4,2,0,7,7]",
    "--data.rounds=75",
    # TrainNN of the third diverges at once
    "--model.lam=[1,1,2000,1,1]",
    "--trainer.accelerator=cpu",
    "--trainer.enable_progress_bar=false",
    "--run.checkpoint_every=2",
    "--run.dir=all",
    "--run.name=runs",
]


def run_of(where: Path, name: str) -> RunDirectory:
    return RunDirectory(where / "all" / "runs" / name)


def assert_same(one: RunDirectory, other: RunDirectory) -> None:
    """The same rounds, result and checkpoint, to the last bit."""
    mine, theirs = pq.read_table(one.rounds), pq.read_table(other.rounds)
    assert mine.num_rows > 0
    assert mine.equals(theirs)
    mine, theirs = (json.loads(run.summary.read_text()) for run in (one, other))
    for summary in (mine, theirs):
        assert summary.pop("seconds") > 0
    assert mine == theirs
    mine, theirs = (torch.load(run.checkpoint, weights_only=False) for run in (one, other))
    assert mine["hyper_parameters"] == theirs["hyper_parameters"]
    assert mine["global_step"] == theirs["global_step"]
    assert mine["state_dict"].keys() == theirs["state_dict"].keys()
    for key, value in mine["state_dict"].items():
        found = theirs["state_dict"][key]
        assert torch.equal(value, found) if isinstance(value, torch.Tensor) else value == found, key
    mine, theirs = (stored["BanditData"]["environment"] for stored in (mine, theirs))
    assert mine.get("places") == theirs.get("places")
    assert mine.get("unseen") == theirs.get("unseen")


def alone(arguments: list[str], where: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """The run of one process: this one."""
    monkeypatch.chdir(where)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    main([*arguments, "--run.id=alone"])
    torch.set_num_threads(threads)
    return run_of(where, "alone")


# ---- shares ----------------------------------------------------------------------------------------------------------


@given(replicas=st.integers(1, 40), processes=st.integers(1, 12))
def test_shares_are_even_and_together_all(replicas: int, processes: int) -> None:
    shares = [share_of(replicas, k, processes, CPU) for k in range(processes)]
    assert [r for share in shares for r in share.replicas[: share.n_local]] == list(range(replicas))
    sizes = [share.n_local for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
    for share in shares:
        assert share.total == replicas
        assert len(share.replicas) == max(share.n_local, min(2, replicas))
    on_gpu = share_of(replicas, 0, processes, torch.device("cuda"))
    assert len(on_gpu.replicas) == on_gpu.n_local


@given(
    replicas=st.integers(2, 5),
    rows=st.integers(1, 80),
    dim=st.integers(1, 60),
    width=st.integers(1, 60),
    double=st.booleans(),
)
def test_a_product_does_not_depend_on_its_place_in_a_batch(
    replicas: int, rows: int, dim: int, width: int, double: bool
) -> None:
    """What "bit for bit" stands on: the last of R replicas and the first of two have the same digits."""
    g = torch.Generator().manual_seed(rows)
    x, w, z = (
        torch.rand(replicas, *shape, generator=g, dtype=torch.float64 if double else torch.float32)
        for shape in ((rows, dim), (width, dim), (width, rows))
    )

    def products(x: torch.Tensor, w: torch.Tensor, z: torch.Tensor) -> list[torch.Tensor]:
        return [torch.bmm(x, w.mT), torch.bmm(w, x.mT.contiguous()), torch.bmm(z, x)]

    last = [replicas - 1] * 2
    for all_of_them, pair in zip(products(x, w, z), products(x[last], w[last], z[last]), strict=True):
        assert torch.equal(all_of_them[-1], pair[0])


def test_a_part_is_the_agent_of_its_replicas() -> None:
    whole = NeuralLogTS2(4, width=6, seed=[3, 1, 2], grid=None, nu=[0.1, 0.2, 0.3], design="full").double()
    arms = torch.rand(3, 5, 4, dtype=torch.float64)
    for _ in range(3):
        whole.observe(whole.act(arms), torch.ones(3))
    whole.train_nn()
    share = share_of(3, 0, 2, CPU)
    part = whole.part(share)
    assert part.settings.nu == [0.1, 0.2]
    assert part.settings.seeds == [3, 1]
    assert part.hparams == whole.hparams
    assert torch.equal(part.act(arms[:2]).score, whole.act(arms).score[:2])
    assert part.divergence.mark == whole.divergence.mark


class Scaled(NeuralLogUCB2):
    """An algorithm of a user's, which tells nobody of its own argument."""

    def __init__(self, dim: int, factor: float, **settings: Any) -> None:
        super().__init__(dim, **settings)
        self.factor = factor

    def score(self, view: View, replicas: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        _, bonus = super().score(view, replicas)
        return view.mean + self.factor * bonus, self.factor * bonus


def test_a_part_of_a_users_agent_is_one_too() -> None:
    whole = Scaled(4, 50.0, width=6, replicas=4)
    whole.update_every = 7
    arms = torch.rand(4, 5, 4)
    part = whole.part(share_of(4, 1, 2, CPU))
    assert part.update_every == 7
    assert torch.equal(part.act(arms[2:]).score, whole.act(arms).score[2:])


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_a_fit_is_the_same_on_any_number_of_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five replicas on 1, on 2, and on 3 devices that are stopped and go on as 2."""
    csv = ["--trainer.logger=CSVLogger", "--trainer.logger.save_dir=."]
    one = alone([*FIT, *csv], tmp_path, monkeypatch)
    output = finish(start("nl_lightning", [*FIT, *csv, "--run.id=two", "--trainer.devices=2"], tmp_path))
    assert output.count("NeuralLog-UCB-2 after 75 rounds") == 1, output
    two = run_of(tmp_path, "two")
    assert_same(one, two)
    # the loggers hear of all replicas, and once
    logs = [next(run.path.rglob("metrics.csv")).read_text() for run in (one, two)]
    assert logs[0] == logs[1]

    stopped = ["--run.id=three", "--trainer.devices=3", "--trainer.strategy=replica", "--trainer.max_steps=4"]
    output = finish(start("nl_lightning", [*FIT, *stopped], tmp_path))
    three = run_of(tmp_path, "three")
    assert f"--resume {three.path.relative_to(tmp_path)}" in output
    assert not json.loads(three.summary.read_text())["finished"]
    resume = ["fit", f"--resume={three.path}", "--trainer.max_steps=-1", "--trainer.devices=2"]
    output = finish(start("nl_lightning", resume, tmp_path))
    assert "Going on from" in output
    assert_same(one, three)
    assert {path.name for path in one.path.iterdir()} - {path.name for path in three.path.iterdir()} == {
        "lightning_logs"
    }
    diverged = [row["diverged_at"] for row in json.loads(one.summary.read_text())["replicas"]]
    assert diverged == [None, None, 10, None, None]


@pytest.mark.slow
def test_a_replay_is_the_same_on_more_devices_than_replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas come to the end of the log at different rounds, each alone on its device, with exact matrices."""
    log = write_log(tmp_path / "log", SimulatedWorld(**SMALL), rows=700, group=200)
    replay = [a for a in FIT if not any(name in a for name in ("environment", "lam", "rounds"))]
    replay += ["--model=NeuralLog-TS-1", "--model.replicas=2", "--model.design=full", "--data.rounds=1000"]
    replay += ["--data.environment=replay.ReplayLog", f"--data.environment.log={log.path}"]
    one = alone(replay, tmp_path, monkeypatch)
    rounds = [row["accepted"] for row in json.loads(one.summary.read_text())["replicas"]]
    assert rounds[0] != rounds[1], "the test wants replicas of different length"
    output = finish(start("nl_lightning", [*replay, "--run.id=three", "--trainer.devices=3"], tmp_path))
    assert "3 devices for 2 replicas: 1 of them have nothing to do" in output
    assert_same(one, run_of(tmp_path, "three"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "settings"),
    [("softmax", {"rejection": "dr-ns"}), ("uniform", {"resample": "3"})],
    ids=["dr-ns", "resample"],
)
def test_values_and_resamples_are_the_same_on_two_devices(
    policy: str, settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = write_log(tmp_path / "log", SimulatedWorld(**SMALL, policy=policy), rows=900, group=200)  # type: ignore[arg-type]
    replay = [a for a in FIT if not any(name in a for name in ("environment", "lam", "rounds"))]
    replay += ["--model=NeuralLog-TS-1", "--model.replicas=3", "--data.rounds=1000"]
    replay += ["--data.environment=replay.ReplayLog", f"--data.environment.log={log.path}"]
    replay += ["--data.environment.candidates=all"]
    replay += [f"--data.environment.{name}={value}" for name, value in settings.items()]
    one = alone(replay, tmp_path, monkeypatch)
    finish(start("nl_lightning", [*replay, "--run.id=two", "--trainer.devices=2"], tmp_path))
    two = run_of(tmp_path, "two")
    assert_same(one, two)
    assert one.events.exists() == ("rejection" in settings)
    if one.events.exists():
        assert pq.read_table(one.events).equals(pq.read_table(two.events))


def test_the_python_interface(tmp_path: Path) -> None:
    """After a fit every process has the whole agent; test tells the mean over all replicas."""
    script = tmp_path / "script.py"
    script.write_text(
        """
import json, sys
import lightning as L
import torch
from nl_lightning import NeuralLogUCB2
from nl_lightning.rollout.data import BanditData
from nl_lightning.environments import Synthetic

def run(devices, **kwargs):
    agent = NeuralLogUCB2(4, width=6, replicas=3, steps=5, lr=0.001, update_every=10)
    data = BanditData(Synthetic("h2", dim=4, pool=50), rounds=40)
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", devices=devices, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, **kwargs)
    trainer.fit(agent, data)
    tested = trainer.test(agent, data, verbose=False)[0]
    return trainer, agent, tested

if __name__ == "__main__":
    trainer, agent, tested = run(2, strategy="replica")
    trainer.save_checkpoint("after.ckpt")
    state = {k: v for k, v in agent.state_dict().items() if isinstance(v, torch.Tensor)}
    torch.save({"state": state, "tested": tested, "replicas": agent.replicas}, f"rank-{trainer.global_rank}.pt")
"""
    )
    output = finish(start("script", [], tmp_path, {"PYTHONPATH": f"{tmp_path}:{ROOT}"}))
    found = [torch.load(tmp_path / f"rank-{rank}.pt", weights_only=False) for rank in (0, 1)]
    assert [f["replicas"] for f in found] == [3, 3], output
    stored = torch.load(tmp_path / "after.ckpt", weights_only=False)["state_dict"]
    assert all(torch.equal(value, stored[key]) for key, value in found[0]["state"].items())
    namespace: dict[str, Any] = {"__name__": "imported"}
    exec(script.read_text(), namespace)
    _, agent, tested = namespace["run"](1)
    for each in found:
        assert each["tested"] == pytest.approx(tested, rel=1e-6)
        for key, value in each["state"].items():
            assert torch.equal(value, agent.state_dict()[key]), key


# ---- launchers -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_nodes_torchrun_and_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process a node; the nodes are this machine, twice."""
    one = alone(FIT, tmp_path, monkeypatch)
    nodes = ["--trainer.num_nodes=2", "--trainer.devices=1"]

    def together(name: str, environments: list[dict[str, str]]) -> None:
        both = [start("nl_lightning", [*FIT, *nodes, f"--run.id={name}"], tmp_path, env) for env in environments]
        outputs = [finish(process) for process in both]
        assert "after 75 rounds" in outputs[0], outputs
        assert "after 75 rounds" not in outputs[1]
        assert [process.returncode for process in both] == [0, 0], outputs
        assert_same(one, run_of(tmp_path, name))

    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    together("nodes", [{**address, "NODE_RANK": str(node)} for node in (0, 1)])
    address["MASTER_PORT"] = str(free_port())
    slurm = {"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "1", "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "fit"}
    places = [{"SLURM_PROCID": str(k), "SLURM_NODEID": str(k), "SLURM_LOCALID": "0"} for k in (0, 1)]
    together("slurm", [{**address, **slurm, **place} for place in places])

    torchrun = ["--nproc_per_node=2", "--master_port", str(free_port()), "-m", "nl_lightning"]
    process = start("torch.distributed.run", [*torchrun, *FIT, "--trainer.devices=2", "--run.id=torchrun"], tmp_path)
    output = finish(process)
    assert process.returncode == 0, output
    assert_same(one, run_of(tmp_path, "torchrun"))


# ---- faults ----------------------------------------------------------------------------------------------------------


def children(process: subprocess.Popen[str]) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
    return [int(pid) for pid in listed.stdout.split()]


def until_checkpoint(process: subprocess.Popen[str], run: RunDirectory) -> None:
    stop = time.monotonic() + SECONDS
    while not run.checkpoint.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < stop
        time.sleep(0.02)


LONG = [*FIT, "--data.rounds=800", "--trainer.devices=2"]
ENDLESS = [*LONG, "--data.rounds=100000"]
TIMEOUT = 25


def until_lost(process: subprocess.Popen[str], child: int) -> str:
    """The output of a run that has lost a process: the others have said so, and none is left."""
    began = time.monotonic()
    output = finish(process, 90)
    assert time.monotonic() - began < 75
    assert process.returncode != 0
    assert f"Another process of this run has ended, or did not answer within {TIMEOUT} seconds" in output, output
    while Path(f"/proc/{child}").exists() and time.monotonic() - began < 75:
        time.sleep(0.1)
    assert not Path(f"/proc/{child}").exists(), "a process is left behind"
    return output


@pytest.mark.slow
def test_a_process_that_is_lost_ends_the_run_and_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed or stopped in the middle: the others say so and end; started again, the run has the same result.

    One run after the other, but for the first, which waits for its timeout meanwhile.
    """
    waits = [
        "--trainer.strategy=nl_lightning.distributed.strategy.ReplicaStrategy",
        f"--trainer.strategy.timeout={TIMEOUT}",
    ]

    def playing(name: str) -> tuple[subprocess.Popen[str], int]:
        process = start("nl_lightning", [*LONG, *waits, f"--run.id={name}"], tmp_path)
        until_checkpoint(process, run_of(tmp_path, name))
        (child,) = children(process)
        return process, child

    stopped = playing("stopped")
    os.kill(stopped[1], signal.SIGSTOP)

    killed = playing("killed")
    os.kill(killed[1], signal.SIGKILL)
    output = until_lost(*killed)
    assert "error: process 1 of 2 was killed by signal 9 (SIGKILL)" in output
    assert "go on with: python -m nl_lightning fit --resume all/runs/killed" in output
    assert not run_of(tmp_path, "killed").summary.exists()

    launcher = playing("launcher")
    launcher[0].kill()
    until_lost(*launcher)

    output = until_lost(*stopped)
    assert "error: process 1 of 2 did not end and is killed" in output
    assert "go on with: python -m nl_lightning fit --resume all/runs/stopped" in output

    output = finish(start("nl_lightning", ["fit", "--resume=all/runs/killed"], tmp_path))
    assert "Going on from" in output, output
    assert_same(alone([*LONG, "--trainer.devices=1"], tmp_path, monkeypatch), run_of(tmp_path, "killed"))


def test_a_run_that_is_stopped_leaves_what_it_can_go_on_from(tmp_path: Path) -> None:
    """A SIGTERM to any process stops all after the next call of TrainNN; Ctrl-C reaches all of them."""
    for name in ("terminated", "interrupted"):
        process, run = start("nl_lightning", [*ENDLESS, f"--run.id={name}"], tmp_path), run_of(tmp_path, name)
        until_checkpoint(process, run)
        if name == "terminated":
            os.kill(*children(process), signal.SIGTERM)
        else:
            os.killpg(process.pid, signal.SIGINT)
        output = finish(process, 60)
        assert f"go on with: python -m nl_lightning fit --resume all/runs/{name}" in output, output
        assert process.returncode == (128 + signal.SIGTERM if name == "terminated" else 1)
        assert run.summary.exists() == (name == "terminated")


def test_divergence_in_one_process_ends_all(tmp_path: Path) -> None:
    """lr lam >= 1 for the last replica only."""
    diverging = [*FIT, "--model.lam=[1,1,1,1,2000]", "--model.on_divergence=stop"]
    process = start("nl_lightning", [*diverging, "--trainer.devices=2"], tmp_path)
    output = finish(process)
    assert process.returncode == 1
    assert (
        output.count("TrainNN diverged in replica 4 (nu = 0.1, lam = 2000, kappa = 10, S = 1, seed = 4) at round 10")
        == 2
    ), output
    assert "error in process 1" in output


def test_other_strategies_are_refused() -> None:
    import lightning as L

    from nl_lightning.core.errors import InputError
    from nl_lightning.environments import Synthetic
    from nl_lightning.rollout.data import BanditData

    agent = NeuralLogUCB2(4, width=6)
    trainer = L.Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, max_epochs=1)
    trainer.strategy.world_size = 2  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="take strategy='replica' instead of SingleDeviceStrategy"):
        trainer.fit(agent, BanditData(Synthetic("h1", dim=4, pool=20), rounds=10))
