"""``fit`` and ``test``: LightningCLI for bandits."""

import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import lightning as L
import yaml
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.exceptions import SIGTERMException
from rich.console import Console

from nl_lightning.agents import trainer_flags
from nl_lightning.agents.base import Agent
from nl_lightning.cli.arguments import expand_resume, find_command, translate_model, translate_threads
from nl_lightning.cli.configs import read_configs
from nl_lightning.cli.errors import UsageError
from nl_lightning.cli.explain import ParserError, explain
from nl_lightning.cli.help import answer_help
from nl_lightning.cli.loggers import complete_loggers
from nl_lightning.cli.shipped import name_configs
from nl_lightning.core import lightning_logging
from nl_lightning.core.arguments import program
from nl_lightning.core.checkpoint import read_checkpoint, restoring
from nl_lightning.core.checks import check_whole
from nl_lightning.core.credentials import check_no_credentials
from nl_lightning.core.errors import InputError, TrainNNDiverged
from nl_lightning.distributed.strategy import ReplicaStrategy, asked_to_stop
from nl_lightning.reporting.conclusion import conclude
from nl_lightning.reporting.tables import notes, table
from nl_lightning.rollout.data import BanditData
from nl_lightning.runs.checkpoints import Checkpoints
from nl_lightning.runs.directory import RunDirectory, check_name, differences, settings_of
from nl_lightning.runs.progress import RoundProgressBar
from nl_lightning.runs.recorder import Recorder

__all__ = [
    "TERMINATED",
    "BanditCLI",
    "BanditParser",
    "ParsedCLI",
    "RunSettings",
    "check",
    "main",
    "parsed_strictly",
]

TERMINATED = 128 + signal.SIGTERM
"""Exit code of a run that a SIGTERM stopped before its end."""


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
    """Hands an error on to be explained, instead of sixty lines of usage, and lets no credentials out."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs, "prog": program("nl_lightning")})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:
            super().error(message, ex)
        parser = getattr(ex, "subcommand_parser", None) or self
        command = parser.prog.replace(" [options]", "")
        raise ParserError(message, command, [name for name in parser._option_string_actions if name.startswith("--")])

    def parse_args(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().parse_args(*args, **kwargs)
        except ImportError as error:
            # jsonargparse takes an address for the place of a config
            raise InputError(f"A config is named by an address that cannot be opened: {error}.") from error

    def dump(self, namespace: Any, *args: Any, **kwargs: Any) -> str:
        """The config as text, for config.yaml, loggers and --print_config."""
        check_no_credentials(namespace.as_dict(), "The config")
        if "skip_none" in kwargs:
            # Lightning uses the old name, which jsonargparse warns of.
            kwargs["skip_unset"] = kwargs.pop("skip_none")
        return str(super().dump(namespace, *args, **kwargs))


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
        parser.add_argument("--restart", action="store_true", help="play a stored run again from its beginning")
        for size in ("dim", "blocks"):
            parser.link_arguments(f"data.{size}", f"model.init_args.{size}", apply_on="instantiate")

    # ---- before ---------------------------------------------------------------------------------------------------

    def _parse_ckpt_path(self) -> None:
        """Do nothing: Lightning would take the agent's settings from the checkpoint, not from the user."""

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        super().parse_arguments(parser, args)
        chosen = self.config.get("subcommand")
        seed = (self.config[chosen] if chosen else self.config).seed_everything
        if seed is not None and not isinstance(seed, bool) and not 0 <= seed < 2**32:
            raise InputError(f"seed_everything must be a whole number from 0 to {2**32 - 1}, got {seed}.")

    def before_instantiate_classes(self) -> None:
        config = self.config[self.subcommand]
        trainer_flags.check(config.trainer)
        trainer_flags.choose_strategy(config.trainer)
        if self.subcommand == "test":
            if not config.ckpt_path:
                raise InputError("test plays a trained agent: give its checkpoint with --ckpt_path.")
            if config.restart:
                raise InputError("test plays no run again: leave --restart out, which is an option of fit.")
            self._compare_environments(config)
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
            if value is not None:
                check_name(f"run.{key}", value, nested=key == "dir")
        check_whole(1, **{"run.checkpoint_every": settings.checkpoint_every})
        if settings.id is None:
            # To the millisecond, so that runs started by one script get different directories.
            settings.id = datetime.now().strftime("%Y%m%d-%H%M%S-%f")[:-3]
        run = RunDirectory(Path(settings.dir) / settings.name / settings.id)
        if run.config.exists():
            run.check_same(yaml.safe_load(self._dump(config)))
        elif run.path.is_dir() and any(not path.name.startswith(".") for path in run.path.iterdir()):
            raise InputError(f"{run.path} is not empty and holds no run. Choose another run.id or run.dir.")
        elif config.restart:
            raise InputError(f"--restart plays a stored run again, but there is none in {run.path}. Leave it out.")
        return run

    def _compare_environments(self, config: Any) -> None:
        """Warn if the agent of a checkpoint was trained in another environment than the one it is tested in."""
        stored = read_checkpoint(config.ckpt_path)
        with restoring("a run directory", config.ckpt_path):
            trained = (stored.get("callbacks", {}).get(Recorder.__qualname__) or {}).get("settings")
            # threads change nothing in what is dealt
            then, now = (
                {key: value for key, value in (found["data"] or {}).items() if key != "threads"}
                for found in (trained or settings_of({}), settings_of(yaml.safe_load(self._dump(config))))
            )
        differing = differences(then, now, "data") if trained else []
        if differing:
            rank_zero_warn(
                f"The agent of {config.ckpt_path} was trained with other settings of its environment; they differ in "
                f"{', '.join(differing)}. The result is that of an agent which has not learned here."
            )

    def _dump(self, config: Any) -> str:
        """The config as YAML, without what belongs to a single session of a run."""
        parser = self._parser(self.subcommand)
        stored = config.clone()
        stored.resume, stored.restart = None, False
        stored.trainer.max_steps, stored.trainer.max_time = -1, None
        return parser.dump(stored, skip_unset=False)

    def instantiate_classes(self) -> None:
        try:
            super().instantiate_classes()
        except ValueError as error:
            # jsonargparse wraps what a constructor raised into a text that lists every setting
            cause: BaseException = error
            while cause.__cause__ is not None and not isinstance(cause, InputError):
                cause = cause.__cause__
            raise cause from None

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
        bare = bool(config.get("barebones"))
        if self.subcommand == "fit":
            if config.get("enable_progress_bar") is not False and not bare:
                callbacks.append(RoundProgressBar())
            if not config.get("fast_dev_run"):
                callbacks.append(Recorder(self.run.path, conclude, yaml.safe_load(self.stored_config)))
                if config.get("enable_checkpointing") is not False and not bare:
                    every = self._get(self.config, "run").checkpoint_every
                    callbacks.append(Checkpoints(self.run.checkpoint, every))
        # Not in the stored config: another machine may choose differently.
        settled = trainer_flags.settled(config)
        if settled:
            self.console.print(f"accelerator auto is the CPU here: {trainer_flags.NO_FLOAT64}.", soft_wrap=True)
        try:
            return super().instantiate_trainer(**kwargs, **settled, callbacks=callbacks)
        except (TypeError, ValueError) as error:
            raise InputError(f"Lightning's Trainer refuses these flags: {error}") from error

    # ---- fit ------------------------------------------------------------------------------------------------------

    def fit(self, model: Agent, datamodule: BanditData, **kwargs: Any) -> None:
        if self.config[self.subcommand].trainer.fast_dev_run:
            self.trainer.fit(model, datamodule=datamodule)
            return
        restart = self.config[self.subcommand].restart
        summary = None if restart else self.run.read_summary()
        if summary and summary["finished"]:
            self.console.print(f"This run is finished: {self.run.path}", soft_wrap=True)
            return
        with self.run.claimed(self.stored_config) if self.trainer.is_global_zero else nullcontext():
            for logger in self.trainer.loggers:
                logger.log_hyperparams(yaml.safe_load(self.stored_config))
            if restart and self.trainer.is_global_zero:
                self.run.clear()
            resumed = self.run.checkpoint.exists() and not restart
            if resumed and self.trainer.is_global_zero:
                self.console.print(f"Going on from {self.run.checkpoint}", soft_wrap=True)
            if isinstance(self.trainer.strategy, ReplicaStrategy):
                self.trainer.strategy.resumes = resumed
            kwargs["ckpt_path"] = self.run.checkpoint if resumed else None
            try:
                self.trainer.fit(model, datamodule=datamodule, **kwargs)
            except BaseException as error:
                # A run that diverged would diverge again; one that was refused has not begun.
                again = datamodule.played and not isinstance(error, TrainNNDiverged)
                if again and self.run.checkpoint.exists() and self.trainer.is_global_zero:
                    self._say_how_to_go_on()
                if isinstance(error, SIGTERMException):
                    sys.exit(TERMINATED)
                raise

    def after_fit(self) -> None:
        summary = self.run.read_summary() if self.trainer.is_global_zero else None
        if summary is None:
            return
        self._say_result(summary)
        if not summary["finished"]:
            self._say_how_to_go_on()
        for logger in self.trainer.loggers:
            if isinstance(logger, WandbLogger) and logger._experiment is not None:
                self._finish_wandb(logger)
        if asked_to_stop(self.trainer) and not summary["finished"]:
            sys.exit(TERMINATED)

    def _say_result(self, summary: dict[str, Any]) -> None:
        self.console.print(table(summary))
        for note in notes(summary):
            self.console.print(note, soft_wrap=True)
        self.console.print(f"Run directory: {self.run.path}", soft_wrap=True)

    def _say_how_to_go_on(self) -> None:
        self.console.print(f"Stopped before the end; go on with: {self.run.command}", soft_wrap=True)

    def _finish_wandb(self, logger: WandbLogger) -> None:
        run = logger.experiment
        directory, url = Path(run.dir).parent, None if run.offline else run.url
        run.finish()
        where = f"at {url}" if url else f"offline in {directory}; upload it with: wandb sync {directory}"
        self.console.print(f"W&B run {where}", soft_wrap=True)


class BriefCLI(BanditCLI):
    """Says of a result no more than a line: it is shown in a table with others."""

    def _say_result(self, summary: dict[str, Any]) -> None:
        self.console.print(f"{summary['agent']}: {summary['rounds']:,} rounds in {summary['seconds']:.1f} s")


def parsed_strictly(cli: type[BanditCLI], arguments: list[str], others: Sequence[str] = (), **kwargs: Any) -> BanditCLI:
    """Make a LightningCLI with these arguments; what is wrong with them or their configs is one clear error.

    ``others`` are options of the command itself, which a misspelt one may have been meant to be.
    """
    arguments = name_configs(arguments)
    configs = read_configs(arguments)
    try:
        return cli(
            Agent,
            BanditData,
            subclass_mode_model=True,
            seed_everything_default=False,
            auto_configure_optimizers=False,
            parser_class=BanditParser,
            args=arguments,
            **kwargs,
        )
    except ParserError as error:
        error.options = [*error.options, *others]
        raise UsageError(explain(error, arguments, configs)) from error


class ParsedCLI(BanditCLI):
    """Parses the options, and does nothing with them."""

    def before_instantiate_classes(self) -> None:
        pass

    def instantiate_classes(self) -> None:
        pass

    def after_instantiate_classes(self) -> None:
        pass

    def _run_subcommand(self, subcommand: str) -> None:
        pass


def check(arguments: list[str], others: Sequence[str] = ()) -> None:
    """Raise an error where these arguments of ``fit`` or its configs could not be used. See ``parsed_strictly``."""
    lightning_logging.silence()
    parsed_strictly(ParsedCLI, _translated(arguments), others, trainer_defaults=trainer_flags.DEFAULTS)


def _translated(arguments: list[str]) -> list[str]:
    return translate_threads(translate_model(expand_resume(arguments)))


def main(arguments: list[str], brief: bool = False) -> None:
    """``fit [options]`` or ``test [options]``; ``brief`` leaves out the table and the notes of a result."""
    lightning_logging.silence()
    answer_help(find_command(arguments, BanditCLI.subcommands()), arguments)
    parsed_strictly(
        BriefCLI if brief else BanditCLI,
        _translated(arguments),
        save_config_callback=None,
        trainer_defaults=trainer_flags.DEFAULTS,
        parser_kwargs={"description": "Neural logistic bandits."},
    )
