"""The gradients that were added to a design matrix, kept as their factors: the dual form of an exact matrix.

An exact M = ridge I + sum_i w_i g_i g_i^T of p parameters has two forms, and the cheaper one is taken:

    primal:  p x p matrices
    dual:    n x n matrices over the n samples, by G_ij = sqrt(w_i w_j) g_i . g_j and A = ridge I + G:
             g^T M^{-1} g = (|g|^2 - k^T A^{-1} k) / ridge,  k_i = sqrt(w_i) g_i . g;    det M = det A * ridge^(p - n)

The dual form comes first, and the primal takes over once samples outnumber parameters. Until then nothing is as large
as p: 40,000 parameters and 500 samples are no burden.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nl_lightning.core.errors import InputError
from nl_lightning.core.types import Factors

__all__ = ["Samples", "gradient", "inner", "solve", "squared_norm", "take_shape"]


_FIRST_CAPACITY = 64


class Samples(nn.Module):
    """The samples of R replicas, and a square matrix over them; both grow by doubling.

    Replicas may have different numbers of samples. All look at the same ``count``, and where a replica has fewer, its
    rows of zeros, which add nothing, stand for the others.
    """

    rows: Tensor
    """(R, capacity, F), the factors of a sample side by side"""
    square: Tensor
    """(R, capacity, capacity), what a design keeps of pairs of samples"""
    length: Tensor
    """(R,), samples of each replica; up to date where they differ"""

    def __init__(self, shapes: Sequence[tuple[int, int]], like: Tensor, diagonal: Tensor) -> None:
        """``diagonal`` (R,) is what the square matrix has there for a sample of zeros."""
        super().__init__()
        self.dimension = sum(n_out * n_in for n_out, n_in in shapes)
        """p"""
        self.count = 0
        self._fixed = False
        self._even = True
        """whether all replicas have ``count`` samples"""
        self._sizes = [*(size for shape in shapes[:-1] for size in shape), shapes[-1][1]]
        self._diagonal: Tensor
        self.register_buffer("_diagonal", diagonal, persistent=False)
        self.register_buffer("rows", like.new_zeros(len(like), 0, sum(self._sizes)))
        self.register_buffer("square", like.new_zeros(len(like), 0, 0))
        self.register_buffer("length", torch.zeros_like(like, dtype=torch.long))
        self._grow(min(_FIRST_CAPACITY, self.dimension))

    @property
    def full(self) -> bool:
        """Whether one more sample would make the primal form the cheaper one."""
        return self.count >= self.dimension and not self._fixed

    def split(self, rows: Tensor) -> Factors:
        """The factors in rows (R, N, F)."""
        return torch.split_with_sizes(rows, self._sizes, dim=-1)

    def factors(self) -> Factors:
        return self.split(self.rows[:, : self.count])

    def pairs(self) -> Tensor:
        """(R, n, n), the part of the square matrix that is in use"""
        return self.square[:, : self.count, : self.count]

    def inner(self, factors: Factors) -> Tensor:
        """g_i . g'_j of the samples with other gradients, (R, n, N)"""
        return inner(self.factors(), factors)

    def reserve(self, count: int, fixed: bool) -> None:
        """Look at so many samples from now on, which no replica has yet; if ``fixed``, no more until told otherwise.

        The last digits of a sum depend on its length: with a number of samples that follows from the round alone, a
        replica's do not depend on how fast others accept theirs.
        """
        if self._even and count != self.count:
            self.length.fill_(self.count)
            self._even = False
        if not self._even and (most := int(self.length.max())) > count:
            raise InputError(
                f"The full design matrix keeps {most:,} observations, but this fit made room for {count:,}: an earlier "
                "fit with rejection: dr-ns has added rounds without a click. Start with a new agent, or set "
                "carry_weights: false in the earlier fit."
            )
        self.count, self._fixed = count, fixed
        self._grow(count)

    def append(self, factors: Factors, accepted: Tensor | None) -> int | Tensor:
        """One more sample a replica (N = 1), but where ``accepted`` (R,) is False and the gradient 0.

        What comes back is its place, or (R,) places where they differ; who got none has the place of its next one.
        """
        if not self._fixed:
            self._grow(self.count + 1)
        row = torch.cat(factors, dim=-1)
        if self._even and accepted is None and not self._fixed:
            self.rows[:, self.count : self.count + 1] = row
            self.count += 1
            return self.count - 1
        if self._even:
            self.length.fill_(self.count)
            self._even = False
        place = self.length.clone()
        self.rows.scatter_(1, place.view(-1, 1, 1).expand_as(row), row)
        self.length.add_(1 if accepted is None else accepted)
        self.count += not self._fixed
        return place

    def set_row(self, place: int | Tensor, values: Tensor, diagonal: Tensor) -> None:
        """Row ``place`` of the square matrix: values (R, n) and, at the diagonal, (R,)."""
        if isinstance(place, int):
            row = self.square[:, place]
            row[:, : values.shape[1]], row[:, place] = values, diagonal
            return
        row = self._padded(values).scatter_(1, place.unsqueeze(1), diagonal.unsqueeze(1)).unsqueeze(1)
        self.square[:, :, : row.shape[2]].scatter_(1, place.view(-1, 1, 1).expand_as(row), row)

    def set_cross(self, place: int | Tensor, values: Tensor) -> None:
        """Row and column ``place`` of the square matrix, (R, n)."""
        if isinstance(place, int):
            self.square[:, place, : values.shape[1]] = values
            self.square[:, : values.shape[1], place] = values
            return
        row = self._padded(values).unsqueeze(1)
        width = row.shape[2]
        self.square[:, :, :width].scatter_(1, place.view(-1, 1, 1).expand_as(row), row)
        self.square[:, :width].scatter_(2, place.view(-1, 1, 1).expand_as(row.mT), row.mT)

    def _padded(self, values: Tensor) -> Tensor:
        """(R, n) -> (R, count + 1): who has all its samples writes into the row behind them, which nobody looks at."""
        padded = values.new_zeros(len(values), self.count + 1)
        padded[:, : values.shape[1]] = values
        return padded

    # What is kept must be writable outside a caller's inference mode.
    @torch.inference_mode(False)
    def _grow(self, count: int) -> None:
        """Have room for so many samples, and a row more."""
        old, columns = self.rows.shape[1:]
        if count < old:
            return
        capacity = max(old - 1, 1)
        while capacity < count:
            capacity *= 2
        capacity = min(capacity, max(self.dimension, count)) + 1
        rows, square = self.rows, self.square
        self.rows = rows.new_zeros(len(rows), capacity, columns)
        self.square = square.new_zeros(len(rows), capacity, capacity)
        self.square.diagonal(dim1=1, dim2=2).copy_(self._diagonal.unsqueeze(1))
        self.rows[:, :old], self.square[:, :old, :old] = rows, square

    @torch.inference_mode(False)
    def clear(self) -> None:
        """Give the memory back: the primal form has taken over."""
        self.count, self._even = 0, True
        self.rows, self.square = self.rows[:, :0].clone(), self.square[:, :0, :0].clone()

    # ---- state ------------------------------------------------------------------------------------------------------

    def get_extra_state(self) -> dict[str, Any]:
        return {"count": self.count}

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]
        self._even = bool((self.length == self.count).all())

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        if self._even:
            self.length.fill_(self.count)
        super()._save_to_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """Take on the capacity of what was stored."""
        for name in ("rows", "square"):
            take_shape(self, name, state_dict.get(prefix + name))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def inner(left: Factors, right: Factors) -> Tensor:
    """g_i . g'_j of N and N' gradients, (R, N, N'): sum_l (delta_l . delta'_l)(z_{l-1} . z'_{l-1})"""
    total = torch.bmm(left[-1], right[-1].mT)
    for delta, z, other_delta, other_z in zip(left[::2], left[1::2], right[::2], right[1::2], strict=False):
        total.addcmul_(torch.bmm(delta, other_delta.mT), torch.bmm(z, other_z.mT))
    return total


def squared_norm(factors: Factors) -> Tensor:
    """|g|^2, (R, N): sum_l |delta_l|^2 |z_{l-1}|^2"""
    total = factors[-1].square().sum(-1)
    for delta, z in zip(factors[::2], factors[1::2], strict=False):
        total.addcmul_(delta.square().sum(-1), z.square().sum(-1))
    return total


def solve(lower: Tensor, columns: Tensor) -> Tensor:
    """L^{-1} C for a lower triangular L (R, n, n) and C (R, n, N)"""
    return torch.linalg.solve_triangular(lower, columns, upper=False)


def gradient(factors: Factors) -> Tensor:
    """g (R, N, p), the layers one after the other."""
    layers = zip(factors[::2], factors[1::2], strict=False)
    hidden = [(delta.unsqueeze(-1) * z.unsqueeze(-2)).flatten(2) for delta, z in layers]
    return torch.cat([*hidden, factors[-1]], dim=-1)


def take_shape(module: nn.Module, name: str, stored: Tensor | None) -> None:
    """Make a buffer as large as a stored one, before that is copied into it."""
    buffer: Tensor = getattr(module, name)
    if stored is not None and stored.shape != buffer.shape:
        setattr(module, name, buffer.new_zeros(stored.shape))
