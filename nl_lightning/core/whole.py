"""Checks of numbers, free of torch so that light modules can use them."""

import math
from numbers import Integral, Real
from typing import Any

from nl_lightning.core.errors import InputError

__all__ = ["check_whole", "is_number", "is_whole", "plain"]


def is_whole(value: object, least: int) -> bool:
    """Whether a value is a whole number (Python's or NumPy's, not a boolean) of at least ``least``."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def is_number(value: object) -> bool:
    """Whether a value is a finite number (Python's or NumPy's, not a boolean) that a float can hold."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def plain(value: Any) -> Any:
    """Python's own number for one of NumPy or a tensor without dimensions, a list for a vector; all else as it is."""
    if getattr(value, "ndim", None) in (0, 1) and callable(getattr(value, "tolist", None)):
        return value.tolist()
    return value


def check_whole(least: int, **values: object) -> None:
    """Raise an InputError unless each of the named values is a whole number of at least ``least``."""
    for name, value in values.items():
        if not is_whole(value, least):
            raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}.")
