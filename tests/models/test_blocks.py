"""Arms (x, k) against the vectors [0, .., x, .., 0] that they stand for."""

import copy
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from nl_lightning import AGENTS, NeuralLogUCB2
from nl_lightning.agents.asking import mean_and_bonus
from nl_lightning.agents.base import Agent
from nl_lightning.core.errors import InputError
from nl_lightning.core.replicas import Share
from nl_lightning.models.backward import train_nn
from nl_lightning.models.inputs import Blocks, dense

DIM, BLOCKS = 3, 4


def plain(x: torch.Tensor, blocks: int) -> torch.Tensor:
    """(R, n, d + 1) -> (R, n, K d), entry by entry."""
    features = x.shape[2] - 1
    out = torch.zeros(x.shape[0], x.shape[1], blocks * features, dtype=x.dtype)
    for r in range(x.shape[0]):
        for i in range(x.shape[1]):
            for j in range(features):
                out[r, i, int(x[r, i, -1]) * features + j] = x[r, i, j]
    return out


def drawn(replicas: int, n: int, features: int, blocks: int, g: torch.Generator) -> torch.Tensor:
    x = torch.randn(replicas, n, features, generator=g, dtype=torch.float64)
    return torch.cat([x, torch.randint(blocks, (replicas, n, 1), generator=g).double()], dim=2)


@given(
    replicas=st.integers(1, 3),
    n=st.integers(0, 150),
    features=st.integers(1, 4),
    blocks=st.integers(2, 6),
    most=st.integers(1, 6),
    seed=st.integers(0, 2**20),
)
def test_products_of_blocks_are_those_of_vectors(
    replicas: int, n: int, features: int, blocks: int, most: int, seed: int
) -> None:
    """Also where some blocks have no sample, or one has nearly all (``most`` small)."""
    g = torch.Generator().manual_seed(seed)
    x = drawn(replicas, n, features, min(most, blocks), g)
    vectors = plain(x, blocks)
    torch.testing.assert_close(dense(x, blocks), vectors, rtol=0, atol=0)
    samples = Blocks(x, blocks)
    weight = torch.randn(replicas, 5, blocks * features, generator=g, dtype=torch.float64)
    torch.testing.assert_close(samples.first_layer(weight), vectors @ weight.mT)
    # in the order of the tiles: what belongs to a sample goes along
    marks = torch.arange(1, n + 1).double().expand(replicas, -1)
    arranged = samples.arrange(marks)
    unpacked = samples.unpack(weight)
    product = samples.product(unpacked, torch.empty(replicas, 5, samples.size, dtype=torch.float64))
    delta = torch.randn(replicas, 5, samples.size, generator=g, dtype=torch.float64)
    gradient = torch.empty_like(weight)
    samples.pack(samples.gradient(delta, torch.empty_like(unpacked)), gradient)
    for r in range(replicas):
        place = [int((arranged[r] == mark).nonzero()) for mark in range(1, n + 1)]
        torch.testing.assert_close(product[r][:, place], weight[r] @ vectors[r].mT)
        torch.testing.assert_close(gradient[r], delta[r][:, place] @ vectors[r])
        empty = [i for i in range(samples.size) if i not in place]
        assert not product[r][:, empty].any()


@pytest.mark.parametrize("hidden", [[], [6], [6, 5]])
def test_train_nn_on_blocks_is_that_on_vectors(hidden: list[int]) -> None:
    g = torch.Generator().manual_seed(0)
    x = drawn(2, 70, DIM, BLOCKS, g)
    reward = torch.randint(2, (2, 70), generator=g).double()
    sizes = [BLOCKS * DIM, *hidden, 1]
    weights = [torch.randn(2, o, i, generator=g, dtype=torch.float64) for i, o in pairwise(sizes)]
    expected = [w.clone() for w in weights]
    lam, lr = torch.tensor([0.1, 2.0]).double(), torch.tensor([0.01, 0.02]).double()
    train_nn(weights, x, reward, lam, lr, steps=30, blocks=BLOCKS)
    train_nn(expected, plain(x, BLOCKS), reward, lam, lr, steps=30)
    for weight, twin in zip(weights, expected, strict=True):
        torch.testing.assert_close(weight, twin, rtol=1e-9, atol=1e-11)


def pair(name: str, design: str, **settings: object) -> tuple[Agent, Agent]:
    """The same agent on (x, k) and on vectors."""
    given = {"nu": 0.3, "lam": 0.5, "design": design, "lr": 0.02, "steps": 20, "replicas": 2, "seed": 3, "bias": False}
    given |= settings
    made = AGENTS[name](dim=DIM + 1, blocks=BLOCKS, **given), AGENTS[name](dim=DIM * BLOCKS, **given)
    return made[0].double(), made[1].double()  # type: ignore[return-value]


@pytest.mark.parametrize("design", ["diagonal", "full"])
@pytest.mark.parametrize("name", AGENTS)
def test_agents_on_blocks_are_those_on_vectors(name: str, design: str) -> None:
    g = torch.Generator().manual_seed(1)
    on_blocks, on_vectors = pair(name, design)
    for t in range(45):
        arms = drawn(2, 6, DIM, BLOCKS, g)
        one, other = on_blocks.act(arms), on_vectors.act(plain(arms, BLOCKS))
        assert torch.equal(one.arm, other.arm)
        torch.testing.assert_close(one.mean, other.mean, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(one.bonus, other.bonus, rtol=1e-8, atol=1e-10)
        reward = torch.randint(2, (2,), generator=g).double()
        accepted = None if t % 3 else torch.tensor([True, t % 2 == 0])
        on_blocks.observe(one, reward, accepted)
        on_vectors.observe(other, reward, accepted)
        torch.testing.assert_close(on_blocks.effective_dimension, on_vectors.effective_dimension, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(on_blocks.radius, on_vectors.radius, rtol=1e-9, atol=1e-9)
        if t % 15 == 14:
            on_blocks.train_nn()
            on_vectors.train_nn()
    for weight, twin in zip(on_blocks.network.weights, on_vectors.network.weights, strict=True):
        torch.testing.assert_close(weight, twin, rtol=1e-7, atol=1e-9)
    assert on_blocks.buffer.x.shape[2] == DIM + 1


@pytest.mark.parametrize("design", ["diagonal", "full"])
def test_biases_of_blocks_are_those_of_vectors_with_a_one(design: str) -> None:
    """(x, k) with biases is [0, .., (x, 1), .., 0] without one in the first layer: module and TrainNN."""
    g = torch.Generator().manual_seed(1)
    settings = {"nu": 0.3, "lam": 0.5, "design": design, "lr": 0.02, "steps": 20, "start": "warm"}
    on_blocks = NeuralLogUCB2(DIM + 1, blocks=BLOCKS, **settings).double()
    module = on_blocks.module()
    layers = nn.Sequential(*list(module)[1:])
    on_vectors = NeuralLogUCB2((DIM + 1) * BLOCKS, network=lambda: copy.deepcopy(layers), **settings).double()
    for t in range(30):
        arms = drawn(1, 6, DIM, BLOCKS, g)
        one = torch.cat([arms[..., :-1], torch.ones_like(arms[..., :1]), arms[..., -1:]], dim=2)
        mine, theirs = on_blocks.act(arms), on_vectors.act(plain(one, BLOCKS))
        assert torch.equal(mine.arm, theirs.arm)
        torch.testing.assert_close(mine.mean, theirs.mean, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(mine.bonus, theirs.bonus, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(on_blocks.module()(arms), mine.mean, rtol=1e-9, atol=1e-11)
        on_blocks.observe(mine, t % 2)
        on_vectors.observe(theirs, t % 2)
        if t % 10 == 9:
            on_blocks.train_nn()
            on_vectors.train_nn()


@pytest.mark.parametrize("name", ["NeuralLog-UCB-2", "Logistic-UCB-1"])
def test_state_and_parts_of_an_agent_on_blocks(name: str) -> None:
    """What is kept beside the diagonal goes along with it: into a stored state, another device, a part."""
    g = torch.Generator().manual_seed(2)
    agent, _ = pair(name, "diagonal")
    rounds = [(drawn(2, 6, DIM, BLOCKS, g), torch.randint(2, (2,), generator=g)) for _ in range(20)]

    def play(agent: Agent, some: list, replicas: list[int]) -> None:
        for arms, reward in some:
            agent.observe(agent.act(arms[replicas]), reward[replicas])
        agent.train_nn()

    play(agent, rounds[:10], [0, 1])
    loaded, _ = pair(name, "diagonal")
    arms = rounds[0][0]
    loaded.act(arms)
    loaded.load_state_dict(agent.state_dict())
    part = agent.part(Share([1, 1], 1, 2))
    play(agent, rounds[10:], [0, 1])
    play(loaded, rounds[10:], [0, 1])
    play(part, rounds[10:], [1, 1])
    expected = mean_and_bonus(agent, arms)
    for values, twin in zip(mean_and_bonus(loaded, arms), expected, strict=True):
        assert torch.equal(values, twin)
    for values, twin in zip(mean_and_bonus(part, arms[[1, 1]]), expected, strict=True):
        assert torch.equal(values[0], twin[1])


def test_a_replica_on_blocks_does_not_depend_on_its_company() -> None:
    """Bit for bit: company has other numbers of samples in its blocks, hence other tiles."""
    g = torch.Generator().manual_seed(4)
    x, reward = drawn(3, 500, DIM, BLOCKS, g).float(), torch.randint(2, (3, 500), generator=g).float()
    x[2, :, -1] = 1
    weights = [torch.randn(3, 6, BLOCKS * DIM, generator=g) / 4, torch.randn(3, 1, 6, generator=g) / 2]
    few = [w[:2].clone() for w in weights]
    ones = torch.ones(3)
    train_nn(weights, x, reward, ones, 0.001 * ones, steps=10, blocks=BLOCKS)
    train_nn(few, x[:2], reward[:2], ones[:2], 0.001 * ones[:2], steps=10, blocks=BLOCKS)
    for weight, twin in zip(weights, few, strict=True):
        assert torch.equal(weight[:2], twin)


def test_looking_in_inference_mode_leaves_nothing_behind() -> None:
    g = torch.Generator().manual_seed(5)
    agent, _ = pair("NeuralLog-UCB-2", "diagonal")
    with torch.inference_mode():
        agent.act(drawn(2, 6, DIM, BLOCKS, g))
        _ = agent.design.logdet(), agent.effective_dim_design.logdet()
    for _ in range(2):
        agent.observe(agent.act(drawn(2, 6, DIM, BLOCKS, g)), torch.ones(2))


def test_what_blocks_refuse() -> None:
    agent = AGENTS["NeuralLog-UCB-2"](dim=3, blocks=4, bias=False)
    for k in (-1.0, 4.0, 0.5):
        with pytest.raises(InputError, match=f"0 to 3; got {k:g}"):
            agent.act(torch.tensor([[0.1, 0.2, k]]))
    with pytest.raises(InputError, match="dim must be at least 2"):
        AGENTS["NeuralLog-UCB-2"](dim=1, blocks=4)
    with pytest.raises(InputError, match="set its dense to true"):
        AGENTS["NeuralLog-UCB-2"](dim=3, blocks=4, mode="theory")
    with pytest.raises(InputError, match="blocks must be a whole number"):
        AGENTS["NeuralLog-UCB-2"](dim=3, blocks=0)
    other = AGENTS["NeuralLog-UCB-2"](dim=5, blocks=2, bias=False)
    with pytest.raises(InputError, match="blocks is"):
        AGENTS["NeuralLog-UCB-2"](dim=3, blocks=4, bias=False).load_state_dict(other.state_dict())
    with pytest.raises(InputError, match="its blocks is 4, here it is 1"):
        AGENTS["NeuralLog-UCB-2"](dim=8, bias=False).load_state_dict(agent.state_dict())
