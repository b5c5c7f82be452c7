"""Whether torch.compile would pay for TrainNN: it is not an option of the agents, and this is the reason."""

import shutil
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from benchmarks.measure import Row, ratio, seconds
from nl_lightning import NeuralLogUCB2
from nl_lightning.training import train_nn

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


def _problem(replicas: int, n: int, dim: int, width: int) -> tuple[Tensor, Tensor, list[Tensor], Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.rand(replicas, n, dim, generator=g) * 2 - 1
    reward = torch.randint(2, (replicas, n), generator=g).float()
    weights = [weight.detach().clone() for weight in NeuralLogUCB2(dim, width=width, replicas=replicas).network.weights]
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
    top: Tensor, last: Tensor, columns: Tensor, rows: Tensor, target: Tensor, decay: Tensor, descent: Tensor
) -> tuple[Tensor, Tensor]:
    """One gradient step as in ``training.train_nn``, left to the compiler to fuse."""
    z = torch.bmm(top, columns).clamp_min(0)
    residual = (torch.bmm(last, z) / 2).tanh() - target
    product = torch.bmm(torch.where(z > 0, residual, 0.0), rows)
    gradient = (top * product).sum(2).unsqueeze(1)
    return top * decay + descent * last.mT * product, last * decay + descent * gradient
