"""Config files of the command line, read strictly before LightningCLI takes them.

LightningCLI lets the last of two equal keys win, and does not say which file a mistake is in. Here every file is read
once: it must be text, YAML, and name each key once. What comes back knows the line of every key.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from nl_lightning.core.errors import InputError

__all__ = ["Config", "check_mapping", "given_options", "plain_key", "read_configs"]

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_SECTIONS = ("--model", "--data", "--data.environment", "--trainer", "--run")
"""Options that take a config of their own, whatever its file is called."""

_DEEPEST, _MOST_NODES = 50, 100_000
"""Larger configs are a mistake, or grow by aliases without end."""


class Config(NamedTuple):
    """A config file and where its keys stand."""

    path: Path
    lines: dict[str, int]
    """line of each key, counted from 1; keys as on the command line, without ``init_args``"""


def plain_key(key: str) -> str:
    """A key as users write it on the command line: ``model.init_args.nu`` is ``model.nu``."""
    return ".".join(part for part in key.split(".") if part not in ("init_args", "class_path"))


def given_options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The options with their values: ``--name=value``, ``--name value``, ``-cvalue``; an option without one has ''."""
    for number, argument in enumerate(arguments):
        if not argument.startswith("-"):
            continue
        name, joined, value = argument.partition("=")
        if re.match(r"-c[^=]", argument):
            # -cFILE
            name, joined, value = "-c", "=", argument[2:]
        follows = arguments[number + 1] if number + 1 < len(arguments) else ""
        yield name, value if joined else "" if follows.startswith("--") else follows


def read_configs(arguments: Sequence[str]) -> list[Config]:
    """The config files that these arguments name, in their order, with the files that those name."""
    found: list[Config] = []
    for name, value in given_options(arguments):
        if name in ("-c", "--config"):
            # LightningCLI takes the text of a config as well
            if value.lstrip().startswith("{"):
                check_mapping(value, name)
            elif value:
                found += _read(Path(value), prefix="", main=True)
        elif _is_config(Path(value), name in _SECTIONS):
            found += _read(Path(value), prefix=name.lstrip("-"), main=False)
        elif value.lstrip().startswith(("{", "[")):
            check_mapping(value, name)
    return found


def check_mapping(text: str, name: str) -> None:
    """Refuse YAML on the command line that names a key twice; what is no YAML is left to the option's own check."""
    try:
        node = yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError:
        return
    if node is not None:
        list(_Walk(name).keys(node, ""))


def _is_config(path: Path, section: bool) -> bool:
    try:
        return (section or path.suffix in (".yaml", ".yml")) and path.is_file()
    except (OSError, ValueError):
        # a value that no file could be called
        return False


def _read(path: Path, prefix: str, main: bool, above: tuple[Path, ...] = ()) -> list[Config]:
    node = _compose(path)
    if main and not isinstance(node, yaml.MappingNode):
        kind = "is empty" if node is None else f"holds a {'list' if isinstance(node, yaml.SequenceNode) else 'value'}"
        raise InputError(
            f"The config {path} must be a mapping of options, such as `data: {{rounds: 2000}}`, but it {kind}. "
            "The options with their values: --print_config."
        )
    lines: dict[str, int] = {}
    inner: list[Config] = []
    for key, line, value in _Walk(str(path)).keys(node, prefix) if node is not None else ():
        lines[plain_key(key)] = line
        below = path.parent / value if value else path
        if value and below.resolve() not in above and _is_config(below, f"--{key}" in _SECTIONS):
            inner += _read(below, key, False, (*above, path.resolve()))
    return [Config(path, lines), *inner]


def _compose(path: Path) -> yaml.Node | None:
    """The YAML of a file, not yet made into objects."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        return yaml.compose(text, Loader=_LOADER)  # type: ignore[no-any-return]
    except UnicodeDecodeError as error:
        raise InputError(
            f"The config {path} is not UTF-8 text (byte {error.start} is 0x{error.object[error.start]:02x}). "
            "Save it as UTF-8, or give the YAML file that was meant."
        ) from error
    except yaml.YAMLError as error:
        raise InputError(f"The config {path} is not valid YAML: {_yaml_problem(error)}.") from error
    except IsADirectoryError as error:
        raise InputError(f"The config {path} is a directory; give the YAML file in it.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"The config {path} cannot be read: {reason}.") from error


def _yaml_problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or re.sub(r"\s+", " ", str(error).split('in "<')[0]).strip().rstrip(",")
    return f"{what} (line {mark.line + 1}, column {mark.column + 1})" if mark else what


class _Walk:
    """Goes through all keys of a document and refuses what cannot be meant."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.nodes = 0

    def keys(self, node: yaml.Node, prefix: str, depth: int = 0) -> Iterator[tuple[str, int, str]]:
        """Every key below a node, dotted, with its line and, where that is text, its value."""
        self.nodes += 1
        if depth > _DEEPEST or self.nodes > _MOST_NODES:
            raise InputError(
                f"{self.where}, line {node.start_mark.line + 1}: the config is nested too deeply or too large; an "
                "alias (*name) may contain itself. Write it without aliases."
            )
        if isinstance(node, yaml.SequenceNode):
            for item in node.value:
                yield from self.keys(item, prefix, depth + 1)
        if not isinstance(node, yaml.MappingNode):
            return
        seen: dict[tuple[str, str], int] = {}
        for name, value in node.value:
            line = name.start_mark.line + 1
            text = name.tag == "tag:yaml.org,2002:str"
            if not isinstance(name, yaml.ScalarNode) or (not prefix and not text and name.value != "<<"):
                shown = name.value if isinstance(name, yaml.ScalarNode) else "a list or a mapping"
                raise InputError(f"{self.where}, line {line}: a key must be the name of an option, got {shown}.")
            key = f"{prefix}.{name.value}" if prefix else name.value
            same = (name.tag, name.value)
            if same in seen:
                raise InputError(
                    f"{self.where}, line {line}: the key {key} is there twice, first in line {seen[same]}. "
                    "Keep one of them."
                )
            seen[same] = line
            yield key, line, value.value if isinstance(value, yaml.ScalarNode) else ""
            yield from self.keys(value, key, depth + 1)
