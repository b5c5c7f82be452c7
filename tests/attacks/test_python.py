"""Attacks on the Python face: what is handed to agents, environments and the DataModule."""

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from nl_lightning import LogisticUCB1, NeuralLogTS2, NeuralLogUCB1, NeuralLogUCB2
from nl_lightning.agents.base import Agent
from nl_lightning.environments import Classification, Synthetic
from nl_lightning.rollout.data import BanditData
from tests.support.attacks import Attack, judge, table

pytestmark = pytest.mark.attack

ARMS = torch.linspace(-1, 1, 12).view(4, 3)
NAN, INF = float("nan"), float("inf")

NO_TENSORS: dict[str, Any] = {
    "text": "arms",
    "None": None,
    "ragged lists": [[1, 2, 3], [1, 2]],
    "object array": np.array([[1, 2, 3], [None, 2, 3]], dtype=object),
    "lists of text": [["a", "b", "c"]],
    "mapping": {"a": 1},
    "set": {1, 2},
    "generator": (number for number in [1]),
    "DataFrame": pd.DataFrame({"a": [1.0]}),
    "whole number beyond 64 bits": [[10**400, 1, 1]],
    "sparse": ARMS.to_sparse(),
    "complex": ARMS + 1j,
    "nested": torch.nested.nested_tensor([ARMS, ARMS]),
    "quantized": torch.quantize_per_tensor(ARMS, 0.1, 0, torch.qint8),
    "meta": torch.empty(4, 3, device="meta"),
}
"""What is no dense tensor of real numbers."""

WRONG_NUMBERS: dict[str, Any] = {
    "text": "0.1",
    "empty text": "",
    "list of text": ["a"],
    "list in a list": [[5.0]],
    "mapping": {},
    "bool": True,
    "complex": 1j,
    "nan": NAN,
    "inf": INF,
    "negative": -1,
    "beyond a float": 10**400,
}
"""What is no setting of an agent that takes a number."""


def agent(**settings: Any) -> Agent:
    return NeuralLogUCB2(**{"dim": 3, "width": 4, **settings})


def observed(reward: Any = 1, accepted: Any = None, choice: Any = None, made_by: Agent | None = None) -> Agent:
    """An agent that has observed a choice: its own, another's, or what is given instead."""
    own = agent()
    own.observe((made_by or own).act(ARMS) if choice is None else choice, reward, accepted)
    return own


def learned(one: Agent, _: Path) -> bool:
    return one.rounds.tolist() == [1]


def arms_and_rewards() -> Iterator[Attack]:
    for name, arms in NO_TENSORS.items():
        yield Attack("arms", name, lambda _, arms=arms: agent().act(arms), ("arms must be", "(K, 3)"))
    for name, arms in {
        "one dimension": ARMS[0],
        "four dimensions": ARMS[None, None],
        "another number of features": ARMS[:, :2],
        "another number of replicas": ARMS.expand(2, 4, 3),
    }.items():
        yield Attack("arms", name, lambda _, arms=arms: agent().act(arms), ("shape", "(K, 3)"))
    yield Attack("arms", "no arm", lambda _: agent().act(ARMS[:0]), ("no arm",))
    for name, factor in {"nan": NAN, "inf": INF, "beyond float32": 1e300}.items():
        yield Attack("arms", name, lambda _, factor=factor: agent().act(ARMS * factor + factor), ("finite", "moderate"))
    for name, mask in {
        **NO_TENSORS,
        "whole numbers": [1] * 4,
        "too short": [True],
        "nothing left": [False] * 4,
    }.items():
        if name not in ("generator", "meta"):
            yield Attack("mask", name, lambda _, mask=mask: agent().act(ARMS, mask), ("mask",), missing(mask))
    for name, reward in {**NO_TENSORS, "nan": NAN, "half": 0.5, "two": 2, "negative": -1, "too many": [1, 0]}.items():
        yield Attack("reward", name, lambda _, reward=reward: observed(reward), ("reward",))
    for name, accepted in {**NO_TENSORS, "whole number": [1], "no list": True, "too many": [True, False]}.items():
        right = learned if accepted is None else None
        yield Attack("accepted", name, lambda _, mask=accepted: observed(accepted=mask), ("accepted",), right)
    for name, reward in {"NumPy": np.int64(1), "tensor": torch.tensor(1.0), "bool": True, "list": [1]}.items():
        yield Attack("reward", f"{name} that will do", lambda _, reward=reward: observed(reward), (), learned)


def missing(value: Any) -> Callable[[Any, Path], bool] | None:
    """None is no mask: all arms may be chosen."""
    return (lambda choice, _: bool(choice.score.isfinite().all())) if value is None else None


def choices() -> Iterator[Attack]:
    for name, choice in {"text": "c", "number": 3, "tuple": (1, 2, 3), "tensor": ARMS}.items():
        yield Attack("no choice", name, lambda _, choice=choice: observed(choice=choice), ("Choice", "act"))
    for name, other in {
        "other algorithm": lambda: NeuralLogTS2(3, width=4),
        "same form, other algorithm": lambda: NeuralLogUCB1(3, width=4),
        "linear": lambda: LogisticUCB1(3),
        "other seed": lambda: agent(seed=5),
        "other nu": lambda: agent(nu=0.7),
        "other width": lambda: agent(width=5),
        "other mode": lambda: agent(mode="theory", horizon=10),
        "more replicas": lambda: agent(replicas=2),
    }.items():
        yield Attack("another's choice", name, lambda _, other=other: observed(made_by=other()), ("another agent's",))

    def late(_: Path) -> Agent:
        """A choice is stored, the agent goes on, is stored and loaded, and then the reward comes."""
        first = agent()
        stored = pickle.dumps(first.act(ARMS))
        again = agent()
        again.load_state_dict(first.state_dict())
        again.observe(pickle.loads(stored), 1)
        return again

    yield Attack("another's choice", "pickled choice, loaded agent", late, (), learned)
    twice = lambda one, _: one.rounds.tolist() == [2]  # noqa: E731

    def again(_: Path) -> Agent:
        one = agent()
        choice = one.act(ARMS)
        one.observe(choice, 1)
        one.observe(choice, 0)
        return one

    yield Attack("another's choice", "a second one for the same choice", again, (), twice)
    for replica in (99, 1, -1, "0", None, 1.5, True, [0]):
        yield Attack("replica", repr(replica), lambda _, r=replica: agent().weights(r), ("replica must be",))


def settings() -> Iterator[Attack]:
    for setting in ("nu", "lam", "kappa", "S", "lr", "delta", "C1", "C4", "C5", "C6", "C7"):
        for name, value in {**WRONG_NUMBERS, "None": None}.items():
            if name != "None" or setting not in ("lr", "nu"):
                run = lambda _, setting=setting, value=value: agent(**{setting: value})  # noqa: E731
                yield Attack(f"setting {setting}", name, run, (f"{setting} must",))
    for setting in ("dim", "width", "depth", "replicas", "blocks", "steps", "batch_size", "window"):
        for name, value in {**WRONG_NUMBERS, "half": 1.5, "zero": 0}.items():
            if name != "beyond a float":
                run = lambda _, setting=setting, value=value: agent(**{setting: value})  # noqa: E731
                yield Attack(f"setting {setting}", name, run, (f"{setting} must be a whole number",))
    for setting in ("dim", "width", "depth", "replicas", "blocks"):
        run = lambda _, setting=setting: agent(**{setting: 10**13})  # noqa: E731
        yield Attack(f"setting {setting}", "beyond this machine", run, ("replicas",))
    for setting, values in {
        "bias": ["yes", 3, []],
        "start": ["hot", 3, True, []],
        "optimizer": ["adma", "torch.optim.LBFGS", "torch.nn.Linear", "nosuch.Rule", 3, int, object()],
        "network": ["MLP", 3, int, torch.nn.Linear(99, 1), torch.nn.ReLU()],
        "update_growth": ["0.1", None, -1.0, float("nan"), float("inf"), [0.1]],
        "epsilon": ["0.1", None, -0.1, 1.1, float("nan"), 0.1],
        "design": ["dagonal", "", [], 3, int, "nosuch.Design"],
        "design_args": ["x", 3, [1], {"rank": 3}, {1: 2}],
        "exploration": ["ucbb", "", [], 3, int, "nosuch.Rule", object()],
        "grid": ["x", 3, [1], {"nu": 3}, {"nuu": [1]}, {"nu": []}, {"nu": ["a"]}, {1: [2]}],
    }.items():
        for value in values:
            run = lambda _, setting=setting, value=value: agent(**{setting: value})  # noqa: E731
            word = "nu" if value == {"nu": ["a"]} else "Design" if setting == "design_args" else setting
            yield Attack(f"setting {setting}", f"{type(value).__name__} {value!r:.15}", run, (word,))
    grid = {name: [float(n) for n in range(4, 1004)] for name in ("nu", "lam", "kappa", "S")}
    yield Attack("setting grid", "a million million replicas", lambda _: agent(grid=grid), ("at most", "replicas"))
    for name, number in {"NumPy": np.float32(8.0), "tensor": torch.tensor(8.0), "array": np.array([8.0])}.items():
        for setting in ("nu", "lam", "kappa", "S"):
            run = lambda _, setting=setting, number=number: agent(**{setting: number})  # noqa: E731
            right = lambda one, _, setting=setting: getattr(one, setting).tolist() == [8.0]  # noqa: E731
            yield Attack(f"setting {setting}", f"a number of {name}", run, (), right)


def large_features() -> Iterator[Attack]:
    def play(scale: float, **given: Any) -> Agent:
        one, g = agent(**given), torch.Generator().manual_seed(0)
        for t in range(40):
            one.observe(one.act(scale * torch.rand(4, 3, generator=g)), t % 2)
        return one

    def sound(one: Agent, _: Path) -> bool:
        return bool(one.radius.isfinite().all()) and one.rounds.tolist() == [40]

    for mode in ({}, {"mode": "theory", "horizon": 100}):
        for scale in (1e15, 1e20, 1e30):
            name = f"{scale:g}, {mode.get('mode', 'practical')}"
            run = lambda _, scale=scale, mode=mode: play(scale, design="full", **mode)  # noqa: E731
            yield Attack("large features", name, run, ("moderate size",))
    for scale in (1e3, 1e20):
        yield Attack("large features", f"{scale:g}, diagonal", lambda _, s=scale: play(s), (), sound)


def states() -> Iterator[Attack]:
    whole = agent().state_dict()
    extra = whole["_extra_state"]
    for name, (stored, word) in {
        "None": (None, "state_dict"),
        "text": ("x", "state_dict"),
        "list": ([1], "state_dict"),
        "nothing": ({}, "not of a bandit agent"),
        "another agent's": (NeuralLogUCB1(3, width=4).state_dict(), "another agent"),
        "another dim": (agent(dim=4).state_dict(), "another agent"),
        "a key less": ({key: value for key, value in whole.items() if key != "radius"}, "radius"),
        "a key more": ({**whole, "mine": torch.ones(1)}, "mine"),
        "another shape": ({**whole, "radius": torch.ones(7)}, "radius"),
        "no tensor": ({**whole, "radius": "x"}, "radius"),
        "another number of columns": ({**whole, "buffer.x": torch.zeros(1, 65, 7)}, "buffer.x"),
        "a length that lies": ({**whole, "buffer.length": torch.tensor([9999])}, "buffer"),
        "an identity of text": ({**whole, "_extra_state": "x"}, "not of a bandit agent"),
        "no identity": ({**whole, "_extra_state": {"identity": None, "draws": 0}}, "not of a bandit agent"),
        "no draws": ({**whole, "_extra_state": {"identity": extra["identity"]}}, "draws"),
        "draws of text": ({**whole, "_extra_state": {**extra, "draws": "x"}}, "draws"),
        "negative draws": ({**whole, "_extra_state": {**extra, "draws": -1}}, "draws"),
    }.items():
        yield Attack("state", name, lambda _, stored=stored: agent().load_state_dict(stored), (word,))


def environments() -> Iterator[Attack]:
    for setting, values in {
        "function": ["h9", None, 3, []],
        "seed": ["3", -1, 1.5, True, [-1], ["a"], [None], (1, 2), {}, NAN],
    }.items():
        for value in values:
            run = lambda _, setting=setting, value=value: Synthetic(**{setting: value})  # noqa: E731
            yield Attack(f"Synthetic {setting}", f"{type(value).__name__} {value!r}", run, (setting,))
    for setting, values in {"dataset": ["iris", None, 3, []], "file": [3, []], "dense": ["yes", 3, None]}.items():
        for value in values:
            run = lambda _, setting=setting, value=value: Classification(**{"dataset": "magic", setting: value})  # noqa: E731
            yield Attack(f"Classification {setting}", f"{type(value).__name__} {value!r}", run, (setting,))
    for value in ("x", None, 3, Synthetic):
        yield Attack("BanditData environment", str(value), lambda _, v=value: BanditData(v), ("environment must be",))
    for setting, values in {
        "rounds": ["3", None, 0, -1, 1.5, True, [3], NAN, 10**30],
        "threads": ["3", 0, -1, 1.5, True, [], 10**9],
    }.items():
        for value in values:
            run = lambda _, setting=setting, value=value: BanditData(Synthetic(), **{setting: value})  # noqa: E731
            yield Attack(f"BanditData {setting}", f"{type(value).__name__} {value!r}", run, (f"{setting} must be",))


def attacks() -> Iterator[Attack]:
    for some in (arms_and_rewards, choices, settings, large_features, states, environments):
        yield from some()


@table(attacks())
def test_refused_or_right(attack: Attack, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    judge(attack, tmp_path, record_property)
