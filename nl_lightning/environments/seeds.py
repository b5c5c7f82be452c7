"""The seeds of an environment's problems and rounds: given by the user, or those of the replicas."""

from collections.abc import Sequence

from nl_lightning.core.checks import check_whole
from nl_lightning.core.errors import InputError
from nl_lightning.core.replicas import Share

__all__ = ["Seeds", "check_seeds", "replica_seeds"]


Seeds = int | list[int] | None
"""One seed for all replicas, a list of R, or None: each replica's own."""


def check_seeds(**seeds: Seeds) -> None:
    """Each of the named seeds is a whole number of at least 0, a list of them, or left out."""
    for name, given in seeds.items():
        for number in given if isinstance(given, list) else [] if given is None else [given]:
            check_whole(0, **{name: number})


def replica_seeds(name: str, given: Seeds, replicas: Sequence[int], share: Share) -> list[int]:
    """One seed a replica of this process, whose own seeds are ``replicas``."""
    if given is None:
        return list(replicas)
    if not isinstance(given, list):
        return [int(given)] * len(replicas)
    if len(given) != share.total:
        raise InputError(f"The environment's {name} has {len(given)} entries for {share.total} replicas.")
    return [given[replica] for replica in share.replicas]
