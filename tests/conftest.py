import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import lightning as L
import pytest
import torch
from hypothesis import settings

from nl_lightning.agents.base import Agent
from nl_lightning.environments import Synthetic
from nl_lightning.rollout.data import BanditData
from tests.support.attacks import PROPERTY
from tests.support.fits import QUIET, Fit, Keep
from tests.support.shared_data import SHARED

# The machine is noisy: no test is timed. CI tries the same examples every time, people try new ones.
settings.register_profile("untimed", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("untimed")

if "PYTEST_XDIST_WORKER" in os.environ:
    # as many workers as cores
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_wandb_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test talks to a server, whatever this machine's user is logged in to."""
    monkeypatch.setenv("WANDB_MODE", "offline")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The bundled sample is converted for this session, and not into the user's cache; nor are data sets looked for
    there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NL_LIGHTNING_DATA", str(SHARED))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def fit() -> Fit:
    """Fit an agent on a small synthetic problem and keep its rounds."""

    def run(
        agent: Agent, rounds: int = 60, ckpt_path: Any = None, callbacks: Any = (), world: Any = None, **settings: Any
    ) -> Any:
        if world is None:
            world = Synthetic(**{"function": "h1", "dim": agent.dim, "arms": 4, "pool": 30, **settings})
        keep = Keep()
        trainer = L.Trainer(
            **QUIET,
            enable_checkpointing=False,
            callbacks=[keep, *callbacks],
        )
        trainer.fit(agent, BanditData(world, rounds=rounds), ckpt_path=ckpt_path)
        return agent, keep

    return run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What must be done by one worker comes first, so that the other one is not left without work in the end."""
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count the attacks of tests/attacks by how they ended."""
    ended: Counter[str] = Counter()
    for category in ("passed", "failed"):
        for report in terminalreporter.stats.get(category, []):
            for name, value in getattr(report, "user_properties", []):
                if name == PROPERTY:
                    ended[value] += 1
    if ended:
        tried = ended.total()
        refused, survived = ended.pop("refused", 0), ended.pop("survived", 0)
        terminalreporter.write_line(
            f"attacks: {tried} tried, {refused} refused clearly, {survived} survived, {ended.total()} succeeded"
        )
