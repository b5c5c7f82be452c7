"""Attacks on logs: a damaged log.json, damaged Parquet, hostile CSV, two writers."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from replay import Log
from replay.__main__ import main
from replay.logs.schema import EVENTS, ITEMS
from replay.logs.writer import locked
from tests.support.attacked_logs import (
    ROWS,
    WRONG,
    Keys,
    changed,
    copy_log,
    description,
    intact_log,
    rewrite,
    unchanged,
    used,
    ways,
)
from tests.support.attacks import Attack, judge, table
from tests.support.obd_csv import HEADER, ITEM_HEADER, ITEM_ROWS, row, write
from tests.support.replay_logs import damaged

pytestmark = pytest.mark.attack

EVENTS_FILE, ITEMS_FILE = "events-00000.parquet", "items.parquet"


# ---- log.json ------------------------------------------------------------------------------------------------------


def with_content(content: bytes, directory: Path) -> Any:
    path = copy_log(directory)
    (path / "log.json").write_bytes(content)
    return used(path)


def put(value: Any, inside: Any, key: str | int) -> None:
    inside[key] = value


def remove(inside: Any, key: str | int) -> None:
    del inside[key]


def text(value: Any) -> bytes:
    return json.dumps(value).encode()


def values() -> Iterator[Attack]:
    """Every value at every depth becomes something else, or is taken away."""
    whole = description()
    for keys in ways(whole):
        where = ".".join(map(str, keys))
        # a wrong statistic of a position is a fault of contents.positions, a part one of parts
        named = ("log.json", next(key for key in reversed(keys) if isinstance(key, str) and not key.isdigit()))
        named = ("world",) if keys[0] == "world" else named
        right = unchanged if keys[0] not in ("contents", "format", "version", "items", "parts") else None
        for name, value in WRONG.items():
            if value != _at(whole, keys):
                content = text(changed(whole, keys, partial(put, value)))
                yield Attack("log.json: value", f"{where} is {name}", partial(with_content, content), named, right)
        content = text(changed(whole, keys, remove))
        yield Attack("log.json: key", f"without {where}", partial(with_content, content), named[:1], right)


def _at(value: Any, keys: Keys) -> Any:
    for key in keys:
        value = value[key]
    return value


def contents() -> Iterator[Attack]:
    whole = json.dumps(description())
    broken = {
        "empty": b"",
        "UTF-16": whole.encode("utf-16"),
        "UTF-8 with a mark": whole.encode("utf-8-sig"),
        "latin-1": whole.replace("softmax", "sóftmax", 1).encode("latin-1"),
        "binary": bytes(range(256)) * 20,
        "zeros": b"\0" * 1000,
        "NaN": whole.replace('"affinity_high": 6.0', '"affinity_high": NaN').encode(),
        "Infinity": whole.replace('"affinity_high": 6.0', '"affinity_high": Infinity').encode(),
        "1e999": whole.replace('"affinity_high": 6.0', '"affinity_high": 1e999').encode(),
        "9,000 digits": whole.replace('"affinity_high": 6.0', f'"affinity_high": {"9" * 9000}').encode(),
        "affinities that no event has": whole.replace('"affinity_high": 6.0', '"affinity_high": 60.0').encode(),
        "a position that no event has": whole.replace('"3": ', '"9": ').encode(),
        "100,000 brackets": b"[" * 100_000,
        "nested objects": b'{"a":' * 50_000,
        "a list": b"[]",
        "a text": b'"log"',
        "a number": b"3",
        "null": b"null",
        "two descriptions": (whole + whole).encode(),
        "another statistic": whole.replace('"clicks"', '"more": 1, "clicks"').encode(),
    }
    for part in (1, 10, 500, len(whole) // 2, len(whole) - 1):
        broken[f"cut after {part} bytes"] = whole.encode()[:part]
    for name, content in broken.items():
        assert content != whole.encode(), name
        yield Attack("log.json: content", name, partial(with_content, content), ("log.json",))


def replaced(name: str, replace: Callable[[Path], None], directory: Path) -> Any:
    """Use a log one of whose files was replaced."""
    path = copy_log(directory)
    (path / name).unlink()
    replace(path / name)
    return used(path)


def files() -> Iterator[Attack]:
    yield Attack("file", "log.json is a directory", partial(replaced, "log.json", Path.mkdir), ("log.json",))
    for name in (EVENTS_FILE, ITEMS_FILE, "log.json"):
        yield Attack("file", f"{name} is missing", partial(replaced, name, lambda file: None), (name,))
    for name in (EVENTS_FILE, ITEMS_FILE):
        stored = (intact_log() / name).read_bytes()
        other = (intact_log() / (ITEMS_FILE if name == EVENTS_FILE else EVENTS_FILE)).read_bytes()
        for what, content in {
            "is empty": b"",
            "is text": b"item_id\n1\n",
            "is cut": stored[: len(stored) // 2],
            "has no footer": stored[:-20],
            "begins later": stored[8:],
            "is the other one": other,
            "has a damaged page": damaged(stored, 0),
        }.items():
            run = partial(replaced, name, partial(_write_bytes, content))
            yield Attack("file", f"{name} {what}", run, (name,))
    extra = partial(replaced, ITEMS_FILE, partial(_second_part, (intact_log() / ITEMS_FILE).read_bytes()))
    yield Attack("file", "a part too many", extra, ("events-00001.parquet", "Remove it"))


def _write_bytes(content: bytes, file: Path) -> None:
    file.write_bytes(content)


def _second_part(items: bytes, file: Path) -> None:
    file.write_bytes(items)
    (file.parent / "events-00001.parquet").write_bytes((file.parent / EVENTS_FILE).read_bytes())


# ---- the tables ----------------------------------------------------------------------------------------------------


def with_table(name: str, change: Callable[[pa.Table], pa.Table], directory: Path) -> Any:
    path = copy_log(directory)
    rewrite(path / name, change)
    return used(path)


def _put_column(name: str, value: Any, events: pa.Table) -> pa.Table:
    """The first value of a column is another one."""
    column = events[name]
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    column = column.cast(kind)
    new = pa.chunked_array([pa.array([value, *column.to_pylist()[1:]], kind)]).cast(events.schema.field(name).type)
    field = events.schema.field(name).with_nullable(True)
    return events.set_column(events.schema.get_field_index(name), field, new)


def _retyped(name: str, events: pa.Table) -> pa.Table:
    other = pa.array([str(value) for value in events[name].to_pylist()])
    return events.set_column(events.schema.get_field_index(name), name, other)


def _renamed(name: str, events: pa.Table) -> pa.Table:
    return events.rename_columns([f"{column}_old" if column == name else column for column in events.column_names])


def _without(name: str, events: pa.Table) -> pa.Table:
    return events.drop_columns([name])


def tables() -> Iterator[Attack]:
    for file, schema in ((EVENTS_FILE, EVENTS), (ITEMS_FILE, ITEMS)):
        for name in schema.names:
            for kind, change in (("without", _without), ("renamed", _renamed), ("as text", _retyped)):
                run = partial(with_table, file, partial(change, name))
                yield Attack(f"{file}: column", f"{name} {kind}", run, (file, name))
        yield Attack(f"{file}: rows", "a row too few", partial(with_table, file, lambda rows: rows[1:]), (file, "rows"))
        yield Attack(f"{file}: rows", "none", partial(with_table, file, lambda rows: rows[:0]), (file, "rows"))
    wrong: list[tuple[str, Any]] = [
        *(("item_id", value) for value in (-1, 6, 2**31 - 1, None)),
        *(("position", value) for value in (-1, 0, 100, None)),
        *(("click", value) for value in (-1, 2, 127, None)),
        *(("propensity_score", value) for value in (-0.1, 0.0, 1.5, float("nan"), float("inf"))),
        *(("affinity", value) for value in ([-1.0], [float("nan")], [float("inf")], [1.0] * 9, None)),
        *(("affinity_item", value) for value in ([-1], [6], [1] * 9, None)),
    ]
    for name, value in wrong:
        run = partial(with_table, EVENTS_FILE, partial(_put_column, name, value))
        # a list may have been empty before
        right = unchanged if value is None and name.startswith("affinity") else None
        yield Attack(f"{EVENTS_FILE}: value", f"{name} is {value}", run, (name.partition("_")[0],), right)
    for name, value in (("item_id", 3), ("item_id", -1), ("item_feature_0", float("nan")), ("item_feature_0", None)):
        run = partial(with_table, ITEMS_FILE, partial(_put_column, name, value))
        yield Attack(f"{ITEMS_FILE}: value", f"{name} is {value}", run, (ITEMS_FILE, name))
    backwards = partial(with_table, ITEMS_FILE, lambda items: items.take(pc.sort_indices(items["item_id"])[::-1]))
    yield Attack(f"{ITEMS_FILE}: rows", "in another order", backwards, (ITEMS_FILE, "item_id"))


# ---- CSV -----------------------------------------------------------------------------------------------------------

WIDE, SECONDS = 60_000, 15
"""Columns of a wide header, and the seconds in which it must be dealt with: a quadratic way takes longer."""


def converted(content: dict[str, Any], directory: Path) -> int:
    """Convert a log in CSV; the result is its number of rows."""
    source = write(directory / "source", **content)
    start = perf_counter()
    try:
        main(["convert", str(source), str(directory / "log")])
    finally:
        assert perf_counter() - start < SECONDS, "it takes too long"
        assert Log(directory / "log") if (directory / "log").exists() else True, "a log that cannot be read"
    return Log(directory / "log").rows


def converted_bytes(name: str, content: bytes, directory: Path) -> None:
    source = write(directory / "source", [row(number) for number in range(5)])
    (source / name).write_bytes(content)
    main(["convert", str(source), str(directory / "log")])


def csv() -> Iterator[Attack]:
    extra = [f"x{number}" for number in range(WIDE)]
    wide = [[*row(number), *["1"] * WIDE] for number in range(3)]
    for name, names, says in (
        ("others", extra, None),
        ("without a name", [""] * WIDE, None),
        ("of one name", ["x"] * WIDE, ("all.csv:1", "two columns x")),
        ("affinities of no item", [f"user-item_affinity_{3 + i}" for i in range(WIDE)], ("all.csv:1", "too many")),
    ):
        run = partial(converted, {"rows": wide, "header": [*HEADER, *names]})
        yield Attack("CSV: many columns", name, run, says or (), None if says else lambda rows, _: rows == 3)
    run = partial(converted, {"rows": [["1"] * WIDE], "header": extra})
    yield Attack("CSV: many columns", "none that is needed", run, ("all.csv:1", "there is no column timestamp"))
    items = {"items": [[*cells, *["1"] * WIDE] for cells in ITEM_ROWS], "item_header": [*ITEM_HEADER, *extra]}
    run = partial(converted, {"rows": [row(0)], **items})
    yield Attack("CSV: many columns", "of items", run, (), lambda rows, _: rows == 1)
    for name, header in (
        ("an unknown column of 100,000 letters", [name if name != "click" else "c" * 100_000 for name in HEADER]),
        ("two columns of 100,000 letters", [*HEADER, "c" * 100_000, "c" * 100_000]),
    ):
        cells = [*row(0), *["1"] * (len(header) - len(HEADER))]
        yield Attack("CSV: long names", name, partial(converted, {"rows": [cells], "header": header}), ("all.csv:1",))
    for file in ("all.csv", "item_context.csv"):
        for name, content in {
            "empty": b"",
            "an empty line": b"\n",
            "binary": bytes(range(256)) * 10,
            "zeros": b"\0" * 1000,
            "UTF-16": "a,b\n1,2\n".encode("utf-16"),
            "an open quotation mark": b'"' + b"a,b\n" * 100,
            "200,000 letters": b"a" * 200_000,
            "commas": b"," * 1000 + b"\n",
        }.items():
            yield Attack(f"CSV: {file}", name, partial(converted_bytes, file, content), (file,))


# ---- two writers ---------------------------------------------------------------------------------------------------


def while_written(arguments: list[str], directory: Path) -> None:
    """A second writer comes while the first one has not written anything yet."""
    source = write(directory / "source", [row(number) for number in range(5)])
    target = directory / "log"
    with locked(target):
        try:
            main([text.format(source=source, target=target) for text in arguments])
        finally:
            assert target.is_dir(), "the second writer removed the directory of the first one"


def writers() -> Iterator[Attack]:
    says = ("is being written by another process",)
    yield Attack("two writers", "convert", partial(while_written, ["convert", "{source}", "{target}"]), says)
    simulate = ["simulate", "{target}", f"--rows={ROWS}"]
    yield Attack("two writers", "simulate", partial(while_written, simulate), says)


@table([*values(), *contents(), *files(), *tables(), *csv(), *writers()])
def test_refused_or_right(attack: Attack, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    judge(attack, tmp_path, record_property)
