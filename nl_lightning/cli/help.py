"""The help of ``fit``, ``test`` and ``diagnose``: what people set, in groups, instead of every flag there is.

LightningCLI's own help has more than 500 lines, and leaves the settings of agents out. ``--help-all`` is the same help
with the whole text of every setting and all flags of the Trainer.
"""

import argparse
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from jsonargparse import ArgumentParser
from lightning import Trainer

from nl_lightning.agents import AGENTS
from nl_lightning.agents.base import Agent
from nl_lightning.agents.trainer_flags import DEFAULTS
from nl_lightning.cli.agents import find_agent
from nl_lightning.cli.configs import given_options, read_configs
from nl_lightning.cli.shipped import name_configs, shipped_configs
from nl_lightning.core.arguments import program
from nl_lightning.core.imports import import_class
from nl_lightning.environments import Environment
from nl_lightning.rollout.data import BanditData

__all__ = ["ALL", "ENVIRONMENTS", "HELPS", "TRAINER", "Help", "answer_help"]

ALL = "--help-all"

ENVIRONMENTS = {
    "Synthetic": "nl_lightning.environments.Synthetic",
    "Classification": "nl_lightning.environments.Classification",
    "replay.ReplayLog": "replay.ReplayLog",
}
"""The environments that come with the package, as users name them."""

TRAINER = {
    "accelerator": "cpu, gpu or auto",
    "devices": "number of processes or devices, which share out the replicas",
    "num_nodes": "number of machines",
    "precision": "32-true or 64-true",
    "max_time": "stop after this time, such as 00:01:00:00; --resume goes on",
    "logger": "a logger of Lightning; shorter: --config loggers/csv or --config loggers/wandb",
    "callbacks": "callbacks of your own, by class name or import path",
    "enable_progress_bar": "true or false",
    "enable_checkpointing": "true or false; without checkpoints a run cannot be resumed",
    "fast_dev_run": "true plays a few rounds and writes nothing",
}
"""The Trainer's flags that the help shows."""

_DECIDED = {"model": ("dim", "blocks"), "data": ("environment",)}
"""Settings that the environment decides, or that have a line of their own."""

_LONG = 90
"""Characters beyond which a sentence is cut to its first clause."""


class Help(NamedTuple):
    """What is particular to the help of one command."""

    usage: Sequence[str]
    text: str
    examples: Sequence[str]
    options: dict[str, str]
    """each option with its value, and what it does"""


_CONFIG = {"--config NAME|FILE": "a config by name or path (short: -c); may be given several times, and later ones win"}
_PRINT = {"--print_config": "print the whole config instead of running it; a file to start your own from"}
_RUN = {
    "--run.dir DIR": "directory of all runs (default: runs)",
    "--run.name NAME": "name of the experiment (default: that of the config, or fit)",
    "--run.id ID": "name of the run (default: the time of its start); the id of a stopped run resumes it",
    "--run.checkpoint_every N": "calls of TrainNN between two checkpoints (default: 10)",
}

HELPS = {
    "fit": Help(
        ["--config NAME|FILE [options]", "--resume DIRECTORY"],
        "Train an agent, or go on with a run that was stopped.",
        [
            "--config h1",
            "--config h1 --model NeuralLogTS1 --model.nu 0.1 --data.rounds 500",
            "--config mine.yaml --config loggers/wandb",
            "--resume runs/h1/ID",
        ],
        {
            **_CONFIG,
            "--resume DIRECTORY": "go on with the run in this directory, as it was",
            "--restart": "play a stored run again from its beginning",
            **_PRINT,
            "--seed_everything N": "seed of what your own parts draw; agents and environments have seeds of their own",
            **_RUN,
        },
    ),
    "test": Help(
        ["--config RUN/config.yaml --ckpt_path RUN/checkpoints/last.ckpt [options]"],
        "Play a trained agent, frozen, on rounds that it has not seen.",
        ["--config runs/h1/ID/config.yaml --ckpt_path runs/h1/ID/checkpoints/last.ckpt"],
        {**_CONFIG, "--ckpt_path FILE": "checkpoint of the trained agent", **_PRINT},
    ),
    "diagnose": Help(
        ["--config NAME|FILE [options]"],
        "Look at an environment and a network as the theory does: how large its quantities are, and which of its\n"
        "assumptions fail. The network is the theory's, whatever mode the agent has: of the config's width, depth and\n"
        "seed, at the symmetric start.",
        ["--config h1", "--config h3 --rounds 100 --model.width 40"],
        {
            **_CONFIG,
            "--rounds T": "number of rounds whose contexts are looked at (default: 200)",
            "--replica N": "the replica whose problem and settings these are (default: 0)",
            "--out DIR": "directory of the result (default: runs/diagnose/NAME)",
            **_PRINT,
        },
    ),
}


def answer_help(command: str, arguments: Sequence[str]) -> None:
    """Print the help of a command and exit, where it is asked for."""
    if not {"-h", "--help", ALL}.isdisjoint(arguments):
        print(_text(command, arguments, whole=ALL in arguments))
        sys.exit(0)


def _text(command: str, arguments: Sequence[str], whole: bool) -> str:
    called, about = f"{program('nl_lightning')} {command}", HELPS[command]
    agent, environment = _chosen(arguments)
    every_flag = "" if command == "diagnose" else ", and all flags of the Trainer"
    parser = argparse.ArgumentParser(
        usage="\n       ".join(f"{called} {line}" for line in about.usage),
        description="\n".join(
            [about.text, "", "examples:", *(f"  {called} {line}" for line in about.examples), "", "configs:"]
            + [f"  {line}" for line in textwrap.wrap(", ".join(shipped_configs()), width=100)]
        ),
        epilog=f"more:\n  {called} --model NAME --help    the settings of another agent\n"
        f"  {called} --config NAME --help   those of the agent and the environment of a config\n"
        f"  {called} {ALL}             the whole text of every setting{every_flag}",
        formatter_class=_Layout,
        add_help=False,
    )
    _add(parser, "options", about.options)
    names = ", ".join(kind.__name__ for kind in AGENTS.values())
    chosen = {"--model NAME": f"{names}, or my_module.MyAgent"}
    _add(parser, f"agent, with the settings of {agent.__name__}", chosen | _settings(agent, "model", whole))
    chosen = {"--data.environment NAME": f"{', '.join(ENVIRONMENTS)}, or my_module.MyEnvironment"}
    settings = _settings(BanditData, "data", whole) | chosen | _settings(environment, "data.environment", whole)
    _add(parser, f"environment, with the settings of {environment.__name__}", settings)
    if command != "diagnose":
        flags = {f"--trainer.{flag} VALUE": text for flag, text in TRAINER.items()}
        every = _settings(Trainer, "trainer", whole) if whole else {}
        _add(parser, f"Lightning's Trainer{'' if whole else f', some of its flags (all: {ALL})'}", every | flags)
    return parser.format_help().rstrip()


class _Layout(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=36)


def _add(parser: argparse.ArgumentParser, title: str, options: dict[str, str]) -> None:
    group = parser.add_argument_group(title)
    for option, text in options.items():
        name, _, value = option.partition(" ")
        takes: dict[str, Any] = {"metavar": value} if value else {"action": "store_true"}
        group.add_argument(name, help=text.replace("%", "%%"), **takes)


def _settings(kind: type, prefix: str, whole: bool) -> dict[str, str]:
    """The settings of a class as options, each with its text and its default."""
    parser = ArgumentParser(exit_on_error=False, add_help=False)
    parser.add_class_arguments(kind, prefix, skip=set(_DECIDED.get(prefix, ())), fail_untyped=False)
    found: dict[str, str] = {}
    for action in parser._actions:
        name = action.dest.removeprefix(f"{prefix}.")
        if not name.isidentifier() or name == prefix or not action.option_strings:
            # --prefix itself takes a file, and --prefix.name.help is a help
            continue
        default = DEFAULTS.get(name, action.default) if kind is Trainer else action.default
        unset = default is None or default is argparse.SUPPRESS
        text = re.sub(r"\s+", " ", (action.help or "").replace("``", "")).strip().rstrip(".")
        shown = "" if unset else f" (default: {str(default).lower() if isinstance(default, bool) else default})"
        found[f"--{prefix}.{name} VALUE"] = f"{text if whole else _short(text)}{shown}"
    return found


def _short(text: str) -> str:
    """The first sentence of a text, or its first clause where that is long."""
    sentence = re.split(r"\. (?=[A-Z])", text, maxsplit=1)[0]
    clause = re.match(r"(.{20,}?)[;:] ", sentence)
    return clause[1] if clause and len(sentence) > _LONG else sentence


def _chosen(arguments: Sequence[str]) -> tuple[type[Agent], type[Environment]]:
    """The agent and the environment that the options or their configs name; left out, those of most configs."""
    arguments = name_configs(arguments)
    model, environment = "NeuralLogUCB2", "Synthetic"
    for config in read_configs(arguments):
        content = yaml.safe_load(config.path.read_bytes())
        model = _class_path(content, "model") or model
        environment = _class_path(content, "data", "environment") or environment
    for option, value in given_options(arguments):
        if value and not Path(value).is_file():
            model = value if option in ("--model", "--model.class_path") else model
            environment = value if option in ("--data.environment", "--data.environment.class_path") else environment
    path = ENVIRONMENTS.get(environment, environment)
    found: type[Environment] = import_class(path, Environment, "--data.environment", ENVIRONMENTS)
    return find_agent(model).kind, found


def _class_path(content: Any, *keys: str) -> str | None:
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    name = content.get("class_path") if isinstance(content, dict) else content
    return name if isinstance(name, str) and not name.endswith((".yaml", ".yml")) else None
