"""TrainNN in two other ways, compiled and with products in bf16: no options of the agents, and here is why."""

import shutil
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch import Tensor

from benchmarks.measure import Row, ratio, seconds
from nl_lightning import NeuralLogUCB2
from nl_lightning.environments import Synthetic
from nl_lightning.models.backward import train_nn

_SIZES = ((1, 1000, 20, 20), (20, 1000, 20, 20), (1, 1000, 42, 100), (10, 1000, 42, 100))
"""(R, n, d, m)"""
_EVERY, _STEPS = 50, 100


def compiled() -> list[Row]:
    """The calls of TrainNN of a fit, n = 50, 100, ..., against the same with a compiled step, and the time it takes to
    compile. The rows inform, nothing has to be reached."""
    if not any(map(shutil.which, ("c++", "g++", "clang++", "cl"))):
        return [("TrainNN with torch.compile", "not measured: there is no C++ compiler on this machine", "-", True)]
    rows = []
    for replicas, n, dim, width in _SIZES:
        x, reward, weights, lam, lr = _problem(replicas, n, dim, width)
        torch._dynamo.reset()
        step = torch.compile(_step, dynamic=True)

        def fit(train: Callable[[Tensor, Tensor], None]) -> Callable[[], None]:
            def calls() -> None:
                for stop in range(_EVERY, n + 1, _EVERY):
                    train(x[:, :stop], reward[:, :stop])

            return calls

        def eager(x: Tensor, reward: Tensor) -> None:
            train_nn(weights, x, reward, lam, lr, _STEPS)

        def by_steps(x: Tensor, reward: Tensor) -> None:
            _train_by(step, weights, x, reward, lam, lr, _STEPS)

        eager_fit, compiled_fit = fit(eager), fit(by_steps)
        first = seconds(compiled_fit, 1)
        times = [(seconds(eager_fit, 1), seconds(compiled_fit, 1)) for _ in range(3)]
        plain, fast = (list(column) for column in zip(*times, strict=True))
        gain, spread = ratio(plain, fast)
        compiling = first - median(fast)
        whole = median(plain) / (median(fast) + compiling)
        value = (
            f"{gain:.2f} ({spread}) times as fast; with the {compiling:.0f} s of compiling {whole:.2g} times "
            f"(eager {median(plain):.2f} s)"
        )
        rows.append((f"TrainNN of a fit, compiled, R={replicas}, T={n}, d={dim}, m={width}", value, "-", True))
    return rows


def half() -> list[Row]:
    """One TrainNN with the operands of every product rounded to bf16, and its results in float32, against float32; and
    float32 against float64. The rows inform, nothing has to be reached."""
    rows = []
    for n, dim, width, rate in ((2000, 20, 20, 0.005), (2000, 42, 100, 0.001)):
        environment, replicas = Synthetic("h1", dim=dim), 10
        environment.prepare(range(replicas), torch.empty(0))
        deal = environment.deal(0, n)
        start = NeuralLogUCB2(dim, width=width, replicas=replicas, bias=False).network.weights
        found = {}
        for name, dtype, product in (
            ("exact", torch.float64, torch.bmm),
            ("single", torch.float32, torch.bmm),
            ("half", torch.float32, _rounded_product),
        ):
            weights = [weight.detach().to(dtype, copy=True) for weight in start]
            x, reward = deal.arms[:, :, 0].to(dtype), deal.reward[:, :, 0].to(dtype)
            lam, lr = torch.ones(replicas, dtype=dtype), torch.full((replicas,), rate, dtype=dtype)
            _train_by(partial(_step, product=product), weights, x, reward, lam, lr, _STEPS)
            found[name] = torch.cat([weight.double().flatten(1) for weight in weights], dim=1)
        size = found["single"].norm(dim=1)
        off, rounding = (
            ((found[name] - found["single"]).norm(dim=1) / size).median().item() for name in ("half", "exact")
        )
        what = f"weights after TrainNN with products in bf16, off by, R={replicas}, n={n}, d={dim}, m={width}"
        rows.append((what, f"{off:.1%} (float32 beside float64: {rounding:.1g})", "-", True))
    return rows


def _rounded_product(left: Tensor, right: Tensor) -> Tensor:
    return torch.bmm(left.bfloat16().float(), right.bfloat16().float())


def _problem(replicas: int, n: int, dim: int, width: int) -> tuple[Tensor, Tensor, list[Tensor], Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.rand(replicas, n, dim, generator=g) * 2 - 1
    reward = torch.randint(2, (replicas, n), generator=g).float()
    network = NeuralLogUCB2(dim, width=width, replicas=replicas, bias=False).network
    weights = [weight.detach().clone() for weight in network.weights]
    return x, reward, weights, torch.ones(replicas), torch.full((replicas,), 1e-5)


def _train_by(
    step: Callable[..., tuple[Tensor, Tensor]],
    weights: list[Tensor],
    x: Tensor,
    reward: Tensor,
    lam: Tensor,
    lr: Tensor,
    steps: int,
) -> None:
    """TrainNN of depth 2 by a function of one step: the loop itself would be compiled step after step."""
    with torch.no_grad():
        columns, target = x.mT.contiguous(), 2 * reward[:, None, :] - 1
        rows = columns.mT
        descent = -lr[:, None, None] / 2
        decay = 1 + 4 * descent * lam[:, None, None]
        top, last = weights
        for _ in range(steps):
            top, last = step(top, last, columns, rows, target, decay, descent)
        for weight, new in zip(weights, (top, last), strict=True):
            weight.copy_(new)


def _step(
    top: Tensor,
    last: Tensor,
    columns: Tensor,
    rows: Tensor,
    target: Tensor,
    decay: Tensor,
    descent: Tensor,
    product: Callable[[Tensor, Tensor], Tensor] = torch.bmm,
) -> tuple[Tensor, Tensor]:
    """One gradient step, the formula of ``training.train_nn`` in whole passes, left to the compiler to fuse."""
    z = product(top, columns).clamp_min(0)
    residual = (product(last, z) / 2).tanh() - target
    outer = product(torch.where(z > 0, residual, 0.0), rows)
    gradient = (top * outer).sum(2).unsqueeze(1)
    return top * decay + descent * last.mT * outer, last * decay + descent * gradient
