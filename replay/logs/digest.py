"""A digest of a log's files, by which a run knows its log again."""

import hashlib
from pathlib import Path

from replay.logs.address import Address, list_files, open_parquet, size
from replay.logs.layout import EVENTS_FILES, ITEMS_FILE

__all__ = ["digest"]

_BLOCK = 1 << 20


def digest(log: Address) -> str:
    """SHA-256 over the events and items of a log.

    Of local files it covers every byte, at about a second per gigabyte. Remote files would have to be fetched for that:
    of these it covers sizes and footers, which hold the size and the extremes of every column of a row group.
    """
    total = hashlib.sha256()
    for file in [log / ITEMS_FILE, *list_files(log, EVENTS_FILES)]:
        total.update(f"{file.name} {size(file)}\n".encode())
        if isinstance(file, Path):
            with file.open("rb") as content:
                while block := content.read(_BLOCK):
                    total.update(block)
        else:
            with open_parquet(file) as parquet:
                total.update(repr(parquet.metadata.to_dict()).encode())
    return total.hexdigest()
