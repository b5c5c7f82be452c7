"""Classification data sets as bandits: an arm is a class, its reward 1 if it is the right one."""

from collections.abc import Sequence
from os import PathLike
from typing import Literal, get_args

import torch
from torch import Tensor

from nl_lightning.core.errors import InputError
from nl_lightning.core.rng import CHUNK, Stream, generator
from nl_lightning.environments.base import ChunkedSimulation, Deal
from nl_lightning.environments.datasets import Dataset, description, load
from nl_lightning.environments.seeds import check_seeds, replica_seeds
from nl_lightning.environments.tables import SIDE, Table
from nl_lightning.models.inputs import dense

__all__ = ["Classification", "Scaling", "averaged", "category_values", "order", "scaled", "with_block"]

Scaling = Literal["column", "vector"]


class Classification(ChunkedSimulation):
    """Rows of a data set in random order. Arm k is class k, and its reward is 1 if that is the class of the row.

    Arm k shows x in the k-th block of a vector of dK numbers, [0, ..., x, ..., 0]. It is dealt as (x, k), which takes
    d + 1 numbers.

    A row x has every column scaled to [-1, 1], or with ``scaling="vector"`` its own numbers. mnist's images are
    averaged over 2 x 2 pixels before, which leaves 14 x 14 = 196 columns. Each category of each column of mushroom has
    a random value in [-1, 1] instead. What is missing is 0.

    Args:
        dataset: mnist, mushroom, shuttle, magic, banknote or phoneme.
        file: the data set as Parquet or CSV. If left out, ``DATASET.parquet`` or ``DATASET.csv`` in the directory that
            the environment variable NL_LIGHTNING_DATA names (default: ``~/.cache/nl-lightning``). If there is no such
            file, it is downloaded from OpenML into that directory.
        dense: deal the dK numbers themselves, for agents without blocks, such as those of theory mode.
        seed: seed of the problem (the values of mushroom's categories; the other data sets have none). With one
            number, all replicas have the same problem; with a list, each has its own. If left out, a problem has the
            seed of its replica.
        noise_seed: seed of the rounds (the order of rows), one number or a list, as for ``seed``.
        scaling: what has its smallest number at -1 and its largest at 1: every column, or every row's vector. The
            paper's formula allows both. mushroom has categories, and is not scaled.
    """

    def __init__(
        self,
        dataset: Dataset,
        file: str | None = None,
        dense: bool = False,
        seed: int | list[int] | None = None,
        noise_seed: int | list[int] | None = None,
        scaling: Scaling = "column",
    ) -> None:
        super().__init__()
        if scaling not in get_args(Scaling):
            raise InputError(f"scaling must be column or vector, got {scaling!r}.")
        known = description(dataset)
        check_seeds(seed=seed, noise_seed=noise_seed)
        if not (file is None or isinstance(file, (str, PathLike))):
            raise InputError(f"file must be the path of a file, got {file!r}.")
        if not isinstance(dense, bool):
            raise InputError(f"dense must be True or False, got {dense!r}.")
        if scaling == "vector" and known.kind == "categories":
            raise InputError(f"{dataset} has categories, which are not scaled: leave out scaling={scaling!r}.")
        self.dataset, self.file, self.dense, self.scaling = dataset, file, dense, scaling
        self.seed, self.noise_seed = seed, noise_seed
        self.arms = len(known.counts)
        features = (SIDE // 2) ** 2 if known.kind == "images" else len(known.features[0])
        self.dim = features * self.arms if dense else features + 1
        self.blocks = 1 if dense else self.arms
        self._table: Table | None = None
        self._noise_seeds: list[int] = []
        # The features of rows (n, d), the same for all replicas, or where there are categories their codes (n, d) and
        # the values (R, categories of all columns) that codes stand for.
        self._features = self._codes = self._values = torch.empty(0, device="cpu")

    def reset(self, seeds: Sequence[int]) -> None:
        if self._table is None:
            self._table = load(self.dataset, self.file)
        table = self._table
        self._noise_seeds = replica_seeds("noise_seed", self.noise_seed, seeds, self.share)
        problems = replica_seeds("seed", self.seed, seeds, self.share)
        if table.categories:
            sizes = [len(categories) for categories in table.categories]
            starts = torch.tensor([0, *sizes], device="cpu").cumsum(0)[:-1]
            self._codes = (table.x + starts).to(self.like.device)
            self._values = torch.stack([category_values(seed, sum(sizes)) for seed in problems]).to(self.like)
        else:
            x = averaged(table.x) if table.x.dtype == torch.uint8 else table.x
            self._features = scaled(x, dim=0 if self.scaling == "column" else 1).to(self.like)

    def deal_chunk(self, chunk: int) -> Deal:
        assert self._table is not None
        n = len(self._table.label)
        rows = torch.stack([order(seed, n, chunk * CHUNK, CHUNK) for seed in self._noise_seeds])
        right = self._table.label[rows].unsqueeze(-1) == torch.arange(self.arms, device="cpu")
        reward = right.double()
        x = self._rows(rows.to(self.like.device))
        arms = with_block(x, self.arms)
        return Deal(dense(arms, self.arms) if self.dense else arms, reward, 1 - reward)

    def _rows(self, rows: Tensor) -> Tensor:
        """The features (R, C, d) of rows (R, C)."""
        assert self._table is not None
        if not self._table.categories:
            return self._features[rows]
        codes = self._codes[rows]
        return self._values.gather(1, codes.flatten(1)).view(codes.shape)


def averaged(pixels: Tensor) -> Tensor:
    """Images (n, 28 * 28), averaged over squares of 2 x 2 pixels: (n, 14 * 14) in float64."""
    image = pixels.view(-1, SIDE, SIDE)
    # One corner of all squares after the other: the whole in float64 would take eight times the images' room.
    total = image[:, 0::2, 0::2].double()
    for row, column in ((0, 1), (1, 0), (1, 1)):
        total += image[:, row::2, column::2]
    return total.div_(4).flatten(1)


def scaled(x: Tensor, dim: int = 0) -> Tensor:
    """2 (x - min) / (max - min) - 1 over ``dim`` of x (n, d), 0 for each column, 1 for each row.

    A column or a row that is constant says nothing and is 0.
    """
    low, high = x.aminmax(dim=dim, keepdim=True)
    span = high - low
    # In place: an intermediate result takes as much room as the data set.
    return torch.where(span > 0, (x - low).mul_(2).div_(span).sub_(1), 0)


def category_values(seed: int, categories: int) -> Tensor:
    """A number uniform in [-1, 1) for each category of each column, those of a column in alphabetical order."""
    g = generator(seed, Stream.PROBLEM)
    return 2 * torch.rand(categories, generator=g, dtype=torch.float64, device="cpu") - 1


def order(seed: int, rows: int, start: int, count: int) -> Tensor:
    """The rows of rounds start, ..., start + count - 1: all of them in a random order, then all of them in another."""
    first, last = start // rows, (start + count - 1) // rows
    epochs = [
        torch.randperm(rows, generator=generator(seed, Stream.ROUNDS, epoch), device="cpu")
        for epoch in range(first, last + 1)
    ]
    return torch.cat(epochs)[start - first * rows :][:count]


def with_block(x: Tensor, blocks: int) -> Tensor:
    """(x, k) for k = 0, ..., K - 1: (..., d) becomes (..., K, d + 1)."""
    arms = x.new_empty(*x.shape[:-1], blocks, x.shape[-1] + 1)
    arms[..., :-1] = x.unsqueeze(-2)
    arms[..., -1] = torch.arange(blocks, device=x.device)
    return arms
