"""The replay buffer against plain lists."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from nl_lightning.agents.buffer import ReplayBuffer


@given(st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=8), st.integers(1, 4), st.integers(0, 2**20))
def test_buffer_keeps_what_was_accepted(blocks: list[tuple[int, bool]], replicas: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    buffer = ReplayBuffer(replicas, 3)
    kept: list[list[tuple[torch.Tensor, float]]] = [[] for _ in range(replicas)]
    for rows, masked in blocks:
        x, reward = torch.randn(replicas, rows, 3, generator=g), torch.randint(2, (replicas, rows), generator=g)
        accepted = torch.rand(replicas, rows, generator=g) < 0.5 if masked else None
        buffer.append(x, reward, accepted)
        for r in range(replicas):
            for n in range(rows):
                if accepted is None or accepted[r, n]:
                    kept[r].append((x[r, n], float(reward[r, n])))
    x, reward, weight = buffer.rows()
    assert weight is None
    longest = max(map(len, kept))
    assert x.shape == (replicas, longest, 3)
    assert buffer.length.tolist() == [len(rows) for rows in kept]
    for r, rows in enumerate(kept):
        for n, (row, click) in enumerate(rows):
            assert torch.equal(x[r, n], row)
            assert reward[r, n] == click
        assert not x[r, len(rows) :].any()
        assert not reward[r, len(rows) :].any()


def test_capacity_grows_by_doubling() -> None:
    buffer = ReplayBuffer(1, 2)
    capacities = set()
    for _ in range(1000):
        buffer.append(torch.ones(1, 1, 2), torch.ones(1, 1))
        capacities.add(buffer.capacity)
    assert capacities == {64, 128, 256, 512, 1024}


def test_rejected_rows_do_not_grow_the_buffer() -> None:
    buffer = ReplayBuffer(2, 2)
    for _ in range(1000):
        buffer.append(torch.ones(2, 1, 2), torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.bool))
    assert buffer.capacity == 64
    assert not buffer.x[:, :-1].any()
