"""Optimisers of TrainNN against torch's own, on per-sample autograd; those that couple replicas are refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from nl_lightning import NeuralLogUCB2
from nl_lightning.core.errors import InputError
from nl_lightning.models.backward import train_nn
from nl_lightning.models.mlp import MLP
from nl_lightning.models.optimizers import make_step_rule

REPLICAS, N, DIM = 3, 23, 4

STEPS = 12


class Falling(torch.optim.Adam):
    """Adam whose learning rate falls linearly over the steps."""

    def step(self, closure: Any = None) -> None:
        taken = getattr(self, "taken", 0)
        self.param_groups[0]["lr"] = 0.02 * (STEPS - taken) / STEPS
        super().step(closure)
        self.taken = taken + 1


CASES: list[tuple[Any, float | None, Callable[..., Any]]] = [
    ("gd", 0.02, lambda p: torch.optim.SGD(p, lr=0.02)),
    ("adam", 0.02, lambda p: Falling(p, lr=0.02)),
    ("torch.optim.Adam", 0.02, lambda p: torch.optim.Adam(p, lr=0.02)),
    ("torch.optim.RMSprop", 0.02, lambda p: torch.optim.RMSprop(p, lr=0.02)),
    (torch.optim.Adagrad, None, torch.optim.Adagrad),
    (decayed := lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1), None, decayed),
    (heavy := lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9), None, heavy),
]


def forward(weights: list[torch.Tensor], x: torch.Tensor, bias: bool) -> torch.Tensor:
    """f of one sample, as it is written."""
    z = x
    for number, weight in enumerate(weights):
        z = weight[:, :-1] @ z + weight[:, -1] if bias else weight @ z
        if number < len(weights) - 1:
            z = z.relu()
    return z[0]


@pytest.mark.parametrize("case", CASES, ids=["gd", "adam", "Adam", "RMSprop", "Adagrad", "AdamW", "momentum"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("hidden", [[], [5], [5, 6]])
def test_steps_equal_those_of_torch_on_autograd(case: Any, bias: bool, hidden: list[int]) -> None:
    """Weighted observations, three replicas with penalties of their own, and rows that only fill up."""
    optimizer, lr, twin = case
    g = torch.Generator().manual_seed(1)
    network = MLP([DIM, *hidden, 1], range(REPLICAS), bias=bias).double()
    x = torch.randn(REPLICAS, N, DIM, generator=g, dtype=torch.float64)
    reward = torch.randint(2, (REPLICAS, N), generator=g).double()
    weight = torch.rand(REPLICAS, N, generator=g, dtype=torch.float64) * 2
    # the last replica has fewer observations
    x[-1, 15:], reward[-1, 15:], weight[-1, 15:] = 0, 0, 0
    lam = torch.tensor([0.1, 1.0, 0.5], dtype=torch.float64)
    rule = make_step_rule(optimizer, lr)
    trained = [w.detach().clone() for w in network.weights]
    rate = torch.full((REPLICAS,), rule.lr, dtype=torch.float64)
    train_nn(trained, x, reward, lam, rate, STEPS, weight=weight, bias=bias, rule=rule)
    for replica in range(REPLICAS):
        leaves = [w[replica].detach().clone().requires_grad_() for w in network.weights]
        steps = twin(leaves)
        for _ in range(STEPS):
            steps.zero_grad()
            loss = lam[replica] * sum((w**2).sum() for w in leaves)
            for i in range(15 if replica == REPLICAS - 1 else N):
                f = forward(leaves, x[replica, i], bias)
                loss = loss + weight[replica, i] * binary_cross_entropy_with_logits(f, reward[replica, i])
            loss.backward()
            steps.step()
        for mine, theirs in zip(trained, leaves, strict=True):
            torch.testing.assert_close(mine[replica], theirs.detach(), rtol=1e-9, atol=1e-11)


def test_adam_over_thousands_of_steps() -> None:
    """Its second moment is scaled anew every thousand steps."""
    theta = torch.linspace(-1, 1, 7, dtype=torch.float64)
    twin = theta.clone()
    steps = 2500
    step, reference = make_step_rule("adam", 0.01).start(theta, steps), torch.optim.Adam([twin], lr=0.01)
    for t in range(steps):
        gradient = torch.sin(3 * theta + t)
        twin.grad = torch.sin(3 * twin + t)
        reference.param_groups[0]["lr"] = 0.01 * (steps - t) / steps
        step(gradient)
        reference.step()
    torch.testing.assert_close(theta, twin, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["adam", "torch.optim.NAdam"])
def test_a_replica_does_not_depend_on_the_others(name: str) -> None:
    x, reward = torch.randn(5, 40, DIM), torch.randint(2, (5, 40)).float()
    rule, ones = make_step_rule(name, None), torch.ones(5)
    together = [w.detach() for w in MLP([DIM, 7, 1], range(5)).weights]
    train_nn(together, x, reward, ones, ones, 30, rule=rule)
    pair = [w.detach()[1:3].clone() for w in MLP([DIM, 7, 1], range(5)).weights]
    train_nn(pair, x[1:3], reward[1:3], ones[:2], ones[:2], 30, rule=rule)
    for mine, theirs in zip(pair, together, strict=True):
        if name == "adam":
            assert torch.equal(mine, theirs[1:3])
        torch.testing.assert_close(mine, theirs[1:3], rtol=1e-5, atol=1e-6)


class Noisy(torch.optim.SGD):
    """Langevin dynamics: it draws random numbers."""

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            parameter.add_(torch.randn_like(parameter))


@pytest.mark.parametrize(
    ("optimizer", "lr", "message"),
    [
        ("torch.optim.LBFGS", None, "LBFGS cannot take a step from a gradient alone"),
        ("torch.optim.Adafactor", None, "couples parameters"),
        ("torch.optim.Muon", None, "cannot be made .*2D"),
        (lambda p: Noisy(p, lr=0.1), None, "draws random numbers"),
        ("adma", None, "optimizer must be adam, gd or the import path of an Optimizer"),
        ("torch.nn.Linear", None, "is no subclass of Optimizer"),
        (3, None, "optimizer must be adam, gd"),
        (torch.optim.SGD([torch.zeros(1)], lr=0.1), None, "got an instance of SGD[.]$"),
        (lambda p: torch.optim.SGD(p, lr=0.1), 0.1, "lr = 0.1 has no effect"),
        (lambda p: nn.Linear(1, 1), None, "it made a Linear"),
        (lambda p: 1 / 0, None, "cannot be made .*ZeroDivisionError"),
    ],
)
def test_what_cannot_be_used_is_refused(optimizer: Any, lr: float | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        NeuralLogUCB2(4, optimizer=optimizer, lr=lr)


def test_lr_and_steps_left_out_are_those_of_the_optimiser() -> None:
    literal = NeuralLogUCB2(4, optimizer="gd")
    assert (literal.step_rule.lr, literal.step_rule.steps) == (0.01, 100)
    assert NeuralLogUCB2(4, optimizer="torch.optim.SGD", lr=0.3).step_rule.lr == 0.3
