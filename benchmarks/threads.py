"""The default number of threads beside others, on an idle machine and beside three processes that take all they get.

Each fit is a process of its own, as on the command line: how OpenMP's threads wait is settled when torch is loaded.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.measure import Row

CONFIGS = {"h1": 1000, "obd": 500, "grid": 400}
"""Shipped configs and rounds: small, small on a log, large products."""
BUSY = 3
REPETITIONS = 3


def fits() -> list[Row]:
    rows = []
    for config, rounds in CONFIGS.items():
        one, every = _seconds(config, rounds, 1), _seconds(config, rounds, len(os.sched_getaffinity(0)))
        rows.append(_row(f"threads, {config}, idle: the default / the best", config, rounds, min(one, every), 1.5))
        with _busy():
            one = _seconds(config, rounds, 1)
            what = f"threads, {config}, beside {BUSY} busy processes: the default / one thread"
            rows.append(_row(what, config, rounds, one, 3))
    return rows


def _row(what: str, config: str, rounds: int, other: float, limit: float) -> Row:
    default = _seconds(config, rounds, None)
    ratio = default / other
    return what, f"{ratio:.2f} ({default:.2f} s / {other:.2f} s)", f"<= {limit:g}", ratio <= limit


def _seconds(config: str, rounds: int, threads: int | None) -> float:
    """The median time of a fit, as its summary has it."""
    environment = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "GOMP_SPINCOUNT")}
    asked = [] if threads is None else [f"--threads={threads}"]
    root = Path(__file__).parents[1]
    found = []
    for _ in range(REPETITIONS):
        with tempfile.TemporaryDirectory() as directory:
            command = [sys.executable, "-m", "nl_lightning", "fit", f"--config={root / 'configs' / config}.yaml"]
            command += [f"--data.rounds={rounds}", f"--run.dir={directory}", "--run.id=x", *asked]
            command += ["--trainer.enable_progress_bar=false"]
            subprocess.run(command, env=environment, cwd=root, check=True, capture_output=True)
            summary = json.loads((Path(directory) / config / "x" / "summary.json").read_text())
            found.append(float(summary["seconds"]))
    return median(found)


@contextmanager
def _busy() -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
