"""Turns what users may write on the command line into what LightningCLI takes."""

import re
from collections.abc import Collection
from pathlib import Path

from nl_lightning.agents import AGENTS
from nl_lightning.cli.agents import find_agent, is_import_path
from nl_lightning.cli.configs import read_configs
from nl_lightning.cli.errors import UsageError
from nl_lightning.cli.shipped import name_configs
from nl_lightning.core.arguments import program
from nl_lightning.core.errors import InputError
from nl_lightning.runs.directory import RunDirectory

__all__ = ["expand_resume", "find_command", "translate_model", "translate_threads"]


def find_command(arguments: list[str], commands: Collection[str]) -> str:
    """The command among the arguments. Only configs that have a section for each command may stand before it."""
    place = next((number for number, argument in enumerate(arguments) if argument in commands), None)
    called = program("nl_lightning")
    if place is None:
        raise UsageError(f"a command is needed, such as {called} fit --config h1. More with {called} --help.")
    command = arguments[place]
    for config in read_configs(name_configs(arguments[:place])):
        if not any(key.split(".")[0] in commands for key in config.lines):
            raise UsageError(
                f"{config.path} has no section {command}, so it belongs after the command: {called} {command} --config "
                f"{config.path}."
            )
    return command


def translate_model(arguments: list[str]) -> list[str]:
    """Let ``--model`` take the names of the paper's tables, and check the import path of a user's own agent."""
    translated = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        option, _, value = argument.partition("=")
        if before == "--model":
            argument = _class_path(argument)
        elif option == "--model" and value:
            argument = f"{option}={_class_path(value)}"
        translated.append(argument)
    return translated


def translate_threads(arguments: list[str]) -> list[str]:
    """``--threads N`` is short for ``--data.threads N``."""
    return [re.sub(r"^--threads(?==|$)", "--data.threads", argument) for argument in arguments]


def _class_path(model: str) -> str:
    if model in AGENTS or (is_import_path(model) and not Path(model).is_file()):
        return find_agent(model).path
    # a class name, which LightningCLI knows, or a config of the model
    return model


def expand_resume(arguments: list[str]) -> list[str]:
    """Replace ``--resume DIR`` by the config of the run in DIR and the options that lead to DIR."""
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
    others = [a for a in rest if re.match(r"(-c|--(model|data|run|config|threads))\b", a)]
    if others:
        raise InputError(f"--resume goes on with a run as it was; leave {' '.join(others)} out.")
    if not run.config.exists():
        raise InputError(f"{joined[0]} is not the directory of a run: it has no config.yaml.")
    run.read_config()
    where = [f"--run.dir={run.path.parent.parent}", f"--run.name={run.path.parent.name}", f"--run.id={run.path.name}"]
    return [*rest[:1], f"--config={run.config}", *where, *rest[1:]]
