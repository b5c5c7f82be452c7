"""Attacks: damaged files, hostile input, misuse. Each must be refused in one clear text, or have the right result.

An attack is a row of a table in tests/attacks. It does its work in a directory of its own and returns None; how it
ends is judged here. A row with ``right`` may also end with the right result, which ``right`` confirms.
"""

import io
import warnings
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from nl_lightning.core.errors import InputError, TrainNNDiverged

Outcome = Literal["refused", "survived"]

PROPERTY = "attack"
"""The name under which a test reports its outcome; see ``pytest_terminal_summary`` in tests/conftest.py."""

LONGEST = 700
"""Characters of a refusal that people still read."""


class Attack(NamedTuple):
    """One case."""

    kind: str
    """the class of the attack, such as ``checkpoint: flipped bit``"""
    name: str
    """what distinguishes the case within its class"""
    run: Callable[[Path], Any]
    """does it, in a directory of its own; raises InputError, or ends in SystemExit as the command line does"""
    says: tuple[str, ...] = ()
    """what a refusal must contain, in any case of letters: the file, the setting, the remedy"""
    right: Callable[[Any, Path], bool] | None = None
    """given what ``run`` returned and its directory: whether the result is right; None where only a refusal will do"""

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}"


def table(attacks: Iterable[Attack]) -> Any:
    """Parametrises a test by the rows of a table."""
    rows = list(attacks)
    names = [str(attack) for attack in rows]
    assert len(set(names)) == len(names), "two attacks have the same name"
    return pytest.mark.parametrize("attack", rows, ids=names)


def outcome(attack: Attack, directory: Path) -> Outcome:
    """Run an attack; an AssertionError says how it succeeded."""
    printed, errors = io.StringIO(), io.StringIO()
    code: object = 1
    try:
        with redirect_stdout(printed), redirect_stderr(errors), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = attack.run(directory)
    except (InputError, TrainNNDiverged) as error:
        text = str(error)
    except SystemExit as stop:
        code = stop.code
        text = str(code) if isinstance(code, str) else errors.getvalue()
        # Warnings and progress may come before the error.
        text = text[text.rindex("error:") :] if "error:" in text and "Traceback" not in text else text
    else:
        assert attack.right is not None, "it was neither refused nor noticed"
        assert attack.right(result, directory), "it ended with a wrong result and said nothing"
        return "survived"
    assert code not in (0, None), "the command failed with exit code 0"
    assert "Traceback" not in text, f"a traceback:\n{text}"
    assert text.strip(), "it was refused without a word"
    assert len(text) <= LONGEST, f"the refusal is too long to be read:\n{text}"
    for part in attack.says:
        assert part.lower() in text.lower(), f"the refusal does not say {part!r}:\n{text}"
    left = [path.name for path in directory.rglob(".*writing*")]
    assert not left, f"half-written files stay: {left}"
    return "refused"


def judge(attack: Attack, directory: Path, record_property: Callable[[str, object], None]) -> None:
    """The body of a test of attacks: run one, and report how it ended."""
    ended: str = "succeeded"
    try:
        ended = outcome(attack, directory)
    finally:
        record_property(PROPERTY, ended)
