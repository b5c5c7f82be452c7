"""From what a user writes (numbers, lists, a grid) to one number a replica."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, NamedTuple, cast

from nl_lightning.core.checks import check_whole, is_number, is_whole
from nl_lightning.core.errors import InputError
from nl_lightning.core.link import KAPPA_MINIMUM

__all__ = ["SETTINGS", "PerReplica", "ReplicaSettings", "SettingName", "Share", "pad_singleton", "per_replica"]


PerReplica = float | list[float]
"""One number for all replicas, or a list of R numbers."""

SettingName = Literal["nu", "lam", "kappa", "S"]
SETTINGS: tuple[SettingName, ...] = ("nu", "lam", "kappa", "S")


MOST_REPLICAS = 1_000_000
"""More are a mistake: each takes a network and a design matrix of its own."""


class Share(NamedTuple):
    """The replicas of a run that one process computes: all of them, or some."""

    replicas: list[int]
    """their indices"""
    n_local: int
    """Only the first ``n_local`` replicas belong to this process; the rest are padding."""
    total: int
    """R, of all processes"""

    @classmethod
    def whole(cls, replicas: int) -> "Share":
        return cls(list(range(replicas)), replicas, replicas)


def pad_singleton(replicas: list[int], total: int) -> list[int]:
    """Some of ``total`` replicas that are computed together, by their indices; a single one is computed twice.

    A matrix product over a batch of one takes another way through a CPU's libraries than one over several, with other
    last digits, and a replica's result must not depend on which others there are.
    """
    return replicas * 2 if len(replicas) == 1 < total else replicas


@dataclass(frozen=True)
class ReplicaSettings:
    """The settings and the seed of each of R replicas."""

    nu: list[float]
    lam: list[float]
    kappa: list[float]
    S: list[float]
    seeds: list[int]

    @property
    def compared(self) -> bool:
        """Whether replicas differ in more than their seed."""
        return any(len(set(getattr(self, name))) > 1 for name in SETTINGS)

    def part(self, replicas: Sequence[int]) -> dict[str, list[float]]:
        """The settings of some replicas, as lists."""
        return {name: [getattr(self, name)[r] for r in replicas] for name in SETTINGS}

    def of(self, replica: int) -> dict[str, float]:
        """nu, lam, kappa, S and seed of one replica."""
        return {name: getattr(self, name)[replica] for name in SETTINGS} | {"seed": self.seeds[replica]}


def per_replica(
    values: Mapping[SettingName, PerReplica],
    replicas: int,
    seed: int | list[int],
    grid: Mapping[SettingName, list[float]] | None,
) -> ReplicaSettings:
    """Spread settings over replicas.

    Lists have one entry a replica (``replicas`` left at 1 takes their length). A grid takes every combination of its
    lists, each with ``replicas`` seeds; replica ``c * replicas + s`` has combination c and seed s, so that settings are
    compared on the same problems.
    """
    check_whole(1, replicas=replicas)
    if grid is not None and not isinstance(grid, Mapping):
        raise InputError(f"grid must be a mapping such as {{'nu': [0.1, 1]}}, got {grid!r}.")
    combinations = math.prod(len(choices) for choices in (grid or {}).values() if isinstance(choices, (list, tuple)))
    if replicas * combinations > MOST_REPLICAS:
        raise InputError(f"There can be at most {MOST_REPLICAS:,} replicas, got {replicas * combinations:,}.")
    spread = dict(values)
    if grid:
        spread, seeds = _from_grid(spread, replicas, seed, grid)
        replicas = len(seeds)
    else:
        given: list[tuple[str, object]] = [*values.items(), ("seed", seed)]
        lists = {name: value for name, value in given if isinstance(value, (list, tuple))}
        if replicas == 1 and lists:
            replicas = max(1, *(len(value) for value in lists.values()))
        for name, value in lists.items():
            if len(value) != replicas:
                raise InputError(
                    f"{name} has {len(value)} entries for {replicas} replicas; "
                    f"give one number for all replicas or a list of {replicas}."
                )
        seeds = _seeds(seed, replicas)
    settings = {name: _numbers(name, value, replicas) for name, value in spread.items()}
    return ReplicaSettings(**settings, seeds=seeds)


def _from_grid(
    spread: dict[SettingName, PerReplica],
    replicas: int,
    seed: int | list[int],
    grid: Mapping[SettingName, list[float]],
) -> tuple[dict[SettingName, PerReplica], list[int]]:
    for name, choices in grid.items():
        if name not in SETTINGS:
            raise InputError(f"grid takes lists of {', '.join(SETTINGS)}, not of {name!r}.")
        if not isinstance(choices, (list, tuple)) or not choices:
            raise InputError(f"grid: {name} must be a list of at least one number, got {choices!r}.")
    for name, value in spread.items():
        if isinstance(value, (list, tuple)):
            raise InputError(f"{name} is a list and there is a grid; put the list into the grid, or leave that out.")
    seeds = _seeds(seed, replicas)
    cells = list(itertools.product(*grid.values()))
    for place, name in enumerate(grid):
        spread[name] = [cell[place] for cell in cells for _ in seeds]
    return spread, seeds * len(cells)


def _seeds(seed: int | list[int], replicas: int) -> list[int]:
    if isinstance(seed, (list, tuple)):
        seeds = list(seed)
    else:
        seeds = [seed + r for r in range(replicas)] if is_whole(seed, 0) else []
    if not seeds or not all(is_whole(s, 0) for s in seeds):
        raise InputError(f"seed must be a whole number of at least 0 or a list of them, got {seed!r}.")
    if len(seeds) != replicas:
        raise InputError(f"seed has {len(seeds)} entries for {replicas} replicas.")
    return [int(s) for s in seeds]


def _numbers(name: SettingName, value: object, replicas: int) -> list[float]:
    """The checked numbers of R replicas."""
    numbers: list[Any] = list(value) if isinstance(value, (list, tuple)) else [value] * replicas
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, Real):
            raise InputError(f"{name} must be a number or a list of numbers, got {value!r}.")
        _check(name, cast(float, number))
    return [float(number) for number in numbers]


def _check(name: str, value: float) -> None:
    bounds = {
        "nu": (value >= 0, "at least 0 (0 explores by chance only)"),
        "lam": (value > 0, "greater than 0 (it keeps the design matrix invertible)"),
        "kappa": (
            value >= KAPPA_MINIMUM,
            "at least 4 (1/kappa bounds the slope of mu from below, which is at most 1/4)",
        ),
        "S": (value > 0, "greater than 0 (it bounds the norm of the true parameter)"),
    }
    holds, requirement = bounds[name]
    if not (holds and is_number(value)):
        raise InputError(f"{name} must be a finite number, {requirement}; got {value!r:.50}.")
