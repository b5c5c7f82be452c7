"""Norms and log-determinants against dense linear algebra."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nl_lightning.core.types import Factors
from nl_lightning.designs import DesignMatrix, DiagonalDesign, make_design
from nl_lightning.designs.diagonal import log_product
from nl_lightning.models.mlp import MLP


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[int], int, int, torch.Tensor, int]:
    sizes = [*draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)), 1]
    replicas, observations = draw(st.integers(1, 3)), draw(st.integers(0, 12))
    ridge = draw(st.lists(st.floats(1e-3, 1e3), min_size=replicas, max_size=replicas))
    return sizes, replicas, observations, torch.tensor(ridge, dtype=torch.float64), draw(st.integers(0, 2**20))


def gradients(network: MLP, x: torch.Tensor) -> torch.Tensor:
    """(R, N, p) by autograd, one sample at a time."""
    rows = []
    for r in range(x.shape[0]):
        for n in range(x.shape[1]):
            f = network(x[:, n : n + 1])[r, 0]
            parts = torch.autograd.grad(f, list(network.weights))
            rows.append(torch.cat([part[r].flatten() for part in parts]))
    return torch.stack(rows).view(x.shape[0], x.shape[1], -1)


def prepared(design: DesignMatrix, factors: Factors) -> Factors:
    """What a design takes of a network's factors."""
    like = next(design.buffers())
    places = tuple(torch.empty(factor.shape, dtype=like.dtype) for factor in factors)
    design.prepare(tuple(factor.detach() for factor in factors), places)
    return places


@given(problems(), st.sampled_from(["diagonal", "full"]))
def test_norm_and_logdet_equal_dense_algebra(problem: tuple[list[int], int, int, torch.Tensor, int], kind: str) -> None:
    sizes, replicas, observations, ridge, seed = problem
    g = torch.Generator().manual_seed(seed)
    network = MLP(sizes, range(replicas)).double()
    design = make_design(kind, network.shapes, ridge)
    parameters = sum(out * fan_in for out, fan_in in network.shapes)
    dense = ridge[:, None, None] * torch.eye(parameters, dtype=torch.float64)
    for step in range(observations):
        x = torch.randn(replicas, 1, sizes[0], generator=g, dtype=torch.float64)
        weight = torch.rand(replicas, 1, 1, generator=g, dtype=torch.float64) * (step % 3 > 0)
        _, factors = network.factors(x)
        rows = gradients(network, x)
        design.add(prepared(design, factors), weight)
        dense = dense + weight * rows.mT @ rows
    if kind == "diagonal":
        dense = torch.diag_embed(dense.diagonal(dim1=1, dim2=2))
    arms = torch.randn(replicas, 4, sizes[0], generator=g, dtype=torch.float64)
    _, factors = network.factors(arms)
    rows = gradients(network, arms)
    expected = (rows @ torch.linalg.inv(dense) * rows).sum(-1).sqrt()
    torch.testing.assert_close(design.norm(prepared(design, factors)), expected, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(design.logdet(), torch.linalg.slogdet(dense).logabsdet, rtol=1e-7, atol=1e-8)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 2**20))
def test_factors_are_those_of_the_gradient(sizes: list[int], seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    network = MLP([*sizes, 1], seeds=[0, 1]).double()
    x = torch.randn(2, 3, sizes[0], generator=g, dtype=torch.float64)
    f, factors = network.factors(x)
    torch.testing.assert_close(f, network(x))
    outer = [
        torch.einsum("rno,rni->rnoi", delta, z).flatten(2)
        for delta, z in zip(factors[::2], factors[1::2], strict=False)
    ]
    torch.testing.assert_close(torch.cat([*outer, factors[-1]], dim=-1), gradients(network, x))


def test_logdet_of_nothing_is_zero_and_stays_real() -> None:
    """Rounding must not make the logdet of zero features negative: its root would be NaN."""
    design = DiagonalDesign([(3, 7), (1, 3)], torch.ones(2, dtype=torch.float64))
    zero = (torch.zeros(2, 1, 3), torch.zeros(2, 1, 7), torch.zeros(2, 1, 3))
    for _ in range(5):
        design.add(prepared(design, zero), torch.ones(2, 1, 1, dtype=torch.float64))
    assert design.logdet().tolist() == [0.0, 0.0]


def test_a_design_follows_its_buffer_to_another_precision() -> None:
    design = DiagonalDesign([(2, 3), (1, 2)], torch.tensor([2.0], dtype=torch.float64))
    factors = (torch.rand(1, 1, 2) + 0.5, torch.rand(1, 1, 3) + 0.5, torch.rand(1, 1, 2) + 0.5)
    design.add(prepared(design, factors), torch.ones(1, 1, 1, dtype=torch.float64))
    design = design.float()
    before = design.diagonal.clone()
    design.add(prepared(design, factors), torch.ones(1, 1, 1))
    assert design.diagonal.dtype == torch.float32
    assert (design.diagonal > before).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(p=st.integers(1, 30), largest=st.floats(0, 30), seed=st.integers(0, 99))
def test_logarithms_of_products_are_sums_of_logarithms(p: int, largest: float, seed: int, dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(seed)
    values = (10 ** (largest * (2 * torch.rand(2, 3, p, generator=g, dtype=torch.float64) - 1))).to(dtype)
    expected = [[math.fsum(map(math.log, row)) for row in rows] for rows in values.tolist()]
    found = log_product(values)
    assert found.dtype == dtype
    # logarithms up to 69, and 30 of them, which may cancel
    rounding = 2 * 30 * 69 * torch.finfo(dtype).eps
    torch.testing.assert_close(found, torch.tensor(expected, dtype=dtype), rtol=0, atol=rounding)
