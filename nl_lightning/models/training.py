"""TrainNN: full-batch gradient descent on the regularised log-loss, for R replicas at once and without autograd.

    L(theta) = sum_i BCE(f(x_i; theta), r_i) + lam |theta|^2          (a sum, not a mean)
    theta <- theta - lr grad L(theta),    J times

In theory mode f has a factor sqrt(m) (``scale``), and the penalty is lam |theta - theta_0|^2 (``anchor``).

Activations are (R, features, n): the residual (R, 1, n) then lies along the fast axis of every elementwise pass.

Two facts save work. Without biases, a row of zeros has no gradient, so padding needs no mask. And relu is homogeneous,
z_j [z_j > 0] = W_j . z_below, so with Z = residual * [z > 0] and G = Z z_below^T the gradient of the last layer is the
row sum of W_{L-1} * G: one product over the n samples less. What is left over n samples is, for L = 2, the two matrix
products W X^T and Z X, a relu, a mask and a product with one row.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from nl_lightning.core.replicas import pad_singleton
from nl_lightning.models.inputs import Inputs, equal_parts, inputs, parts
from nl_lightning.models.mlp import activations

__all__ = ["DIVERGED_LOSS", "Descent", "GradientDescent", "descend", "has_diverged", "loss", "train", "train_nn"]


LR, STEPS = 0.01, 100
"""Step and number of steps of practical mode, where none are given."""

_CLEAR_EVERY = 10
"""gradient steps"""

DIVERGED_LOSS = 1000.0
"""TrainNN has diverged when its loss is this many times that of f = 0."""


class Descent(NamedTuple):
    """How R replicas go down, and on which loss."""

    lr: Tensor
    """(R,)"""
    steps: int | Tensor
    """J, or (R,)"""
    lam: Tensor
    """(R,), the factor of the penalty"""
    scale: float = 1.0
    """the factor of f"""
    anchor: Sequence[Tensor] | None = None
    """theta_0, where the penalty is on the distance from it"""

    def of(self, replicas: Tensor) -> "Descent":
        """That of some replicas, by their numbers."""
        anchor = None if self.anchor is None else [weight[replicas] for weight in self.anchor]
        steps = self.steps if isinstance(self.steps, int) else self.steps[replicas]
        return Descent(self.lr[replicas], steps, self.lam[replicas], self.scale, anchor)

    def is_unstable(self) -> Tensor:
        """(R,): theta <- (1 - 2 lr lam) theta - ... does not contract from lr lam = 1 on"""
        return self.lr * self.lam >= 1

    def why_diverged(self, replica: int) -> str:
        """What happened, and what to change."""
        lr, lam = float(self.lr[replica]), float(self.lam[replica])
        grew = lr * lam < 1
        if self.anchor is not None:
            advice = f"take a smaller lr (it is {lr:g}) or, where that comes from the paper's Condition, a smaller C5"
            if grew:
                return f"the loss grew beyond all bounds; {advice}, and arms x of length 1"
            return f"lr * m lam_t / 2 = {lr * lam:g}, and descent does not contract from 1 on; {advice}"
        if grew:
            return f"the loss grew beyond all bounds; take a smaller lr (it is {lr:g}) or a larger lam"
        return (
            f"lr * lam = {lr * lam:g}, and descent on lam |theta|^2 does not contract from 1 on; "
            f"take lam < {1 / lr:g} or lr < {1 / lam:g}"
        )


def train(
    weights: Sequence[Tensor],
    initial: Sequence[Tensor],
    x: Tensor,
    reward: Tensor,
    descent: Descent,
    inactive: Tensor,
    some_inactive: bool,
    cold: bool,
    blocks: int = 1,
) -> Tensor | None:
    """TrainNN of all replicas but the ``inactive`` (R,) ones, changing ``weights`` in place.

    Starts from the ``initial`` weights where ``cold``. Returns the replicas (R,) that diverged, whose weights are put
    back, or None where there are none. ``some_inactive`` says whether there may be inactive ones, without asking a
    device.
    """
    trained: list[Tensor] = list(weights)
    moving = _active(inactive) if some_inactive else None
    if moving is not None:
        if not len(moving):
            return None
        # Inactive replicas take no time: the others are trained apart.
        x, reward, descent = x[moving], reward[moving], descent.of(moving)
        trained = [weight[moving] for weight in trained]
    before = [weight.clone() for weight in trained]
    if cold:
        for weight, start in zip(trained, initial, strict=True):
            weight.copy_(start if moving is None else start[moving])
    unstable = descent.is_unstable()
    loss = descend(trained, x, reward, descent, unstable, blocks)
    failed = unstable | has_diverged(loss, observations=x.shape[1])
    any_failed = bool(failed.any())
    if any_failed:
        for weight, old in zip(trained, before, strict=True):
            weight.copy_(torch.where(failed[:, None, None], old, weight))
    if moving is not None:
        for weight, new in zip(weights, trained, strict=True):
            weight.index_copy_(0, moving, new)
    if not any_failed:
        return None
    return failed if moving is None else torch.zeros_like(inactive).index_fill_(0, moving[failed], True)


def _active(inactive: Tensor) -> Tensor | None:
    """The indices of the replicas that are not inactive; None where that is all of them."""
    active = (~inactive).nonzero().flatten().tolist()
    if len(active) == len(inactive):
        return None
    return torch.tensor(pad_singleton(active, len(inactive)), device=inactive.device, dtype=torch.long)


def descend(
    weights: Sequence[Tensor], x: Tensor, reward: Tensor, descent: Descent, inactive: Tensor, blocks: int = 1
) -> Tensor:
    """TrainNN of all replicas but the ``inactive`` (R,) ones; returns the loss, (R,)."""
    lr, lam = descent.lr.masked_fill(inactive, 0).to(x.dtype), descent.lam.to(x.dtype)
    if isinstance(descent.steps, int):
        train_nn(weights, x, reward, lam, lr, descent.steps, descent.scale, descent.anchor, blocks)
    else:
        # All go together, until one after the other has taken its steps.
        steps, taken = descent.steps.masked_fill(inactive, 0), 0
        for stop in sorted({*steps.tolist()} - {0}):
            going = lr.masked_fill(steps <= taken, 0)
            train_nn(weights, x, reward, lam, going, stop - taken, descent.scale, descent.anchor, blocks)
            taken = stop
    # in parts, like TrainNN
    f = torch.cat([activations(weights, part, blocks)[-1] for part in parts(x)], dim=1).squeeze(-1)
    f *= descent.scale
    penalised = weights if descent.anchor is None else [w - a for w, a in zip(weights, descent.anchor, strict=True)]
    return loss(f, reward, penalised, lam)


@torch.inference_mode()
def train_nn(
    weights: Sequence[Tensor],
    x: Tensor,
    reward: Tensor,
    lam: Tensor,
    lr: Tensor,
    steps: int,
    scale: float = 1.0,
    anchor: Sequence[Tensor] | None = None,
    blocks: int = 1,
) -> None:
    """Take J = ``steps`` gradient steps, changing ``weights`` in place.

    weights: L tensors (R, out, in); x: (R, n, d), with blocks (x, k); reward: (R, n); lam, lr: (R,). A replica with
    lr = 0 stays as it is.
    """
    samples = inputs(x, blocks)
    replicas, n = len(x), samples[0].size
    theta, layers = _in_one_row([samples[0].unpack(weights[0]), *weights[1:]])
    hidden, first, last = layers[:-1], layers[0], layers[-1]
    # d/dtheta lam |theta - theta_0|^2 = 2 lam (theta - theta_0)
    shrink = (2 * lr * lam)[:, None, None]
    decay, _ = _in_one_row([(1 - shrink).expand_as(layer) for layer in layers])
    pull = None
    if anchor is not None:
        pull, _ = _in_one_row([shrink * start for start in (samples[0].unpack(anchor[0]), *anchor[1:])])
    # d f / d theta has the factor of f
    rate = (lr * scale)[:, None, None]
    # all samples of blocks are in one part
    rewards = [reward] if blocks > 1 else equal_parts(reward)
    numbered = [
        (number, part, rate * part.arrange(values)[:, None, :])
        for number, (part, values) in enumerate(zip(samples, rewards, strict=True))
    ]
    # scalars as tensors: torch takes longer for numbers of Python
    one, minus_scale = x.new_ones(()), x.new_full((), -scale)
    # - scale f, and then in its place the residual rate (r - mu(scale f)), rate = lr scale: with it a sum of gradients
    # is a move, - lr times the gradient of the loss
    minus_f = x.new_empty(replicas, 1, n)
    # of each hidden layer, (R, out, in), or of the only one; of the top one without its factor W_L
    moves = [torch.empty_like(layer) for layer in hidden or layers]

    def to_residual(rate_reward: Tensor) -> None:
        # rate r - rate / (1 + exp(- scale f)); why not by sigmoid: see ``link``
        torch.addcdiv(rate_reward, rate, minus_f.exp_().add_(one), value=-1, out=minus_f)

    def regularise() -> None:
        theta.mul_(decay)
        if pull is not None:
            theta.add_(pull)

    def put_back() -> None:
        samples[0].pack(first, weights[0])
        for weight, layer in zip(weights[1:], layers[1:], strict=True):
            weight.copy_(layer)

    if not hidden:
        for step_number in range(steps):
            if step_number % _CLEAR_EVERY == 0:
                _clear(theta)
            for number, part, rate_reward in numbered:
                part.product(first, out=minus_f).mul_(minus_scale)
                to_residual(rate_reward)
                part.gradient(minus_f, moves[0], add=number > 0)
            regularise()
            first.add_(moves[0])
        put_back()
        return

    # z_1, ..., z_{L-1}, each (R, out, n')
    z = [x.new_empty(replicas, weight.shape[1], n) for weight in weights[:-1]]
    above_first = list(zip(hidden[1:], z, z[1:], strict=False))
    below = list(reversed(range(len(hidden) - 1)))
    # Views made once: they follow what is changed in place.
    top, z_first, z_top, last_column = hidden[-1], z[0], z[-1], last.mT
    residual_rows = minus_f.expand_as(z_top)
    # All that is as long as the samples is made here, so that the loop asks the system for no memory. The top layer's
    # delta takes the place of its z, which nobody needs then.
    deltas = [torch.empty_like(z_l) for z_l in z[:-1]]

    def add_move(layer: int, delta: Tensor, number: int, part: Inputs) -> None:
        """sum_i delta_i (x) z_i"""
        if not layer:
            part.gradient(delta, moves[0], add=number > 0)
        elif number:
            moves[layer].baddbmm_(delta, z[layer - 1].mT)
        else:
            torch.bmm(delta, z[layer - 1].mT, out=moves[layer])

    # blocks of the first layer lie one below the other, and each has all units
    copies = top.shape[1] // last.shape[2]
    for step_number in range(steps):
        if step_number % _CLEAR_EVERY == 0:
            _clear(theta)
        if below:
            top_factor = last_column * top
        for number, part, rate_reward in numbered:
            part.product(first, out=z_first).relu_()
            for weight, z_below, z_l in above_first:
                torch.bmm(weight, z_below, out=z_l).relu_()
            minus_f.baddbmm_(last, z_top, beta=0, alpha=-scale)
            to_residual(rate_reward)
            if copies > 1:
                # a layer of blocks has more entries than there are samples, which are all in one part
                last_move = torch.bmm(z_top, minus_f.mT)
            # Z = residual * [z > 0]; delta_{L-1} = diag(W_L) Z, whose factor W_L is multiplied to the small matrices
            delta = _masked(residual_rows, z_top, 0, grad_input=z_top)
            add_move(len(hidden) - 1, delta, number, part)
            for layer in below:
                above = top_factor if layer == len(hidden) - 2 else hidden[layer + 1]
                torch.bmm(above.mT, delta, out=deltas[layer])
                delta = _masked(deltas[layer], z[layer], 0, grad_input=deltas[layer])
                add_move(layer, delta, number, part)
        if copies == 1:
            last_move = (top * moves[-1]).sum(-1, keepdim=True)
            moves[-1].mul_(last_column)
        else:
            moves[-1].mul_(last_column.repeat(1, copies, 1))
        regularise()
        for weight, move in zip(hidden, moves, strict=True):
            weight.add_(move)
        last_column.add_(last_move)
    put_back()


def loss(f: Tensor, reward: Tensor, parameters: Sequence[Tensor], lam: Tensor) -> Tensor:
    """L(theta) of each replica, (R,), with BCE(f, r) = softplus(f) - r f; f, reward: (R, n).

    ``parameters`` are what the penalty is on: theta, or theta - theta_0.
    """
    bce = (torch.nn.functional.softplus(f) - reward * f).sum(1)
    return bce + lam * torch.stack([part.square().flatten(1).sum(1) for part in parameters]).sum(0)


def has_diverged(loss: Tensor, observations: int) -> Tensor:
    """Whether a loss, (R,), is not finite or far above n log 2, that of no network at all (f = 0)."""
    return ~(loss <= DIVERGED_LOSS * math.log(2) * (1 + observations))


class GradientDescent(Optimizer):
    """One step is the whole TrainNN, handed over as the closure.

    J calls of Lightning's optimizer hooks would cost more than the J gradient steps between them.
    """

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        closure()


def _in_one_row(weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Copies of weights (R, out, in) in one row, for what is done to all entries alike, and the layers, views of it."""
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


# (gradient, z, 0) -> gradient * [z > 0] in one pass
_masked = torch.ops.aten.threshold_backward.grad_input
