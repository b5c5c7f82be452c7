"""One fit of an experiment in its own run directory: started, resumed, or found finished.

The directory is that of any run: ``python -m nl_lightning fit --config`` takes its config.yaml. Fits use
Lightning's Trainer directly, because parsing a config takes longer than many of them.
"""

import importlib
import inspect
import json
import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import torch
import yaml
from lightning.pytorch.loggers import Logger

from nl_lightning.agents import AGENTS
from nl_lightning.core.errors import TrainNNDiverged
from nl_lightning.core.files import write_beside
from nl_lightning.environments import Environment
from nl_lightning.experiments.paper import Description
from nl_lightning.reporting.conclusion import conclude
from nl_lightning.rollout.data import BanditData
from nl_lightning.runs.checkpoints import Checkpoints
from nl_lightning.runs.directory import RunDirectory
from nl_lightning.runs.recorder import Recorder

__all__ = ["Fit", "OnRounds", "Ticks", "drop_rounds", "environment_of", "run"]

_CHECKPOINT_EVERY = 10
"""calls of TrainNN"""

_FROM_ENVIRONMENT = ("dim", "blocks")
"""Arguments that an agent takes from its environment, so that a config need not have them."""

OnRounds = Callable[[int], None]
"""Called with the number of rounds so far, after every call of TrainNN."""


class Fit(NamedTuple):
    """What is fitted, on what, and where its files go."""

    directory: Path
    agent: str
    settings: dict[str, Any]
    """of the agent"""
    environment: Description
    rounds: int

    def config(self) -> dict[str, Any]:
        """The config for ``fit --config``, with every default, so that ``fit --resume`` finds the same settings."""
        agent, where = AGENTS[self.agent], self.directory
        settings = _complete(agent, self.settings)
        return {
            "trainer": {"accelerator": "cpu"},
            "model": {
                "class_path": f"nl_lightning.{agent.__name__}",
                "init_args": {k: v for k, v in settings.items() if k not in _FROM_ENVIRONMENT},
            },
            "data": {
                "environment": {
                    "class_path": self.environment.class_path,
                    "init_args": _complete(_class(self.environment), self.environment.init_args),
                },
                "rounds": self.rounds,
            },
            "run": {
                "dir": str(where.parent.parent),
                "name": where.parent.name,
                "id": where.name,
                "checkpoint_every": _CHECKPOINT_EVERY,
            },
        }


def environment_of(description: Description) -> Environment:
    """The environment. The last ones are cached, because reading a data set may take longer than a fit.

    An environment starts afresh with every fit.
    """
    return _environment(description.class_path, json.dumps(description.init_args, sort_keys=True))


@lru_cache(maxsize=2)
def _environment(class_path: str, init_args: str) -> Environment:
    given = json.loads(init_args)
    made = _class(Description(class_path, given))(**given)
    assert isinstance(made, Environment)
    return made


def _class(description: Description) -> Callable[..., Any]:
    module, _, name = description.class_path.rpartition(".")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def _complete(made: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """The given arguments and the defaults of all others, including those of base classes."""
    known: dict[str, Any] = {}
    for kind in reversed(inspect.getmro(made)):  # type: ignore[arg-type]
        if "__init__" in vars(kind):
            parameters = inspect.signature(vars(kind)["__init__"]).parameters.values()
            known |= {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
    return known | given


class Ticks(L.Callback):
    """Reports the progress of a fit."""

    def __init__(self, on_rounds: OnRounds) -> None:
        self.on_rounds = on_rounds

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        self.on_rounds(trainer.datamodule.played)  # type: ignore[attr-defined]


def run(fit: Fit, environment: Environment, on_rounds: OnRounds, loggers: list[Logger] | None = None) -> dict[str, Any]:
    """Run a fit to its end and return its summary. An interrupted fit resumes from its checkpoint."""
    directory = RunDirectory(fit.directory)
    if directory.config.exists():
        directory.check_same(fit.config())
    summary = directory.read_summary()
    if summary and summary["finished"]:
        return summary
    agent = AGENTS[fit.agent](dim=environment.dim, blocks=environment.blocks, **fit.settings)
    config = yaml.safe_dump(fit.config(), sort_keys=False)
    recorder = Recorder(fit.directory, conclude if loggers else None, yaml.safe_load(config))
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        logger=loggers or False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[recorder, Checkpoints(directory.checkpoint, _CHECKPOINT_EVERY), Ticks(on_rounds)],
    )
    with directory.claimed(config):
        for logger in trainer.loggers:
            logger.log_hyperparams(yaml.safe_load(config))
        resumed = directory.checkpoint if directory.checkpoint.exists() else None
        try:
            trainer.fit(
                agent,
                datamodule=BanditData(environment, fit.rounds, threads=torch.get_num_threads()),
                ckpt_path=resumed,
            )
        except TrainNNDiverged:
            # That every replica diverged is a result, too.
            recorder.record_divergence(trainer, agent)
    summary = directory.read_summary()
    assert summary is not None
    return summary


def drop_rounds(directory: Path) -> None:
    """Keep only the summary of a grid search: its rounds and its checkpoint are not needed any more."""
    run = RunDirectory(directory)
    summary = run.read_summary()
    assert summary is not None
    if summary.get("rounds_kept", True):
        text = json.dumps({**summary, "rounds_kept": False}, indent=2) + "\n"
        write_beside(run.summary, lambda path: path.write_text(text))
    run.rounds.unlink(missing_ok=True)
    shutil.rmtree(run.checkpoint.parent, ignore_errors=True)
