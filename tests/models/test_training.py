"""TrainNN against autograd."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nl_lightning import NeuralLogUCB2
from nl_lightning.models import inputs
from nl_lightning.models.backward import train_nn
from nl_lightning.models.base import Descent, Observations
from nl_lightning.models.mlp import MLP
from nl_lightning.models.training import train


def descend(
    weights: list[torch.Tensor],
    x: torch.Tensor,
    r: torch.Tensor,
    lam: float,
    lr: float,
    steps: int,
    scale: float,
    anchor: list[torch.Tensor],
) -> None:
    """The loss as it is written, one replica, autograd."""
    for _ in range(steps):
        leaves = [w.clone().requires_grad_() for w in weights]
        z = x
        for w in leaves[:-1]:
            z = (z @ w.T).relu()
        f = scale * (z @ leaves[-1].T).squeeze(-1)
        bce = torch.nn.functional.binary_cross_entropy_with_logits(f, r, reduction="sum")
        loss = bce + lam * sum(((w - start) ** 2).sum() for w, start in zip(leaves, anchor, strict=True))
        for w, slope in zip(weights, torch.autograd.grad(loss, leaves), strict=True):
            w -= lr * slope


@given(
    hidden=st.lists(st.integers(1, 6), max_size=3),
    dim=st.integers(1, 5),
    replicas=st.integers(1, 3),
    n=st.integers(0, 40),
    part=st.sampled_from([16, 4096]),
    scale=st.sampled_from([1.0, 2.5]),
    anchored=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_train_nn_equals_autograd(
    hidden: list[int], dim: int, replicas: int, n: int, part: int, scale: float, anchored: bool, seed: int
) -> None:
    """In one part and in several, with and without what theory mode has; the last replica stands still."""
    g = torch.Generator().manual_seed(seed)
    network = MLP([dim, *hidden, 1], range(replicas)).double()
    x = torch.randn(replicas, n, dim, generator=g, dtype=torch.float64)
    r = torch.randint(2, (replicas, n), generator=g).double()
    lam = torch.rand(replicas, generator=g, dtype=torch.float64) * 3
    lr = torch.rand(replicas, generator=g, dtype=torch.float64) * 0.05
    lr[-1] = 0
    starts = [torch.randn(w.shape, generator=g, dtype=w.dtype) * anchored for w in network.weights]
    expected = [[w[k].detach().clone() for w in network.weights] for k in range(replicas)]
    before = [w[-1].detach().clone() for w in network.weights]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "PART", part)
        train_nn(list(network.weights), x, r, lam, lr, 6, scale, starts if anchored else None)
    assert all(torch.equal(w[-1], start) for w, start in zip(network.weights, before, strict=True))
    for k in range(replicas):
        descend(expected[k], x[k], r[k], float(lam[k]), float(lr[k]), 6, scale, [start[k] for start in starts])
        for w, twin in zip(network.weights, expected[k], strict=True):
            torch.testing.assert_close(w[k].detach(), twin, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("sizes", [[4, 1], [4, 8, 1], [4, 8, 8, 1]])
def test_rows_of_zeros_are_no_data(sizes: list[int]) -> None:
    """Shorter replicas are padded with zeros: the result must not notice."""
    x, r = torch.randn(1, 20, 4, dtype=torch.float64), torch.randint(2, (1, 20)).double()
    ones = torch.ones(1, dtype=torch.float64)
    short, padded = MLP(sizes, [0]).double(), MLP(sizes, [0]).double()
    train_nn(list(short.weights), x, r, ones, 0.01 * ones, steps=20)
    x0, r0 = torch.cat([x, torch.zeros_like(x)], 1), torch.cat([r, torch.zeros_like(r)], 1)
    train_nn(list(padded.weights), x0, r0, ones, 0.01 * ones, steps=20)
    for one, other in zip(short.weights, padded.weights, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("n", [16, 17, 40, 48])
@pytest.mark.parametrize("sizes", [[4, 1], [4, 8, 1], [4, 8, 6, 1], [4, 8, 6, 7, 1]])
def test_samples_in_parts_are_the_same_samples(
    sizes: list[int], n: int, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of sixteen, the last one filled up or not; scale and anchor are those of theory mode."""
    x, r = torch.randn(2, n, 4, dtype=torch.float64), torch.randint(2, (2, n)).double()
    lam, lr = torch.tensor([1.0, 0.3], dtype=torch.float64), torch.tensor([0.01, 0.03], dtype=torch.float64)
    whole, in_parts = (MLP(sizes, [0, 1], bias=bias).double() for _ in range(2))
    anchor = [torch.randn_like(weight) for weight in whole.weights]
    train_nn(list(whole.weights), x, r, lam, lr, steps=20, scale=1.5, anchor=anchor, bias=bias)
    monkeypatch.setattr(inputs, "PART", 16)
    assert len(inputs.inputs(x, 1, bias)) == -(-n // 16)
    train_nn(list(in_parts.weights), x, r, lam, lr, steps=20, scale=1.5, anchor=anchor, bias=bias)
    for one, other in zip(whole.weights, in_parts.weights, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_a_long_run_is_judged_by_all_of_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss that TrainNN comes back with, in parts and at once."""
    x, r = torch.randn(2, 40, 4, dtype=torch.float64), torch.randint(2, (2, 40)).double()
    ones, network = torch.ones(2, dtype=torch.float64), MLP([4, 8, 1], [0, 1]).double()
    weights, descent = [w.detach() for w in network.weights], Descent(0.01 * ones, 3, ones)
    whole = network.descend(weights, Observations(x, r), descent, 0 * ones)
    monkeypatch.setattr(inputs, "PART", 16)
    parts = network.descend(weights, Observations(x, r), descent, 0 * ones)
    torch.testing.assert_close(whole, parts, rtol=1e-12, atol=0)


def test_a_replica_with_step_zero_stays() -> None:
    network = MLP([4, 8, 1], [0, 1])
    before = [w[1].clone() for w in network.weights]
    train_nn(list(network.weights), torch.randn(2, 5, 4), torch.ones(2, 5), torch.ones(2), torch.tensor([0.1, 0]), 3)
    assert all(torch.equal(w[1], b) for w, b in zip(network.weights, before, strict=True))


@pytest.mark.parametrize("sizes", [[4, 1], [4, 8, 1], [4, 8, 8, 1]])
def test_weights_that_shrink_to_nothing_become_zero_and_others_stay(sizes: list[int]) -> None:
    """A dead unit's weights shrink until they are no normal numbers, for which a CPU takes many times as long."""
    network, x, reward, ones = MLP(sizes, [0]), torch.rand(1, 5, 4), torch.ones(1, 5), torch.ones(1)
    if len(sizes) == 2:
        # an input that is always 0 is as dead
        x[..., 0] = 0
    dead = network.weights[0].detach()[0, 0, :1] if len(sizes) == 2 else network.weights[0].detach()[0, 0]
    dead.fill_(1e-30 if len(sizes) == 2 else -1e-30)
    # 1 - 2 lr lam = 0.8 a step: 1e-30 * 0.8^20 = 1e-32
    train_nn(list(network.weights), x, reward, 10 * ones, 0.01 * ones, steps=9)
    assert dead.all()
    train_nn(list(network.weights), x, reward, 10 * ones, 0.01 * ones, steps=22)
    assert not dead.any()
    assert sum(int((weight != 0).sum()) for weight in network.weights) >= 3


# ---- inactive replicas -----------------------------------------------------------------------------------------------


def trained(
    inactive: list[bool] | None, lam: tuple[float, ...] = (1.0, 1.0, 1.0), cold: bool = False
) -> tuple[MLP, Any]:
    """The networks of three replicas after TrainNN, of which some are inactive, and which of them diverged."""
    g = torch.Generator().manual_seed(0)
    network, initial = (MLP([4, 5, 1], range(3)) for _ in range(2))
    x, reward = torch.randn(3, 20, 4, generator=g), torch.randint(2, (3, 20), generator=g).float()
    descent = Descent(torch.full((3,), 0.01, dtype=torch.float64), 7, torch.tensor(lam, dtype=torch.float64))
    mask = torch.tensor([False] * 3 if inactive is None else inactive)
    with torch.no_grad():
        start = initial.weights if cold else None
        failed = train(network, Observations(x, reward), descent, mask, inactive is not None, start)
    return network, failed


@pytest.mark.parametrize("cold", [True, False])
@pytest.mark.parametrize("inactive", [[False, True, False], [True, True, False], [True] * 3, [False] * 3])
def test_inactive_replicas_stay_and_the_others_do_not_notice(inactive: list[bool], cold: bool) -> None:
    (everybody, _), (some, failed) = trained(None, cold=cold), trained(inactive, cold=cold)
    assert failed is None
    for replica, still in enumerate(inactive):
        expected = MLP([4, 5, 1], range(3)) if still else everybody
        for weight, other in zip(some.weights, expected.weights, strict=True):
            assert torch.equal(weight[replica], other[replica])


def test_a_replica_that_diverges_beside_an_inactive_one_is_put_back() -> None:
    """lr * lam = 2 in the last replica."""
    network, failed = trained([False, True, False], lam=(1.0, 1.0, 200.0))
    assert failed.tolist() == [False, False, True]
    start = MLP([4, 5, 1], range(3))
    moved = [not torch.equal(network.weights[0][r], start.weights[0][r]) for r in range(3)]
    assert moved == [True, False, False]


def test_a_replica_that_was_marked_is_inactive_from_then_on() -> None:
    agent = NeuralLogUCB2(4, width=5, lam=[1.0, 1.0, 200.0], optimizer="gd", steps=7, on_divergence="mark")
    for rounds in (1, 2):
        agent.observe(agent.act(torch.randn(3, 6, 4)), torch.ones(3))
        agent.train_nn()
        assert agent.diverged_at.tolist() == [0, 0, 1]
        start = NeuralLogUCB2(4, width=5, replicas=3, optimizer="gd")
        moved = [not torch.equal(agent.weights(r)[0], start.weights(r)[0]) for r in range(3)]
        assert moved == [True, True, False], rounds
