"""The reward network over R replicas, and the factors of its gradient.

    f(x; theta) = W_L relu(W_{L-1} ... relu(W_1 x)),   no biases

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
from nl_lightning.models.inputs import first_layer

__all__ = ["MLP", "Factors", "Init", "activations", "factors"]

Init = Literal["uniform", "symmetric"]


class MLP(nn.Module):
    """R networks with layers of the given sizes [d, m, ..., m, 1]; ``weights[l]`` is (R, out, in).

    With more than one of ``blocks`` the first size is that of all blocks together, and samples are (x, k): ``inputs``.
    """

    def __init__(self, sizes: Sequence[int], seeds: Sequence[int], init: Init = "uniform", blocks: int = 1) -> None:
        super().__init__()
        self.blocks = blocks
        self.shapes = [(n_out, n_in) for n_in, n_out in pairwise(sizes)]
        start = _symmetric if init == "symmetric" else _uniform
        replicas = [start(self.shapes, generator(seed, Stream.INITIAL_WEIGHTS)) for seed in seeds]
        # Drawn on the CPU, like all random numbers; kept where torch makes a module's tensors.
        device, dtype = torch.get_default_device(), torch.get_default_dtype()
        layers = [nn.Parameter(torch.stack(layer).to(device, dtype)) for layer in zip(*replicas, strict=True)]
        for number, weight in enumerate(layers, start=1):
            self.register_parameter(f"weight_{number}", weight)
        # A plain tuple of the same parameters: to ask a ParameterList for them costs more than a layer.
        self.weights = tuple(layers)

    def forward(self, x: Tensor) -> Tensor:
        """f(x): (R, N, d) -> (R, N)"""
        return activations(self.weights, x, self.blocks)[-1].squeeze(-1)

    def factors(self, x: Tensor) -> tuple[Tensor, Factors]:
        """f (R, N) and the factors of its gradient at x (R, N, d)."""
        return factors(self.weights, x, self.blocks)

    # nn.Module may put new parameters into the place of the old ones.
    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> "MLP":
        super()._apply(fn, *args, **kwargs)
        self.weights = tuple(self.parameters(recurse=False))
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.weights = tuple(self.parameters(recurse=False))


def factors(weights: Sequence[Tensor], x: Tensor, blocks: int = 1) -> tuple[Tensor, Factors]:
    """f (R, N) of the network with weights (R, out, in), and the factors of its gradient, at x (R, N, d)."""
    *z, f = activations(weights, x, blocks)
    found = [z[-1]]
    # delta_L = 1, so W_L^T delta_L = W_L
    back = weights[-1]
    for layer in reversed(range(1, len(z))):
        delta = back * (z[layer] > 0)
        found = [delta, z[layer - 1], *found]
        if layer > 1:
            back = torch.bmm(delta, weights[layer - 1])
    return f.squeeze(-1), tuple(found)


def activations(weights: Sequence[Tensor], x: Tensor, blocks: int = 1) -> list[Tensor]:
    """[z_0, ..., z_{L-1}, f], each (R, N, features); z_0 is x as it came, with blocks (x, k)."""
    first, *others = weights
    z = [x, first_layer(first, x, blocks)]
    for weight in others:
        z.append(torch.bmm(z[-1].relu_(), weight.mT))
    return z


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
