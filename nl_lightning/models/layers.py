"""Forward and backward through fully connected layers of R replicas, as pure functions.

    z_0 = x,  z_l = relu(W_l z_{l-1}),  f = W_L z_{L-1}
    delta_L = 1,  delta_l = (W_{l+1}^T delta_{l+1}) * [z_l > 0],    d f / d W_l = delta_l (x) z_{l-1}

With ``bias`` every z ends in a 1, and the last column of a weight is the bias of its layer.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from nl_lightning.core.types import Factors
from nl_lightning.models.inputs import first_layer, with_one

__all__ = ["activations", "factors"]


def activations(weights: Sequence[Tensor], x: Tensor, blocks: int = 1, bias: bool = False) -> list[Tensor]:
    """[z_0, ..., z_{L-1}, f], each (R, N, features); z_0 is x as it came, with blocks (x, k)."""
    first, *others = weights
    z = [with_one(x, blocks) if bias else x]
    z.append(first_layer(first, z[0], blocks))
    for weight in others:
        z[-1] = z[-1].relu_()
        if bias:
            z[-1] = with_one(z[-1])
        z.append(torch.bmm(z[-1], weight.mT))
    return z


def factors(weights: Sequence[Tensor], x: Tensor, blocks: int = 1, bias: bool = False) -> tuple[Tensor, Factors]:
    """f (R, N) of the network with weights (R, out, in), and the factors of its gradient, at x (R, N, d)."""
    *z, f = activations(weights, x, blocks, bias)
    found = [z[-1]]
    # delta_L = 1, so W_L^T delta_L = W_L; a bias passes nothing down
    back = weights[-1][..., :-1] if bias else weights[-1]
    for layer in reversed(range(1, len(z))):
        delta = back * ((z[layer][..., :-1] if bias else z[layer]) > 0)
        found = [delta, z[layer - 1], *found]
        if layer > 1:
            below = weights[layer - 1]
            back = torch.bmm(delta, below[..., :-1] if bias else below)
    return f.squeeze(-1), tuple(found)
