"""Where the time of our own online run goes: matrix products, elementwise operations, Python, Lightning."""

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.measure import Row, row, trainer
from nl_lightning import NeuralLogUCB2
from nl_lightning.environments import Synthetic
from nl_lightning.rollout.data import BanditData

ROUNDS, EVERY, STEPS = 2000, 50, 100

_PRODUCTS = {"aten::bmm", "aten::baddbmm", "aten::baddbmm_", "aten::mm", "aten::addmm"}


class Profile:
    """A fit of T = 2000 on h1 with so many replicas, measured several times: seconds of its parts.

    whole: from ``trainer.fit`` on. training: TrainNN. rounds: deal, act, observe. driven: the same rounds and calls of
    TrainNN, by a loop instead of a Trainer. products: the two matrix products of each gradient step, X W^T and Z^T X.
    """

    def __init__(self, replicas: int, repetitions: int = 9) -> None:
        self.replicas = replicas
        self._once()
        runs = [self._once() for _ in range(repetitions)]
        self.seconds = {name: [run[name] for run in runs] for name in runs[0]}
        self.operations = self._operations()

    def rows(self) -> list[Row]:
        seconds, what = self.seconds, f"T={ROUNDS}, R={self.replicas}"
        whole = f"{median(seconds['whole']):.2f} s"
        part = [(whole - driven) / whole for whole, driven in zip(seconds["whole"], seconds["driven"], strict=True)]
        lightning = f"{median(part):.1%} ({sorted(part)[len(part) // 4]:.1%} to {sorted(part)[3 * len(part) // 4]:.1%})"
        return [
            row(f"fit, {what} / its TrainNN", seconds["whole"], seconds["training"], 1.5, whole),
            row(
                f"TrainNN of that fit, {what} / its matrix products", seconds["training"], seconds["products"], 2.5, ""
            ),
            (f"Lightning's part of that fit, {what}", lightning, "< 15%", median(part) < 0.15),
        ]

    def shares(self) -> dict[str, float]:
        """Parts of the whole, which add up to one; Lightning's cannot be less than nothing."""
        whole, training, products, rounds, driven = (
            median(self.seconds[name]) for name in ("whole", "training", "products", "rounds", "driven")
        )
        lightning = max(0.0, whole - driven)
        return {
            "TrainNN: matrix products": products / whole,
            "TrainNN: elementwise and the rest": (training - products) / whole,
            "rounds: small operations, and Python between them": rounds / whole,
            "Lightning": lightning / whole,
            "the rest (buffer, loop)": max(0.0, whole - training - rounds - lightning) / whole,
        }

    def _once(self) -> dict[str, float]:
        agent, data = self._run()
        training, rounds = _Stopwatch(agent.train_nn), _Stopwatch(data.play)
        agent.train_nn, data.play = training, rounds  # type: ignore[method-assign]
        fitter = trainer()
        whole = _Stopwatch(fitter.fit)
        whole(agent, data)
        return {
            "whole": whole.seconds,
            "training": training.seconds,
            "rounds": rounds.seconds,
            "driven": self._driven(),
            "products": self._products(),
        }

    def _run(self) -> tuple[NeuralLogUCB2, BanditData]:
        agent = NeuralLogUCB2(
            20,
            width=20,
            nu=0.01,
            lam=1.0,
            optimizer="gd",
            lr=0.005,
            steps=STEPS,
            update_every=EVERY,
            replicas=self.replicas,
        )
        return agent, BanditData(Synthetic("h1"), ROUNDS, threads=torch.get_num_threads())

    def _driven(self) -> float:
        agent, data = self._run()
        driver = trainer()
        driver.strategy.connect(agent)
        agent.trainer = driver
        driver.callbacks.extend(agent.configure_callbacks())  # type: ignore[attr-defined]
        data.trainer = driver

        def play() -> None:
            data.setup("fit")
            for _ in data.train_dataloader():
                agent.train_nn()

        watch = _Stopwatch(play)
        watch()
        return watch.seconds

    def _products(self) -> float:
        agent, _ = self._run()
        weight = agent.network.weights[0].detach()
        x = torch.rand(self.replicas, ROUNDS, weight.shape[2], device="cpu")
        z = torch.rand(self.replicas, ROUNDS, weight.shape[1], device="cpu")

        def multiply() -> None:
            for n in range(EVERY, ROUNDS + 1, EVERY):
                x_n, z_n = x[:, :n], z[:, :n].mT
                for _ in range(STEPS):
                    torch.bmm(x_n, weight.mT)
                    torch.bmm(z_n, x_n)

        watch = _Stopwatch(multiply)
        watch()
        return watch.seconds

    def _operations(self) -> dict[str, float]:
        """How many operations torch is asked for in a round, TrainNN aside; and what its own profiler says of a fit.

        It writes down every operation, so that small ones look dearer than they are.
        """
        agent, data = self._run()
        play, operations = data.play, _Operations()

        def counted(count: int) -> None:
            with operations:
                play(count)

        data.play = counted  # type: ignore[method-assign]
        trainer().fit(agent, data)
        agent, data = self._run()
        watch = _Stopwatch(trainer().fit)
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            watch(agent, data)
        events = [event for event in seen.key_averages() if event.key.startswith("aten::")]
        products = sum(event.self_cpu_time_total for event in events if event.key in _PRODUCTS) / 1e6
        others = sum(event.self_cpu_time_total for event in events if event.key not in _PRODUCTS) / 1e6
        return {
            "operations a round": operations.count / ROUNDS,
            "matrix products": products / watch.seconds,
            "other operations": others / watch.seconds,
            "Python and Lightning": 1 - (products + others) / watch.seconds,
        }


class _Operations(TorchDispatchMode):
    """Counts the operations within it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


class _Stopwatch:
    """Work, and how long it took in all."""

    def __init__(self, work: Callable[..., Any]) -> None:
        self.seconds, self._work = 0.0, work

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        start = perf_counter()
        result = self._work(*args, **kwargs)
        self.seconds += perf_counter() - start
        return result
