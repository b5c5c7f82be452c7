"""What the first layer of a network multiplies: vectors x, or blocks [0, .., x, .., 0] that are kept as (x, k).

With K blocks an arm is d + 1 numbers, x and the number k of the block that x stands in; the other blocks are zeros and
nowhere stored. The first layer W_1 = [W^1, .., W^K] is (R, m, K d), and of a sample (x, k) only W^k x is computed.

Samples of one block lie side by side in tiles of B samples, so that a product over all of them is one batched product
of the tiles with the blocks they belong to; a block's last tile is filled up with zeros, which have no gradient.
"""

from collections.abc import Sequence
from typing import Protocol, final

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = [
    "PART",
    "Blocks",
    "Inputs",
    "Vectors",
    "VectorsWithOne",
    "dense",
    "equal_parts",
    "first_layer",
    "input_size",
    "inputs",
    "parts",
    "with_one",
]


_WEIGHTS_OF_A_TILE = 25
"""To hand a tile the weights of its block and take its gradient back costs about as much as so many samples."""


PART = 4096
"""Samples of a replica that TrainNN takes at once, in whole lines."""

_LINE = 16
"""Samples in a cache line of float32: passes over rows of whole lines are faster."""


class Inputs(Protocol):
    """n samples of R replicas in the order that suits the first layer, n' >= n of them with those that fill up."""

    size: int
    """n'"""

    def arrange(self, values: Tensor) -> Tensor:
        """Values (R, n) of the samples in that order, (R, n')"""

    def unpack(self, weight: Tensor) -> Tensor:
        """W_1 (R, m, in) in the form of the two products"""

    def pack(self, unpacked: Tensor, weight: Tensor) -> None:
        """Put W_1 back into its place."""

    def product(self, unpacked: Tensor, out: Tensor) -> Tensor:
        """W_1 x of all samples, out (R, m, n')"""

    def gradient(self, delta: Tensor, out: Tensor, add: bool = False) -> Tensor:
        """sum_i delta_i (x) x_i: delta (R, m, n'), out in the form of the unpacked weight, added to it if asked for"""


def inputs(x: Tensor, blocks: int, bias: bool = False) -> Sequence[Inputs]:
    """Samples x (R, n, d), or (x, k) (R, n, d + 1) where there is more than one block; with ``bias``, [x, 1] for x.

    Many vectors come in parts of equal size, one behind the other: what TrainNN needs beside the samples then does not
    grow with their number. The last part ends in zeros, which have no gradient.
    """
    if blocks > 1:
        return [Blocks(with_one(x, blocks) if bias else x, blocks)]
    found = equal_parts(x)
    if len(found) == 1:
        rows = with_one(found[0]) if bias else found[0]
        return [Vectors(rows, rows.mT.contiguous())]
    if bias:
        shared = with_one(found[0])
        return [VectorsWithOne(rows, shared) for rows in found]
    return [Vectors(rows, rows.mT) for rows in found]


def with_one(x: Tensor, blocks: int = 1) -> Tensor:
    """[x, 1] of x (..., d), and ([x, 1], k) of (x, k) where there is more than one block."""
    if blocks == 1:
        return pad(x, (0, 1), value=1.0)
    return torch.cat([x[..., :-1], torch.ones_like(x[..., :1]), x[..., -1:]], dim=-1)


def parts(values: Tensor) -> tuple[Tensor, ...]:
    """(R, n, ...) in as few parts of at most PART samples as will do; only the last one may be shorter than others."""
    return values.split(_part_size(values.shape[1]), dim=1)


def equal_parts(values: Tensor) -> list[Tensor]:
    """The same, the last one filled up with zeros."""
    *whole, last = parts(values)
    missing = _part_size(values.shape[1]) - last.shape[1]
    if missing:
        last = torch.cat([last, last.new_zeros(last.shape[0], missing, *last.shape[2:])], dim=1)
    return [*whole, last]


def _part_size(samples: int) -> int:
    """In whole lines; at least one, so that there is a part of no samples too."""
    count = max(1, -(-samples // PART))
    return max(1, -(-samples // (count * _LINE))) * _LINE


def input_size(dim: int, blocks: int) -> int:
    """The inputs of a network on arms of ``dim`` numbers."""
    return dim if blocks == 1 else (dim - 1) * blocks


def dense(x: Tensor, blocks: int) -> Tensor:
    """[0, .., x, .., 0] of (x, k): (..., d + 1) -> (..., K d); x itself where there is one block only."""
    if blocks == 1:
        return x
    features, k = x[..., :-1], x[..., -1:].long()
    index = k * features.shape[-1] + torch.arange(features.shape[-1], device=x.device)
    return x.new_zeros(*x.shape[:-1], blocks * features.shape[-1]).scatter_(-1, index, features)


def first_layer(weight: Tensor, x: Tensor, blocks: int) -> Tensor:
    """W_1 x of samples in their own order: weight (R, m, in), x (R, n, d) or (R, n, d + 1) -> (R, n, m)"""
    return torch.bmm(x, weight.mT) if blocks == 1 else Blocks(x, blocks).first_layer(weight)


@final
class Vectors:
    """Samples as they are, (R, n, d), and as columns (R, d, n)."""

    def __init__(self, x: Tensor, columns: Tensor) -> None:
        self.size = x.shape[1]
        self._rows, self._columns = x, columns

    def arrange(self, values: Tensor) -> Tensor:
        return values

    def unpack(self, weight: Tensor) -> Tensor:
        return weight

    def pack(self, unpacked: Tensor, weight: Tensor) -> None:
        weight.copy_(unpacked)

    def product(self, unpacked: Tensor, out: Tensor) -> Tensor:
        return torch.bmm(unpacked, self._columns, out=out)

    def gradient(self, delta: Tensor, out: Tensor, add: bool = False) -> Tensor:
        return out.baddbmm_(delta, self._rows) if add else torch.bmm(delta, self._rows, out=out)


@final
class VectorsWithOne:
    """A part of many samples, (R, n, d), as [x, 1] in memory (R, n, d + 1) that all parts share.

    ``product`` fills that memory and ``gradient`` reads it, so the gradient of a part must be taken before the product
    of the next one. A copy of all samples with their ones would double what TrainNN holds.
    """

    def __init__(self, x: Tensor, shared: Tensor) -> None:
        self.size = x.shape[1]
        self._x, self._rows, self._features = x, shared, shared[..., :-1]

    def arrange(self, values: Tensor) -> Tensor:
        return values

    def unpack(self, weight: Tensor) -> Tensor:
        return weight

    def pack(self, unpacked: Tensor, weight: Tensor) -> None:
        weight.copy_(unpacked)

    def product(self, unpacked: Tensor, out: Tensor) -> Tensor:
        self._features.copy_(self._x)
        return torch.bmm(unpacked, self._rows.mT, out=out)

    def gradient(self, delta: Tensor, out: Tensor, add: bool = False) -> Tensor:
        return out.baddbmm_(delta, self._rows) if add else torch.bmm(delta, self._rows, out=out)


@final
class Blocks:
    """Samples (x, k) in T tiles a replica; W_1 is unpacked to (R, K m, d), one block below the other."""

    def __init__(self, x: Tensor, blocks: int) -> None:
        replicas, n, columns = x.shape
        self._blocks, self._features = blocks, columns - 1
        # (n / B + K / 2) tiles that cost as much as _WEIGHTS_OF_A_TILE + B samples each: this B is the best
        best = (2 * _WEIGHTS_OF_A_TILE * n / blocks) ** 0.5
        # in whole vector registers, but not larger than a block
        tile = max(1, min(16 * max(1, round(best / 16)), -(-n // blocks)))
        block = x[..., -1].long()
        counts = block.new_zeros(replicas, blocks).scatter_add_(1, block, torch.ones_like(block))
        ends = (counts + tile - 1).div(tile, rounding_mode="floor").cumsum(1)
        tiles = max(int(ends[:, -1].max()), 1)
        # the i-th sample of a block stands at the i-th place of its tiles
        sorted_block, order = block.sort(dim=1, stable=True)
        behind = (ends.roll(1, 1) * tile).index_fill_(1, ends.new_zeros(1), 0) - (counts.cumsum(1) - counts)
        slot = behind.gather(1, sorted_block) + torch.arange(n, device=x.device)
        self._place = torch.empty_like(slot).scatter_(1, order, slot)
        self.size = tiles * tile
        rows = x.new_zeros(replicas, self.size, self._features)
        rows.scatter_(1, self._place.unsqueeze(-1).expand(-1, -1, self._features), x[..., :-1])
        self._rows = rows.view(replicas * tiles, tile, self._features)
        self._columns = self._rows.mT.contiguous()
        number = torch.arange(tiles, device=x.device).expand(replicas, -1).contiguous()
        # tiles behind the last one hold zeros: any block will do
        of_tile = torch.searchsorted(ends, number, right=True).clamp_max_(blocks - 1)
        first = torch.arange(replicas, device=x.device).unsqueeze(1) * blocks
        self._block_of_tile = (of_tile + first).flatten()
        """(R T,), into the R K blocks of all replicas"""
        self._shape = (replicas, tiles, tile)

    def arrange(self, values: Tensor) -> Tensor:
        return values.new_zeros(len(values), self.size).scatter_(1, self._place, values)

    def unpack(self, weight: Tensor) -> Tensor:
        by_block = weight.unflatten(2, (self._blocks, self._features)).transpose(1, 2)
        return by_block.clone(memory_format=torch.contiguous_format).flatten(1, 2)

    def pack(self, unpacked: Tensor, weight: Tensor) -> None:
        by_block = unpacked.unflatten(1, (self._blocks, -1)).transpose(1, 2)
        weight.unflatten(2, (self._blocks, self._features)).copy_(by_block)

    def product(self, unpacked: Tensor, out: Tensor) -> Tensor:
        replicas, tiles, tile = self._shape
        product = torch.bmm(self._weights(unpacked), self._columns).unflatten(0, (replicas, tiles))
        out.unflatten(2, (tiles, tile)).copy_(product.transpose(1, 2))
        return out

    def gradient(self, delta: Tensor, out: Tensor, add: bool = False) -> Tensor:
        _, tiles, tile = self._shape
        by_tile = delta.unflatten(2, (tiles, tile)).transpose(1, 2).flatten(0, 1)
        blocks = (out if add else out.zero_()).view(-1, delta.shape[1], self._features)
        blocks.index_add_(0, self._block_of_tile, torch.bmm(by_tile, self._rows))
        return out

    def first_layer(self, weight: Tensor) -> Tensor:
        """(R, n, m), in the order in which samples came"""
        product = torch.bmm(self._rows, self._weights(self.unpack(weight)).mT)
        rows = product.view(self._shape[0], self.size, weight.shape[1])
        return rows.gather(1, self._place.unsqueeze(-1).expand(-1, -1, weight.shape[1]))

    def _weights(self, unpacked: Tensor) -> Tensor:
        """The block of W_1 that each tile belongs to, (R T, m, d)"""
        by_block = unpacked.unflatten(1, (self._blocks, -1)).flatten(0, 1)
        return by_block.index_select(0, self._block_of_tile)
