"""Speed and memory of a fit, as ratios measured in one run: ``python -m benchmarks``.

The machine is noisy, so every number is a median of interleaved repetitions, and only ratios within one run count.
"""

import argparse
import logging
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from statistics import median

import lightning as L
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from nl_lightning import NeuralLogUCB2
from nl_lightning.data import BanditData
from nl_lightning.environments import Synthetic
from nl_lightning.training import train_nn

Row = tuple[str, str, str, bool]


def seconds(work: Callable[[], object], repetitions: int) -> float:
    start = time.perf_counter()
    for _ in range(repetitions):
        work()
    return (time.perf_counter() - start) / repetitions


def interleaved(works: list[Callable[[], object]], repetitions: int, rounds: int = 15) -> list[list[float]]:
    """``rounds`` times each work in turn: (works, rounds) seconds a repetition."""
    for work in works:
        seconds(work, max(1, repetitions // 4))
    times = [[seconds(work, repetitions) for work in works] for _ in range(rounds)]
    return [list(column) for column in zip(*times, strict=True)]


def ratio(numerator: list[float], denominator: list[float]) -> tuple[float, str]:
    """The median ratio, and the ratios' quartiles as a text."""
    ratios = sorted(a / b for a, b in zip(numerator, denominator, strict=True))
    return median(ratios), f"{ratios[len(ratios) // 4]:.2f} to {ratios[3 * len(ratios) // 4]:.2f}"


def row(what: str, numerator: list[float], denominator: list[float], limit: float, note: str) -> Row:
    value, spread = ratio(numerator, denominator)
    return what, f"{value:.2f} ({spread}) {note}", f"<= {limit:g}", value <= limit


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


def _trainer() -> L.Trainer:
    return L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def whole_fit() -> list[Row]:
    """A fit of T = 2000 against its TrainNN steps alone, and Lightning's part of it."""
    rounds, every, steps = 2000, 50, 100

    def agent() -> NeuralLogUCB2:
        return NeuralLogUCB2(20, width=20, nu=0.01, lr=0.005, steps=steps, update_every=every)

    def fit() -> float:
        trainer, fitted, data = _trainer(), agent(), BanditData(Synthetic("h1"), rounds)
        return seconds(lambda: trainer.fit(fitted, data), 1)

    def training_alone() -> float:
        trained = agent()
        environment = Synthetic("h1")
        environment.prepare([0], torch.empty(0))
        deal = environment.deal(0, rounds)
        x, reward = deal.arms[:, :, 0].contiguous(), deal.reward[:, :, 0].contiguous()
        lam, lr = torch.ones(1), torch.full((1,), 0.005)

        def train() -> None:
            for n in range(every, rounds + 1, every):
                train_nn(list(trained.network.weights), x[:, :n], reward[:, :n], lam, lr, steps)

        return seconds(train, 1)

    def without_lightning() -> float:
        """The same rounds and calls of TrainNN, driven by a loop instead of a Trainer."""
        driven, data = agent(), BanditData(Synthetic("h1"), rounds)
        trainer = _trainer()
        trainer.strategy.connect(driven)
        trainer.callbacks.extend(driven.configure_callbacks())  # type: ignore[attr-defined]
        data.trainer = trainer

        def play() -> None:
            data.setup("fit")
            for batch in data.train_dataloader():
                driven._train_nn(batch.x, batch.reward)

        return seconds(play, 1)

    fit(), training_alone(), without_lightning()
    fits, alone, bare = zip(*((fit(), training_alone(), without_lightning()) for _ in range(9)), strict=True)
    part = [(f - b) / f for f, b in zip(fits, bare, strict=True)]
    lightning = f"{median(part):.1%} ({sorted(part)[2]:.1%} to {sorted(part)[6]:.1%})"
    return [
        row(f"fit, T={rounds}, R=1 / its TrainNN steps", list(fits), list(alone), 2, f"{median(fits):.2f} s"),
        ("Lightning's part of that fit", lightning, "< 15%", median(part) < 0.15),
    ]


def memory(rounds: int) -> list[Row]:
    """Peak resident size of a long fit, in a process of its own. TrainNN takes one step a call: memory is the same."""
    code = f"import benchmarks.__main__ as b; b.long_fit({rounds})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    peak = float(done.stdout.split()[-1]) / 1e6
    return [(f"peak memory of a fit, T={rounds}, R=1", f"{peak:.2f} GB", "< 1 GB", peak < 1)]


def long_fit(rounds: int) -> None:
    """Fit and print the peak resident size in kilobytes."""
    agent = NeuralLogUCB2(20, width=20, nu=0.01, lr=1e-4, steps=1)
    _trainer().fit(agent, BanditData(Synthetic("h1"), rounds))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--threads", type=int, default=1, help="threads of torch; with more than one, ratios spread")
    parser.add_argument("--long", type=int, default=100_000, help="rounds of the memory measurement")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.WARNING)
    torch.set_num_threads(options.threads)
    table = Table(title=f"torch {torch.__version__}, {torch.get_num_threads()} threads", title_justify="left")
    for name in ("what", "measured: median (quartiles)", "to reach", ""):
        table.add_column(name)
    parts: list[Callable[[], list[Row]]] = [gradient_step, act_and_observe, whole_fit, lambda: memory(options.long)]
    reached = True
    for part in track(parts, description="measuring"):
        for what, value, limit, holds in part():
            table.add_row(what, value, limit, "yes" if holds else "NO")
            reached &= holds
    Console().print(table)
    sys.exit(0 if reached else 1)


if __name__ == "__main__":
    main()
