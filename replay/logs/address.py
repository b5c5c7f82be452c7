"""Paths and addresses of logs.

A log lives in a local directory or in a file system that pyarrow can open (s3://, gs://, abfs://, hdfs://, file://).
Local ones are ordinary pathlib paths. The others are ``RemotePath`` objects, which have the methods of ``Path`` that
reading a log needs. Logs can be read from anywhere; they are written to local directories only.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO, TypeAlias, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, LocalFileSystem

from nl_lightning.core.credentials import check_no_credentials
from nl_lightning.core.errors import InputError

__all__ = [
    "Address",
    "RemotePath",
    "address",
    "changed",
    "list_files",
    "open_binary",
    "open_parquet",
    "repair_hint",
    "size",
]


@dataclass(frozen=True, order=True)
class RemotePath:
    """A file or directory in a file system that is not local."""

    text: str
    """its address without options"""
    path: str = field(compare=False)
    """its path within the file system"""
    system: FileSystem = field(compare=False, repr=False)

    def __str__(self) -> str:
        return self.text

    def __truediv__(self, name: str) -> "RemotePath":
        return RemotePath(f"{self.text.rstrip('/')}/{name}", f"{self.path.rstrip('/')}/{name}", self.system)

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> "RemotePath":
        return RemotePath(self.text.rpartition("/")[0], self.path.rpartition("/")[0], self.system)

    def exists(self) -> bool:
        return self._info().type != FileType.NotFound

    def is_dir(self) -> bool:
        return self._info().type == FileType.Directory

    def size(self) -> int:
        return int(self._info().size)

    def changed(self) -> int | None:
        info = self._info()
        return None if info.mtime_ns is None else int(info.mtime_ns)

    def read_text(self, encoding: str = "utf-8") -> str:
        with _reporting_errors(self), self.system.open_input_stream(self.path) as stream:
            return str(stream.read(), encoding)

    def glob(self, pattern: str) -> list["RemotePath"]:
        """Like ``Path.glob``. Each level of the pattern is listed on its own, because a bucket may be large."""
        first, _, rest = pattern.partition("/")
        fitting = [info for info in self._list(recursive=False) if fnmatchcase(info.base_name, first)]
        if not rest:
            return [self / info.base_name for info in fitting]
        below = [self / info.base_name for info in fitting if info.type == FileType.Directory]
        return [found for directory in below for found in directory.glob(rest)]

    def rglob(self, pattern: str) -> list["RemotePath"]:
        """Like ``Path.rglob``."""
        found = [info.path for info in self._list(recursive=True) if fnmatchcase(info.base_name, pattern)]
        start = self.path.strip("/")
        return [self / path.strip("/").removeprefix(start).strip("/") for path in found]

    def _info(self) -> FileInfo:
        with _reporting_errors(self):
            return self.system.get_file_info(self.path)

    def _list(self, recursive: bool) -> list[FileInfo]:
        with _reporting_errors(self):
            return self.system.get_file_info(FileSelector(self.path, recursive=recursive))


Address: TypeAlias = Path | RemotePath


def address(place: str | Path | RemotePath) -> Address:
    """Turn a path or an address given as text into a ``Path`` or a ``RemotePath``.

    An address that holds credentials is refused: it is stored with a run and shown in reports. pyarrow takes them from
    the environment.
    """
    if not isinstance(place, str):
        return place
    check_no_credentials(place, "The place of the log")
    if "://" not in place:
        return Path(place)
    text = place.partition("?")[0].rstrip("/")
    if text.startswith(("gs://", "gcs://")) and "retry_limit_seconds=" not in place:
        # By default it retries for a quarter of an hour where there is no network.
        place += f"{'&' if '?' in place else '?'}retry_limit_seconds=60"
    try:
        system, path = FileSystem.from_uri(place)
    except Exception as error:
        # pyarrow, fsspec and the libraries below them raise errors of all kinds, some of them very long.
        why = (str(error) or repr(error)).splitlines()[0].replace(place, text)
        raise InputError(
            f"{text} is not an address that pyarrow can open ({why}). Expected a path, or an address like "
            "s3://bucket/log, gs://bucket/log, abfs://..., hdfs://... or file:///directory/log."
        ) from error
    return Path(path) if isinstance(system, LocalFileSystem) else RemotePath(text, path.rstrip("/"), system)


def list_files(directory: Address, pattern: str) -> list[Address]:
    """The files that match a pattern, sorted by name."""
    found: list[Address] = [*directory.glob(pattern)]
    return sorted(found, key=str)


def open_parquet(file: Address) -> pq.ParquetFile:
    """Open a Parquet file. Page checksums are verified; the columns of a remote file are fetched together."""
    if isinstance(file, Path):
        return pq.ParquetFile(file, page_checksum_verification=True)
    return pq.ParquetFile(file.path, filesystem=file.system, pre_buffer=True, page_checksum_verification=True)


def open_binary(file: Address) -> BinaryIO:
    """Open a file to read bytes from any place of it."""
    if isinstance(file, Path):
        return file.open("rb")
    with _reporting_errors(file):
        return cast(BinaryIO, file.system.open_input_file(file.path))


def changed(file: Address) -> int | None:
    """The time of a file's last change in nanoseconds, if its file system knows."""
    return file.stat().st_mtime_ns if isinstance(file, Path) else file.changed()


def size(file: Address) -> int:
    """The size of a file in bytes."""
    return file.stat().st_size if isinstance(file, Path) else file.size()


def repair_hint(file: Address) -> str:
    """What a user can do about a file that cannot be read."""
    if isinstance(file, Path):
        return "The file is damaged; convert the log again."
    return "Check that its file system responds; if it does, the file is damaged: convert the log again."


@contextmanager
def _reporting_errors(place: RemotePath) -> Iterator[None]:
    """Turn errors of a file system into one that a user can act on."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{place} cannot be reached ({error}). Expected a directory of that file system which these credentials "
            "may read: check the name, the network and the credentials."
        ) from error
