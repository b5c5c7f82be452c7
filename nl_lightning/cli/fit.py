"""``fit`` and ``test``: LightningCLI for bandits."""

import re
import shlex
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import lightning as L
import yaml
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import WandbLogger
from rich.console import Console

from nl_lightning.agents import AGENTS, trainer_flags
from nl_lightning.agents.base import Agent
from nl_lightning.cli.arguments import expand_resume, translate_model, translate_threads
from nl_lightning.cli.loggers import complete_loggers
from nl_lightning.core import lightning_logging
from nl_lightning.core.checks import check_whole
from nl_lightning.core.errors import InputError, TrainNNDiverged
from nl_lightning.distributed.strategy import ReplicaStrategy
from nl_lightning.reporting.conclusion import conclude
from nl_lightning.reporting.tables import notes, table
from nl_lightning.rollout.data import BanditData
from nl_lightning.runs.checkpoints import BesideCheckpointIO, Checkpoints, check_checkpoint
from nl_lightning.runs.directory import RunDirectory
from nl_lightning.runs.progress import RoundProgressBar
from nl_lightning.runs.recorder import Recorder

__all__ = ["BanditCLI", "BanditParser", "RunSettings", "main"]


@dataclass
class RunSettings:
    """Where the run's files go: ``<dir>/<name>/<id>/``.

    Args:
        dir: directory of all runs.
        name: name of the experiment.
        id: name of this run; left out, the time of its start. The id of an interrupted run resumes it.
        checkpoint_every: calls of TrainNN between two checkpoints.
    """

    dir: str = "runs"
    name: str = "fit"
    id: str | None = None
    checkpoint_every: int = 10


class BanditParser(LightningArgumentParser):
    """Reports an error without sixty lines of usage."""

    _NOISE = re.compile(r"Does not validate against|Subtypes:|Errors:|<class 'NoneType'>|Given value type|.{160}")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "prog": "python -m nl_lightning"})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:
            super().error(message, ex)
        lines = [line for line in message.splitlines() if line.strip() and not self._NOISE.search(line)]
        print("error: " + "\n".join(lines), file=sys.stderr)
        if 'key "model' in message:
            print(f"The agents: {', '.join(agent.__name__ for agent in AGENTS.values())}.", file=sys.stderr)
        print("Every option with its meaning: --help, or --model.help AGENT for one agent's.", file=sys.stderr)
        sys.exit(2)


class BanditCLI(LightningCLI):
    """LightningCLI with a run directory, resumption, and a printed result."""

    run: RunDirectory
    stored_config: str
    console = Console()

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        commands = LightningCLI.subcommands()
        return {name: commands[name] for name in ("fit", "test")}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument("--run", type=RunSettings, default=RunSettings())
        parser.add_argument("--resume", type=str | None, help="directory of a run to go on with, instead of --config")
        for size in ("dim", "blocks"):
            parser.link_arguments(f"data.{size}", f"model.init_args.{size}", apply_on="instantiate")

    # ---- before ---------------------------------------------------------------------------------------------------

    def _parse_ckpt_path(self) -> None:
        """Do nothing: Lightning would take the agent's settings from the checkpoint, not from the user."""

    def before_instantiate_classes(self) -> None:
        config = self.config[self.subcommand]
        trainer_flags.check(config.trainer)
        trainer_flags.choose_strategy(config.trainer)
        if self.subcommand == "test":
            if not config.ckpt_path:
                raise InputError("test plays a trained agent: give its checkpoint with --ckpt_path.")
            check_checkpoint(Path(config.ckpt_path))
            return
        if config.ckpt_path:
            raise InputError(
                "fit takes no --ckpt_path: a checkpoint alone does not hold the rounds before it. "
                "Go on with a run by --resume DIRECTORY."
            )
        self.run = self._settle_run_directory(config)
        # Before the loggers are completed, so that a repetition of this run has loggers of its own.
        self.stored_config = self._dump(config)
        complete_loggers(config, self.run)

    def _settle_run_directory(self, config: Any) -> RunDirectory:
        """Choose the run directory, and check that it is new or holds the same run."""
        settings = config.run
        for key in ("dir", "name", "id"):
            value = getattr(settings, key)
            if value is not None and (value in ("", ".", "..") or (key != "dir" and "/" in value)):
                raise InputError(f"run.{key} must be the name of a directory, got {value!r}.")
        check_whole(1, **{"run.checkpoint_every": settings.checkpoint_every})
        if settings.id is None:
            # To the millisecond, so that runs started by one script get different directories.
            settings.id = datetime.now().strftime("%Y%m%d-%H%M%S-%f")[:-3]
        run = RunDirectory(Path(settings.dir) / settings.name / settings.id)
        if run.config.exists():
            run.check_same(yaml.safe_load(self._dump(config)))
        elif run.path.is_dir() and any(path != run.lock for path in run.path.iterdir()):
            raise InputError(f"{run.path} is not empty and holds no run. Choose another run.id or run.dir.")
        if run.checkpoint.exists():
            check_checkpoint(run.checkpoint)
        return run

    def _dump(self, config: Any) -> str:
        """The config as YAML, without what belongs to a single session of a run."""
        parser = self._parser(self.subcommand)
        stored = config.clone()
        stored.resume = None
        stored.trainer.max_steps, stored.trainer.max_time = -1, None
        return str(parser.dump(stored, skip_unset=False))

    def after_instantiate_classes(self) -> None:
        given = self.config[self.subcommand].model.init_args
        for name, text in (("dim", "features"), ("blocks", "blocks")):
            asked, dealt = given.get(name), getattr(self.model, name)
            # blocks has a default of 1, which the user may not have asked for
            if asked is not None and asked != dealt and (name, asked) != ("blocks", 1):
                raise InputError(f"model.{name} is {asked}, but the environment's arms have {dealt} {text}.")

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        config: dict[str, Any] = self._get(self.config_init, "trainer", default={})
        callbacks: list[L.Callback] = list(config.get("callbacks") or [])
        plugins = list(config.get("plugins") or [])
        bare = bool(config.get("barebones"))
        if self.subcommand == "fit":
            if config.get("enable_progress_bar") is not False and not bare:
                callbacks.append(RoundProgressBar())
            if not config.get("fast_dev_run"):
                callbacks.append(Recorder(self.run.path, conclude))
                if config.get("enable_checkpointing") is not False and not bare:
                    every = self._get(self.config, "run").checkpoint_every
                    callbacks.append(Checkpoints(self.run.checkpoint, every))
                    plugins.append(BesideCheckpointIO())
        # Not in the stored config: another machine may choose differently.
        settled = trainer_flags.settled(config)
        if settled:
            self.console.print(f"accelerator auto is the CPU here: {trainer_flags.NO_FLOAT64}.", soft_wrap=True)
        return super().instantiate_trainer(**kwargs, **settled, callbacks=callbacks, plugins=plugins or None)

    # ---- fit ------------------------------------------------------------------------------------------------------

    def fit(self, model: Agent, datamodule: BanditData, **kwargs: Any) -> None:
        if self.config[self.subcommand].trainer.fast_dev_run:
            self.trainer.fit(model, datamodule=datamodule)
            return
        summary = self.run.read_summary()
        if summary and summary["finished"]:
            self.console.print(f"This run is finished: {self.run.path}", soft_wrap=True)
            return
        with self.run.claimed(self.stored_config) if self.trainer.is_global_zero else nullcontext():
            for logger in self.trainer.loggers:
                logger.log_hyperparams(yaml.safe_load(self.stored_config))
            resumed = self.run.checkpoint.exists()
            if resumed and self.trainer.is_global_zero:
                self.console.print(f"Going on from {self.run.checkpoint}", soft_wrap=True)
            if isinstance(self.trainer.strategy, ReplicaStrategy):
                self.trainer.strategy.resumes = resumed
            kwargs["ckpt_path"] = self.run.checkpoint if resumed else None
            try:
                self.trainer.fit(model, datamodule=datamodule, **kwargs)
            except BaseException as error:
                # A run that diverged would diverge again.
                again = self.run.checkpoint.exists() and not isinstance(error, TrainNNDiverged)
                if again and self.trainer.is_global_zero:
                    self._say_how_to_go_on()
                raise

    def after_fit(self) -> None:
        summary = self.run.read_summary() if self.trainer.is_global_zero else None
        if summary is None:
            return
        self.console.print(table(summary))
        for note in notes(summary):
            self.console.print(note, soft_wrap=True)
        self.console.print(f"Run directory: {self.run.path}", soft_wrap=True)
        if not summary["finished"]:
            self._say_how_to_go_on()
        for logger in self.trainer.loggers:
            if isinstance(logger, WandbLogger) and logger._experiment is not None:
                self._finish_wandb(logger)

    def _say_how_to_go_on(self) -> None:
        command = f"python -m nl_lightning fit --resume {shlex.quote(str(self.run.path))}"
        self.console.print(f"Stopped before the end; go on with: {command}", soft_wrap=True)

    def _finish_wandb(self, logger: WandbLogger) -> None:
        run = logger.experiment
        directory, url = Path(run.dir).parent, None if run.offline else run.url
        run.finish()
        where = f"at {url}" if url else f"offline in {directory}; upload it with: wandb sync {directory}"
        self.console.print(f"W&B run {where}", soft_wrap=True)


def main(arguments: list[str]) -> None:
    """``fit [options]`` or ``test [options]``"""
    lightning_logging.silence()
    BanditCLI(
        Agent,
        BanditData,
        subclass_mode_model=True,
        save_config_callback=None,
        trainer_defaults=trainer_flags.DEFAULTS,
        seed_everything_default=False,
        auto_configure_optimizers=False,
        parser_class=BanditParser,
        args=translate_threads(translate_model(expand_resume(arguments))),
        parser_kwargs={"description": "Neural logistic bandits."},
    )
