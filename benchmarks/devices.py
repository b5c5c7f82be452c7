"""What a second process gains. Processes start once and are asked in turn, so that their start is not measured."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from lightning.fabric.plugins.environments.lightning import find_free_network_port

from benchmarks.measure import Row, ratio, trainer
from benchmarks.replay import agent, simulated
from nl_lightning import NeuralLogUCB2
from nl_lightning.environments import Synthetic
from nl_lightning.rollout.data import BanditData
from replay import Log
from replay.evaluation.evaluator import Evaluation
from replay.evaluation.processes import Processes
from replay.evaluation.shards import LogData
from replay.protocol.events import ReplaySettings
from replay.protocol.fitting import fit_features


class Team:
    """Processes that each run a function of this module, again and again, and say how long it took.

    Args:
        call: a call that makes the function, such as ``evaluating('log', 2)``.
        size: number of processes.
        threads: of each of them.
    """

    def __init__(self, call: str, size: int, threads: int) -> None:
        code = f"from benchmarks import devices; devices.answer(devices.{call})"
        group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_network_port()), "WORLD_SIZE": str(size)}
        common = {**os.environ, "OMP_NUM_THREADS": str(threads), **(group if size > 1 else {})}
        self.members = [
            subprocess.Popen(
                [sys.executable, "-c", code],
                env={**common, **({"LOCAL_RANK": str(rank)} if size > 1 else {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]

    def seconds(self) -> float:
        """Of the slowest one."""
        for member in self.members:
            assert member.stdin is not None
            member.stdin.write("\n")
            member.stdin.flush()
        return max(_answer(member) for member in self.members)

    def end(self) -> None:
        for member in self.members:
            member.kill()
            member.wait()


def _answer(member: "subprocess.Popen[str]") -> float:
    assert member.stdout is not None
    for line in member.stdout:
        if line.startswith("seconds "):
            return float(line.split()[1])
    raise RuntimeError(f"A process of the benchmark ended with code {member.wait()}.")


def answer(work: Callable[[], float]) -> None:
    """In a process of a team: work once for each line that comes."""
    for _ in sys.stdin:
        print("seconds", work(), flush=True)


def compared(what: str, call: str, rounds: int) -> list[Row]:
    """Two processes with one thread each beside one process with one thread; ``call`` takes the number of processes."""
    teams = [Team(call.format(size), size, threads) for size, threads in ((1, 1), (2, 1), (1, 2))]
    try:
        for team in teams:
            team.seconds()
        one, two, threaded = zip(*([team.seconds() for team in teams] for _ in range(rounds)), strict=True)
    finally:
        for team in teams:
            team.end()
    gain, spread = ratio(list(one), list(two))
    times = f"{median(one):.2f} s / {median(two):.2f} s; one process with two threads: {median(threaded):.2f} s"
    text = f"{what}: one process / two, one thread each"
    return [(text, f"{gain:.2f} ({spread}) ({times})", ">= 1.6", gain >= 1.6)]


def replicas(rounds: int = 7) -> list[Row]:
    """A fit of 20 replicas, shared out by ``strategy: replica``."""
    return compared("fit of 20 replicas, T=2000", "fitting({})", rounds)


def fitting(size: int) -> Callable[[], float]:
    """Seconds of one ``trainer.fit``, shared among so many processes, which begin together."""

    def work() -> float:
        agent = NeuralLogUCB2(20, width=20, nu=0.01, lam=1.0, optimizer="gd", lr=0.005, replicas=20)
        data = BanditData(Synthetic("h1"), 2000, threads=torch.get_num_threads())
        fitter = trainer(**({"strategy": "replica", "devices": size} if size > 1 else {}))
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        start = time.perf_counter()
        fitter.fit(agent, data)
        return time.perf_counter() - start

    return work


def frozen(rows: int, rounds: int = 7) -> list[Row]:
    """A frozen agent on a log, by two processes with one thread each, beside one process with one thread."""
    with tempfile.TemporaryDirectory() as directory:
        simulated(Path(directory) / "log", rows)
        return compared(f"frozen agent, {rows:,} events", f"evaluating(r'{directory}/log', {{}})", rounds)


def evaluating(path: str, size: int) -> Callable[[], float]:
    """Seconds of one ``trainer.test``, shared among so many processes, which begin together."""
    log = Log(path)
    asked, features, setting = agent(), fit_features(log), ReplaySettings("affinity", 5, None, 0)
    tester = Processes(devices=size).trainer()

    def work() -> float:
        evaluation, data = Evaluation(asked, features), LogData(log, features, setting)
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        start = time.perf_counter()
        tester.test(evaluation, data, verbose=False)
        return time.perf_counter() - start

    return work
