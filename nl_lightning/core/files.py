"""Files that are complete or absent: each is written under another name and then renamed."""

import os
from collections.abc import Callable
from pathlib import Path

from nl_lightning.core.errors import InputError

__all__ = ["output_directory", "write_beside"]


def write_beside(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` make a file beside ``path``, then rename it.

    If the process is killed at any moment, ``path`` is either the old file or the complete new one. If it cannot be
    written, nothing is left behind, and an :class:`InputError` says why.
    """
    # Keep the suffix: some writers choose the format by it.
    beside = path.with_name(f".{path.stem}.writing{path.suffix}")
    try:
        write(beside)
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException as error:
        beside.unlink(missing_ok=True)
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            raise InputError(f"{path} cannot be written: {reason}. Make room, or choose another directory.") from error
        raise


def output_directory(path: Path) -> Path:
    """Make the directory for a command's output, or raise an :class:`InputError` that says why it cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--out must be a directory that can be made and written; {path}: {error.strerror}. Choose another one."
        ) from error
    return path
