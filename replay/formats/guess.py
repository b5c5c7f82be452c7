"""Guess the schema of a table from its first rows.

Every guess is explained in a comment, so that it can be checked and corrected. What could not be guessed is said too.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml
from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions, open_csv

from nl_lightning.core.arguments import program
from nl_lightning.core.errors import InputError
from replay.formats.csv_blocks import read_header
from replay.formats.table_files import find_files
from replay.logs.address import Address, open_binary, open_parquet
from replay.logs.columns import decoded, shown
from replay.logs.text import is_text, read_lists, read_numbers, read_times

__all__ = ["FIRST_ROWS", "guess_schema"]

FIRST_ROWS = 10_000
"""Rows that a guess looks at, at most."""
FIRST_BYTES = 4 << 20
"""Bytes of a CSV file that a guess looks at, at most."""

MANY = 0.5
"""A text column with more distinct values than this share of its rows is taken for an identifier."""

_REWARD = ("reward", "click", "clicked", "clicks", "conversion", "converted", "is_click", "label", "purchase", "target")
_PROPENSITY = ("propensity", "propensity_score", "pscore", "p", "prob", "probability", "action_prob", "score")
_ACTION: tuple[str, ...] = ("action", "action_id", "item", "item_id", "arm", "arm_id", "product", "product_id")
_ACTION += ("article", "article_id", "ad", "ad_id", "banner", "offer", "creative", "variant", "choice")
_TIME = ("timestamp", "time", "datetime", "date", "ts", "event_time", "created_at")
_CANDIDATES = ("candidates", "shown", "slate", "options", "available", "action_set", "actions", "items")


@dataclass
class _Column:
    """A column and what its values could be."""

    name: str
    values: pa.Array
    numbers: np.ndarray | None = None
    """(N,), NaN where a value is missing; None if it is not numeric"""
    times: bool = False
    lists: pa.Array | None = None
    number_lists: bool = False
    distinct: int = 0
    used: bool = False

    @property
    def binary(self) -> bool:
        if pa.types.is_boolean(self.values.type):
            return True
        if is_text(self.values.type):
            found = {value.lower() for value in pc.unique(self.values).drop_null().to_pylist()}
            return bool(found) and found <= {"0", "1", "0.0", "1.0", "true", "false"}
        return self.numbers is not None and bool(np.isin(self.numbers, (0, 1)).all())

    @property
    def fractions(self) -> bool:
        """Whether the values are numbers above 0 and up to 1, not all 1."""
        if self.numbers is None:
            return False
        return bool(((self.numbers > 0) & (self.numbers <= 1)).all() and (self.numbers < 1).any())

    @property
    def names(self) -> bool:
        """Whether the values could be names of actions: text or whole numbers, none missing."""
        if self.lists is not None or self.values.null_count:
            return False
        if is_text(self.values.type) or pa.types.is_integer(self.values.type):
            return self.numbers is None or bool((self.numbers == np.floor(self.numbers)).all())
        return False


@dataclass
class _Guess:
    """The parts of a schema, as lines of YAML."""

    columns: list[_Column]
    lines: list[str] = field(default_factory=list)

    def say(self, line: str, comment: str = "") -> None:
        self.lines.append(f"{line}  # {comment}" if comment else line)

    def pick(self, names: tuple[str, ...], fits: Callable[[_Column], bool]) -> _Column | None:
        """The column that fits and whose name is the first of the expected ones, or holds one of them."""
        fitting = [column for column in self.columns if not column.used and fits(column)]
        for name in names:
            for column in fitting:
                if _plain(column.name) == name:
                    column.used = True
                    return column
        for name in names:
            for column in fitting:
                if len(name) > 2 and name in re.split(r"_+", _plain(column.name)):
                    column.used = True
                    return column
        return None


def guess_schema(source: str | Address) -> str:
    """A first schema of a table, in YAML with comments. It can be read unless a comment says what is missing."""
    files, kind = find_files(source)
    table = _first_csv(files[0]) if kind == "csv" else _first_parquet(files[0])
    if not table.num_rows:
        raise InputError(f"{files[0]} is empty: it has columns and no rows. Expected rows to look at.")
    guess = _Guess([_look(name, table[name]) for name in table.column_names])
    rows = table.num_rows
    guess.say(f"# A first schema of {_comment(str(source))}, guessed from its first {rows:,} rows. Check every line.")
    guess.say(f"# Then: {program('replay')} convert {_comment(str(source))} DIRECTORY --schema THIS_FILE")
    _roles(guess)
    _context(guess, rows)
    return "\n".join(guess.lines) + "\n"


def _roles(guess: _Guess) -> None:
    reward = guess.pick(_REWARD, lambda column: column.binary)
    why = "guessed from its name; all its values are 0 or 1" if reward else ""
    if reward is None:
        reward = _only(guess, lambda column: column.binary)
        why = "the only column of 0 and 1"
    propensity = guess.pick(_PROPENSITY, lambda column: column.fractions)
    listed = guess.pick(_CANDIDATES, lambda column: column.lists is not None and not column.number_lists)
    if listed is None:
        listed = _only(guess, lambda column: column.lists is not None and not column.number_lists)
    if listed is None:
        listed = guess.pick(_CANDIDATES, lambda column: column.lists is not None)
    action = _action(guess, listed)
    time = guess.pick(_TIME, lambda column: column.times or column.numbers is not None)
    if time is None:
        time = _only(guess, lambda column: column.times)
    _say(guess, "action", action, "the logged action, guessed from its name", "the column of the action that was shown")
    _say(guess, "reward", reward, why, "a column of 0 and 1 (or false and true)")
    if propensity:
        _say(guess, "propensity", propensity, "guessed from its name; all its values are in (0, 1]", "")
    else:
        guess.say("# There is no column of propensities, the probability with which the logged action was shown:")
        guess.say("# numbers above 0 and up to 1. If there is one, name it here (propensity: COLUMN) and remove the")
        guess.say("# next line. If every action was equally likely, write `uniform`.")
        guess.say("logging: estimated", "a model of action given context; results say so")
    if time:
        _say(guess, "timestamp", time, "times" if time.times else "guessed from its name: Unix seconds?", "")
    if listed:
        _say(guess, "candidates", listed, "lists of the actions that could have been shown", "")


def _action(guess: _Guess, listed: _Column | None) -> _Column | None:
    """The column whose values are among the candidates, or the one with the name of an action."""
    if listed is not None and listed.lists is not None:
        inside = listed.lists.to_pylist()
        for column in guess.columns:
            if column.used or not column.names:
                continue
            named = map(str, column.values.to_pylist())
            if all(one is not None and name in map(_name, one) for name, one in zip(named, inside, strict=True)):
                column.used = True
                return column
    return guess.pick(_ACTION, lambda column: column.names)


def _context(guess: _Guess, rows: int) -> None:
    numeric: list[tuple[_Column, str]] = []
    categorical: list[tuple[_Column, str]] = []
    pair, left = [], []
    for column in (column for column in guess.columns if not column.used):
        if column.number_lists:
            pair.append(column)
        elif column.numbers is not None and not column.name:
            left.append((column, "it has no name"))
        elif column.numbers is not None and not np.isfinite(column.numbers[~np.isnan(column.numbers)]).all():
            left.append((column, "it has infinite values"))
        elif column.numbers is not None and _counts_up(column.numbers):
            left.append((column, "it numbers the rows"))
        elif column.numbers is not None:
            numeric.append((column, f"{column.distinct:,} different numbers"))
        elif column.times or column.lists is not None:
            left.append((column, "a second column of times" if column.times else "lists of text"))
        elif not (is_text(column.values.type) or pa.types.is_boolean(column.values.type)):
            left.append((column, f"its type is {column.values.type}"))
        elif column.distinct > max(20, MANY * rows):
            left.append((column, f"{column.distinct:,} different values in {rows:,} rows: an identifier?"))
        else:
            categorical.append((column, f"{column.distinct:,} different values"))
    if numeric or categorical:
        guess.say("context:", "what is known before the action is chosen; remove what is known only afterwards")
    for title, members in (("numeric", numeric), ("categorical", categorical)):
        if members:
            guess.say(f"  {title}:")
            for column, why in members:
                guess.say(f"    - {_quoted(column.name)}", why)
    if pair:
        guess.say("pair:", "features of event and action: lists of one number per candidate")
        guess.say("  numeric:")
        for column in pair:
            guess.say(f"    - {_quoted(column.name)}")
    for column, why in left:
        guess.say(f"# left out: {_comment(column.name) or '(no name)'} ({why})")
    guess.say("# If you have a table that describes the actions, with one row per action, add:")
    guess.say("# actions:\n#   table: items.csv\n#   key: COLUMN\n#   numeric: [COLUMN]\n#   categorical: [COLUMN]")
    guess.say("# Columns for policies and reports, which agents do not see:\n# keep: [COLUMN]")


def _say(guess: _Guess, role: str, column: _Column | None, why: str, missing: str) -> None:
    if column is None:
        names = ", ".join(_comment(other.name) for other in guess.columns if not other.used)
        guess.say(f"# MISSING: {role}. Expected {missing}; found none.")
        guess.say(f"# Add a line `{role}: COLUMN` with one of {names}; the schema cannot be used without it.")
        return
    example = shown(column.values, int(np.flatnonzero(column.values.is_valid().to_numpy(zero_copy_only=False))[0]))
    guess.say(f"{role}: {_quoted(column.name)}", _comment(f"{why}; for example {example}"))


def _only(guess: _Guess, fits: Callable[[_Column], bool]) -> _Column | None:
    found = [column for column in guess.columns if not column.used and fits(column)]
    if len(found) != 1:
        return None
    found[0].used = True
    return found[0]


def _look(name: str, column: pa.ChunkedArray) -> _Column:
    values = decoded(column)
    look = _Column(
        name, values, distinct=len(pc.unique(values).drop_null()) if not pa.types.is_nested(values.type) else 0
    )
    kind = values.type
    if values.null_count == len(values):
        return look
    if is_text(kind):
        numbers, bad = read_numbers(values)
        if not bad.any():
            look.numbers = numbers.to_numpy(zero_copy_only=False)
            return look
        look.times = not read_times(values).bad.any()
        joined = pc.mean(pc.match_substring_regex(values, r"^\s*\[.*\]\s*$|\|").cast(pa.float64())).as_py()
        if joined and joined > 0.5:
            lists, bad = read_lists(values, pa.float64())
            look.number_lists = not bad.any()
            if bad.any():
                lists, bad = read_lists(values, pa.string())
            look.lists = None if bad.any() else lists
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        look.numbers = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        look.times = True
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        look.lists = values
        look.number_lists = bool(pa.types.is_floating(kind.value_type))
    return look


def _first_csv(file: Address) -> pa.Table:
    """The first rows of a CSV file, as text."""
    with open_binary(file) as opened:
        data = opened.read(FIRST_BYTES)
    if len(data) == FIRST_BYTES:
        data = data[: data.rfind(b"\n") + 1]
    header, _, rest = data.partition(b"\n")
    names = read_header(file, header)
    if len(names) == 1 and (sign := next((sign for sign in ";\t|" if sign in names[0]), None)):
        raise InputError(f"{file}:1: there is one column. Expected commas between the columns, not {sign!r}.")
    if not rest.strip():
        raise InputError(f"{file} is empty: it has a header and no rows. Expected rows to look at.")
    named = [name or f"#{place}" for place, name in enumerate(names)]
    found: list[pa.RecordBatch] = []
    try:
        reader = open_csv(
            pa.BufferReader(rest),
            ReadOptions(column_names=named, use_threads=False),
            ParseOptions(newlines_in_values=True, invalid_row_handler=lambda row: "skip"),
            ConvertOptions(column_types=dict.fromkeys(named, pa.string()), null_values=[""], strings_can_be_null=True),
        )
        while sum(map(len, found)) < FIRST_ROWS:
            found.append(reader.read_next_batch())
    except StopIteration:
        pass
    except pa.ArrowInvalid as error:
        raise InputError(f"{file} cannot be read as CSV ({str(error).splitlines()[0]}).") from error
    table = pa.Table.from_batches(found).slice(0, FIRST_ROWS)
    return table.select([name for name, real in zip(named, names, strict=True) if real])


def _first_parquet(file: Address) -> pa.Table:
    try:
        with open_parquet(file) as parquet:
            for batch in parquet.iter_batches(FIRST_ROWS):
                return pa.Table.from_batches([batch])
            return parquet.schema_arrow.empty_table()
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{file} cannot be read as Parquet ({str(error).splitlines()[0]}).") from error


def _counts_up(numbers: np.ndarray) -> bool:
    return len(numbers) > 1 and bool((np.diff(numbers) == 1).all())


def _plain(name: str) -> str:
    """A name in small letters, with underscores between its words."""
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()).strip("_")


def _name(value: object) -> str:
    """An element of a list as the name of an action."""
    return str(int(value)) if isinstance(value, float) and value == int(value) else str(value)


def _quoted(name: str) -> str:
    """A column's name as a value of YAML."""
    plain = re.fullmatch(r"[A-Za-z_][\w]*", name, re.ASCII)
    return name if plain and yaml.safe_load(name) == name else json.dumps(name)


def _comment(text: str) -> str:
    """A text within a comment: one line."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)[:120]
