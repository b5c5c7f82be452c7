"""The two matrices that an agent keeps of its observations.

With gradients g_i and weights w_i of the observations, and a weight w that is the same for all of them,

    M = sum_i w_i g_i g_i^T + ridge I          the design matrix, in whose inverse an arm's norm is taken
    E = w sum_i g_i g_i^T + I                  whose log-determinant d is the effective dimension

The radius is a function of d; it is the agent's own, because a subclass may redefine it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from nl_lightning.agents.formulas import Formulas
from nl_lightning.core.types import Factors

__all__ = ["DesignPair", "Evaluate"]

Evaluate = Callable[[Tensor], tuple[Tensor, Tensor, Factors]]
"""``Agent.evaluate``: of arms (R, N, d) their means and weights, both (R, N), and the factors of their gradients."""

_OBSERVATION_NUMBERS = 4_000_000
"""Numbers of observations that are added at once, over all replicas."""


class DesignPair:
    """M and E of R replicas.

    An observation is a row of numbers: its weight w_i, then the factors of its gradient g_i. Several observations are a
    tensor (R, N, columns).

    This is no module. The agent registers both matrices and the formulas as its own submodules. Asking a module for a
    submodule takes as long as a small operation on tensors, and what is below runs in every round.

    Args:
        formulas: those of the agent's mode, which also make the matrices.
    """

    weight: Tensor
    """(R, 1, 1), w"""

    def __init__(self, formulas: Formulas) -> None:
        self.formulas = formulas
        self.design, self.effective_dim_design = formulas.designs()
        self.columns = [1, *self.effective_dim_design.factor_sizes]
        """sizes of the parts of an observation"""
        self.derive()

    def derive(self) -> None:
        """Take on w, whenever the formulas were moved or cast."""
        self.weight = self.formulas.observation_weight().view(-1, 1, 1)

    # ---- asking -----------------------------------------------------------------------------------------------------

    def observations(self, weight: Tensor, factors: Factors, head: int = 0) -> tuple[Tensor, Factors]:
        """Rows (R, N, head + columns) of observations, and views of their factors as the design matrix takes them.

        ``weight`` is (R, N). The first ``head`` numbers of a row are left open for the caller.
        """
        rows = self.weight.new_empty(*weight.shape, head + sum(self.columns))
        first, *prepared = torch.split_with_sizes(rows[..., head:], self.columns, dim=-1)
        first.copy_(weight.unsqueeze(-1))
        self.design.prepare(factors, tuple(prepared))
        return rows, tuple(prepared)

    def prefix(self, observed: Tensor, replicas: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """What S observations (R, S, columns) would make of M and E, before each of them and after the last.

        Returns the states of M and those of E, both (R, S + 1, ...), and the effective dimension (R, S + 1). With
        ``replicas`` (indices) everything belongs to these replicas only.
        """
        weight, *picked = torch.split_with_sizes(observed, self.columns, dim=-1)
        factors, own_weight = tuple(picked), self.weight
        if replicas is not None:
            own_weight = own_weight.index_select(0, replicas)
        states = self.effective_dim_design.prefix(factors, own_weight, replicas)
        dimension = self.effective_dim_design.logdet_at(states)
        return self.design.prefix(factors, weight, replicas), states, dimension

    # ---- changing ---------------------------------------------------------------------------------------------------

    def add(self, observed: Tensor, accepted: Tensor | None = None, importance: Tensor | None = None) -> Tensor:
        """Add an observation (R, 1, columns) and return the effective dimension (R,) after it.

        Replicas with ``accepted`` (R,) False add nothing. An observation counts ``importance`` (R,) times, or once.
        """
        if accepted is not None:
            # A gradient of zeros adds nothing.
            observed = observed * accepted.view(-1, 1, 1)
        weight, *picked = torch.split_with_sizes(observed, self.columns, dim=-1)
        factors, own_weight = tuple(picked), self.weight
        if importance is not None:
            importance = importance.view(-1, 1, 1).to(weight)
            weight, own_weight = weight * importance, own_weight * importance
        # E += w g g^T,    M += w_i g g^T
        self.effective_dim_design.add(factors, own_weight, accepted)
        self.design.add(factors, weight, accepted)
        dimension = self.effective_dim_design.logdet()
        self.formulas.after_observation(self.design, dimension, accepted)
        return dimension

    def add_many(
        self, x: Tensor, importance: Tensor | None, evaluate: Evaluate, length: Tensor | None = None
    ) -> Tensor:
        """Add observations of arms x (R, n, d) and return the effective dimension (R,) after them.

        Weights and gradients are those that ``evaluate`` gives now. Each counts ``importance`` (R, n) times, or once;
        with ``length`` (R,) only the first so many of a replica count.
        """
        sizes, like = self.columns[1:], self.weight
        arms = max(1, _OBSERVATION_NUMBERS // (sum(self.columns) * len(like)))
        for first in range(0, x.shape[1], arms):
            part = slice(first, first + arms)
            _, weight, found = evaluate(x[:, part])
            factors = torch.split_with_sizes(like.new_empty(*weight.shape, sum(sizes)), sizes, dim=-1)
            self.design.prepare(found, factors)
            counted = torch.ones_like(weight, dtype=like.dtype) if importance is None else importance[:, part].to(like)
            if length is not None:
                place = torch.arange(first, first + weight.shape[1], device=length.device)
                counted = counted * (place < length.unsqueeze(1))
            # M += sum_i w_i g_i g_i^T,    E += w sum_i g_i g_i^T
            self.design.add_many(factors, (weight.to(like) * counted).unsqueeze(-1))
            self.effective_dim_design.add_many(factors, like * counted.unsqueeze(-1))
        return self.effective_dim_design.logdet()

    def clear(self) -> None:
        """Forget all observations: M = ridge I, E = I."""
        for design, new in zip((self.design, self.effective_dim_design), self.formulas.designs(), strict=True):
            design.load_state_dict(new.state_dict())

    def set_prefix(self, design: Tensor, effective_dim_design: Tensor) -> None:
        """Take on states (R, ...) of M and of E that ``prefix`` returned."""
        self.design.set_prefix(design)
        self.effective_dim_design.set_prefix(effective_dim_design)

    @contextmanager
    def reserve(self, count: int) -> Iterator[None]:
        """Have room for ``count`` observations a replica, and for no more until the context ends."""
        for design in (self.design, self.effective_dim_design):
            design.reserve(count, fixed=True)
        try:
            yield
        finally:
            for design in (self.design, self.effective_dim_design):
                design.reserve(count, fixed=False)
