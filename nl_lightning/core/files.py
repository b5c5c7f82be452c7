"""Files that are whole or absent: written beside, then renamed."""

import os
from collections.abc import Callable
from pathlib import Path

from nl_lightning.core.errors import InputError


def write_beside(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` make a file beside ``path`` and rename it: a kill at any moment leaves the old or the new one."""
    # The ending stays, because some writers choose the format by it.
    beside = path.with_name(f".{path.stem}.writing{path.suffix}")
    write(beside)
    with beside.open("rb+") as file:
        os.fsync(file.fileno())
    beside.replace(path)


def output_directory(path: Path) -> Path:
    """Make the directory of a command's result, or say why it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--out must be a directory that can be made and written; {path}: {error.strerror}. Choose another one."
        ) from error
    return path
