"""The processes that are measured: each is started once and asked in turn, so that imports are told apart."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.peers.asked import ANSWER
from benchmarks.peers.install import python_of

OURS = "ours"

_ROOT = Path(__file__).parents[2]
_ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")}


class Failed(Exception):
    """What a peer said instead of an answer."""


class Process:
    """A peer's process, or ours, with one thread.

    Args:
        peer: whose.
        data: the directory with the same data for all.
    """

    def __init__(self, peer: str, data: Path) -> None:
        python = Path(sys.executable) if peer == OURS else python_of(peer)
        # A file, for nobody reads it while a peer works, and a full pipe would stop it.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [str(python), "-m", f"benchmarks.peers.with_{peer}"],
            cwd=_ROOT,
            env={**os.environ, **_ONE_THREAD, "BENCHMARK_DATA": str(data), "WANDB_MODE": "disabled"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.import_seconds: float = self._answer()["seconds"]

    def ask(self, work: str, **settings: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"work": work, "settings": settings}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(ANSWER):
                found: dict[str, Any] = json.loads(line.removeprefix(ANSWER))
                if "error" in found:
                    raise Failed(found["error"])
                return found
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().strip().splitlines()
        raise Failed(said[-1] if said else f"ended with code {code}")
