"""Checks of whole numbers, free of torch so that light modules can use them."""

from numbers import Integral

from nl_lightning.core.errors import InputError

__all__ = ["check_whole", "is_whole"]


def is_whole(value: object, least: int) -> bool:
    """Whether a value is a whole number (Python's or NumPy's, not a boolean) of at least ``least``."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def check_whole(least: int, **values: object) -> None:
    """Raise an InputError unless each of the named values is a whole number of at least ``least``."""
    for name, value in values.items():
        if not is_whole(value, least):
            raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}.")
