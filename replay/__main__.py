"""python -m replay convert | simulate | info | evaluate"""

import argparse
import sys
from collections.abc import Sequence

from nl_lightning.core.errors import InputError
from replay.commands import info
from replay.evaluation import evaluate
from replay.formats import convert
from replay.simulation import simulate

COMMANDS = {"convert": convert, "simulate": simulate, "info": info, "evaluate": evaluate}
"""A command is a module: its docstring's first line is its help, ``add_arguments`` its options, ``run`` its work."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; errors that a user can mend are shown as one text, with an exit code that is not 0."""
    parser = argparse.ArgumentParser(prog="python -m replay", description="Logs of clicks, and what they tell.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        text = (module.__doc__ or "").splitlines()[0]
        command = commands.add_parser(name, help=text, description=module.__doc__, formatter_class=_Help)
        module.add_arguments(command)
    options = parser.parse_args(arguments)
    try:
        COMMANDS[options.command].run(options)
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Defaults are shown, and a module's docstring keeps its lines."""


if __name__ == "__main__":
    main()
