"""Files that are complete or absent: each is written under another name and then renamed."""

import os
from collections.abc import Callable
from pathlib import Path

from nl_lightning.core.errors import InputError

__all__ = ["output_directory", "write_beside"]


def write_beside(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` make a file beside ``path``, then rename it.

    If the process is killed at any moment, ``path`` is either the old file or the complete new one.
    """
    # Keep the suffix: some writers choose the format by it.
    beside = path.with_name(f".{path.stem}.writing{path.suffix}")
    write(beside)
    with beside.open("rb+") as file:
        os.fsync(file.fileno())
    beside.replace(path)


def output_directory(path: Path) -> Path:
    """Make the directory for a command's output, or raise an :class:`InputError` that says why it cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--out must be a directory that can be made and written; {path}: {error.strerror}. Choose another one."
        ) from error
    return path
