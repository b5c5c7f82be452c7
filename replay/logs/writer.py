"""Write a log in parts. Each part is complete or absent, so that an interrupted writer resumes after the last part."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nl_lightning.core.errors import InputError
from nl_lightning.core.files import write_beside
from replay.logs.layout import (
    EVENTS_FILES,
    FORMAT,
    ITEMS_FILE,
    LOG_FILE,
    ROW_GROUP,
    VERSION,
    check_events,
    check_items,
)
from replay.logs.schema import Schema
from replay.logs.statistics import StatisticsCounter

__all__ = ["PART_ROWS", "LogWriter", "locked", "other_schema"]


PART_ROWS = 8 * ROW_GROUP
"""Rows per part; the last part may be shorter."""

_PROGRESS = b"nl_lightning.progress"
_VERSION = b"nl_lightning.version"
_SOURCE = b"nl_lightning.source"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the directory of a log, which is made if needed. The lock ends with the process."""
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file; a log is a directory.")
    directory = _lock(path)
    try:
        yield
    finally:
        # Leave no directory behind if nothing was written. Only who has the lock may remove it.
        with suppress(OSError):
            path.rmdir()
        os.close(directory)


def _lock(path: Path) -> int:
    """Make and lock a directory; its file descriptor holds the lock."""
    while True:
        path.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            directory = os.open(path, os.O_RDONLY)
            try:
                flock(directory, LOCK_EX | LOCK_NB)
            except OSError as error:
                os.close(directory)
                raise InputError(f"{path} is being written by another process. Wait for it.") from error
            # The last holder may have removed the directory after it was opened here.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(directory), os.stat(path)):
                    return directory
            os.close(directory)


class LogWriter:
    """Write events to a log, or resume an interrupted one.

    ``progress`` is what the caller passed with the last events of the last complete part, None for a new log: it
    tells where to resume.

    Args:
        path: directory of the log.
        schema: roles of the columns of events and items.
        items: table of the actions, in the order of their numbers.
        source: where the events come from, as JSON; a writer resumes a log of the same source only.
    """

    def __init__(self, path: Path, schema: Schema, items: pa.Table, source: dict[str, Any]) -> None:
        self.path, self.schema, self.source = path, schema, source
        check_items(items.schema, schema, "The table of items")
        self.items = _named(items, schema.item_columns)
        self.progress: Any = None
        self._pending: list[pa.Table] = []
        self._counter = StatisticsCounter(schema, items.num_rows)
        self._parts: list[int] = []
        if (path / LOG_FILE).exists():
            raise InputError(f"{path} already holds a log. Choose another directory, or remove this one.")
        if path.is_dir():
            self._resume()
        elif path.exists():
            raise InputError(f"{path} is a file; a log is a directory.")
        path.mkdir(parents=True, exist_ok=True)

    @property
    def rows(self) -> int:
        """The number of events in the parts written so far."""
        return self._counter.statistics.rows

    def add(self, events: pa.Table, progress: Any) -> None:
        """Append events. ``progress`` describes, as JSON, where the source stands after them."""
        check_events(events.schema, self.schema, "The table of events")
        self._pending.append(_named(events, self.schema.log_columns))
        self.progress = progress
        if sum(table.num_rows for table in self._pending) >= PART_ROWS:
            self._flush()

    def finish(self, **description: Any) -> None:
        """Write the last part, then log.json with this description and the statistics."""
        self._flush()
        if not self.rows:
            raise InputError(f"There are no events to write to {self.path}: the log is empty.")
        log = {
            "format": FORMAT,
            "version": VERSION,
            "schema": self.schema.to_dict(),
            **description,
            "items": self.items.num_rows,
            "parts": self._parts,
            "source": self.source,
            "contents": self._counter.statistics.to_json(),
        }
        write_beside(self.path / LOG_FILE, lambda file: file.write_text(json.dumps(log, indent=2) + "\n"))

    def _flush(self) -> None:
        if self._pending:
            if not self._parts:
                self._write(self.items, ITEMS_FILE, None)
            table = pa.concat_tables(self._pending, promote_options="none").unify_dictionaries().combine_chunks()
            self._pending = []
            # counted first: what cannot be counted is not written
            self._counter.add(table)
            self._write(table, EVENTS_FILES.replace("*", f"{len(self._parts):05d}"), self.progress)
            self._parts.append(table.num_rows)

    def _write(self, table: pa.Table, name: str, progress: Any) -> None:
        metadata = {_VERSION: str(VERSION), _SOURCE: json.dumps(self.source), _PROGRESS: json.dumps(progress)}
        described = table.replace_schema_metadata(metadata)
        write_beside(
            self.path / name,
            # With checksums, corrupted bytes raise an error instead of turning into other clicks.
            lambda file: pq.write_table(
                described, file, compression="zstd", row_group_size=ROW_GROUP, write_page_checksum=True
            ),
        )

    def _resume(self) -> None:
        """Count the parts that exist, if they come from the same source."""
        parts = sorted(self.path.glob(EVENTS_FILES))
        known = {*parts, self.path / ITEMS_FILE}
        others = [file for file in self.path.iterdir() if file not in known and not file.name.startswith(".")]
        if others:
            raise InputError(
                f"{self.path} is not empty and holds {others[0].name} instead of a log. Choose another directory."
            )
        expected = [EVENTS_FILES.replace("*", f"{number:05d}") for number in range(len(parts))]
        for file in sorted(known):
            if not file.exists():
                continue
            try:
                metadata = pq.read_schema(file).metadata or {}
                source, version = json.loads(metadata[_SOURCE]), metadata[_VERSION]
                progress = json.loads(metadata[_PROGRESS])
                table = pq.read_table(file)
            except (pa.ArrowException, KeyError, OSError) as error:
                raise InputError(
                    f"{file} is not part of a log, or is damaged. Remove {self.path} to start over."
                ) from error
            if source != self.source and other_schema(source, self.source):
                raise InputError(
                    f"{self.path} was started with another schema. Give that schema to go on, or remove the directory "
                    "to start over."
                )
            if source != self.source or version != str(VERSION).encode() or [part.name for part in parts] != expected:
                raise InputError(
                    f"{self.path} was started from another source, or the source has changed. Remove it to start over."
                )
            if file in parts:
                self.progress = progress
                self._parts.append(table.num_rows)
                self._counter.add(table)


def other_schema(stored: Any, given: dict[str, Any]) -> bool:
    """Whether two descriptions of a source differ in their schema, and not in their files."""
    if not isinstance(stored, dict) or stored.get("schema") == given.get("schema"):
        return False
    return all(stored.get(name) == given.get(name) for name in ("files", "table"))


def _named(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """The columns that a schema names, in their own order."""
    return table.select([name for name in table.column_names if name in names])
