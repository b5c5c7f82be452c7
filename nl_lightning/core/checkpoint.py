"""Checkpoint files: written from tensors and plain values only, and read so that nothing in them can run code.

A checkpoint is the zip file of ``torch.save``. Its members carry checksums, which torch does not look at; they are
verified here, so that a damaged file is refused and never turns into other numbers.
"""

import io
import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nl_lightning.core.errors import InputError
from nl_lightning.core.files import write_beside

__all__ = ["check_keys", "plain", "read_checkpoint", "restoring", "write_checkpoint"]

_REMEDY = "Take another copy of it, or fit the agent again."

_PLAIN = (str, bytes, bool, int, float, complex, torch.Size, torch.dtype, torch.device)


def read_checkpoint(path: str | Path, map_location: Any = "cpu") -> dict[str, Any]:
    """Read a checkpoint with ``weights_only=True``, after its checksums were verified.

    Args:
        path: the file, a path or an address that fsspec can open.
        map_location: that of ``torch.load``.

    Raises:
        InputError: the file is missing, damaged, not a checkpoint, or holds more than tensors and plain values.
    """
    import fsspec

    try:
        with fsspec.open(str(path), "rb") as file:
            damaged = _first_damaged(file)
            if damaged:
                raise InputError(f"{path} is not a checkpoint, or is damaged: {damaged}. {_REMEDY}")
            file.seek(0)
            stored = torch.load(file, map_location=map_location, weights_only=True)
    except InputError:
        raise
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise InputError(f"There is no checkpoint {path}.") from error
    except pickle.UnpicklingError as error:
        found = re.search(r"(?:Unsupported|unsafe) (?:global|class)\S* (?:GLOBAL )?(\S+)", str(error))
        what = f" ({found.group(1).rstrip('.')})" if found else ""
        raise InputError(
            f"{path} holds more than tensors and plain values{what}, or is damaged: loading it could run code, so it "
            "is not loaded."
        ) from error
    except Exception as error:
        raise InputError(f"{path} is not a checkpoint, or is damaged: {_first_line(error)}. {_REMEDY}") from error
    if not isinstance(stored, dict):
        raise InputError(f"{path} is not a checkpoint: expected a dict, got a {type(stored).__name__}.")
    return stored


def _first_damaged(file: Any) -> str | None:
    """What is wrong with a zip file, None if every member has its checksum."""
    try:
        with zipfile.ZipFile(file) as archive:
            member = archive.testzip()
            return f"the checksum of {member} does not fit" if member else None
    except Exception as error:
        # zipfile raises errors of many kinds for a damaged file
        return _first_line(error)


def _first_line(error: BaseException) -> str:
    return (str(error) or repr(error)).strip().splitlines()[0].rstrip(".")[:200]


def check_keys(path: str | Path, stored: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Raise an :class:`InputError` if a checkpoint lacks one of the keys."""
    missing = [key for key in keys if key not in stored]
    if missing:
        raise InputError(f"{path} is not a checkpoint of an agent: it has no {', '.join(missing)}.")


@contextmanager
def restoring(what: str, path: str | Path | None = None) -> Iterator[None]:
    """Report a stored state that cannot be taken on as an :class:`InputError` that names the file, if it is known."""
    try:
        yield
    except InputError as error:
        if path is None or str(path) in str(error):
            raise
        raise InputError(f"{path}: {error}") from error
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise InputError(
            f"{path or 'This checkpoint'} does not hold the state of {what} as this version stores it ({reason}). "
            f"{_REMEDY}"
        ) from error


def write_checkpoint(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Write a checkpoint that ``read_checkpoint`` can read. The file is complete or absent."""
    # In memory first: torch reports a full disk without a reason.
    buffer = io.BytesIO()
    torch.save(plain(checkpoint), buffer)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_beside(path, lambda beside: beside.write_bytes(buffer.getbuffer()))


def plain(value: Any, where: str = "checkpoint") -> Any:
    """The same content made of tensors and plain values; ``where`` tells a user what cannot be stored.

    Subclasses of dict, list and tuple become dict, list and tuple; NumPy's numbers become Python's, paths become text.
    """
    if isinstance(value, Mapping):
        made = {plain(key, where): plain(inner, f"{where}.{key}") for key, inner in value.items()}
        return _like_state_dict(made, value) if isinstance(value, OrderedDict) else made
    if isinstance(value, list | tuple | set | frozenset) and not isinstance(value, torch.Size):
        items = [plain(inner, f"{where}[{number}]") for number, inner in enumerate(value)]
        return items if isinstance(value, list) else tuple(items) if isinstance(value, tuple) else set(items)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, str):
        # an enumeration may be a str
        return str.__str__(value)
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, Tensor):
        return value.detach().as_subclass(Tensor)
    if isinstance(value, bool | int | float):
        return next(kind(value) for kind in (bool, int, float) if isinstance(value, kind))
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise InputError(
        f"{where} is a {kind}, which a checkpoint cannot hold: it is loaded as tensors and plain values only. "
        "Keep it as a tensor, a number, text, a list or a dict."
    )


def _like_state_dict(made: dict[str, Any], original: OrderedDict[str, Any]) -> OrderedDict[str, Any]:
    """As a module's ``state_dict``, whose versions are an attribute."""
    ordered = OrderedDict(made)
    if hasattr(original, "_metadata"):
        ordered._metadata = OrderedDict(original._metadata)  # type: ignore[attr-defined]
    return ordered
