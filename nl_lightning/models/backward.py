"""TrainNN of fully connected layers for R replicas at once, without autograd.

    theta <- theta - lr grad L(theta),  J times, or another rule

In theory mode f has a factor sqrt(m) (``scale``), and the penalty is lam |theta - theta_0|^2 (``anchor``).

Activations are (R, features, n): the residual (R, 1, n) then lies along the fast axis of every elementwise pass.

Two facts save work. Without biases, a row of zeros has no gradient, so padding needs no mask. And relu is homogeneous,
z_j [z_j > 0] = W_j . z_below, so with Z = residual * [z > 0] and G = Z z_below^T the gradient of the last layer is the
row sum of W_{L-1} * G: one product over the n samples less. What is left over n samples is, for L = 2, the two matrix
products W X^T and Z X, a relu, a mask and a product with one row.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nl_lightning.models.inputs import Inputs, equal_parts, inputs
from nl_lightning.models.minibatches import Minibatches
from nl_lightning.models.optimizers import StepRule
from nl_lightning.models.steps import in_one_row, rates, take_steps

__all__ = ["train_nn"]


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
    weight: Tensor | None = None,
    bias: bool = False,
    rule: StepRule | None = None,
    batches: Minibatches | None = None,
) -> None:
    """Take J = ``steps`` gradient steps, changing ``weights`` in place.

    weights: L tensors (R, out, in); x: (R, n, d), with blocks (x, k); reward and, where observations have one, weight:
    (R, n); lam, lr: (R,). A replica with lr = 0 stays as it is under gradient descent; another ``rule`` has its own lr.
    With ``bias`` the input of every layer gets a 1 at its end; rows of x that only fill up then need a weight of 0.
    ``batches`` are the samples of each step; left out, each step takes all of them.
    """
    if bias and weight is None:
        # what fills up must not pull at a bias
        weight = torch.ones_like(reward)
    everything = _Samples(x, reward, weight, blocks, bias)
    rate = (rates(lr, rule) * scale)[:, None, None]
    samples = everything if batches is None else everything.batch(batches, 0)
    first = samples.inputs[0]
    theta, layers = in_one_row([first.unpack(weights[0]), *weights[1:]])
    starts = None if anchor is None else [first.unpack(anchor[0]), *anchor[1:]]
    network = _Backward(layers, first.size, scale, bias)
    parts = samples.with_rate(rate)

    def move(step: int) -> Tensor:
        if batches is None:
            return network.move(parts)
        batch = everything.batch(batches, step).with_rate(rate)
        size = batch[0].inputs.size
        # blocks of a batch may fill up to another size
        fitting = network if size == first.size else _Backward(layers, size, scale, bias)
        return fitting.move(batch)

    take_steps(theta, layers, move, lam, lr, steps, rule, starts)
    first.pack(layers[0], weights[0])
    for weight_l, layer in zip(weights[1:], layers[1:], strict=True):
        weight_l.copy_(layer)


class _Part(NamedTuple):
    """Samples that are taken at once: inputs, and rate w r and rate w as (R, 1, n)."""

    inputs: Inputs
    rate_reward: Tensor
    rate: Tensor


class _Samples:
    """The samples of R replicas in parts of equal size: x (R, n, d), reward (R, n), weight (R, n) or None."""

    def __init__(self, x: Tensor, reward: Tensor, weight: Tensor | None, blocks: int, bias: bool) -> None:
        self.x, self.reward, self.weight, self.blocks, self.bias = x, reward, weight, blocks, bias
        self._inputs: Sequence[Inputs] | None = None

    @property
    def inputs(self) -> Sequence[Inputs]:
        if self._inputs is None:
            self._inputs = inputs(self.x, self.blocks, self.bias)
        return self._inputs

    def batch(self, batches: Minibatches, step: int) -> "_Samples":
        """Those of a step."""
        place, weight = batches.place[step], batches.weight
        x = self.x.gather(1, place.unsqueeze(-1).expand(-1, -1, self.x.shape[2]))
        if self.weight is not None:
            weight = weight * self.weight.gather(1, place)
        return _Samples(x, self.reward.gather(1, place), weight, self.blocks, self.bias)

    def with_rate(self, rate: Tensor) -> list[_Part]:
        """``rate`` is (R, 1, 1)."""

        def split(values: Tensor) -> Sequence[Tensor]:
            # all samples of blocks are in one part
            return [values] if self.blocks > 1 else equal_parts(values)

        rewards = split(self.reward)
        weights = [None] * len(rewards) if self.weight is None else split(self.weight)
        parts = []
        for part, values, weight in zip(self.inputs, rewards, weights, strict=True):
            of_part = rate if weight is None else rate * part.arrange(weight)[:, None, :]
            parts.append(_Part(part, of_part * part.arrange(values)[:, None, :], of_part))
        return parts


class _Backward:
    """Forward and backward through a network of R replicas, in memory that is asked for once.

    Args:
        layers: (R, out, in), the first one as its inputs want it.
        n: samples of a part.
        scale: factor of f.
        bias: whether the input of every layer ends in a 1.
    """

    def __init__(self, layers: Sequence[Tensor], n: int, scale: float, bias: bool) -> None:
        theta, replicas = layers[0], len(layers[0])
        self.bias = bias
        self.hidden, self.first, self.last = layers[:-1], layers[0], layers[-1]
        self.scale = scale
        # scalars as tensors: torch takes longer for numbers of Python
        self.one, self.minus_scale = theta.new_ones(()), theta.new_full((), -scale)
        # - scale f, and then in its place the residual rate (r - mu(scale f))
        self.minus_f = theta.new_empty(replicas, 1, n)
        # what is added to theta; of the top hidden layer at first without its factor W_L
        self.row, self.moves = in_one_row([torch.empty_like(layer) for layer in layers])
        if not self.hidden:
            return
        # units of each hidden layer
        sizes = [layer.shape[2] - bias for layer in layers[1:]]
        # blocks of the first layer lie one below the other, and each has all units
        self.copies = self.hidden[-1].shape[1] // sizes[-1]
        # z_1, ..., z_{L-1}, each (R, out, n), and as inputs of the next layer
        self.inputs = [theta.new_ones(replicas, size + bias, n) for size in sizes]
        self.z = [z[:, :size] for z, size in zip(self.inputs, sizes, strict=True)]
        self.above_first = list(zip(self.hidden[1:], self.inputs, self.z[1:], strict=False))
        self.below = list(reversed(range(len(self.hidden) - 1)))
        # Views made once: they follow what is changed in place.
        self.top, self.last_column = self.hidden[-1], self.last[..., : sizes[-1]].mT
        self.without_bias = [layer[..., : layer.shape[2] - bias] for layer in self.hidden]
        self.residual_rows = self.minus_f.expand_as(self.z[-1])
        # All that is as long as the samples is made here, so that the loop asks the system for no memory. The top
        # layer's delta takes the place of its z, which nobody needs then.
        self.deltas = [torch.empty_like(z) for z in self.z[:-1]]

    def move(self, samples: Sequence[_Part]) -> Tensor:
        """sum_i rate w_i (r_i - mu(scale f_i)) grad f_i, in one row"""
        if not self.hidden:
            for number, part in enumerate(samples):
                part.inputs.product(self.first, out=self.minus_f).mul_(self.minus_scale)
                self._to_residual(part)
                part.inputs.gradient(self.minus_f, self.moves[0], add=number > 0)
            return self.row
        if self.below:
            top_factor = self.last_column * self.without_bias[-1]
        of_last = self.moves[-1]
        units = self.last_column.shape[1]
        for number, part in enumerate(samples):
            part.inputs.product(self.first, out=self.z[0]).relu_()
            for weight, z_below, z_l in self.above_first:
                torch.bmm(weight, z_below, out=z_l).relu_()
            self.minus_f.baddbmm_(self.last, self.inputs[-1], beta=0, alpha=-self.scale)
            self._to_residual(part)
            if self.copies > 1:
                # a layer of blocks has more entries than there are samples, which are all in one part
                of_last.copy_(torch.bmm(self.inputs[-1], self.minus_f.mT).mT)
            elif self.bias:
                total = self.minus_f.sum(-1, keepdim=True)
                of_last[..., units:] = total if number == 0 else of_last[..., units:] + total
            # Z = residual * [z > 0]; delta_{L-1} = diag(W_L) Z, whose factor W_L is multiplied to the small matrices
            delta = _masked(self.residual_rows, self.z[-1], 0, grad_input=self.z[-1])
            self._add_move(len(self.hidden) - 1, delta, number, part.inputs)
            for layer in self.below:
                above = top_factor if layer == len(self.hidden) - 2 else self.without_bias[layer + 1]
                torch.bmm(above.mT, delta, out=self.deltas[layer])
                delta = _masked(self.deltas[layer], self.z[layer], 0, grad_input=self.deltas[layer])
                self._add_move(layer, delta, number, part.inputs)
        of_top = self.moves[-2]
        if self.copies == 1:
            # z_j [z_j > 0] = W_j . z_below
            of_last[..., :units] = (self.top * of_top).sum(-1).unsqueeze(1)
            of_top.mul_(self.last_column)
        else:
            of_top.mul_(self.last_column.repeat(1, self.copies, 1))
        return self.row

    def _to_residual(self, part: _Part) -> None:
        # rate r - rate / (1 + exp(- scale f)); why not by sigmoid: see ``link``
        torch.addcdiv(part.rate_reward, part.rate, self.minus_f.exp_().add_(self.one), value=-1, out=self.minus_f)

    def _add_move(self, layer: int, delta: Tensor, number: int, part: Inputs) -> None:
        """sum_i delta_i (x) z_i"""
        if not layer:
            part.gradient(delta, self.moves[0], add=number > 0)
        elif number:
            self.moves[layer].baddbmm_(delta, self.inputs[layer - 1].mT)
        else:
            torch.bmm(delta, self.inputs[layer - 1].mT, out=self.moves[layer])


# (gradient, z, 0) -> gradient * [z > 0] in one pass
_masked = torch.ops.aten.threshold_backward.grad_input
