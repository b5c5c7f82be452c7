"""The reward network over R replicas, and the factors of its gradient.

    f(x; theta) = W_L relu(W_{L-1} ... relu(W_1 x)),   no biases unless asked for

A network of depth 1 is the linear model f = x . theta. The gradient of layer l for one sample is an outer product,

    d f / d W_l = delta_l (x) z_{l-1},     z_0 = x,  z_l = relu(W_l z_{l-1}),
    delta_L = 1,  delta_l = (W_{l+1}^T delta_{l+1}) * [z_l > 0],

so a gradient is handed out as its factors (delta_l, z_{l-1}) and never stored.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nl_lightning.core.errors import InputError
from nl_lightning.core.rng import Stream, generator
from nl_lightning.core.types import Factors
from nl_lightning.models.backward import train_nn
from nl_lightning.models.base import Descent, Observations, RewardModel, select
from nl_lightning.models.inputs import dense, parts, with_one
from nl_lightning.models.layers import activations, factors
from nl_lightning.models.steps import loss

__all__ = ["MLP", "Init"]

Init = Literal["uniform", "symmetric"]


class MLP(RewardModel):
    """R networks with layers of the given sizes [d, m, ..., m, 1]; ``weights[l]`` is (R, out, in).

    With more than one of ``blocks`` the first size is that of all blocks together, and samples are (x, k): ``inputs``.
    With ``bias`` the last column of a weight is the bias of its layer; in the first layer each block has its own.
    """

    sums_over_observations = True

    def __init__(
        self,
        sizes: Sequence[int],
        seeds: Sequence[int],
        init: Init = "uniform",
        blocks: int = 1,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.blocks, self.bias, self.init = blocks, bias, init
        self.learns_from_padding = bias
        self._shapes = [(n_out, n_in) for n_in, n_out in pairwise(sizes)]
        extra = [blocks if layer == 0 else 1 for layer in range(len(self._shapes))]
        self.shapes = [(n_out, n_in + bias * more) for (n_out, n_in), more in zip(self._shapes, extra, strict=True)]
        # kept where torch makes a module's tensors
        device, dtype = torch.get_default_device(), torch.get_default_dtype()
        for number, weight in enumerate(self._draw([generator(s, Stream.INITIAL_WEIGHTS) for s in seeds]), start=1):
            self.register_parameter(f"weight_{number}", nn.Parameter(weight.to(device, dtype)))
        # A plain tuple of the same parameters: to ask a ParameterList for them costs more than a layer.
        self.weights = tuple(self.parameters(recurse=False))

    def _draw(self, generators: Sequence[torch.Generator]) -> list[Tensor]:
        """Parameters (R, out, in) as at initialisation, in float64, drawn on the CPU like all random numbers."""
        start = _symmetric if self.init == "symmetric" else _uniform
        replicas = []
        for g in generators:
            layers = start(self._shapes, g)
            if self.bias:
                biases = [self._biases(shape, g) for shape in self._shapes]
                blocks = [self.blocks, *[1] * (len(layers) - 1)]
                layers = [_join(*each) for each in zip(layers, biases, blocks, strict=True)]
            replicas.append(layers)
        return [torch.stack(layer) for layer in zip(*replicas, strict=True)]

    def _biases(self, shape: tuple[int, int], g: torch.Generator) -> Tensor:
        """(out, 1): uniform like the weights; the symmetric start has none."""
        drawn = _uniform([(shape[0], 1)], g)[0]
        return torch.zeros_like(drawn) if self.init == "symmetric" else drawn / shape[1] ** 0.5

    def forward(self, x: Tensor) -> Tensor:
        """f(x): (R, N, d) -> (R, N)"""
        return activations(self.weights, x, self.blocks, self.bias)[-1].squeeze(-1)

    def factors(self, x: Tensor, replicas: Tensor | None = None) -> tuple[Tensor, Factors]:
        return factors(select(self.weights, replicas), x, self.blocks, self.bias)

    def descend(
        self,
        weights: Sequence[Tensor],
        data: Observations,
        descent: Descent,
        lr: Tensor,
        replicas: Tensor | None = None,
        seeds: Sequence[int] = (),
    ) -> Tensor:
        x, reward, weight = data
        lam, lr = descent.lam.to(x.dtype), lr.to(x.dtype)

        def steps(count: int, going: Tensor) -> None:
            train_nn(
                weights, x, reward, lam, going, count, descent.scale, descent.anchor, self.blocks, weight, self.bias,
                descent.rule, descent.batches,
            )  # fmt: skip

        if isinstance(descent.steps, int):
            steps(descent.steps, lr)
        else:
            # All go together, until one after the other has taken its steps.
            wanted, taken = descent.steps.masked_fill(lr == 0, 0), 0
            for stop in sorted({*wanted.tolist()} - {0}):
                steps(stop - taken, lr.masked_fill(wanted <= taken, 0))
                taken = stop
        # In parts, like the steps. Memory for all of them comes first: between those of the parts, it would keep the
        # system from using theirs again.
        f = x.new_empty(reward.shape)
        for part, of_part in zip(parts(x), parts(f), strict=True):
            of_part.copy_(activations(weights, part, self.blocks, self.bias)[-1].squeeze(-1))
        f *= descent.scale
        anchor = descent.anchor
        penalised = weights if anchor is None else [w - a for w, a in zip(weights, anchor, strict=True)]
        return loss(f, reward, penalised, lam, weight)

    def fresh(self, seeds: Sequence[int], numbers: Sequence[int]) -> list[Tensor]:
        pairs = zip(seeds, numbers, strict=True)
        drawn = self._draw([generator(seed, Stream.FRESH_WEIGHTS, number) for seed, number in pairs])
        # rounded as the initial ones are, whatever the precision of the run
        return [weight.float().to(self.weights[0]) for weight in drawn]

    def module(self, replica: int) -> nn.Module:
        """Fully connected layers with relu between them; with blocks, behind a layer that takes (x, k) to vectors."""
        layers: list[nn.Module] = [_InBlocks(self.blocks, self.bias)] if self.blocks > 1 else []
        for number, weight in enumerate(self.weights):
            kept = weight[replica].detach().clone()
            # the biases of blocks are columns of the first layer, see _InBlocks
            bias = self.bias and not (number == 0 and self.blocks > 1)
            linear = nn.Linear(kept.shape[1] - bias, kept.shape[0], bias=bias).to(kept)
            if bias:
                linear.bias.data = kept[:, -1].contiguous()
                kept = kept[:, :-1].contiguous()
            linear.weight.data = kept
            layers += [linear, nn.ReLU()]
        return nn.Sequential(*layers[:-1], _Squeeze())

    def identity(self) -> Any:
        return [list(shape) for shape in self.shapes]

    # nn.Module may put new parameters into the place of the old ones.
    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> "MLP":
        super()._apply(fn, *args, **kwargs)
        self.weights = tuple(self.parameters(recurse=False))
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.weights = tuple(self.parameters(recurse=False))


class _InBlocks(nn.Module):
    """(x, k) -> [0, .., x, .., 0], and [0, .., (x, 1), .., 0] where blocks have biases."""

    def __init__(self, blocks: int, bias: bool) -> None:
        super().__init__()
        self.blocks, self.bias = blocks, bias

    def forward(self, x: Tensor) -> Tensor:
        return dense(with_one(x, self.blocks) if self.bias else x, self.blocks)


class _Squeeze(nn.Module):
    """(..., 1) -> (...)"""

    def forward(self, x: Tensor) -> Tensor:
        return x.squeeze(-1)


def _join(weight: Tensor, bias: Tensor, blocks: int) -> Tensor:
    """[W, b] (out, in + 1); of blocks [W^1, b, W^2, b, ...] (out, K (d + 1))"""
    by_block = weight.unflatten(1, (blocks, -1))
    return torch.cat([by_block, bias.unsqueeze(1).expand(-1, blocks, -1)], dim=-1).flatten(1)


def _drawn(draw: Callable[..., Tensor], n_out: int, n_in: int, g: torch.Generator) -> Tensor:
    return draw(n_out, n_in, generator=g, dtype=torch.float64, device="cpu")


def _uniform(shapes: Sequence[tuple[int, int]], g: torch.Generator) -> list[Tensor]:
    """Every entry uniform in +-1/sqrt(fan_in)."""
    return [(2 * _drawn(torch.rand, n_out, n_in, g) - 1) / n_in**0.5 for n_out, n_in in shapes]


def _symmetric(shapes: Sequence[tuple[int, int]], g: torch.Generator) -> list[Tensor]:
    """W_l = [[W, 0], [0, W]] with W ~ N(0, 4/m), and W_L = [w, -w] with w ~ N(0, 2/m).

    With inputs [x, x] the two halves cancel and f(.; theta_0) = 0. A network of depth 1 has no width; its m is d.
    """
    width = shapes[-1][1]
    for n_out, n_in in shapes[:-1]:
        if n_out % 2 or n_in % 2:
            raise InputError(
                f"init='symmetric' splits every layer into two equal halves, so dim and width must be even; "
                f"got a layer from {n_in} to {n_out}. Use even sizes (inputs [x, x]/sqrt(2)) or init='uniform'."
            )
    if width % 2:
        raise InputError(f"init='symmetric' needs an even width (at depth 1: an even dim), got {width}.")
    layers = []
    for n_out, n_in in shapes[:-1]:
        half = _drawn(torch.randn, n_out // 2, n_in // 2, g) * (4 / width) ** 0.5
        layers.append(torch.block_diag(half, half))
    half = _drawn(torch.randn, 1, width // 2, g) * (2 / width) ** 0.5
    return [*layers, torch.cat([half, -half], dim=1)]
