"""How many threads torch uses in a fit: by the size of the work alone, never by the load, so that bits repeat.

Most bandits are small: a matrix product of a gradient step takes microseconds, and a second thread costs more than it
saves. Where other programs run as well it costs far more, because OpenMP's threads wait for each other by spinning: the
same fit has taken a hundred times as long. So one thread is the default, and more only where products are large and
waiting threads go to sleep soon. ``nl_lightning`` asks for that (GOMP_SPINCOUNT) when it is imported before torch.
"""

import os

__all__ = ["LARGE_WORK", "default_threads"]

LARGE_WORK = 30_000_000
"""Multiplications of one matrix product of a gradient step, over all replicas, from which on threads pay."""

_GIVEN = os.environ.get("OMP_NUM_THREADS")
"""What the user has set, before a launcher of processes sets it."""


def default_threads(work: int, cores: int | None = None) -> int:
    """Threads for products of so many multiplications: OMP_NUM_THREADS where it is set, or else by size."""
    if _GIVEN is not None and _GIVEN.isdigit() and int(_GIVEN) > 0:
        return int(_GIVEN)
    sleeps = "GOMP_SPINCOUNT" in os.environ or os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive"
    if work < LARGE_WORK or not sleeps:
        return 1
    if cores is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 4)
