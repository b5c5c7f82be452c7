"""Commands of several processes, as users start them."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.paths import ROOT

SECONDS = 150
"""After so long a command hangs."""


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def start(
    module: str, arguments: Sequence[str], cwd: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """``python -m module arguments``, one thread a process, its output in one text."""
    root = ROOT
    mine = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "TORCHELASTIC_"))},
        "PYTHONPATH": str(root),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
        "MASTER_PORT": str(free_port()),
        **(environment or {}),
    }
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        env=mine,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        # tests that a shell runs in the background ignore Ctrl-C, and what they start would inherit that
        preexec_fn=_heed_interrupts,
    )


def _heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def finish(process: subprocess.Popen[str], seconds: float = SECONDS) -> str:
    """The output of a command, which must end in time."""
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, _ = process.communicate()
        raise AssertionError(f"the command did not end in {seconds} seconds; it said:\n{output}") from None
    return output
