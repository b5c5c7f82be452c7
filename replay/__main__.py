"""The command line, ``python -m replay``."""

import argparse
import importlib
import sys
from collections.abc import Sequence

from nl_lightning import __version__
from nl_lightning.core.arguments import OneLineParser, program
from nl_lightning.core.credentials import check_no_credentials, hide_credentials
from nl_lightning.core.errors import InputError
from replay.commands import COMMANDS


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. Errors that a user can fix are shown as one message, with exit code 1.

    Only the module of the given command is imported, so that a light command starts fast.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    asked = next((argument for argument in given if not argument.startswith("-")), None)
    called = program("replay")
    parser = OneLineParser(
        prog=called,
        usage=f"{called} {{{','.join(COMMANDS)}}} ...",
        description="Make logs of clicks, look into them, and evaluate agents on them.",
        epilog=f"The options of a command: {called} COMMAND --help. Agents: {program('nl_lightning')} --help.",
        formatter_class=_Help,
    )
    parser.add_argument("--version", action="version", version=f"nl-replay {__version__}", help="show the version")
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND", prog=called)
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, formatter_class=_Help)
        if name == asked:
            module = importlib.import_module(f"replay.commands.{name}")
            command.description = (module.__doc__ or "").replace("python -m replay", called)
            command.set_defaults(run=module.run)
            module.add_arguments(command)
    try:
        check_no_credentials(given, "The command")
        options, unknown = parser.parse_known_args(given)
        if unknown:
            # said by the command, which knows its own options and its own help
            commands.choices[options.command].error(f"unrecognized arguments: {' '.join(unknown)}")
        options.run(options)
    except (InputError, OSError) as error:
        print(f"error: {hide_credentials(str(error))}", file=sys.stderr)
        sys.exit(1)


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults that say something, and keeps the line breaks of a module's docstring."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        unset = action.default is None or action.default is False or action.default == []
        return action.help if unset else super()._get_help_string(action)

    def _format_action(self, action: argparse.Action) -> str:
        """The commands stand at once below their head, without a line for what they are called in messages."""
        text = super()._format_action(action)
        if isinstance(action, argparse._SubParsersAction):
            text = "".join(line.removeprefix("  ") for line in text.splitlines(keepends=True)[1:])
        return text


if __name__ == "__main__":
    main()
