"""Networks as users bring them."""

from collections.abc import Callable

import torch
from torch import nn


class Residual(nn.Module):
    """Two residual layers with biases."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + torch.tanh(self.first(x))
        return self.out(x + torch.relu(self.second(x))).squeeze(-1)


class Embedded(nn.Module):
    """The first column is the number of a category, 0, 1 or 2."""

    def __init__(self) -> None:
        super().__init__()
        self.category, self.out = nn.Embedding(3, 2), nn.Linear(5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.cat([self.category(x[..., 0].long()), x[..., 1:]], dim=-1))


class Frozen(nn.Module):
    """A body that is not trained, and a head that is."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 3), nn.Linear(3, 1)
        self.body.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(x)))


class Calls(nn.Module):
    """A linear network with some code before it.

    Args:
        before: (module, x) -> x.
    """

    def __init__(self, before: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.before, self.out = before, nn.Linear(4, 1)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.before(self, x))
