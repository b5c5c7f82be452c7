"""The command line: LightningCLI's ``fit`` and ``test`` for bandits.

python -m nl_lightning fit --config configs/h1.yaml [--model.nu 0.1] [--data.rounds 500]
python -m nl_lightning fit --resume runs/h1/20250101-120000
python -m nl_lightning test --config runs/h1/ID/config.yaml --ckpt_path runs/h1/ID/checkpoints/last.ckpt
"""

import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import lightning as L
import yaml
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import WandbLogger
from rich.console import Console

from nl_lightning import report, trainer_flags
from nl_lightning.agent import Agent
from nl_lightning.agents import AGENTS
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


class BanditParser(LightningArgumentParser):
    """Says what is wrong without sixty lines of usage."""

    _NOISE = re.compile(r"Does not validate against|Subtypes:|Errors:|<class 'NoneType'>|Given value")

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
        directory, url = Path(run.dir).parent, None if run.offline else run.url
        run.finish()
        where = f"at {url}" if url else f"offline in {directory}; upload it with: wandb sync {directory}"
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


def _complete_loggers(config: Any, run: RunDirectory) -> None:
    """Fill in what the user left out and the run knows; a logger's save_dir of ``.`` means the run directory."""
    loggers = config.trainer.logger
    for logger in loggers if isinstance(loggers, list) else [loggers]:
        given: Any = getattr(logger, "init_args", None)
        if given is not None and getattr(given, "save_dir", None) == ".":
            given.save_dir = str(run.path)
        if str(getattr(logger, "class_path", "")).endswith(f".{WandbLogger.__name__}"):
            label = f"{run.path.parent.name}-{run.path.name}"
            given.project = given.project if given.project != "lightning_logs" else "nl-lightning"
            given.name, given.id = given.name or label, given.version or given.id or label
            kwargs = {"resume": "allow", **(getattr(logger, "dict_kwargs", None) or {})}
            if "mode" not in kwargs and (given.offline or _wandb_is_offline()):
                kwargs["mode"] = "offline"
            logger.dict_kwargs = kwargs


def _wandb_is_offline() -> bool:
    """Whether there is no key to log in with, or the user said so."""
    import wandb

    mode = os.environ.get("WANDB_MODE")
    return mode == "offline" or (mode is None and not wandb.login(prompt=False, verify=False))


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line; errors that a user can mend are shown as one text, with an exit code that is not 0."""
    # Lightning's notes on hardware and its advertisements; warnings stay.
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.WARNING)
    for message in _KNOWN_WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    try:
        BanditCLI(
            Agent,
            BanditData,
            subclass_mode_model=True,
            save_config_callback=None,
            trainer_defaults=trainer_flags.DEFAULTS,
            seed_everything_default=False,
            auto_configure_optimizers=False,
            parser_class=BanditParser,
            args=_by_class(_resume(list(sys.argv[1:] if args is None else args))),
        )
    except Exception as error:
        # jsonargparse wraps what a constructor raised
        mendable = (InputError, TrainNNDiverged, MisconfigurationException, OSError)
        text = next((str(cause) for cause in _causes(error) if isinstance(cause, mendable)), None)
        if text is None:
            raise
        print(f"error: {text}", file=sys.stderr)
        sys.exit(1)


_KNOWN_WARNINGS = (
    "LightningCLI's args parameter",
    # The state after TrainNN is what a run goes on from.
    "Using ModelCheckpoint with manual optimization",
    ".*isinstance.treespec, LeafSpec.*",
    # It does where a run goes on.
    "Checkpoint directory .* exists and is not empty",
    # A batch is a whole TrainNN, made by the rounds before it: there is nothing for workers to load.
    ".*does not have many workers.*",
    # `test` needs the agent of a checkpoint, not the files of its run.
    ".*callbacks used to create the checkpoint need to be provided.*",
)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _by_class(arguments: list[str]) -> list[str]:
    """Let ``--model`` take the names of the paper's tables as well."""
    paths = {name: f"{agent.__module__}.{agent.__name__}" for name, agent in AGENTS.items()}
    translated = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        option, _, value = argument.partition("=")
        if before == "--model":
            argument = paths.get(argument, argument)
        elif option == "--model" and value:
            argument = f"{option}={paths.get(value, value)}"
        translated.append(argument)
    return translated


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
    others = [a for a in rest if re.match(r"(-c|--(model|data|run|config))\b", a)]
    if others:
        raise InputError(f"--resume goes on with a run as it was; leave {' '.join(others)} out.")
    if not run.config.exists():
        raise InputError(f"{joined[0]} is not the directory of a run: it has no config.yaml.")
    where = [f"--run.dir={run.path.parent.parent}", f"--run.name={run.path.parent.name}", f"--run.id={run.path.name}"]
    return [*rest[:1], f"--config={run.config}", *where, *rest[1:]]
