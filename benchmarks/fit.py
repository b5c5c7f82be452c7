"""Speed and memory of a fit."""

from collections.abc import Callable
from statistics import median

import torch

from benchmarks.measure import Row, interleaved, peak_memory, row, trainer
from nl_lightning import NeuralLogUCB2
from nl_lightning.environments import Synthetic
from nl_lightning.models.training import train_nn
from nl_lightning.rollout.data import BanditData


def gradient_step() -> list[Row]:
    """One gradient step of TrainNN against the two bare matrix products X W^T and Z^T X of the same sizes."""
    rows = []
    for replicas in (1, 10):
        for dim, width in ((20, 20), (42, 100)):
            n = 1000
            g = torch.Generator().manual_seed(0)
            x = torch.rand(replicas, n, dim, generator=g) * 2 - 1
            reward = torch.randint(2, (replicas, n), generator=g).float()
            network = NeuralLogUCB2(dim, width=width, replicas=replicas).network
            lam, lr = torch.ones(replicas), torch.full((replicas,), 1e-5)
            weight, z = network.weights[0].detach(), torch.rand(replicas, n, width, generator=g)
            steps = 50

            def step() -> None:
                train_nn(list(network.weights), x, reward, lam, lr, steps)

            def bare() -> None:
                for _ in range(steps):
                    torch.bmm(x, weight.mT)
                    torch.bmm(z.mT, x)

            ours, products = interleaved([step, bare], repetitions=max(1, 20 // replicas))
            what = f"TrainNN step / two products, R={replicas}, n={n}, d={dim}, m={width}"
            rows.append(row(what, ours, products, 2.5, f"{median(ours) / steps * 1e6:.0f} us"))
    return rows


def act_and_observe() -> list[Row]:
    """Rounds of 32 replicas against rounds of one."""

    def work(replicas: int) -> Callable[[], object]:
        agent = NeuralLogUCB2(20, width=20, replicas=replicas)
        arms = torch.rand(replicas, 5, 20) * 2 - 1
        reward = torch.ones(replicas)
        return lambda: agent.observe(agent.act(arms), reward)

    many, one = interleaved([work(32), work(1)], repetitions=200)
    note = f"{median(one) * 1e6:.0f} us for one"
    return [row("act + observe, 32 replicas / 1 replica", many, one, 3, note)]


def memory(rounds: int) -> list[Row]:
    """Peak resident size of a long fit. TrainNN takes one step a call: memory is the same."""
    peak = peak_memory("benchmarks.fit", f"long_fit({rounds})")
    return [(f"peak memory of a fit, T={rounds}, R=1", f"{peak:.2f} GB", "< 1 GB", peak < 1)]


def long_fit(rounds: int) -> None:
    agent = NeuralLogUCB2(20, width=20, nu=0.01, lr=1e-4, steps=1)
    trainer().fit(agent, BanditData(Synthetic("h1"), rounds, threads=torch.get_num_threads()))
