"""Parts of a log, given like slices."""

import re

from nl_lightning.core.errors import InputError

__all__ = ["parse_rows"]


def parse_rows(text: str, end: int, log: str) -> tuple[int, int]:
    """The first row and the row behind the last one of ``0:5000``, ``5000:`` or ``:5000``."""
    found = re.fullmatch(r"\s*(\d*)\s*:\s*(\d*)\s*", text) if isinstance(text, str) else None
    if found is None:
        raise InputError(f"rows must be like 0:5000, 5000: or :5000, got {text!r:.60}.")
    start, stop = (int(number) if number else other for number, other in zip(found.groups(), (0, end), strict=True))
    if stop > end:
        raise InputError(f"rows {text} end at {stop}, but {log} has {end} rows.")
    if start >= stop:
        raise InputError(f"rows {text} hold no event of {log}, which has {end} rows.")
    return start, stop
