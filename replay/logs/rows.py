"""Parts of a log, given like slices."""

import re

from nl_lightning.core.errors import InputError

__all__ = ["parse_rows"]


def parse_rows(text: str, end: int, log: str, first: int = 0) -> tuple[int, int]:
    """The first row and the row behind the last one of ``0:5000``, ``5000:`` or ``:5000``.

    They are rows of ``log``, which has the rows ``first``, ..., ``end - 1``; in a part of a log, ``first`` is not 0.
    """
    found = re.fullmatch(r"([0-9]{0,18}) ?: ?([0-9]{0,18})", text.strip()) if isinstance(text, str) else None
    if found is None:
        raise InputError(f"rows must be like 0:5000, 5000: or :5000, got {text!r:.60}.")
    start, stop = (int(number) if number else other for number, other in zip(found.groups(), (first, end), strict=True))
    has = f"{end} rows" if not first else f"the rows {first} to {end - 1}"
    if start < first:
        raise InputError(f"rows {text} begin at {start}, but {log} has {has}.")
    if stop > end:
        raise InputError(f"rows {text} end at {stop}, but {log} has {has}.")
    if start >= stop:
        raise InputError(f"rows {text} hold no event of {log}, which has {has}.")
    return start, stop
