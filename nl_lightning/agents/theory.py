"""Theory mode: the paper's Algorithms 1 and 2 as printed (NeuralLog-UCB-1, -UCB-2 and their Thompson variants).

    f(x; theta) = sqrt(m) W_L relu(... relu(W_1 x')),   x' = [x, x]/sqrt(2),   g = grad_theta f
    phi(x) = g(x; theta_0)/sqrt(m),   theta_0 the symmetric start: f(x; theta_0) = 0

Gradients are those at theta_0, design matrices are whole, and lam_t grows with the data (``radii.TheoryRadius``).

The symmetric start makes whole matrices four times smaller, exactly. Its units come in pairs with equal z and opposite
delta, so on inputs [x, x]/sqrt(2) a gradient is

    delta_l (x) z_{l-1} = [a, -a] (x) [b, b],    z_{L-1} = [b, b],

and all inner products are those of the halves (sqrt(2) a) (x) (sqrt(2) b) and sqrt(2) b: phi lies in a subspace of a
quarter of the dimensions, and across it a design matrix is its ridge. What is called phi below are the factors of these
halves. TrainNN parts the pairs, so that the network itself keeps all its weights.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from nl_lightning.agents.formulas import Formulas
from nl_lightning.agents.radii import TheoryRadius, condition
from nl_lightning.core.errors import InputError
from nl_lightning.core.link import slope
from nl_lightning.core.types import Factors
from nl_lightning.designs import AdaptiveDesign, DesignMatrix, FullDesign
from nl_lightning.models.base import Descent, RewardModel, select
from nl_lightning.models.layers import activations, factors
from nl_lightning.models.optimizers import StepRule

__all__ = ["Constants", "Theory", "doubled"]


_STEPS = 1_000_000
"""More gradient steps in one call of TrainNN are a mistake."""


class Constants(NamedTuple):
    """The absolute constants that the theory leaves open."""

    C1: float
    C4: float
    C5: float
    C6: float
    C7: float


class Theory(Formulas):
    """The formulas of theory mode, and what it keeps beside network and design matrices: t and lam_t.

    Args:
        network: the network at its symmetric start, on 2d inputs.
        S, kappa: (R,).
        factor: (R,), by which nu_t is multiplied to the radius.
        weighted: whether the design matrix is W_t, or V_t.
        delta: confidence level.
        constants: C1 and the others.
    """

    unused = ("nu", "lam")

    t: Tensor
    """(R,), observed rounds"""
    lam: Tensor
    """(R,), lam_t"""
    S: Tensor
    kappa: Tensor
    factor: Tensor

    def __init__(
        self,
        network: RewardModel,
        S: Tensor,
        kappa: Tensor,
        factor: Tensor,
        weighted: bool,
        delta: float,
        constants: Constants,
    ) -> None:
        super().__init__()
        self.weighted, self.constants = weighted, constants
        self.depth, self.width = len(network.shapes), network.shapes[-1][1]
        self.scale = math.sqrt(self.width)
        self.shapes = [(max(1, n_out // 2), n_in // 2) for n_out, n_in in network.shapes]
        """of the halves"""
        self.delta = delta
        for name, values in (("S", S), ("kappa", kappa), ("factor", factor)):
            self.register_buffer(name, values, persistent=False)
        self._set_radii()
        lam_0 = self.radii.lam_0
        self.register_buffer("t", torch.zeros_like(lam_0, dtype=torch.long))
        self.register_buffer("lam", lam_0.clone())

    def _set_radii(self) -> None:
        """lam_t, iota_t, nu_t as functions of D_t and t, which follow from the settings."""
        C = self.constants.C7 if self.weighted else self.constants.C6
        self.radii = TheoryRadius(self.S, self.depth, self.delta, self.constants.C1, C)

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> "Theory":
        """Move or cast: what is derived from the buffers goes along."""
        super()._apply(fn, *args, **kwargs)
        self._set_radii()
        return self

    def designs(self) -> tuple[DesignMatrix, DesignMatrix]:
        """The design matrix V_t = sum phi phi^T + kappa lam_t I or W_t = sum mu'(f) phi phi^T + lam_t I, and the matrix
        sum phi phi^T / (4 lam_0) + I of D_t."""
        return AdaptiveDesign(self.shapes, self.ridge()), FullDesign(self.shapes, torch.ones_like(self.lam))

    # ---- asking -----------------------------------------------------------------------------------------------------

    def evaluate(
        self, network: RewardModel, initial: Sequence[Tensor], arms: Tensor, replicas: Tensor | None
    ) -> tuple[Tensor, Tensor, Factors]:
        """Of arms (R, N, d): f and what the score begins with, (R, N), and the factors of phi.

        The score begins with f(x; theta) beside V_t, and with g(x; theta_0)^T (theta - theta_0) beside W_t.
        """
        weights, initial = select(network.weights, replicas), select(initial, replicas)
        f = self.f(weights, arms)
        halves = [w[:, :n_out, :n_in] for w, (n_out, n_in) in zip(initial, self.shapes, strict=True)]
        root = math.sqrt(2)
        phi = tuple(factor * root for factor in factors(halves, arms / root)[1])
        return f, self._linear(weights, initial, phi) if self.weighted else f, phi

    def f(self, weights: Sequence[Tensor], x: Tensor) -> Tensor:
        """f(x; theta), (R, N), for x (R, N, d)"""
        return activations(weights, doubled(x))[-1].squeeze(-1).mul_(self.scale)

    def _linear(self, weights: Sequence[Tensor], start: Sequence[Tensor], phi: Factors) -> Tensor:
        """g(x; theta_0)^T (theta - theta_0) = sqrt(m) phi . (theta - theta_0), (R, N)"""
        moved = self.halved([w - w_0 for w, w_0 in zip(weights, start, strict=True)])
        total = torch.bmm(phi[-1], moved[-1].mT).squeeze(-1)
        for delta, z, change in zip(phi[::2], phi[1::2], moved, strict=False):
            total += (torch.bmm(delta, change) * z).sum(-1)
        return total.mul_(self.scale)

    def halved(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """What phi sees of parameters (R, out, in): its inner product with them is that of its halves with these."""
        found = []
        for values, (n_out, n_in) in zip(parameters[:-1], self.shapes, strict=False):
            signed = values[:, :n_out] - values[:, n_out:]
            found.append((signed[..., :n_in] + signed[..., n_in:]) / 2)
        last = parameters[-1]
        n_in = self.shapes[-1][1]
        return [*found, (last[..., :n_in] + last[..., n_in:]) / math.sqrt(2)]

    def descent(
        self, rule: StepRule, lr: float | None, steps: int | None, horizon: int | None, initial: Sequence[Tensor]
    ) -> Descent:
        """TrainNN on sum BCE + m lam_t/2 |theta - theta_0|^2; step and steps as given, or else as in the Condition."""
        if horizon is None:
            if lr is None or steps is None:
                raise InputError(
                    "In theory mode lr and steps come from the paper's Condition, which needs the number T of rounds: "
                    "give the agent a horizon (a fit takes data.rounds), or both lr and steps."
                )
            horizon = 1
        C4, C5 = self.constants.C4, self.constants.C5
        step, count = condition(self.lam, self.S, self.width, self.depth, horizon, C4, C5)
        if steps is None and (most := int(count.max())) > _STEPS:
            raise InputError(
                f"The paper's Condition asks for J = {most:,} gradient steps in one call of TrainNN (lam_t is "
                f"{float(self.lam.min()):.3g}, T is {horizon}); give steps and lr, or take a smaller S."
            )
        return Descent(
            lr=step if lr is None else torch.full_like(step, lr),
            steps=count if steps is None else steps,
            lam=self.width * self.lam / 2,
            scale=self.scale,
            anchor=initial,
        )

    def observation_weight(self) -> Tensor:
        """(R,): 1/(4 lam_0), of a round in D_t"""
        return 1 / (4 * self.radii.lam_0)

    def ridge(self) -> Tensor:
        """(R,): kappa lam_t of V_t, lam_t of W_t"""
        return self.lam if self.weighted else self.kappa * self.lam

    def inputs(self, x: Tensor) -> Tensor:
        return doubled(x)

    def lam_at(self, dimension: Tensor, t: Tensor) -> Tensor:
        return self.radii.lam(dimension, t.unsqueeze(1).to(self.lam.device))

    def identity(self) -> dict[str, Any]:
        return {"delta": self.delta, **self.constants._asdict()}

    def radius(self, dimension: Tensor) -> Tensor:
        """(R,), by which |phi| is multiplied, at D_t"""
        return self.factor * self.radii.nu(dimension, self.t)

    # ---- changing ---------------------------------------------------------------------------------------------------

    def after_observation(self, design: DesignMatrix, dimension: Tensor, accepted: Tensor | None) -> None:
        """t and lam_t after a round, with D_t (R,); t does not grow where ``accepted`` (R,) is False."""
        self.t.add_(1 if accepted is None else accepted)
        self.lam.copy_(self.radii.lam(dimension, self.t))
        cast(AdaptiveDesign, design).set_ridge(self.ridge())

    def after_training(self, design: DesignMatrix, weights: Sequence[Tensor], newest: Tensor, replicas: Tensor) -> None:
        """W_t weighs round t by mu'(f(x_t; theta_t)): by the parameters in force at the next decision."""
        if self.weighted:
            weight = slope(self.f(weights, newest)).squeeze(1)
            cast(AdaptiveDesign, design).reweigh(weight, replicas & (self.t > 0))


def doubled(x: Tensor) -> Tensor:
    """x' = [x, x]/sqrt(2), which has the norm of x"""
    return torch.cat([x, x], dim=-1) / math.sqrt(2)
