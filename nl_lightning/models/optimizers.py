"""How TrainNN steps down a gradient: gradient descent, Adam, or any optimiser of torch that works entry by entry.

The parameters of all R replicas are one row of numbers, and so is their gradient. An optimiser that treats every entry
by itself therefore treats every replica by itself; one that couples entries (by a norm, a line search, a matrix) would
make a replica's result depend on the others, and is refused. Optimisers start afresh at each call of TrainNN.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from nl_lightning.core.errors import InputError
from nl_lightning.core.imports import import_class

__all__ = ["Adam", "Descend", "GradientDescent", "OptimizerLike", "StepRule", "TorchOptimizer", "make_step_rule"]

OptimizerLike = str | Callable[[Iterable[Tensor]], Optimizer]
"""``adam``, ``gd``, a ``torch.optim`` class or its import path, or a callable: parameters -> optimiser."""

Descend = Callable[[Tensor], None]
"""Takes the gradient of a row of parameters and changes the row; the gradient may be overwritten."""


_REBASE = 1000
"""Steps of Adam after which its second moment is scaled anew."""


class StepRule:
    """What TrainNN does with a gradient."""

    lr: float
    steps: ClassVar[int] = 100
    """number J of steps where none is given"""
    plain: ClassVar[bool] = False
    """Whether a step is theta - lr gradient, which TrainNN computes in one go."""

    def start(self, theta: Tensor, steps: int) -> Descend:
        """Begin with a row of parameters, which will take so many steps. Not asked of a ``plain`` rule."""
        raise NotImplementedError

    def identity(self) -> str:
        """What a stored state must agree with: the rule, and those of its settings that a checkpoint does not store."""
        return type(self).__name__


class GradientDescent(StepRule):
    """theta <- theta - lr grad L(theta): the paper's words, read literally on its summed loss."""

    plain = True

    def __init__(self, lr: float | None = None) -> None:
        self.lr = 0.01 if lr is None else lr


class Adam(StepRule):
    """Adam (Kingma and Ba 2015) with its usual constants, from moments of zero at every call of TrainNN, and with a
    learning rate that falls linearly: that of step t of J is lr_t = lr (J - t + 1) / J.

    With u = m / (1 - b1) and s = v / ((1 - b2) b2^t), each moment takes one operation:
    u <- g + b1 u,   s <- s + g^2 / b2^t,   theta <- theta - lr_t (1 - b1) / (1 - b1^t) u / (sqrt(c s) + eps),
    where c = (1 - b2) b2^t / (1 - b2^t).
    """

    steps = 75
    BETA1, BETA2, EPS = 0.9, 0.999, 1e-8

    def __init__(self, lr: float | None = None) -> None:
        self.lr = 0.03 if lr is None else lr

    def start(self, theta: Tensor, steps: int) -> Descend:
        u, s, root = (torch.zeros_like(theta) for _ in range(3))
        t = 0

        def step(gradient: Tensor) -> None:
            nonlocal t
            t += 1
            # b2^t begins again before it becomes too small
            power = self.BETA2 ** ((t - 1) % _REBASE + 1)
            root_c = ((1 - self.BETA2) * power / (1 - self.BETA2**t)) ** 0.5
            length = self.lr * (steps - t + 1) / steps * (1 - self.BETA1) / (1 - self.BETA1**t) / root_c
            torch.add(gradient, u, alpha=self.BETA1, out=u)
            s.addcmul_(gradient, gradient, value=1 / power)
            torch.sqrt(s, out=root).add_(self.EPS / root_c)
            theta.addcdiv_(u, root, value=-length)
            if t % _REBASE == 0:
                s.mul_(power)

        return step


class TorchOptimizer(StepRule):
    """An optimiser of torch, or of the user's own.

    Args:
        make: parameters -> optimiser, which is called at every TrainNN.
    """

    def __init__(self, make: Callable[[Iterable[Tensor]], Optimizer]) -> None:
        self.make = make
        trial = self._made(torch.zeros(4, dtype=torch.float64))
        kind = type(trial)
        defaults = {name: value for name, value in sorted(trial.defaults.items()) if not callable(value)}
        self.name = f"{kind.__module__}.{kind.__qualname__}"
        self._identity = f"{self.name}({', '.join(f'{name}={value}' for name, value in defaults.items())})"
        self.lr = float(trial.defaults.get("lr", 0.0))
        self._check_entry_by_entry()

    def start(self, theta: Tensor, steps: int) -> Descend:
        optimizer = self._made(theta)

        def step(gradient: Tensor) -> None:
            theta.grad = gradient
            optimizer.step()

        return step

    def identity(self) -> str:
        return self._identity

    def _made(self, theta: Tensor) -> Optimizer:
        try:
            made = self.make([theta])
        except Exception as error:
            # an optimiser of the user's own may raise anything
            raise InputError(f"optimizer: it cannot be made ({type(error).__name__}: {error}).") from error
        if not isinstance(made, Optimizer):
            raise InputError(
                f"optimizer must be adam, gd, or make a torch.optim.Optimizer from parameters; it made a "
                f"{type(made).__name__}."
            )
        return made

    def _check_entry_by_entry(self) -> None:
        """Take a few steps with six entries, and with three of them alone: their values must agree."""
        generator = torch.Generator("cpu").manual_seed(0)
        start, *gradients = torch.randn(5, 6, generator=generator, dtype=torch.float64, device="cpu").unbind()
        ends = []
        for entries in (slice(0, 6), slice(0, 3)):
            theta = start[entries].clone()
            step = self.start(theta, len(gradients))
            for gradient in gradients:
                try:
                    step(gradient[entries].clone())
                except Exception as error:
                    raise InputError(
                        f"optimizer: {self.name} cannot take a step from a gradient alone ({error}); take one that "
                        "works entry by entry, such as adam, torch.optim.SGD, RMSprop or AdamW."
                    ) from error
            ends.append(theta[:3])
        if not torch.allclose(ends[0], ends[1], rtol=1e-9, atol=1e-12):
            raise InputError(
                f"optimizer: {self.name} couples parameters, so that replicas would depend on each other, or draws "
                "random numbers; take one that works entry by entry, such as adam, torch.optim.SGD, RMSprop or AdamW."
            )


_NAMED: dict[str, Callable[[float | None], StepRule]] = {"adam": Adam, "gd": GradientDescent}


def make_step_rule(optimizer: OptimizerLike, lr: float | None) -> StepRule:
    """The rule that a user asks for, with this learning rate where one is given."""
    if isinstance(optimizer, str) and optimizer in _NAMED:
        return _NAMED[optimizer](lr)
    kind: Any = optimizer
    if isinstance(optimizer, str):
        kind = import_class(optimizer, Optimizer, "optimizer", _NAMED)
    if isinstance(kind, type) and issubclass(kind, Optimizer):
        return TorchOptimizer(kind if lr is None else partial(kind, lr=lr))  # type: ignore[call-arg]
    if not callable(kind):
        raise InputError(
            f"optimizer must be adam, gd, the import path of a torch.optim class, or a callable that makes an "
            f"optimiser from parameters; got {_shown(optimizer)}."
        )
    if lr is not None:
        raise InputError(f"lr = {lr:g} has no effect: the optimiser that you pass has its own; leave lr out.")
    return TorchOptimizer(kind)


def _shown(optimizer: object) -> str:
    return f"an instance of {type(optimizer).__name__}" if isinstance(optimizer, Optimizer) else f"{optimizer!r:.50}"
