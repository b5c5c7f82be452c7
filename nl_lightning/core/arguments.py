"""Command lines: a parser that answers a mistake in one sentence, and what a misspelt name was probably meant to be."""

import argparse
import re
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["OneLineParser", "no_option", "program", "suggest"]

_SCRIPTS = {"nl_lightning": "nl-lightning", "replay": "nl-replay"}
"""The console script of each package."""


def program(package: str) -> str:
    """The package's command as the user called it: ``nl-replay``, or ``python -m replay``.

    One program may name the other; then it is named in the same way.
    """
    called_by_script = Path(sys.argv[0]).stem in _SCRIPTS.values()
    return _SCRIPTS[package] if called_by_script else f"python -m {package}"


def suggest(name: str, known: Iterable[str]) -> str:
    """``" Did you mean X?"`` with the known name that is closest, or nothing where none is close.

    Of dotted names only those of the same group are compared, by their last part: all of a group are alike. A name
    without a group may also be all but exactly the last part of one that has a group.
    """
    group, _, last = name.lower().lstrip("-").rpartition(".")
    names = {each.lower().lstrip("-"): each for each in known}
    same = {each.rpartition(".")[2]: each for each in names if each.rpartition(".")[0] == group}
    grouped = {} if group else {each.rpartition(".")[2]: each for each in reversed(names) if "." in each}
    for choice, cutoff in ((same, 0.9), (grouped, 0.9), (same, 0.65)):
        if found := get_close_matches(last, choice, n=1, cutoff=cutoff):
            return f" Did you mean {names[choice[found[0]]]}?"
    return ""


def no_option(argument: str, options: Iterable[str], program: str) -> str:
    """What to say of a command-line argument that no option takes."""
    name = argument.partition("=")[0]
    if not name.startswith("-"):
        return f"{argument} belongs to no option. All of them: {program} --help."
    return f"there is no option {name}.{suggest(name, options)} All of them: {program} --help."


class OneLineParser(argparse.ArgumentParser):
    """An argparse parser that takes options by their full names only, and reports a mistake in one line."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def error(self, message: str) -> NoReturn:
        print(f"error: {self._explain(message)}", file=sys.stderr)
        sys.exit(2)

    def _explain(self, message: str) -> str:
        if found := re.match(r"unrecognized arguments: (\S+)", message):
            return no_option(found[1], self.options(), self.prog)
        if found := re.match(r"argument (.+?): invalid choice: '?(.*?)'? \(choose from (.*)\)$", message, re.DOTALL):
            name, given, choices = found.groups()
            known = [choice.strip("' ") for choice in choices.split(",")]
            if name == "COMMAND":
                return f"there is no command {given}.{suggest(given, known)} The commands: {', '.join(known)}."
            return f"{name} must be one of {', '.join(known)}; got {given!r}.{suggest(given, known)}"
        if found := re.match(r"argument (.+?): invalid (int|float) value: (.*)$", message, re.DOTALL):
            name, kind, given = found.groups()
            return f"{name} must be a {'whole ' if kind == 'int' else ''}number, got {given}."
        if found := re.match(r"the following arguments are required: (.*)$", message):
            if found[1] == "COMMAND":
                known = [
                    name for action in self._actions if action.metavar == "COMMAND" for name in action.choices or ()
                ]
                return f"a command is needed. The commands: {', '.join(known)}. More with --help."
            verb = "are" if "," in found[1] else "is"
            return f"{found[1]} {verb} needed. What a command takes: {self.prog} --help."
        return message[:1].lower() + message[1:] + "."

    def options(self) -> list[str]:
        """The names of all options, those of commands among them."""
        commands = [action.choices for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        below = [name for choices in commands for parser in choices.values() for name in parser.options()]
        return [name for name in (*self._option_string_actions, *below) if name.startswith("--")]
