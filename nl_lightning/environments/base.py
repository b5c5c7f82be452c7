"""What agents play in. Environments deal rounds and answer; the loop that plays them is in ``rollout``."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from nl_lightning.core.checks import check_blocks, check_finite
from nl_lightning.core.errors import InputError
from nl_lightning.core.imports import overridden
from nl_lightning.core.replicas import Share
from nl_lightning.core.rng import CHUNK
from nl_lightning.core.types import Deal, WarmStartBatch
from nl_lightning.environments.learner_value import EventRecord, LearnerValue

__all__ = ["ChunkedSimulation", "Deal", "Environment", "LoggedEnvironment", "Simulation"]


class _Unset:
    """Stands for an attribute that a subclass or an instance must have of its own."""

    def __get__(self, instance: "Environment | None", owner: type) -> Any:
        if instance is None:
            return self
        raise InputError(
            f"{owner.__name__} has no dim. Set it to the number of features of an arm: dim = 20 in the class, or "
            "self.dim = 20 in its __init__."
        )


class Environment(ABC):
    """Where an agent's rounds come from: a ``Simulation`` or a ``LoggedEnvironment``."""

    dim: int
    """d, the numbers of an arm: its features and, with blocks, the number of the block"""
    max_arms: int | None = None
    """the most arms of a round, to which rounds with fewer are padded; None where every round has the same number"""
    blocks: int = 1
    """K where an arm is (x, k), whose last number is the block k in which x stands; 1 where an arm is x itself"""
    distinct_arms: int | None = None
    """An upper bound on the number of distinct arms that a replica is shown in a run; None where it is not known. Where
    arms come again and again, TrainNN computes equal observations once."""
    knows_regret: bool
    """Whether a run is judged by its regret, or else by its rewards"""

    seeds: Sequence[int] = ()
    """of the replicas"""

    def prepare(self, seeds: Sequence[int], like: Tensor, share: Share | None = None) -> None:
        """Begin a run with these replicas; arms will have the device and the precision of ``like``.

        ``share`` says which replicas of the run they are; left out, all of them.
        """
        self.seeds, self.like, self.share = list(seeds), like, share or Share.whole(len(seeds))
        self.reset(self.seeds)

    def reset(self, seeds: Sequence[int]) -> None:  # noqa: B027
        """Make the problem of every replica from its seed. Called when a run begins."""

    def warm_start(self) -> Iterator[WarmStartBatch]:
        """What agents learn before their first round, chosen by somebody else: parts in their order."""
        yield from ()

    @property
    def ended(self) -> bool:
        """Whether no round is left for any replica."""
        return False

    def counts(self) -> dict[str, Any]:
        """What else a run's summary should say: over all replicas, and under ``replicas`` for each of them."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What is needed to continue a run, beside the number of rounds played."""
        return {}

    @staticmethod
    def join(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The state of all replicas, from the states of all processes."""
        return states[0]

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Continue from a state; where rounds are a function of their number, there is nothing to do."""


# Not in the class, where the reference would show it as a default.
Environment.dim = _Unset()  # type: ignore[assignment]


class Simulation(Environment):
    """Deals rounds 0, 1, 2, ... of R replicas and knows the reward of every arm.

    Subclass it, set ``dim``, and define ``deal``; ``reset`` gets the seeds of the replicas. For a run to resume to the
    same bits, deal the same rounds whenever they are asked for: as a function of seed and round, or with what is needed
    in ``state_dict``.
    """

    knows_regret = True

    @abstractmethod
    def deal(self, start: int, count: int) -> Deal:
        """Rounds ``start``, ..., ``start + count - 1``: arms (R, C, K, d), rewards and regrets (R, C, K).

        C may be less than ``count``, but at least 1; the rest is asked for again. Where rounds have different numbers
        of arms, all are padded to ``max_arms``, and ``mask`` (R, C, K) is False for padding.
        """

    def next_deal(self, start: int, count: int) -> Deal:
        """The next rounds, up to ``count``, checked and on the agent's device."""
        return checked_deal(self, self.deal(start, count), count)

    def latent(self, start: int, count: int) -> Tensor | None:
        """h of the arms of rounds ``start``, ..., ``start + count - 1``, (R, C, K) in float64; None where unknown.

        Clicks come with probability mu(h), but h does not follow from it: mu is 1 in floating point for moderate h.
        """
        return None


class ChunkedSimulation(Simulation):
    """A simulation that makes ``CHUNK`` rounds at a time, as a function of the chunk's number, and keeps the last."""

    def prepare(self, seeds: Sequence[int], like: Tensor, share: Share | None = None) -> None:
        self._chunks: dict[int, Deal] = {}
        super().prepare(seeds, like, share)

    @abstractmethod
    def deal_chunk(self, chunk: int) -> Deal:
        """Rounds ``chunk * CHUNK``, ..., of all replicas; the same whenever it is asked for."""

    def deal(self, start: int, count: int) -> Deal:
        parts = []
        for chunk in range(start // CHUNK, (start + count - 1) // CHUNK + 1):
            first = chunk * CHUNK
            parts.append(self._chunk(chunk).rounds(max(start - first, 0), min(start + count - first, CHUNK)))
        if len(parts) == 1:
            return parts[0]
        columns = zip(*(part[:4] for part in parts), strict=True)
        return Deal(*(None if column[0] is None else torch.cat(column, dim=1) for column in columns))  # type: ignore[arg-type]

    def next_deal(self, start: int, count: int) -> Deal:
        """Chunks are checked when they are made; a ``deal`` of a subclass is checked like any other."""
        return (
            super().next_deal(start, count) if overridden(self, ChunkedSimulation, "deal") else self.deal(start, count)
        )

    def _chunk(self, chunk: int) -> Deal:
        if chunk not in self._chunks:
            deal = checked_deal(self, self.deal_chunk(chunk), CHUNK)
            # A block of rounds may reach into the next chunk, never back before the previous one.
            self._chunks = {k: v for k, v in self._chunks.items() if k == chunk - 1}
            self._chunks[chunk] = deal
        return self._chunks[chunk]


class LoggedEnvironment(Environment):
    """Logged events: an agent that picks the logged arm sees its reward, another one sees nothing.

    Replicas accept different events; each has its own place in the log.
    """

    knows_regret = False
    arms: int
    """K, of every event"""
    alive: Sequence[bool] = ()
    """which replicas can still play; the loop says so"""
    value: LearnerValue | None = None
    """Where it is kept, events are accepted by the chance of the logged arm (DR-ns), and it is the loop that adds to
    it. Deals then have propensities and uniform numbers."""

    @abstractmethod
    def next_events(self, missing: Sequence[int], window: int, most: int, subset: bool) -> Deal | None:
        """The next events of every replica that misses rounds; None where there are none left.

        They end with ``window`` events of padding, and there are at most ``most`` of them before that. With ``subset``
        replicas without events may be left out.
        """

    def event_records(self) -> list[list[EventRecord]] | None:
        """Of every replica the events that comparisons with other runs need; None where none are kept."""
        return None if self.value is None else self.value.records

    @property
    @abstractmethod
    def accepted(self) -> Sequence[int]:
        """Events that each replica has accepted in this run."""

    @abstractmethod
    def advance(self, passed: Sequence[int], accepted: Sequence[int]) -> None:
        """Each replica has passed that many of its events and accepted that many of them."""


def checked_deal(environment: Environment, deal: Any, count: int) -> Deal:
    """Refuse what cannot be played; rewards and regrets go to the agent's device."""
    name = type(environment).__name__
    if not isinstance(deal, Deal):
        raise InputError(f"{name}.deal must return a Deal, got {type(deal).__name__}.")
    for field in ("arms", "reward", "regret", "mask"):
        values = getattr(deal, field)
        if not (isinstance(values, Tensor) or (values is None and field in ("regret", "mask"))):
            raise InputError(f"{name}.deal: {field} must be a tensor, got {type(values).__name__}.")
    dim, replicas, K = environment.dim, len(environment.seeds), environment.max_arms
    shape = tuple(deal.arms.shape[:3])
    arms = "K >= 1" if K is None else f"max_arms = {K}"
    fits = deal.arms.dim() == 4 and shape[0] == replicas and deal.arms.shape[3] == dim and shape[2] > 0
    if not fits or (K is not None and shape[2] != K):
        expected = f"({replicas}, C, {arms}, {dim})"
        raise InputError(f"{name}.deal: arms must have the shape {expected}, got {tuple(deal.arms.shape)}.")
    if not 0 < shape[1] <= count:
        raise InputError(f"{name}.deal was asked for {count} rounds: expected 1 to {count}, got {shape[1]}.")
    if not deal.arms.is_floating_point():
        raise InputError(f"{name}.deal: arms must be floating-point numbers, got {deal.arms.dtype}.")
    for field, values in (("reward", deal.reward), ("regret", deal.regret), ("mask", deal.mask)):
        if values is not None and tuple(values.shape) != shape:
            raise InputError(f"{name}.deal: {field} must have the shape {shape}, got {tuple(values.shape)}.")
    if deal.regret is None and environment.knows_regret:
        raise InputError(f"{name}.deal: regret is missing; set knows_regret = False where nobody knows it.")
    mask = deal.mask
    if mask is not None:
        if mask.dtype != torch.bool:
            raise InputError(f"{name}.deal: mask must be boolean, got {mask.dtype}.")
        if not mask.any(-1).all():
            raise InputError(f"{name}.deal: mask leaves a round without arms.")
    device, like = environment.like.device, environment.like
    present = deal.reward if mask is None else deal.reward[mask]
    if not ((present == 0) | (present == 1)).all():
        raise InputError(f"{name}.deal: rewards must be 0 or 1 (a click).")
    # arms as the agent gets them; rewards and regrets as they are, for which nobody waits for a device
    dealt = deal.arms.to(like)
    if mask is not None:
        # whatever the padding holds
        mask = mask.to(device)
        dealt = dealt.masked_fill(~mask.unsqueeze(-1), 0)
    check_finite(f"{name}.deal: arms", dealt)
    check_blocks(dealt, environment.blocks)
    # an environment that does not know regrets has none, whatever it deals
    regret = deal.regret if environment.knows_regret else None
    if regret is not None:
        check_finite(f"{name}.deal: regrets", regret if deal.mask is None else regret[deal.mask])
        regret = regret.to(device)
    return Deal(dealt, deal.reward.to(like), regret, mask)
