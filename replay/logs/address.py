"""Where a log lies: a path, or an address of a file system that pyarrow knows (s3://, gs://, abfs://, hdfs://, file://).

Paths, and addresses of local files, are pathlib's and are read as ever. Others are ``Remote``s, with those of Path's
verbs that reading a log needs. Logs are read from anywhere and written to local directories.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, LocalFileSystem

from nl_lightning.core.errors import InputError


@dataclass(frozen=True, order=True)
class Remote:
    """A file or directory of a file system that is not local."""

    text: str
    """its address without user, password and options, to be shown and stored"""
    path: str = field(compare=False)
    """within the file system"""
    system: FileSystem = field(compare=False, repr=False)

    def __str__(self) -> str:
        return self.text

    def __truediv__(self, name: str) -> "Remote":
        return Remote(f"{self.text.rstrip('/')}/{name}", f"{self.path.rstrip('/')}/{name}", self.system)

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> "Remote":
        return Remote(self.text.rpartition("/")[0], self.path.rpartition("/")[0], self.system)

    def exists(self) -> bool:
        return self._info().type != FileType.NotFound

    def is_dir(self) -> bool:
        return self._info().type == FileType.Directory

    def size(self) -> int:
        return int(self._info().size)

    def read_text(self) -> str:
        with _reachable(self), self.system.open_input_stream(self.path) as stream:
            return stream.read().decode()

    def glob(self, pattern: str) -> list["Remote"]:
        """As Path's; each level of the pattern is listed by itself, because a bucket may be long."""
        first, _, rest = pattern.partition("/")
        fitting = [info for info in self._listed(recursive=False) if fnmatchcase(info.base_name, first)]
        if not rest:
            return [self / info.base_name for info in fitting]
        below = [self / info.base_name for info in fitting if info.type == FileType.Directory]
        return [found for directory in below for found in directory.glob(rest)]

    def rglob(self, pattern: str) -> list["Remote"]:
        """As Path's."""
        found = [info.path for info in self._listed(recursive=True) if fnmatchcase(info.base_name, pattern)]
        start = self.path.strip("/")
        return [self / path.strip("/").removeprefix(start).strip("/") for path in found]

    def _info(self) -> FileInfo:
        with _reachable(self):
            return self.system.get_file_info(self.path)

    def _listed(self, recursive: bool) -> list[FileInfo]:
        with _reachable(self):
            return self.system.get_file_info(FileSelector(self.path, recursive=recursive))


Address: TypeAlias = Path | Remote


def address(place: str | Path | Remote) -> Address:
    """A path as it is, an address as its file system reads it."""
    if not isinstance(place, str):
        return place
    if "://" not in place:
        return Path(place)
    text = _public(place)
    if text.startswith(("gs://", "gcs://")) and "retry_limit_seconds=" not in place:
        # left to itself it tries for a quarter of an hour where there is no network
        place += f"{'&' if '?' in place else '?'}retry_limit_seconds=60"
    try:
        system, path = FileSystem.from_uri(place)
    except Exception as error:
        # pyarrow, fsspec and the libraries behind them raise what they like; some search a machine and tell all of it
        why = (str(error) or repr(error)).splitlines()[0].replace(place, text)
        raise InputError(
            f"{text} is no address that pyarrow can open ({why}). Expected a path, or an address like s3://bucket/log, "
            "gs://bucket/log, abfs://..., hdfs://... or file:///directory/log."
        ) from error
    return Path(path) if isinstance(system, LocalFileSystem) else Remote(text, path.rstrip("/"), system)


def _public(place: str) -> str:
    """An address without what may be secret: user and password before the @, options behind the question mark."""
    scheme, mark, rest = place.partition("://")
    if mark and rest.partition("?")[0].rpartition("@")[0].count("/"):
        # a key with a slash in it is no address that can be parsed
        rest = rest.rpartition("@")[2]
    parts = urlsplit(f"{scheme}{mark}{rest}")
    user, at, host = parts.netloc.rpartition("@")
    # what Azure has before the @ is the container
    container = f"{user.partition(':')[0]}{at}" if parts.scheme in ("abfs", "abfss") else ""
    return f"{parts.scheme}://{container}{host}{parts.path}".rstrip("/")


def listed(directory: Address, pattern: str) -> list[Address]:
    """What fits a pattern, in the order of the names."""
    found: list[Address] = [*directory.glob(pattern)]
    return sorted(found, key=str)


def open_parquet(file: Address) -> pq.ParquetFile:
    """With pages that are checked as they are read; columns of a remote file are fetched together."""
    if isinstance(file, Path):
        return pq.ParquetFile(file, page_checksum_verification=True)
    return pq.ParquetFile(file.path, filesystem=file.system, pre_buffer=True, page_checksum_verification=True)


def size(file: Address) -> int:
    """Bytes of a file."""
    return file.stat().st_size if isinstance(file, Path) else file.size()


def mend(file: Address) -> str:
    """What to do about a file that cannot be read."""
    if isinstance(file, Path):
        return "The file is damaged; convert the log again."
    return "See whether its file system answers; if it does, the file is damaged: convert the log again."


@contextmanager
def _reachable(place: Remote) -> Iterator[None]:
    """What a file system has to say, as an error that a user can mend."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{place} cannot be reached ({error}). Expected a directory of that file system which these credentials "
            "may read: see that the name is right, that the network works and that credentials are set."
        ) from error
