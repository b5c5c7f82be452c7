"""What identifies a source without reading all of it."""

import hashlib
from typing import Any

from replay.logs.address import Address, changed, open_binary, size

__all__ = ["ENDS", "fingerprint"]


ENDS = 64 << 10
"""Bytes at both ends of a file that a fingerprint covers."""


def fingerprint(file: Address) -> dict[str, Any]:
    """The name of a file, its size and time of change, and digests of both its ends."""
    length = size(file)
    with open_binary(file) as opened:
        first = opened.read(ENDS)
        opened.seek(max(0, length - ENDS))
        last = opened.read(ENDS)
    digests = {"first": hashlib.sha256(first).hexdigest(), "last": hashlib.sha256(last).hexdigest()}
    return {"name": file.name, "bytes": length, "changed": changed(file), **digests}
