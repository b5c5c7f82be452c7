"""A process that works when it is asked, in any environment: one line of JSON in, one line of JSON out.

What runs in a peer's environment (``with_calvera`` and the others) imports this and the peer, and nothing of ours.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STARTED = time.perf_counter()

Work = Callable[..., dict[str, Any]]
"""Settings in, what was measured out: ``seconds`` among it."""

ANSWER = "answer "


def answer(works: dict[str, Work]) -> None:
    """Say how long imports took, and then do every work that is asked for, by its name."""
    _say({"seconds": time.perf_counter() - STARTED})
    for line in sys.stdin:
        asked = json.loads(line)
        _forget_peak()
        try:
            measured = works[asked["work"]](**asked["settings"])
        except Exception as error:  # whatever a peer raises is told to who asked
            measured = {"error": f"{type(error).__name__}: {error}"}
        _say({**measured, "memory": _peak()})


def _forget_peak() -> None:
    """From here on the peak of this process is that of the work to come."""
    Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    """Bytes that this process had in memory at most."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return 1024 * int(line.split()[1])


def path_of(name: str) -> str:
    """A file of the directory that holds the same data for all."""
    return str(Path(os.environ["BENCHMARK_DATA"]) / name)


def _say(what: dict[str, Any]) -> None:
    print(ANSWER + json.dumps(what), flush=True)
