"""The configs that come with the package, by name: ``--config h1``, ``--config loggers/wandb``."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import nl_lightning
from nl_lightning.cli.errors import UsageError

__all__ = ["find_config", "name_configs", "shipped_configs"]

_DIRECTORY = Path(nl_lightning.__file__).parent / "configs"

_SWEEP = "sweep"
"""A file for ``wandb sweep``, not a config of a run."""


def shipped_configs() -> dict[str, Path]:
    """The path of each config by its name, in the order of names; those in a directory come last."""
    paths = [path for pattern in ("*.yaml", "*/*.yaml") for path in sorted(_DIRECTORY.glob(pattern))]
    names = {path.relative_to(_DIRECTORY).with_suffix("").as_posix(): path for path in paths}
    return {name: path for name, path in names.items() if name != _SWEEP}


def find_config(given: str) -> str:
    """The path of a config that is given by its path or its name. A file wins over a name.

    The text of a config (``{...}``) and an address stay as they are.
    """
    shipped = shipped_configs()
    if not given or given.lstrip().startswith("{") or "://" in given or _exists(given, file=given in shipped):
        return given
    if given in shipped:
        return str(shipped[given])
    if given == _SWEEP:
        raise UsageError(f"sweep is no config of a run: it is for W&B, wandb sweep {_DIRECTORY / 'sweep.yaml'}.")
    raise UsageError(
        f"there is no config {given}: it is neither a file nor the name of a config that comes with nl-lightning."
        f"{_meant(given, list(shipped))} The names: {', '.join(shipped)}."
    )


def name_configs(arguments: Sequence[str]) -> list[str]:
    """These arguments, with each name of a config replaced by its path."""
    found = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        joined = re.match(r"(--config=|-c=?)(.+)", argument, re.DOTALL)
        if before in ("-c", "--config") and not argument.startswith("--"):
            argument = find_config(argument)
        elif joined:
            argument = joined[1] + find_config(joined[2])
        found.append(argument)
    return found


def _exists(path: str, file: bool) -> bool:
    try:
        return Path(path).is_file() if file else Path(path).exists()
    except (OSError, ValueError):
        # a text that no file could be called
        return False


def _meant(given: str, names: list[str]) -> str:
    """``" Did you mean X?"`` with the shipped config, or the file beside the given path, that is closest."""
    path, by_stem = Path(given), {Path(name).name: name for name in reversed(names)}
    if path.stem in by_stem:
        return f" Did you mean {by_stem[path.stem]}?"
    try:
        files = [str(file) for kind in ("yaml", "yml") for file in path.parent.glob(f"*.{kind}")] if path.suffix else []
    except (OSError, ValueError):
        files = []
    beside = {Path(file).name: file for file in files}
    for word, known in ((path.name, beside), (given, dict(zip(names, names, strict=True))), (path.stem, by_stem)):
        if close := get_close_matches(word, known, n=1):
            return f" Did you mean {known[close[0]]}?"
    return ""
