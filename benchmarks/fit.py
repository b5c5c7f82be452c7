"""Speed and memory of a fit."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn

from benchmarks.measure import Row, interleaved, peak_memory, ratio, row, trainer
from nl_lightning import NeuralLogUCB2
from nl_lightning.environments import Synthetic
from nl_lightning.models.backward import train_nn
from nl_lightning.models.optimizers import Adam
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
            network = NeuralLogUCB2(dim, width=width, replicas=replicas, bias=False).network
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


def optimizers() -> list[Row]:
    """A step of Adam against one of gradient descent, on the same samples."""
    rows = []
    for replicas in (1, 10):
        n, rule = 1000, Adam()
        x, reward = torch.rand(replicas, n, 20) * 2 - 1, torch.randint(2, (replicas, n)).float()
        lam, lr = torch.ones(replicas), torch.full((replicas,), 1e-5)
        weights = [weight.detach() for weight in NeuralLogUCB2(20, replicas=replicas, bias=False).network.weights]

        def adam() -> None:
            train_nn(weights, x, reward, lam, lr, 50, rule=rule)

        def descent() -> None:
            train_nn(weights, x, reward, lam, lr, 50)

        ours, plain = interleaved([adam, descent], repetitions=max(1, 20 // replicas))
        rows.append(row(f"a step of adam / of gd, R={replicas}, n={n}, d=20, m=20", ours, plain, 1.3, ""))
    return rows


def own_network() -> list[Row]:
    """The built-in network given as a torch module, and as it is: what the generic way costs."""
    rows = []
    for dim, width in ((20, 20), (42, 100)):

        def work(network: Any) -> Callable[[], object]:
            size = {"width": width} if network is None else {"network": network}

            def fit() -> None:
                agent = NeuralLogUCB2(dim, replicas=4, **size)
                environment = Synthetic("h1", dim=dim)
                trainer().fit(agent, BanditData(environment, 300, threads=torch.get_num_threads()))

            return fit

        def module() -> nn.Module:
            return nn.Sequential(nn.Linear(dim, width), nn.ReLU(), nn.Linear(width, 1))

        generic, fast = interleaved([work(module), work(None)], repetitions=1, rounds=3)
        value, spread = ratio(generic, fast)
        what = f"a fit with that network as a torch module / built in, R=4, d={dim}, m={width}"
        rows.append((what, f"{value:.1f} ({spread})", "-", True))
    return rows


def schedule() -> list[Row]:
    """Eight times as many rounds, with TrainNN at times that grow geometrically."""

    def work(rounds: int) -> Callable[[], object]:
        def fit() -> None:
            trainer().fit(
                NeuralLogUCB2(20, width=20), BanditData(Synthetic("h1"), rounds, threads=torch.get_num_threads())
            )

        return fit

    long, short = interleaved([work(64_000), work(8_000)], repetitions=1, rounds=3)
    return [row("T=64,000 / T=8,000, default schedule", long, short, 10, f"{median(long):.0f} s")]


def million() -> list[Row]:
    """A million rounds with the defaults, in a process of its own."""
    begun = time.perf_counter()
    peak = peak_memory("benchmarks.fit", "default_fit(1_000_000)")
    taken = time.perf_counter() - begun
    return [
        ("a million rounds, R=1, d=20, m=20", f"{taken / 60:.1f} minutes", "<= 10 minutes", taken <= 600),
        ("its peak memory", f"{peak:.2f} GB", "<= 1 GB", peak <= 1),
    ]


def default_fit(rounds: int) -> None:
    torch.set_num_threads(1)
    trainer().fit(NeuralLogUCB2(20, width=20), BanditData(Synthetic("h1"), rounds, threads=1))


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
    agent = NeuralLogUCB2(20, width=20, nu=0.01, lam=1.0, optimizer="gd", lr=1e-4, steps=1, update_growth=0)
    trainer().fit(agent, BanditData(Synthetic("h1"), rounds, threads=torch.get_num_threads()))
