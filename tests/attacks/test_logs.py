"""Attacks on logs: a damaged log.json, damaged Parquet, hostile CSV, two writers."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from replay import Log
from replay.__main__ import main
from replay.logs.obd import EVENTS, ITEMS
from replay.logs.writer import locked
from tests.support.attacked_logs import (
    ROWS,
    WRONG,
    Keys,
    changed,
    copy_log,
    description,
    intact_log,
    own_log,
    rewrite,
    unchanged,
    unchanged_own,
    used,
    used_own,
    ways,
)
from tests.support.attacks import Attack, judge, table
from tests.support.obd_csv import HEADER, ITEM_HEADER, ITEM_ROWS, row, write
from tests.support.own_logs import own_schema
from tests.support.replay_logs import damaged

pytestmark = pytest.mark.attack

EVENTS_FILE, ITEMS_FILE = "events-00000.parquet", "items.parquet"


# ---- log.json ------------------------------------------------------------------------------------------------------


def with_content(content: bytes, directory: Path) -> Any:
    path = copy_log(directory)
    (path / "log.json").write_bytes(content)
    return used(path)


def own_with_content(content: bytes, directory: Path) -> Any:
    path = copy_log(directory, own_log())
    (path / "log.json").write_bytes(content)
    return used_own(path)


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
        # a wrong extreme of positions is a fault of contents.numeric.position, a part one of parts
        named = ("log.json", next(key for key in reversed(keys) if isinstance(key, str)))
        named = ("world",) if keys[0] == "world" else ("schema",) if keys[0] == "schema" else named
        right = unchanged if keys[0] not in ("contents", "format", "version", "items", "parts") else None
        for name, value in WRONG.items():
            if value != _at(whole, keys):
                content = text(changed(whole, keys, partial(put, value)))
                yield Attack("log.json: value", f"{where} is {name}", partial(with_content, content), named, right)
        content = text(changed(whole, keys, remove))
        yield Attack("log.json: key", f"without {where}", partial(with_content, content), named[:1], right)


def own_values() -> Iterator[Attack]:
    """Of a log with every role: each value of its schema and its statistics."""
    whole = description(own_log())
    for keys in ways(whole):
        if keys[0] not in ("schema", "contents"):
            continue
        where = ".".join(map(str, keys))
        named = ("log.json", next(key for key in reversed(keys) if isinstance(key, str)))
        named = ("schema",) if keys[0] == "schema" else named
        right = unchanged_own if keys[0] == "schema" else None
        for name, value in WRONG.items():
            if value != _at(whole, keys):
                run = partial(own_with_content, text(changed(whole, keys, partial(put, value))))
                yield Attack("own log.json: value", f"{where} is {name}", run, named, right)
        run = partial(own_with_content, text(changed(whole, keys, remove)))
        yield Attack("own log.json: key", f"without {where}", run, named[:1], right)


def own_contradictions() -> Iterator[Attack]:
    """Statistics that the schema, other statistics or the events contradict."""
    whole = description(own_log())
    rows, even = whole["contents"]["rows"], whole["contents"]["uniform_rows"]
    low, high = whole["contents"]["numeric"]["age"]
    for keys, value, says in (
        (("numeric", "page"), [1, 2], "contents.numeric: expected columns that the schema names (age, recency)"),
        (("numeric", "nosuch"), [1, 2], 'got "nosuch"'),
        (("numeric", "age"), [high, low], "contents.numeric"),
        (("numeric", "age"), [low, high, high], "contents.numeric"),
        (("numeric", "age"), [low, None], "contents.numeric"),
        (("numeric", "age"), [str(low), str(high)], "contents.numeric"),
        (("numeric", "age"), [True, True], "contents.numeric"),
        (("numeric", "age"), [low - 1, high], "contents.numeric.age: it says 17 to"),
        (("numeric", "age"), [low, high + 1], "contents.numeric.age"),
        (("numeric", "age"), [low + 1, high], "events-0000"),
        (("numeric", "age"), [low, high - 1], "events-0000"),
        (("pair", "age"), [1, 2], "contents.pair: expected columns that the schema names (affinity)"),
        (("pair", "affinity"), [-99.0, 99.0], "contents.pair.affinity"),
        (("pair", "affinity"), [0.0, 0.5], "contents.pair.affinity"),
        (("candidates",), [5, 2], "contents.candidates"),
        (("candidates",), [0, 5], "contents.candidates"),
        (("candidates",), [2.0, 5.0], "contents.candidates"),
        (("candidates",), [2, 5, 5], "contents.candidates"),
        (("candidates",), [2, 6], "at most 5, the number of items"),
        (("candidates",), [2, 4], "column shown: expected lists of 2 to 4 actions, got 5"),
        (("candidates",), [3, 5], "column shown: expected lists of 3 to 5 actions, got 2"),
        (("categories", "page"), 3, "contents.categories: expected columns that the schema names (country)"),
        (("categories", "country"), rows + 1, f"at most {rows}"),
        (("missing", "nosuch"), 1, "contents.missing: expected columns that the schema names (time, item"),
        (("missing", "page"), rows + 1, f"at most {rows}"),
        (("missing", "country"), 0, "column country"),
        (("missing", "recency"), 0, "column recency"),
        (("uniform_rows",), rows, f"contents.uniform_rows: expected less than {rows}"),
        (("uniform_rows",), rows + 1, f"at most {rows}"),
        (("uniform_rows",), even + 0.5, "contents.uniform_rows"),
        (("uniform_rows",), True, "contents.uniform_rows"),
        (("first_time",), None, "contents.first_time: expected a time"),
    ):
        changed_log = changed(whole, ("contents", *keys), partial(put, value))
        run = partial(own_with_content, text(changed_log))
        yield Attack("own log.json: contradiction", f"{'.'.join(keys)} is {value}", run, (says,))
    simulated = description()
    for name, keys, value, says in (
        ("candidates without a column", ("candidates",), [2, 5], "contents.candidates: expected null"),
        ("uniform, unlike the propensities", ("uniform_rows",), ROWS, "contents.uniform_rows: expected less than 300"),
        ("another affinity", ("pair", "affinity"), [0.0, 6.0], "contents.pair.affinity"),
    ):
        run = partial(with_content, text(changed(simulated, ("contents", *keys), partial(put, value))))
        yield Attack("log.json: contradiction", name, run, ("log.json", says))


def schemas() -> Iterator[Attack]:
    """Schemas that contradict themselves or the columns of the events."""
    whole = description(own_log())
    for keys, value, says in (
        (("nosuch",), "x", "there is no key 'nosuch'"),
        (("contex",), {}, "Did you mean context?"),
        (("action",), "nosuch", "has no column nosuch"),
        (("action",), "bought", "the column bought has two roles"),
        (("action",), "page", "keep: page has a role already"),
        (("reward",), "age", "the column age has two roles"),
        (("logging",), "uniform", "both a propensity column and `logging`"),
        (("logging",), "nosuch", "expected one of uniform, estimated"),
        (("context", "numeric"), ["age", "age"], "the column age has two roles"),
        (("context", "numeric"), ["age", "country"], "the column country has two roles"),
        (("context", "numeric"), ["age"], "contents.numeric: expected columns that the schema names (age)"),
        (("context", "numeric"), ["age", "recency", "page"], "column page: expected numbers"),
        (("context", "categorical"), ["country", "page"], "contents.categories.page: expected a value"),
        (("actions", "key"), "price", "actions: the column price has two roles"),
        (("actions", "key"), "nosuch", "items.parquet has no column nosuch"),
        (("actions", "key"), "brand", "actions: the column brand has two roles"),
        (("actions", "numeric"), ["brand"], "actions: the column brand has two roles"),
        (("actions", "table"), "https://me:secret@host/items.csv", "log.json, schema, actions.table"),
        (("pair", "numeric"), ["affinity", "recency"], "the column recency has two roles"),
        (("candidates",), "affinity", "the column affinity has two roles"),
        (("candidates",), "page", "column page: expected list"),
        (("keep",), ["p"], "keep: p has a role already"),
        (("keep",), ["page", "page"], "keep: the column page has two roles"),
        (("keep",), ["page", "nosuch"], "has no column nosuch"),
        (("actions", "numeric"), [], "items.parquet has a column price that its schema does not name"),
        (("actions", "categorical"), [], "items.parquet has a column brand that its schema does not name"),
        (("sparse",), True, "has no column affinity_item"),
        (("sparse",), "yes", "schema, sparse: expected true or false"),
    ):
        run = partial(own_with_content, text(changed(whole, ("schema", *keys), partial(put, value))))
        yield Attack("own log.json: schema", f"{'.'.join(keys)} is {value}", run, (says,))


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
        "NaN": whole.replace(", 6.0]", ", NaN]").encode(),
        "Infinity": whole.replace(", 6.0]", ", Infinity]").encode(),
        "1e999": whole.replace(", 6.0]", ", 1e999]").encode(),
        "9,000 digits": whole.replace(", 6.0]", f", {'9' * 9000}]").encode(),
        "affinities that no event has": whole.replace(", 6.0]", ", 60.0]").encode(),
        "a position that no event has": whole.replace('"position": [1, 3]', '"position": [1, 9]').encode(),
        "no position 0": whole.replace('"position": [1, 3]', '"position": [0, 3]').encode(),
        "positions that are no numbers": whole.replace('"position": [1, 3]', '"position": ["1", "3"]').encode(),
        "version 1": whole.replace('"version": 2', '"version": 1').encode(),
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


def _doubled(name: str, events: pa.Table) -> pa.Table:
    return events.append_column(name, events[name])


def tables() -> Iterator[Attack]:
    for file, schema in ((EVENTS_FILE, EVENTS), (ITEMS_FILE, ITEMS)):
        for name in schema.names:
            changes = {"without": _without, "renamed": _renamed, "as text": _retyped, "twice": _doubled}
            for kind, change in changes.items():
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


def own_with_table(name: str, change: Callable[[pa.Table], pa.Table], directory: Path) -> Any:
    path = copy_log(directory, own_log())
    rewrite(path / name, change)
    return used_own(path)


def own_without_footers(change: Callable[[pa.Table], pa.Table], directory: Path) -> Any:
    """Events were changed, and no footer tells."""
    path = copy_log(directory, own_log())
    table = change(pq.read_table(path / EVENTS_FILE))
    pq.write_table(table, path / EVENTS_FILE, write_statistics=False)
    return used_own(path)


def own_tables() -> Iterator[Attack]:
    schema = own_schema()
    for name in schema.log_columns:
        for kind, change in (("without", _without), ("renamed", _renamed), ("twice", _doubled)):
            run = partial(own_with_table, EVENTS_FILE, partial(change, name))
            yield Attack(f"own {EVENTS_FILE}: column", f"{name} {kind}", run, (EVENTS_FILE, name))
        if name not in schema.keep:
            run = partial(own_with_table, EVENTS_FILE, partial(_retyped, name))
            yield Attack(f"own {EVENTS_FILE}: column", f"{name} as text", run, (EVENTS_FILE, name))
    for name, value, says in (
        ("item", -1, "expected 0 to 4, got -1"),
        ("item", 5, "expected 0 to 4, got 5"),
        ("item", None, "column item"),
        ("bought", 2, "expected 0 or 1, got 2"),
        ("bought", None, "column bought"),
        ("p", 0.0, "expected a number in (0, 1], got 0"),
        ("p", float("nan"), "column p"),
        ("p", None, "column p: 1 values are missing"),
        ("age", 1000, "expected 18 to"),
        ("age", -1000, "expected 18 to"),
        ("age", None, "column age: 1 values are missing, but log.json states 0"),
        ("recency", float("inf"), "column recency"),
        ("recency", -1e9, "column recency"),
        ("shown", [], "column shown: expected lists of 2 to 5 actions, got 0"),
        ("shown", None, "column shown: expected lists of 2 to 5 actions, got 0"),
        ("shown", [0, 1, 2, 3, 4, 0], "column shown: expected lists of 2 to 5 actions, got 6"),
        ("shown", [0, 5], "column shown: expected 0 to 4, got 5"),
        ("shown", [-1, 0], "column shown: expected 0 to 4, got -1"),
        ("shown", [0, None], "column shown: 1 values in its lists are missing"),
        ("shown", [0, 0], "column shown: an event lists an action twice"),
        ("affinity", [], "candidates has 0 values"),
        ("affinity", None, "candidates has 0 values"),
        ("affinity", [0.0] * 9, "candidates has 9 values"),
        ("affinity", [None] * 9, "column affinity: 9 values in its lists are missing"),
        ("affinity", [float("nan")] * 9, "column affinity"),
    ):
        run = partial(own_without_footers, partial(_put_column, name, value))
        yield Attack("own events: value", f"{name} is {value}", run, (EVENTS_FILE, "row group 0", says))
    others = partial(own_without_footers, _shift_candidates)
    says = ("column item: expected one of the event's candidates, in the column shown",)
    yield Attack("own events: value", "the logged action was no candidate", others, says)
    for name, value in (("name", None), ("name", "coat"), ("price", float("nan")), ("price", float("inf"))):
        run = partial(own_with_table, ITEMS_FILE, partial(_put_column, name, value))
        yield Attack(f"own {ITEMS_FILE}: value", f"{name} is {value}", run, (ITEMS_FILE, name))


def _shift_candidates(events: pa.Table) -> pa.Table:
    """The first event with less than all candidates lists the others and one of them in place of the logged one."""
    shown, logged = events["shown"].to_pylist(), events["item"].to_pylist()
    row = next(row for row, actions in enumerate(shown) if len(actions) < 5)
    free = next(action for action in range(5) if action not in shown[row])
    shown[row] = [free if action == logged[row] else action for action in shown[row]]
    return events.set_column(events.schema.get_field_index("shown"), "shown", pa.array(shown, events["shown"].type))


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


LOG_JSON = [*values(), *own_values(), *own_contradictions(), *schemas(), *contents()]


@table([*LOG_JSON, *files(), *tables(), *own_tables(), *csv(), *writers()])
def test_refused_or_right(attack: Attack, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    judge(attack, tmp_path, record_property)
