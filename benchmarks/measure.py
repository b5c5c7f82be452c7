"""How things are measured: medians of interleaved repetitions, and ratios within one run, for the machine is noisy."""

import logging
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import lightning as L

Row = tuple[str, str, str, bool]


def seconds(work: Callable[[], object], repetitions: int) -> float:
    start = time.perf_counter()
    for _ in range(repetitions):
        work()
    return (time.perf_counter() - start) / repetitions


def interleaved(works: list[Callable[[], object]], repetitions: int, rounds: int = 15) -> list[list[float]]:
    """``rounds`` times each work in turn: (works, rounds) seconds a repetition."""
    for work in works:
        seconds(work, max(1, repetitions // 4))
    times = [[seconds(work, repetitions) for work in works] for _ in range(rounds)]
    return [list(column) for column in zip(*times, strict=True)]


def ratio(numerator: list[float], denominator: list[float]) -> tuple[float, str]:
    """The median ratio, and the ratios' quartiles as a text."""
    ratios = [a / b for a, b in zip(numerator, denominator, strict=True)]
    return median(ratios), quartiles(ratios)


def quartiles(values: Iterable[float], form: str = ".2f") -> str:
    """As a text, the lower and the upper one; of three or fewer values these are the lowest and the highest."""
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 4]:{form}} to {ordered[3 * len(ordered) // 4]:{form}}"


def row(what: str, numerator: list[float], denominator: list[float], limit: float, note: str) -> Row:
    value, spread = ratio(numerator, denominator)
    return what, f"{value:.2f} ({spread}) {note}", f"<= {limit:g}", value <= limit


def quiet() -> None:
    """No warnings, and of Lightning only those."""
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.WARNING)


def trainer(**flags: Any) -> L.Trainer:
    return L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **flags,
    )


def peak_memory(module: str, call: str) -> float:
    """GB that a call of a function in a module needs at most, in a process of its own."""
    code = f"import {module} as m; m.{call}; from benchmarks.measure import print_peak; print_peak()"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1]) / 1e6


def print_peak() -> None:
    """The peak resident size of this process in kilobytes; getrusage would count that of its parent at the start."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(line.split()[1])
