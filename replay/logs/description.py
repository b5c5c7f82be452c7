"""The description of a log, log.json: read it, check it, and check the log's files against it."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple, NoReturn, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from nl_lightning.core.arguments import program
from nl_lightning.core.errors import InputError
from nl_lightning.core.whole import is_whole
from replay.logs.address import Address, list_files, open_parquet
from replay.logs.layout import EVENTS_FILES, FORMAT, ITEMS_FILE, LOG_FILE, VERSION, listed
from replay.logs.schema import Schema

__all__ = ["check_files", "read_description"]


def read_description(path: Address) -> dict[str, Any]:
    """Read ``log.json`` of the log in the directory ``path``. Every value has its type and fits the others."""
    file = _find(path)
    try:
        log = json.loads(file.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except InputError:
        raise
    except (ValueError, RecursionError, OSError) as error:
        raise InputError(f"{file} is damaged ({error}). Convert the log again.") from error
    if not isinstance(log, dict) or log.get("format") != FORMAT:
        raise InputError(
            f"{file} does not describe a log: expected the format {FORMAT!r}. Is this the right directory?"
        )
    if log.get("version") != VERSION:
        raise InputError(
            f"{file} has version {_short(log.get('version'))} of the format, expected version {VERSION}. "
            "Convert the log again."
        )
    if "schema" in log and isinstance(log["schema"], dict):
        Schema.from_dict(log["schema"], f"{file}, schema", stored=True)
    for key, expected, got in _faults(log):
        raise InputError(f"{file}, {key}: expected {expected}, got {_short(got)}. Convert the log again.")
    return log


def check_files(path: Address, log: Mapping[str, Any]) -> None:
    """Check that the log has the files it was written with, as far as their footers tell."""
    expected = {EVENTS_FILES.replace("*", f"{number:05d}"): rows for number, rows in enumerate(log["parts"])}
    expected[ITEMS_FILE] = log["items"]
    footers = []
    for name, rows in expected.items():
        try:
            with open_parquet(path / name) as parquet:
                footers.append(parquet.metadata)
        except FileNotFoundError as error:
            raise InputError(f"{path / name} is missing. Convert the log again.") from error
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"{path / name} is not a complete Parquet file ({error}). Convert the log again."
            ) from error
        if footers[-1].num_rows != rows:
            raise InputError(f"{path / name} has {footers[-1].num_rows} rows, expected {rows}. Convert the log again.")
    for file in list_files(path, EVENTS_FILES):
        if file.name not in expected:
            raise InputError(f"{file} does not belong to this log: {LOG_FILE} does not list it. Remove it.")
    _check_extremes(path, log, footers[:-1])


def _find(path: Address) -> Address:
    """The log.json of a directory."""
    if not path.is_dir():
        found = "is a file; a log is a directory" if path.exists() else "does not exist"
        raise InputError(f"{path} {found}. Make a log with `{program('replay')} convert` or `simulate`.")
    file = path / LOG_FILE
    if file.exists():
        return file
    if list_files(path, EVENTS_FILES):
        raise InputError(f"{path} is unfinished: it has no {LOG_FILE}. Run the command that wrote it again.")
    below = list_files(path, f"*/{LOG_FILE}") or list_files(path, f"*/*/{LOG_FILE}")
    hint = (
        f" There are logs below it, for example {below[0].parent}."
        if below
        else f" Make one with `{program('replay')} convert`."
    )
    raise InputError(f"{path} holds no log: it has no {LOG_FILE}.{hint}")


# ---- the shape of log.json -------------------------------------------------------------------------------------------


class _Rule(NamedTuple):
    """What a value must be."""

    words: str
    holds: Callable[[Any], bool]


_NOTHING = object()
"""in place of a value that is missing"""


class _Each(NamedTuple):
    """An object with any keys, whose values all follow a rule."""

    rule: _Rule


_Shape: TypeAlias = "_Rule | _Each | dict[str, _Shape]"
_Fault: TypeAlias = tuple[str, str, Any]
"""a key, what was expected there, what was found"""


def _is_number(value: Any, low: float, high: float = math.inf) -> bool:
    """Whether a value is a finite number in [low, high]; a whole number may be too large for a float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= min(high, 1e300)


def _is_time(value: Any) -> bool:
    try:
        return value is None or bool(datetime.fromisoformat(value))
    except (TypeError, ValueError):
        return False


def _is_pair(value: Any) -> bool:
    """Whether a value is a pair of finite numbers in order."""
    numbers = isinstance(value, list) and len(value) == 2 and all(_is_number(number, -1e300) for number in value)
    return bool(numbers and value[0] <= value[1])


_TEXT = _Rule("text", lambda value: isinstance(value, str))
_COUNT = _Rule("a whole number of at least 0", lambda value: is_whole(value, 0))
_POSITIVE = _Rule("a whole number of at least 1", lambda value: is_whole(value, 1))
_NUMBER = _Rule("a finite number of at least 0", lambda value: _is_number(value, 0))
_RATE = _Rule("a number from 0 to 1", lambda value: _is_number(value, 0, 1))
_PROPENSITY = _Rule(
    "a number above 0 and up to 1, or null", lambda value: value is None or (_is_number(value, 0, 1) and value > 0)
)
_ENDS = _Rule("the lowest and the highest value", _is_pair)
_OBJECT = _Rule("an object", lambda value: isinstance(value, dict))
_TIME = _Rule("a time like 2019-11-24T00:00:00+00:00, or null", _is_time)

_LOG: dict[str, _Shape] = {
    "schema": _OBJECT,
    "policy": _TEXT,
    "campaign": _TEXT,
    "items": _POSITIVE,
    "parts": _Rule(
        "a list of whole numbers of at least 1",
        lambda value: isinstance(value, list) and bool(value) and all(is_whole(rows, 1) for rows in value),
    ),
    "source": _OBJECT,
    "contents": {
        "items": _POSITIVE,
        "rows": _POSITIVE,
        "clicks": _COUNT,
        "propensity_low": _PROPENSITY,
        "propensity_high": _PROPENSITY,
        "inverse_propensities": _NUMBER,
        "uniform_rows": _COUNT,
        "numeric": _Each(_ENDS),
        "pair": _Each(_ENDS),
        "candidates": _Rule(
            "the lowest and the highest number of candidates, or null",
            lambda value: value is None or (_is_pair(value) and all(is_whole(number, 1) for number in value)),
        ),
        "missing": _Each(_COUNT),
        "categories": _Each(_COUNT),
        "first_time": _TIME,
        "last_time": _TIME,
        "in_order": _Rule("true or false", lambda value: isinstance(value, bool)),
    },
}
_OPTIONAL: dict[str, _Shape] = {
    "skipped": {
        "rows": _COUNT,
        "first": _Rule(
            "a list of texts", lambda value: isinstance(value, list) and all(isinstance(text, str) for text in value)
        ),
    },
    "world": {"arguments": _OBJECT, "ctr": dict.fromkeys(("logging", "uniform", "best"), _RATE)},
}


def _faults(log: dict[str, Any]) -> Iterator[_Fault]:
    """What is wrong with a description, the shape first: then the numbers can be compared."""
    yield from _misshapen("", log, {**_LOG, **{name: shape for name, shape in _OPTIONAL.items() if name in log}})
    unknown = set(log["contents"]) - set(_LOG["contents"])  # type: ignore[arg-type]
    if unknown:
        yield "contents", "no other statistics than those of this version", sorted(unknown)[0]
    yield from _contradictions(log)


def _misshapen(key: str, value: Any, shape: _Shape) -> Iterator[_Fault]:
    if isinstance(shape, _Rule):
        if not shape.holds(value):
            yield key, shape.words, value
    elif not isinstance(value, dict):
        yield key, _OBJECT.words, value
    elif isinstance(shape, _Each):
        for name, part in value.items():
            yield from _misshapen(f"{key}.{name:.60}", part, shape.rule)
    else:
        for name, part in shape.items():
            inner = f"{key}.{name}" if key else name
            if name not in value:
                yield inner, "a value", _NOTHING
            else:
                yield from _misshapen(inner, value[name], part)


def _contradictions(log: dict[str, Any]) -> Iterator[_Fault]:
    """Numbers that contradict each other."""
    counts = log["contents"]
    rows, low, high = counts["rows"], counts["propensity_low"], counts["propensity_high"]
    if counts["items"] != log["items"]:
        yield "contents.items", f"{_short(log['items'])}, like items", counts["items"]
    if rows != sum(log["parts"]):
        yield "contents.rows", f"{_short(sum(log['parts']))}, the sum of parts", rows
    limited = {name: counts[name] for name in ("clicks", "uniform_rows")}
    for group in ("missing", "categories"):
        limited |= {f"{group}.{name}": number for name, number in counts[group].items()}
    for name, number in limited.items():
        if number > rows:
            yield f"contents.{name}", f"at most {rows}, one for each event", number
    schema = Schema.from_dict(log["schema"], stored=True)
    for group, columns in _columns(schema).items():
        unknown = sorted(set(counts[group]) - set(columns))
        if unknown:
            yield f"contents.{group}", f"columns that the schema names ({listed(columns) or 'none'})", unknown[0]
    for name in schema.context.categorical:
        if name not in counts["categories"]:
            yield f"contents.categories.{name}", "a value", _NOTHING
    if (counts["candidates"] is None) != (schema.candidates is None):
        words = "numbers" if schema.candidates else "null, as the schema names no candidates"
        yield "contents.candidates", words, counts["candidates"]
    fewest, most = counts["candidates"] or [log["items"], log["items"]]
    if most > log["items"]:
        yield "contents.candidates", f"at most {log['items']}, the number of items", counts["candidates"]
    timeless = schema.timestamp is None or counts["missing"].get(schema.timestamp, 0) == rows
    for name in ("first_time", "last_time"):
        if (counts[name] is None) != timeless:
            words = "null" if schema.timestamp else "null, as the schema names no timestamp"
            yield f"contents.{name}", words if timeless else "a time", counts[name]
    if (low is None) != (high is None) or (low is not None and low > high):
        yield "contents.propensity_low", f"at most propensity_high, {high}", low
    known = rows - counts["missing"].get(schema.propensity_column, 0)
    bounds = (0.0, 0.0) if low is None else (known / high, known / low)
    if not bounds[0] * (1 - 1e-6) <= counts["inverse_propensities"] <= bounds[1] * (1 + 1e-6):
        yield "contents.inverse_propensities", f"{bounds[0]:g} to {bounds[1]:g}", counts["inverse_propensities"]
    yield from _uneven(counts["uniform_rows"], rows, known, (low, high), (fewest, most))


_CLOSE, _MANY = 2e-6, 10**18


def _uneven(
    even: int, rows: int, known: int, propensity: tuple[float | None, float | None], candidates: tuple[int, int]
) -> Iterator[_Fault]:
    """Numbers of uniform events that the extremes of propensities and candidates rule out."""
    low, high = propensity
    if even > known:
        yield "contents.uniform_rows", f"at most {known}, the number of propensities", even
    if low is None or high is None:
        return
    # Uniform is p n = 1, up to 1e-6, for a number n of candidates: p lies in [1 / most, 1 / fewest].
    fewest, most = (min(number, _MANY) for number in candidates)
    if even == rows and (low * most < 1 - _CLOSE or high * fewest > 1 + _CLOSE):
        yield "contents.uniform_rows", f"less than {rows}, as the propensities are {low} to {high}", even
    if even and (high * most < 1 - _CLOSE or low * fewest > 1 + _CLOSE):
        yield "contents.uniform_rows", f"0, as the propensities are {low} to {high}", even
    if fewest == most and even < known and abs(low * most - 1) + abs(high * most - 1) < 1e-7:
        yield "contents.uniform_rows", f"{known}, as every propensity is 1 / {most}", even


def _columns(schema: Schema) -> dict[str, tuple[str, ...]]:
    """The columns that each group of statistics may speak of."""
    context = schema.context
    return {
        "numeric": context.numeric,
        "pair": schema.pair,
        "categories": context.categorical,
        "missing": schema.log_columns,
    }


def _check_extremes(path: Address, log: Mapping[str, Any], footers: list[pq.FileMetaData]) -> None:
    """Compare the extremes in log.json with those in the footers of the events, where a footer has them.

    Values that no event may have are left to the reader, which names their row group.
    """
    counts, schema = log["contents"], Schema.from_dict(log["schema"], stored=True)
    propensity = schema.propensity_column
    ends = None if counts["propensity_low"] is None else [counts["propensity_low"], counts["propensity_high"]]
    stated: dict[str, tuple[str, list[Any] | None]] = {
        propensity: ("propensity_low and propensity_high", ends),
        **{name: (f"numeric.{name}", counts["numeric"].get(name)) for name in schema.context.numeric},
        **{name: (f"pair.{name}", counts["pair"].get(name)) for name in schema.pair},
    }
    found: dict[str, list[tuple[Any, Any, str]]] = {name: [] for name in stated}
    told: Counter[str] = Counter()
    for number, footer in enumerate(footers):
        file = EVENTS_FILES.replace("*", f"{number:05d}")
        for group in range(footer.num_row_groups):
            for column in map(footer.row_group(group).column, range(footer.num_columns)):
                name = column.path_in_schema.partition(".list.")[0]
                ends_here = column.statistics
                if name not in found or ends_here is None:
                    continue
                # a column of another type is the reader's to name
                if ends_here.has_min_max and isinstance(ends_here.min, int | float):
                    found[name].append((ends_here.min, ends_here.max, f"{file}, row group {group},"))
                    told[name] += 1
                elif not ends_here.num_values:
                    told[name] += 1
    groups = sum(footer.num_row_groups for footer in footers)
    for name, (key, said) in stated.items():
        if not found[name]:
            continue
        low, high = min(group[0] for group in found[name]), max(group[1] for group in found[name])
        if not (math.isfinite(low) and math.isfinite(high)):
            continue
        if name == propensity and not 0 < low <= high <= 1:
            continue
        if said != [low, high]:
            words = "nothing" if said is None else f"{said[0]} to {said[1]}"
            # a row group with a value outside; without one, no row group has such a value, if all footers tell
            outside = [group for group in found[name] if said is None or group[0] < said[0] or group[1] > said[1]]
            if not outside and told[name] < groups:
                continue
            low, high, place = outside[0] if outside else (low, high, "the events")
            raise InputError(
                f"{path / LOG_FILE}, contents.{key}: it says {words}, but the column {name} of {place} has "
                f"{low} to {high}. Convert the log again."
            )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _short(value: Any) -> str:
    """A value for a message, cut if it is long."""
    text = "nothing" if value is _NOTHING else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
