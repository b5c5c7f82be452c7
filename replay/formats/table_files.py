"""The files of a table: CSV or Parquet, one file or a directory of them."""

from pathlib import PurePosixPath
from typing import Literal

from nl_lightning.core.errors import InputError
from replay.logs.address import Address, address, list_files

__all__ = ["KINDS", "Kind", "find_files", "kind_of"]

Kind = Literal["csv", "parquet"]
KINDS: dict[str, Kind] = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}
"""the kinds of files by their ending"""

_BESIDE = {".yaml", ".yml", ".json", ".md", ".txt", ".crc"}
"""endings of files that may lie beside a table's"""


def find_files(source: str | Address, without: Address | None = None) -> tuple[list[Address], Kind]:
    """The files of a table in the order of their names, and their kind.

    Args:
        source: a CSV or Parquet file, or a directory of files of one kind: a path or an address.
        without: a file of the directory that is not part of the table, such as the table of actions.
    """
    place = address(source)
    if not place.exists():
        raise InputError(f"{place} does not exist. Expected a CSV or Parquet file, or a directory of them.")
    if not place.is_dir():
        return [place], kind_of(place)
    found: list[Address] = []
    for file in list_files(place, "*"):
        if file.name[0] in "._" or PurePosixPath(file.name).suffix.lower() in _BESIDE or _same(file, without):
            continue
        if file.is_dir():
            raise InputError(
                f"{place} has a directory {file.name}. Expected CSV or Parquet files in one directory; convert the "
                "directories below it one by one, or move their files."
            )
        found.append(file)
    if not found:
        raise InputError(f"{place} has no CSV or Parquet file. Expected files that end in .csv or .parquet.")
    kinds = {kind_of(file): file for file in reversed(found)}
    if len(kinds) > 1:
        names = " and ".join(file.name for file in sorted(kinds.values(), key=str))
        raise InputError(f"{place} has files of two kinds, {names}. Expected either CSV or Parquet files.")
    return found, next(iter(kinds))


def kind_of(file: Address) -> Kind:
    """Whether a file is CSV or Parquet, judging by its name."""
    suffix = PurePosixPath(file.name).suffix.lower()
    if suffix not in KINDS:
        raise InputError(f"{file}: expected a file that ends in .csv or .parquet, got {suffix or 'no ending'}.")
    return KINDS[suffix]


def _same(file: Address, other: Address | None) -> bool:
    if other is None:
        return False
    return (
        file.resolve() == other.resolve() if hasattr(file, "resolve") and hasattr(other, "resolve") else file == other
    )
