"""What an environment promises."""

from collections.abc import Callable

import torch
from torch import Tensor

from nl_lightning.core.types import Deal
from nl_lightning.environments import Simulation

__all__ = ["check_environment"]

_CPU = torch.device("cpu")


def check_environment(make: Callable[[], Simulation], rounds: int = 40) -> None:
    """Check the promises of a simulation.

    What it deals has the right shapes and values; regrets are at least 0, and 0 for some arm; rounds are the same when
    they are asked for again, in other pieces, after a restart, and beside other replicas. In these rounds there are no
    more different arms than ``distinct_arms`` says.

    Args:
        make: makes the environment, such as its class.
        rounds: how many rounds are asked for.
    """
    like = torch.empty(0, dtype=torch.float64, device=_CPU)

    def begun(seeds: list[int]) -> Simulation:
        environment = make()
        environment.prepare(seeds, like)
        return environment

    environment = begun([3, 5])
    whole = dealt(environment, 0, rounds)
    name = type(environment).__name__
    if whole.regret is not None:
        present = whole.regret if whole.mask is None else whole.regret.masked_fill(~whole.mask, torch.inf)
        assert (present >= -1e-12).all(), f"{name}: a regret is below 0"
        assert (present.amin(-1) < 1e-9).all(), f"{name}: every round has an arm whose regret is 0"
    most = environment.distinct_arms
    if most is not None:
        masks = [None] * len(whole.arms) if whole.mask is None else whole.mask.unbind()
        shown = [
            arms.flatten(0, 1) if mask is None else arms[mask] for arms, mask in zip(whole.arms, masks, strict=True)
        ]
        found = max(len(arms.unique(dim=0)) for arms in shown)
        assert found <= most, f"{name} deals {found} different arms, more than distinct_arms = {most}"
    _same(whole, dealt(environment, 0, rounds), f"{name} deals other rounds when it is asked again")
    half = rounds // 2
    _same(_rounds(whole, half), dealt(begun([3, 5]), half, rounds - half), f"{name} deals other rounds after a restart")
    _same(_replica(whole, 1), dealt(begun([5]), 0, rounds), f"{name}: a replica's rounds depend on other replicas")
    stored = environment.state_dict()
    other = begun([3, 5])
    other.load_state_dict(other.join([stored]))
    again = dealt(other, rounds, 5)
    _same(dealt(environment, rounds, 5), again, f"{name} continues otherwise from its stored state")


def dealt(environment: Simulation, start: int, count: int) -> Deal:
    """Rounds of an environment, asked for until there are enough."""
    parts: list[Deal] = []
    while count:
        parts.append(environment.next_deal(start, count))
        rounds = parts[-1].arms.shape[1]
        start, count = start + rounds, count - rounds
    columns = zip(*(part[:4] for part in parts), strict=True)
    return Deal(*(None if column[0] is None else torch.cat(column, dim=1) for column in columns))  # type: ignore[arg-type]


def _rounds(deal: Deal, start: int) -> Deal:
    return Deal(*(None if values is None else values[:, start:] for values in deal[:4]))  # type: ignore[arg-type]


def _replica(deal: Deal, replica: int) -> Deal:
    return Deal(*(None if values is None else values[replica : replica + 1] for values in deal[:4]))  # type: ignore[arg-type]


def _same(one: Deal, other: Deal, promise: str) -> None:
    for left, right in zip(one[:4], other[:4], strict=True):
        same = (left is None and right is None) or (
            isinstance(left, Tensor) and isinstance(right, Tensor) and torch.equal(left, right)
        )
        assert same, promise
