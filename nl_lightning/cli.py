"""The command line: LightningCLI's ``fit`` and ``test`` for bandits.

    python -m nl_lightning fit --config configs/h1.yaml [--model.nu 0.1] [--data.rounds 500] [--trainer.logger CSVLogger]
    python -m nl_lightning fit --resume runs/h1/20250101-120000
    python -m nl_lightning test --config runs/h1/ID/config.yaml --ckpt_path runs/h1/ID/checkpoints/last.ckpt
"""

import logging
import os
import re
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import lightning as L
import yaml
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from rich.console import Console

from nl_lightning import report, trainer_flags
from nl_lightning.agent import Agent
from nl_lightning.data import BanditData
from nl_lightning.errors import InputError, TrainNNDiverged
from nl_lightning.files import BesideCheckpointIO
from nl_lightning.progress import RoundProgressBar
from nl_lightning.run import Recorder, RunDirectory


@dataclass
class RunSettings:
    """Where the run's files go: ``<dir>/<name>/<id>/``.

    Args:
        dir: directory of all runs.
        name: name of the experiment.
        id: name of this run; left out, the time of its start. The id of a run that was cut off resumes it.
        checkpoint_every: calls of TrainNN between two checkpoints.
    """

    dir: str = "runs"
    name: str = "fit"
    id: str | None = None
    checkpoint_every: int = 10


class BanditCLI(LightningCLI):
    """LightningCLI with a run directory, resumption, and a result that is shown."""

    run: RunDirectory
    console = Console()

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        commands = LightningCLI.subcommands()
        return {name: commands[name] for name in ("fit", "test")}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument("--run", type=RunSettings, default=RunSettings())
        parser.add_argument("--resume", type=str | None, help="directory of a run to go on with, instead of --config")
        parser.link_arguments("data.dim", "model.init_args.dim", apply_on="instantiate")

    # ---- before ---------------------------------------------------------------------------------------------------

    def before_instantiate_classes(self) -> None:
        config = self.config[self.subcommand]
        trainer_flags.check(config.trainer)
        if self.subcommand != "fit":
            return
        if config.ckpt_path:
            raise InputError(
                "fit takes no --ckpt_path: a checkpoint alone has not the rounds before it. "
                "Go on with a run by --resume DIRECTORY."
            )
        self.run = self._settle_run_directory(config)
        _complete_loggers(config, self.run)

    def _settle_run_directory(self, config: Any) -> RunDirectory:
        """Choose the directory, and see that it is new or holds the same run."""
        settings = config.run
        for key in ("name", "id"):
            value = getattr(settings, key)
            if value is not None and not re.fullmatch(r"[\w.+=-]+", value):
                raise InputError(f"run.{key} must be letters, digits and any of . + = - _ only, got {value!r}.")
        if settings.checkpoint_every < 1:
            raise InputError(f"run.checkpoint_every must be at least 1, got {settings.checkpoint_every}.")
        settings.id = settings.id or datetime.now().strftime("%Y%m%d-%H%M%S")
        run = RunDirectory(Path(settings.dir) / settings.name / settings.id)
        if run.path.exists() and any(run.path.iterdir()):
            if not run.config.exists():
                raise InputError(f"{run.path} is not empty and holds no run. Choose another run.id or run.dir.")
            _check_same_run(run, yaml.safe_load(self._dump(config)))
        _check_writable(run.path)
        return run

    def _dump(self, config: Any) -> str:
        """The config as YAML; ``resume`` is left out, because the file itself is what a run is resumed with."""
        parser = self._parser(self.subcommand)
        stored = config.clone()
        stored.resume = None
        return str(parser.dump(stored, skip_none=False))

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        config: dict[str, Any] = self._get(self.config_init, "trainer", default={})
        callbacks: list[L.Callback] = list(config.get("callbacks") or [])
        plugins = list(config.get("plugins") or [])
        bare = bool(config.get("barebones"))
        if self.subcommand == "fit":
            if config.get("enable_progress_bar") is not False and not bare:
                callbacks.append(RoundProgressBar())
            if not config.get("fast_dev_run"):
                settings = self._get(self.config, "run")
                callbacks.append(Recorder(self.run.path, self._dump(self.config[self.subcommand])))
                if config.get("enable_checkpointing") is not False and not bare:
                    callbacks.append(_checkpoints(self.run, settings.checkpoint_every))
                    plugins.append(BesideCheckpointIO())
        return super().instantiate_trainer(**kwargs, callbacks=callbacks, plugins=plugins or None)

    # ---- fit ------------------------------------------------------------------------------------------------------

    def fit(self, model: Agent, datamodule: BanditData, **kwargs: Any) -> None:
        summary = self.run.read_summary()
        if summary and summary["finished"]:
            self.console.print(f"This run is finished: {self.run.path}")
            return
        resumed = self.run.checkpoint.exists()
        if resumed:
            self.console.print(f"Going on from {self.run.checkpoint}")
        kwargs["ckpt_path"] = self.run.checkpoint if resumed else None
        self.trainer.fit(model, datamodule=datamodule, **kwargs)

    def after_fit(self) -> None:
        summary = self.run.read_summary()
        if summary is None:
            return
        self.console.print(report.table(summary))
        self.console.print(f"Run directory: {self.run.path}", soft_wrap=True)
        if not summary["finished"]:
            self.console.print(f"Stopped before the end; go on with: fit --resume {self.run.path}", soft_wrap=True)
        for logger in self.trainer.loggers:
            if isinstance(logger, WandbLogger) and logger._experiment is not None:
                self._finish_wandb(logger)

    def _finish_wandb(self, logger: WandbLogger) -> None:
        run = logger.experiment
        offline, directory, url = run.offline, Path(run.dir).parent, run.url
        run.finish(quiet=True)
        where = f"offline in {directory}; upload it with: wandb sync {directory}" if offline else f"at {url}"
        self.console.print(f"W&B run {where}", soft_wrap=True)


def _checkpoints(run: RunDirectory, every: int) -> ModelCheckpoint:
    """``trainer.global_step`` counts calls of TrainNN, so Lightning's own callback keeps the checkpoint."""
    return ModelCheckpoint(
        dirpath=run.checkpoint.parent,
        filename=run.checkpoint.stem,
        every_n_train_steps=every,
        save_top_k=1,
        enable_version_counter=False,
    )


def _check_same_run(run: RunDirectory, config: dict[str, Any]) -> None:
    """A run goes on with the settings it began with; Trainer flags (devices, loggers, ...) may change."""
    stored = yaml.safe_load(run.config.read_text())
    differing = sorted(
        key for part in ("model", "data") for key in _differing(part, stored.get(part), config.get(part))
    )
    if differing:
        raise InputError(
            f"{run.path} holds a run with other settings; they differ in {', '.join(differing)}. "
            "Choose another run.id, or leave these settings as they were to go on with that run."
        )


def _differing(key: str, old: Any, new: Any) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        return [d for k in old.keys() | new.keys() for d in _differing(f"{key}.{k}", old.get(k), new.get(k))]
    return [] if old == new else [key]


def _check_writable(path: Path) -> None:
    existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not existing.is_dir():
        raise InputError(f"{path} cannot be made: {existing} is a file. Set run.dir to a directory.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"{path} cannot be written: no permission in {existing}. Set run.dir to another directory.")


def _complete_loggers(config: Any, run: RunDirectory) -> None:
    """Fill in what a logger needs to know of the run and the user left out."""
    loggers = config.trainer.logger
    for logger in loggers if isinstance(loggers, list) else [loggers]:
        kind = str(getattr(logger, "class_path", "")).rsplit(".", 1)[-1]
        if kind == WandbLogger.__name__:
            given = logger.init_args
            given.save_dir = str(run.path) if given.save_dir == "." else given.save_dir
            given.project = given.project if given.project != "lightning_logs" else "nl-lightning"
            given.name = given.name or f"{run.path.parent.name}-{run.path.name}"
            given.id = given.id or f"{run.path.parent.name}-{run.path.name}"
            given.offline = given.offline or _wandb_is_offline()
            # The directory must be there before W&B starts, or it would write elsewhere.
            logger.dict_kwargs = {"resume": "allow", **(getattr(logger, "dict_kwargs", None) or {})}
        elif kind == CSVLogger.__name__:
            given = logger.init_args
            given.save_dir = given.save_dir or str(run.path)
            given.name = given.name if given.name != "lightning_logs" else "csv"


def _wandb_is_offline() -> bool:
    """Whether there is no key to log in with, or the user said so."""
    import wandb

    mode = os.environ.get("WANDB_MODE")
    return mode == "offline" or (mode is None and not wandb.api.api_key)


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line; errors that a user can mend are shown as one text, with exit code 1."""
    arguments = _resume(list(sys.argv[1:] if args is None else args))
    # Lightning's notes on hardware and its advertisements; warnings stay.
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.WARNING)
    for message in (
        ".*LightningCLI's args parameter.*",
        # The state after TrainNN is what a run goes on from.
        "Using ModelCheckpoint with manual optimization",
        ".*isinstance.treespec, LeafSpec.*",
        ".*weights_only. was not set.*",
        # A batch is a whole TrainNN, made by the rounds before it: there is nothing for workers to load.
        ".*does not have many workers.*",
    ):
        warnings.filterwarnings("ignore", message=message)
    try:
        BanditCLI(
            Agent,
            BanditData,
            subclass_mode_model=True,
            save_config_callback=None,
            trainer_defaults=trainer_flags.DEFAULTS,
            seed_everything_default=False,
            args=arguments,
        )
    except (InputError, TrainNNDiverged, MisconfigurationException, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


def _resume(arguments: list[str]) -> list[str]:
    """``--resume DIR`` stands for the config of the run in DIR, and its place."""
    joined = [argument.removeprefix("--resume=") for argument in arguments if argument.startswith("--resume=")]
    if "--resume" in arguments:
        place = arguments.index("--resume")
        joined = arguments[place + 1 : place + 2]
        rest = arguments[:place] + arguments[place + 2 :]
    else:
        rest = [argument for argument in arguments if not argument.startswith("--resume=")]
    if not joined:
        return arguments
    run = RunDirectory(Path(joined[0]).resolve())
    others = [a for a in rest if re.match(r"--(model|data|run|config)\b", a)]
    if others:
        print(f"error: --resume goes on with a run as it was; leave {' '.join(others)} out.", file=sys.stderr)
        sys.exit(1)
    if not run.config.exists():
        print(f"error: {joined[0]} is not the directory of a run: it has no config.yaml.", file=sys.stderr)
        sys.exit(1)
    place = [f"--run.dir={run.path.parent.parent}", f"--run.name={run.path.parent.name}", f"--run.id={run.path.name}"]
    return [*rest[:1], f"--config={run.config}", *place, *rest[1:]]
