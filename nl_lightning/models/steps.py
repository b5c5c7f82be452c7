"""Gradient steps on the regularised log-loss of R replicas, whatever the network.

    L(theta) = sum_i w_i BCE(f(x_i; theta), r_i) + lam |theta|^2          (a sum, not a mean)

In theory mode the penalty is lam |theta - theta_0|^2 (``anchor``).
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from nl_lightning.models.optimizers import StepRule

__all__ = ["in_one_row", "loss", "rates", "take_steps"]


_CLEAR_EVERY = 10
"""gradient steps"""


def take_steps(
    theta: Tensor,
    layers: Sequence[Tensor],
    move: Callable[[int], Tensor],
    lam: Tensor,
    lr: Tensor,
    steps: int,
    rule: StepRule | None,
    anchor: Sequence[Tensor] | None = None,
) -> None:
    """Take J = ``steps`` steps of the parameters ``theta``, one row of which ``layers`` (R, ...) are views.

    ``move(step)`` is what the observations add to theta: - lr times the gradient of their loss for gradient descent,
    and the gradient itself for any other ``rule`` (see ``rates``). It is overwritten.
    """
    plain = rule is None or rule.plain

    def of_replica(values: Tensor) -> Tensor:
        return in_one_row([values.view(-1, *[1] * (layer.dim() - 1)).expand_as(layer) for layer in layers])[0]

    # d/dtheta lam |theta - theta_0|^2 = 2 lam (theta - theta_0)
    shrink = 2 * lr * lam if plain else 2 * lam
    factor = of_replica(1 - shrink if plain else shrink)
    pull = None
    if anchor is not None:
        pull = in_one_row([shrink.view(-1, *[1] * (start.dim() - 1)) * start for start in anchor])[0]
    step = None if rule is None or plain else rule.start(theta, steps)
    for number in range(steps):
        if number % _CLEAR_EVERY == 0:
            _clear(theta)
        moved = move(number)
        if step is None:
            theta.mul_(factor)
            if pull is not None:
                theta.add_(pull)
            theta.add_(moved)
        else:
            moved.addcmul_(factor, theta)
            if pull is not None:
                moved.sub_(pull)
            step(moved)


def rates(lr: Tensor, rule: StepRule | None) -> Tensor:
    """(R,): what a sum of (r - mu(f)) grad f is multiplied by to make a move."""
    return lr if rule is None or rule.plain else -torch.ones_like(lr)


def loss(f: Tensor, reward: Tensor, parameters: Sequence[Tensor], lam: Tensor, weight: Tensor | None = None) -> Tensor:
    """L(theta) of each replica, (R,), with BCE(f, r) = softplus(f) - r f; f, reward, weight: (R, n).

    ``parameters`` are what the penalty is on: theta, or theta - theta_0.
    """
    bce = torch.nn.functional.softplus(f) - reward * f
    if weight is not None:
        bce = bce * weight
    return bce.sum(1) + lam * torch.stack([part.square().flatten(1).sum(1) for part in parameters]).sum(0)


def in_one_row(weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Copies of parameters (R, ...) in one row, for what is done to all entries alike, and the layers, views of it."""
    row = torch.cat([weight.flatten() for weight in weights])
    layers = row.split([weight.numel() for weight in weights])
    return row, [layer.view(weight.shape) for layer, weight in zip(layers, weights, strict=True)]


def _clear(weight: Tensor) -> None:
    """Weights so small that a product with them may not be a normal number become zero.

    Those of units that are dead, and of blocks that no chosen arm is in, shrink by 1 - 2 lr lam a step, and for numbers
    that are not normal (1e-38 in float32) a CPU takes fifty times as long.
    """
    numbers = torch.finfo(weight.dtype)
    torch.ops.aten.hardshrink.out(weight, numbers.tiny / numbers.eps, out=weight)
