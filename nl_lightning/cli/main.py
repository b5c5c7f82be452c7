"""The top level of the command line: chooses the command, and loads only that one.

python -m nl_lightning fit --config h1 [--model.nu 0.1] [--data.rounds 500]
python -m nl_lightning fit --resume runs/h1/20250101-120000
python -m nl_lightning compare --config obd
python -m nl_lightning report runs/obd-20250101-120000 --out obd.html
python -m nl_lightning test --config runs/h1/ID/config.yaml --ckpt_path runs/h1/ID/checkpoints/last.ckpt

torch and Lightning take seconds to load, so nothing here may import them: help and misspelt commands are answered at
once.
"""

import sys
import textwrap
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from nl_lightning import __version__
from nl_lightning.cli.errors import run_command
from nl_lightning.cli.shipped import shipped_configs
from nl_lightning.core.arguments import program, suggest
from nl_lightning.core.imports import make_current_directory_importable

__all__ = ["COMMANDS", "main"]


class Command(NamedTuple):
    """A command of the command line."""

    module: str
    """whose ``main`` takes the arguments after the command"""
    text: str
    """its line of the help"""


_LIGHTNING = "nl_lightning.cli.fit"
"""LightningCLI, which takes the command among its arguments."""

COMMANDS: dict[str, Command] = {
    "fit": Command(_LIGHTNING, "train an agent, or resume a run"),
    "test": Command(_LIGHTNING, "play a trained agent on rounds it has not seen"),
    "compare": Command("nl_lightning.cli.compare", "fit several agents with one config and compare them"),
    "report": Command(
        "nl_lightning.cli.report", "make one HTML page from runs: curves, intervals, differences, configs"
    ),
    "diagnose": Command("nl_lightning.cli.diagnose", "kappa, the NTK and effective dimensions of an environment"),
    "tailbound": Command("nl_lightning.cli.tailbound", "simulate the paper's tail inequality and two others"),
    "confidence": Command("nl_lightning.cli.confidence", "check whether the confidence sets of theory mode hold"),
    "reproduce": Command("nl_lightning.cli.reproduce", "run the paper's experiments and judge each of its claims"),
}


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line. Errors that a user can fix are printed as one text, with a non-zero exit code."""
    arguments = list(sys.argv[1:] if args is None else args)
    first = arguments[0] if arguments else ""
    if first in ("-h", "--help"):
        print(_help())
        sys.exit(0)
    if first == "--version":
        print(f"nl-lightning {__version__}")
        sys.exit(0)
    if first in COMMANDS:
        module = COMMANDS[first].module
    elif first.startswith("-"):
        # LightningCLI also takes a config in front of its command
        module = _LIGHTNING
    else:
        what = f"there is no command {first}.{suggest(first, COMMANDS)}" if first else "a command is needed."
        print(f"error: {what} The commands: {', '.join(COMMANDS)}. More with --help.", file=sys.stderr)
        sys.exit(2)
    make_current_directory_importable()
    run_command(import_module(module).main, arguments if module == _LIGHTNING else arguments[1:])


def _help() -> str:
    called = program("nl_lightning")
    configs = textwrap.wrap(", ".join(shipped_configs()), width=100)
    return "\n".join(
        [
            f"usage: {called} {{{','.join(COMMANDS)}}} ...",
            "",
            "Train and compare neural logistic bandits.",
            "",
            "commands:",
            *(f"  {name:<12}{command.text}" for name, command in COMMANDS.items()),
            "",
            "options:",
            "  -h, --help  show this help",
            "  --version   show the version",
            "",
            "configs, by name (fit --config h1):",
            *(f"  {line}" for line in configs),
            "",
            f"The options of a command: {called} COMMAND --help",
            f"Logs of clicks: {program('replay')} --help",
        ]
    )
