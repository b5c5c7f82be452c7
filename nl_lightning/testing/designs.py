"""What a design matrix promises."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nl_lightning.core.types import Factors
from nl_lightning.designs import DesignMatrix, make_design
from nl_lightning.models.mlp import MLP

__all__ = ["check_design"]

_CPU = torch.device("cpu")
_DIM, _ROUNDS = 3, 9


def check_design(
    design: str | type[DesignMatrix],
    design_args: dict[str, Any] | None = None,
    layers: Sequence[int] = (4, 1),
    blocks: int = 1,
) -> None:
    """Check the promises of a design matrix.

    Norms are finite and at least 0; a gradient of zeros changes nothing; an observation lowers the norm in its own
    direction and raises the log-determinant; replicas do not depend on each other; a state that is stored and loaded
    continues to the same bits; and where it can look ahead, prefix states are those of adding one by one.

    Args:
        design: its name, class or import path.
        design_args: its settings.
        layers: sizes of the network's layers after the inputs.
        blocks: number of blocks that arms stand in.
    """
    suite = _Suite(design, design_args, layers, blocks)
    suite.asks_and_adds()
    suite.ignores_zeros()
    suite.keeps_replicas_apart()
    suite.stores_its_state()
    if suite.make().can_look_ahead:
        suite.looks_ahead()


class _Suite:
    def __init__(self, design: Any, design_args: Any, layers: Sequence[int], blocks: int) -> None:
        self.design, self.design_args, self.blocks = design, design_args, blocks
        self.network = MLP([_DIM * blocks, *layers], [0, 1, 2], blocks=blocks).double()
        self.ridge = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64, device=_CPU)
        g = torch.Generator(_CPU).manual_seed(1)
        x = torch.randn(3, _ROUNDS, _DIM, generator=g, dtype=torch.float64, device=_CPU)
        if blocks > 1:
            number = torch.randint(blocks, (3, _ROUNDS, 1), generator=g, device=_CPU)
            x = torch.cat([x, number.double()], dim=-1)
        with torch.no_grad():
            self.factors = self.network.factors(x)[1]
        self.weight = torch.rand(3, _ROUNDS, 1, generator=g, dtype=torch.float64, device=_CPU) + 0.1

    def make(self, replicas: Sequence[int] = (0, 1, 2)) -> DesignMatrix:
        ridge = self.ridge[list(replicas)]
        return make_design(self.design, self.network.shapes, ridge, self.blocks, self.design_args)

    def prepared(self, design: DesignMatrix, replicas: Sequence[int] = (0, 1, 2)) -> Factors:
        """All samples as the design takes them."""
        factors = tuple(factor[list(replicas)] for factor in self.factors)
        shape = (len(replicas), _ROUNDS)
        places = tuple(self.ridge.new_empty(*shape, size) for size in design.factor_sizes)
        design.prepare(factors, places)
        return places

    def add(self, design: DesignMatrix, start: int, stop: int, replicas: Sequence[int] = (0, 1, 2)) -> None:
        prepared = self.prepared(design, replicas)
        for t in range(start, stop):
            sample = tuple(factor[:, t : t + 1] for factor in prepared)
            design.add(sample, self.weight[list(replicas), t : t + 1])

    def asks_and_adds(self) -> None:
        design = self.make()
        prepared = self.prepared(design)
        before, logdet = design.norm(prepared), design.logdet()
        assert before.shape == (3, _ROUNDS), f"norm must return (R, N) = (3, {_ROUNDS}), got {tuple(before.shape)}"
        assert logdet.shape == (3,), f"logdet must return (R,) = (3,), got {tuple(logdet.shape)}"
        assert before.isfinite().all(), "norm must be finite"
        assert (before >= 0).all(), "norm must be at least 0"
        again = design.norm(self.prepared(design))
        assert torch.equal(before, again), "norm must change nothing: asked twice, it gives two answers"
        self.add(design, 0, 1)
        after = design.norm(self.prepared(design))
        # a gradient of zeros, of a network whose units are all off, has no direction
        seen = before[:, 0] > 0
        assert seen.any(), "norm must be above 0 where a gradient is not zero"
        assert (after[seen, 0] < before[seen, 0]).all(), "an observation must lower the norm in its own direction"
        assert (design.logdet()[seen] > logdet[seen]).all(), "an observation must raise the log-determinant"

    def ignores_zeros(self) -> None:
        """Replicas that learn nothing from a round add a gradient of zeros."""
        design = self.make()
        self.add(design, 0, 3)
        before, logdet = design.norm(self.prepared(design)), design.logdet()
        nothing = tuple(torch.zeros_like(factor[:, :1]) for factor in self.prepared(design))
        accepted = torch.zeros(3, dtype=torch.bool, device=_CPU)
        design.add(nothing, torch.ones_like(self.weight[:, :1]), accepted)
        _close(design.norm(self.prepared(design)), before, "a gradient of zeros must not change norms")
        _close(design.logdet(), logdet, "a gradient of zeros must not change the log-determinant")

    def keeps_replicas_apart(self) -> None:
        together, alone = self.make(), self.make([1])
        self.add(together, 0, _ROUNDS)
        self.add(alone, 0, _ROUNDS, [1])
        expected = together.norm(self.prepared(together))[1:2]
        _close(alone.norm(self.prepared(alone, [1])), expected, "a replica's norm must not depend on other replicas")
        _close(alone.logdet(), together.logdet()[1:2], "a replica's logdet must not depend on other replicas")
        if together.can_take_subsets:
            some = torch.tensor([2, 0], device=_CPU)
            factors = tuple(factor.index_select(0, some) for factor in self.prepared(together))
            found, expected = together.norm(factors, some), together.norm(self.prepared(together)).index_select(0, some)
            _close(found, expected, "norm(factors, replicas) must be that of these replicas")

    def stores_its_state(self) -> None:
        design = self.make()
        self.add(design, 0, 5)
        stored = copy.deepcopy(design.state_dict())
        for name, value in stored.items():
            if isinstance(value, Tensor):
                assert len(value) == 3, f"the first dimension of the buffer {name} must be R"
        loaded = self.make()
        loaded.load_state_dict(stored)
        for one in (design, loaded):
            self.add(one, 5, _ROUNDS)
        same = torch.equal(design.norm(self.prepared(design)), loaded.norm(self.prepared(loaded)))
        assert same, "a loaded state must continue to the same bits: is a part of the state not in a buffer?"
        assert torch.equal(design.logdet(), loaded.logdet()), "a loaded state must continue to the same bits"

    def looks_ahead(self) -> None:
        design, one_by_one = self.make(), self.make()
        for each in (design, one_by_one):
            self.add(each, 0, 2)
        prepared = self.prepared(design)
        later = tuple(factor[:, 2:] for factor in prepared)
        states = design.prefix(later, self.weight[:, 2:])
        logdets = design.logdet_at(states)
        # the samples themselves as the arms of each round
        shown = tuple(factor.unsqueeze(2) for factor in later)
        norms = design.norm_at(states[:, :-1], shown).squeeze(2)
        for t in range(2, _ROUNDS):
            sample = tuple(factor[:, t : t + 1] for factor in prepared)
            _close(norms[:, t - 2 : t - 1], one_by_one.norm(sample), "norm_at must be norm after adding one by one")
            _close(logdets[:, t - 2], one_by_one.logdet(), "logdet_at must be logdet after adding one by one")
            self.add(one_by_one, t, t + 1)
        design.set_prefix(states[:, -1])
        _close(design.norm(prepared), one_by_one.norm(prepared), "set_prefix must take on the state")
        _close(design.logdet(), one_by_one.logdet(), "set_prefix must take on the state")


def _close(found: Tensor, expected: Tensor, promise: str) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10, msg=lambda text: f"{promise}\n{text}")
