"""The command line: LightningCLI's ``fit`` and ``test`` for bandits, ``compare`` and ``report``.

python -m nl_lightning fit --config configs/h1.yaml [--model.nu 0.1] [--data.rounds 500]
python -m nl_lightning fit --resume runs/h1/20250101-120000
python -m nl_lightning compare --config configs/obd.yaml
python -m nl_lightning report runs/obd-20250101-120000 --out obd.html
python -m nl_lightning test --config runs/h1/ID/config.yaml --ckpt_path runs/h1/ID/checkpoints/last.ckpt
"""

import os
import re
import shlex
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import lightning as L
import yaml
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console

from nl_lightning.agents import AGENTS, trainer_flags
from nl_lightning.agents.base import Agent
from nl_lightning.cli.arguments import by_class, resumed
from nl_lightning.core import lightning_logging as chatter
from nl_lightning.core.checks import check_whole
from nl_lightning.core.errors import InputError, ProcessLost, TrainNNDiverged
from nl_lightning.distributed.strategy import ReplicaStrategy
from nl_lightning.reporting import curves as report
from nl_lightning.rollout.data import BanditData
from nl_lightning.runs.checkpoints import BesideCheckpointIO
from nl_lightning.runs.progress import RoundProgressBar
from nl_lightning.runs.recorder import Checkpoints, Recorder, RunDirectory


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
    """LightningCLI with a run directory, resumption, and a result that is shown."""

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
        """Lightning would take the agent's settings from the checkpoint; here they must agree with the user's."""

    def before_instantiate_classes(self) -> None:
        config = self.config[self.subcommand]
        trainer_flags.check(config.trainer)
        trainer_flags.choose_strategy(config.trainer)
        if self.subcommand == "test":
            if not config.ckpt_path:
                raise InputError("test plays a trained agent: give its checkpoint with --ckpt_path.")
            _check_checkpoint(Path(config.ckpt_path))
            return
        if config.ckpt_path:
            raise InputError(
                "fit takes no --ckpt_path: a checkpoint alone has not the rounds before it. "
                "Go on with a run by --resume DIRECTORY."
            )
        self.run = self._settle_run_directory(config)
        # Before the loggers are completed: a repetition of this run has loggers of its own.
        self.stored_config = self._dump(config)
        _complete_loggers(config, self.run)

    def _settle_run_directory(self, config: Any) -> RunDirectory:
        """Choose the directory, and see that it is new or holds the same run."""
        settings = config.run
        for key in ("dir", "name", "id"):
            value = getattr(settings, key)
            if value is not None and (value in ("", ".", "..") or (key != "dir" and "/" in value)):
                raise InputError(f"run.{key} must be the name of a directory, got {value!r}.")
        check_whole(1, **{"run.checkpoint_every": settings.checkpoint_every})
        if settings.id is None:
            # To the millisecond, so that runs started by one script have directories of their own.
            settings.id = datetime.now().strftime("%Y%m%d-%H%M%S-%f")[:-3]
        run = RunDirectory(Path(settings.dir) / settings.name / settings.id)
        if run.config.exists():
            run.check_same(yaml.safe_load(self._dump(config)))
        elif run.path.is_dir() and any(path != run.lock for path in run.path.iterdir()):
            raise InputError(f"{run.path} is not empty and holds no run. Choose another run.id or run.dir.")
        if run.checkpoint.exists():
            _check_checkpoint(run.checkpoint)
        return run

    def _dump(self, config: Any) -> str:
        """The config as YAML, without what concerns one session of a run only."""
        parser = self._parser(self.subcommand)
        stored = config.clone()
        stored.resume = None
        stored.trainer.max_steps, stored.trainer.max_time = -1, None
        return str(parser.dump(stored, skip_unset=False))

    def after_instantiate_classes(self) -> None:
        given = self.config[self.subcommand].model.init_args
        for name, text in (("dim", "features"), ("blocks", "blocks")):
            asked, dealt = given.get(name), getattr(self.model, name)
            # blocks has a default: 1 may be nobody's wish
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
                callbacks.append(Recorder(self.run.path))
                if config.get("enable_checkpointing") is not False and not bare:
                    every = self._get(self.config, "run").checkpoint_every
                    callbacks.append(Checkpoints(self.run.checkpoint, every))
                    plugins.append(BesideCheckpointIO())
        # Not in the stored config: on another machine the choice is another one.
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
        self.console.print(report.table(summary))
        for note in report.notes(summary):
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


def _check_checkpoint(path: Path) -> None:
    """A checkpoint is a whole zip file, or it is none."""
    if not path.is_file():
        raise InputError(f"There is no checkpoint {path}.")
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} is not a checkpoint, or is damaged.")


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
    arguments = list(sys.argv[1:] if args is None else args)
    try:
        if arguments and arguments[0] in _COMMANDS:
            _COMMANDS[arguments[0]](arguments[1:])
        else:
            _lightning_cli(arguments)
    except Exception as error:
        # jsonargparse wraps what a constructor raised
        mendable = (InputError, TrainNNDiverged, ProcessLost, MisconfigurationException, OSError)
        text = next((str(cause) for cause in _causes(error) if isinstance(cause, mendable)), None)
        if text is None:
            raise
        rank = getattr(rank_zero_only, "rank", 0)
        process = f" in process {rank}" if rank else ""
        print(f"error{process}: {text}", file=sys.stderr)
        sys.exit(1)


def _lightning_cli(arguments: list[str]) -> None:
    """fit and test"""
    chatter.silence()
    BanditCLI(
        Agent,
        BanditData,
        subclass_mode_model=True,
        save_config_callback=None,
        trainer_defaults=trainer_flags.DEFAULTS,
        seed_everything_default=False,
        auto_configure_optimizers=False,
        parser_class=BanditParser,
        args=by_class(resumed(arguments)),
        parser_kwargs={"description": _DESCRIPTION},
    )


# Imported when they are asked for: fit needs none of them.
def _compare(arguments: list[str]) -> None:
    from nl_lightning.cli import compare

    compare.main(arguments, fit=lambda options: main(["fit", *options]))


def _report(arguments: list[str]) -> None:
    from nl_lightning.reporting import page

    page.main(arguments)


def _diagnose(arguments: list[str]) -> None:
    from nl_lightning.diagnostics import diagnose

    diagnose.main(by_class(arguments))


def _tailbound(arguments: list[str]) -> None:
    from nl_lightning.diagnostics import tailbound

    tailbound.main(arguments)


def _confidence(arguments: list[str]) -> None:
    from nl_lightning.diagnostics import confidence

    confidence.main(arguments)


def _reproduce(arguments: list[str]) -> None:
    from nl_lightning.experiments import reproduce

    reproduce.main(arguments)


_COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "compare": _compare,
    "report": _report,
    "diagnose": _diagnose,
    "tailbound": _tailbound,
    "confidence": _confidence,
    "reproduce": _reproduce,
}

_DESCRIPTION = """Neural logistic bandits.
fit: train an agent. test: play a trained agent on rounds it has not seen.
compare: fit several agents with one config and compare them (python -m nl_lightning compare --help).
report: one HTML page from the directories of runs: curves, intervals, paired differences, configs.
diagnose: kappa, the NTK and effective dimensions of an environment and a network.
tailbound: the paper's tail inequality and two others in simulation.
confidence: whether the confidence sets of theory mode hold.
reproduce: the paper's figures and its table, with a verdict on each of its claims. (Each command has its own --help.)
Logs of clicks: python -m replay --help."""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
