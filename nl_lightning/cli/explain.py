"""What jsonargparse says of a wrong option or value, in the words of a user."""

import inspect
import re
from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from typing import Any

from lightning.pytorch import callbacks, loggers

from nl_lightning.cli.agents import no_agent
from nl_lightning.cli.configs import Config, given_options, plain_key
from nl_lightning.cli.help import ENVIRONMENTS
from nl_lightning.core.arguments import no_option, suggest

__all__ = ["ParserError", "explain"]

_CLASSES: dict[str, tuple[str, Sequence[str]]] = {
    "data.environment": ("environment", list(ENVIRONMENTS)),
    "trainer.callbacks": ("callback", callbacks.__all__),
    "trainer.logger": ("logger", loggers.__all__),
    "model.network": ("network", ()),
    "model.optimizer": ("optimiser", ["adam", "gd"]),
}
"""What an option that takes a class is called, and the classes that have a name."""

_TYPES = {
    "<class 'int'>": "a whole number",
    "<class 'float'>": "a number",
    "<class 'bool'>": "true or false",
    "<class 'str'>": "text",
    "<class 'list'>": "a list",
    "<class 'collections.abc.Iterable'>": "a list",
    "<class 'dict'>": "a mapping",
}

_NOISE = re.compile(r"Does not validate against|Subtypes:|Errors:|<class 'NoneType'>|Given value|Parser key|.{160}")


class ParserError(Exception):
    """What the parser of LightningCLI refuses: its message, the command, and the options it has."""

    def __init__(self, message: str, command: str, options: Sequence[str]) -> None:
        super().__init__(message)
        self.command, self.options = command, options


def explain(error: ParserError, arguments: Sequence[str], configs: Sequence[Config]) -> str:
    """One or two sentences: what was expected, what came, where, and what was probably meant."""
    message = str(error)
    parts = list(dict.fromkeys(re.findall(r'Parser key "([^"]+)"', message)))
    key = re.sub(r"^(fit|test)\.", "", ".".join(parts))
    paths = re.findall(r"Problem with given class_path '([^']+)'", message)

    def placed(name: str, text: str) -> str:
        return f"{_place(name, arguments, configs)}{text}"

    for pattern, say in _KINDS:
        if found := re.search(pattern, message):
            name, text = say(found, key, paths[-1] if paths else None, error)
            return placed(name, text)
    lines = [line.strip() for line in message.splitlines() if line.strip() and not _NOISE.search(line)]
    return placed(key, f"{key}: {'; '.join(lines)}" if key else "; ".join(lines))


def _place(key: str, arguments: Sequence[str], configs: Sequence[Config]) -> str:
    """``"FILE, line N: "`` where a config has this key and the command line does not."""
    if any(plain_key(name.lstrip("-")) == key for name, _ in given_options(arguments)):
        return ""
    lines = [(config.path, config.lines[key]) for config in configs if key in config.lines]
    return f"{lines[-1][0]}, line {lines[-1][1]}: " if lines else ""


# ---- the kinds of messages: each gives the key that it is about, and a text -----------------------------------------


def _no_option(found: re.Match[str], key: str, path: str | None, error: ParserError) -> tuple[str, str]:
    """A name that the parser, or the class that it makes, does not know."""
    name = found[1].partition("=")[0].lstrip("-")
    if not key:
        argument = found[1] if "unrecognized" in found[0] else f"--{name}"
        # the parser learns the settings of an agent from the class that is chosen
        settings = [f"--model.{each}" for each in _settings("nl_lightning.NeuralLogUCB2")]
        return plain_key(name), no_option(argument, [*error.options, *settings], error.command)
    whole = plain_key(f"{key}.{name}")
    inner = re.search(r"is not accepted\. Got value: Namespace\(class_path='([^']+)'", str(error))
    path = inner[1] if inner else path
    known = _settings(path) if path else []
    of = f" of {path.rpartition('.')[2]}" if path else ""
    listed = f" Its settings: {', '.join(known)}." if known else ""
    return whole, f"there is no option --{whole}{of}.{suggest(name.partition('.')[0], [*known, 'init_args'])}{listed}"


def _no_class(found: re.Match[str], key: str, path: str | None, error: ParserError) -> tuple[str, str]:
    """A class that cannot be found, or that is of another kind."""
    given = found[1]
    if key == "model":
        return key, no_agent(given)
    if key not in _CLASSES and re.search(r"Expected a <class '(int|float|bool|str)'>", str(error)):
        # a setting that may also be a number or text
        return _wrong_value(found, key, path, error)
    what, names = _CLASSES.get(key, ("class", ()))
    close = suggest(given.rpartition(".")[2], names)
    listed = ", ".join(names) if len(names) < 15 else f"those of lightning.pytorch.{what}s"
    listed = f" The {what}s: {listed};" if names else ""
    reason = f" ({found[2]})" if found.re.groups > 1 else ""
    article = "an" if what[0] in "aeiou" else "a"
    return key, (
        f"{key}: there is no {what} {given}{reason}.{close}{listed} {article if names else article.title()} {what} of "
        "your own is given by its import path, such as my_module.MyClass."
    )


def _no_maker(found: re.Match[str], key: str, path: str | None, error: ParserError) -> tuple[str, str]:
    """A function that does not say that it makes what is wanted: the parser goes by the type that it returns."""
    name = found[1].rpartition(".")[2]
    return key, (
        f"{key}: {found[1]} must be a class, or a function that says what it makes: def {name}(...) -> {found[2]}."
    )


def _no_kind(found: re.Match[str], key: str, path: str | None, error: ParserError) -> tuple[str, str]:
    article = "an" if found[2][0] in "AEIOU" else "a"
    return key, f"{key} must be a class or function that makes {article} {found[2]}; {found[1]} is another one."


def _no_import(found: re.Match[str], key: str, path: str | None, error: ParserError) -> tuple[str, str]:
    given = re.search(r"class_path='([^']+)'", _given(error))
    return key, f"{key}: {given[1] if given else _given(error)} cannot be imported ({found[1]})."


def _no_callable(found: re.Match[str], key: str, path: str | None, error: ParserError) -> tuple[str, str]:
    return key, f"{key} must be a class or a function, by its import path; {_given(error)} is neither: {found[1]}."


def _no_mapping(found: re.Match[str], key: str, path: str | None, error: ParserError) -> tuple[str, str]:
    return key, f"{key} must be the name of a class, or a mapping with class_path and init_args; got {_given(error)}."


def _wrong_value(found: re.Match[str], key: str, path: str | None, error: ParserError) -> tuple[str, str]:
    """A value of another type: what is expected stands behind the last key."""
    tail = str(error).rpartition('Parser key "')[2]
    expected = re.findall(r"Expected a (<class .+?>|typing\.Literal\[.+?\])(?:\. Got value: .*)?$", tail, re.MULTILINE)
    texts: list[str] = []
    choices: list[str] = []
    for each in expected:
        if each.startswith("typing.Literal["):
            choices += [choice.strip("' ") for choice in each[len("typing.Literal[") : -1].split(",")]
        elif "NoneType" not in each:
            texts.append(_TYPES.get(each, re.sub(r"^<class '(?:.*\.)?(\w+)'>$", r"a \1", each)))
    if choices:
        texts.append(f"one of {', '.join(dict.fromkeys(choices))}")
    given = _given(error)
    return plain_key(key), f"{key} must be {' or '.join(dict.fromkeys(texts))}; got {given}.{suggest(given, choices)}"


def _given(error: ParserError) -> str:
    tail = str(error).rpartition('Parser key "')[2]
    found = re.search(r"(?:Got value|Given value): (.*)", tail)
    nested = re.fullmatch(r"NestedArg\(key=.*?, val=(.*)\)", found[1]) if found else None
    text = nested[1].strip("'\"") if nested else found[1] if found else "something else"
    text = text.partition(". Got value: ")[0]
    return text if len(text) <= 80 else f"{text[:77]}..."


def _missing(found: re.Match[str], key: str, path: str | None, error: ParserError) -> tuple[str, str]:
    names = [re.sub(r"^(fit|test)\.", "", name.strip()) for name in found[1].splitlines()[0].split(",")]
    if path:
        options = ", ".join(f"--{key}.{name}" for name in names)
        return key, f"{key}: {path.rpartition('.')[2]} needs {', '.join(names)}; give {options}."
    options = " and ".join(f"--{name}" for name in names)
    verb = "is" if len(names) == 1 else "are"
    return "", f"{options} {verb} needed. Give a config that has them, like --config h1, or set them."


def _no_value(found: re.Match[str], key: str, path: str | None, error: ParserError) -> tuple[str, str]:
    return "", f"{found[1]} needs a value: {found[1].split('/')[-1]} VALUE."


def _no_file(found: re.Match[str], key: str, path: str | None, error: ParserError) -> tuple[str, str]:
    return key, f"{key} must be a mapping of options, or a config file that has them; got {found[1]}."


def _settings(path: str) -> list[str]:
    """The names of a class's settings."""
    try:
        kind: Any = resolve_name(path)
        found = [name for each in kind.__mro__ for name in inspect.signature(each.__init__).parameters]
    except (ImportError, AttributeError, TypeError, ValueError):
        return []
    return [name for name in dict.fromkeys(found) if name not in ("self", "args", "kwargs", "dim", "blocks")]


_Say = Callable[[re.Match[str], str, str | None, ParserError], tuple[str, str]]
_KINDS: list[tuple[str, _Say]] = [
    (r"unrecognized arguments: (\S+)", _no_option),
    (r"Option '([^']+)' is not accepted", _no_option),
    (r"does not accept option '([^']+)'", _no_option),
    (r"Expected '(\S+)' to be a function that returns <class '(\w+)'>", _no_maker),
    (r"expects a function or a callable class: Expected '(\S+)' to be a subclass of <class '(\w+)'>", _no_kind),
    (r"expects a function or a callable class: Unexpected import object (.*)", _no_callable),
    (r"the following arguments are required: (.*)", _missing),
    (r"argument (\S+): expected one argument", _no_value),
    (r"Import path (\S+) (does not correspond to a subclass of \w+)", _no_class),
    (r"class_path '([^']+)':\s+(No module named '[^']*'|module '\S+' has no attribute '[^']*')", _no_class),
    (
        r"expects a function or a callable class: (No module named '[^']*'|module '\S+' has no attribute '\w*')",
        _no_import,
    ),
    (r"Expected a dot import path string: (.*)", _no_class),
    (r"Not a valid subclass of (\w+)", _no_mapping),
    (r"Unable to load config '(.*)'", _no_file),
    (r"Expected a ", _wrong_value),
]
