"""The schema of a log: which column of a table plays which role.

action: item            # column of the logged action
reward: click           # 0 or 1
propensity: p           # a column; without one say `logging: uniform` or `logging: estimated`
timestamp: time         # optional
context:                # columns of the event
  numeric: [age, recency]
  categorical: [country, device]
actions:                # optional: what is known of an action
  table: items.csv
  key: item
  numeric: [price]
  categorical: [brand]
pair:                   # optional: features of (event, action), list columns with one number a candidate
  numeric: [affinity]
candidates: shown       # optional: list column of the actions that could have been shown; left out, all
keep: [page, campaign]  # optional: columns that policies and reports may use, and agents do not see
"""

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import yaml

from nl_lightning.core.credentials import check_no_credentials
from nl_lightning.core.errors import InputError

__all__ = ["LOGGING", "ActionTable", "Columns", "Logging", "Schema"]

Logging = Literal["uniform", "estimated"]
LOGGING: dict[Logging, str] = {
    "uniform": "every candidate was equally likely",
    "estimated": "propensities are estimated from the log by a cross-fitted model of action given context",
}


@dataclass(frozen=True)
class Columns:
    """Columns by the kind of their values."""

    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[str]:
        yield from (*self.numeric, *self.categorical)


@dataclass(frozen=True)
class ActionTable:
    """A table with one row per action."""

    key: str
    """column of the action's name"""
    table: str | None = field(default=None, compare=False)
    """file of the table; None if it is given as an object. Logs with equal columns have equal schemas."""
    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()


@dataclass(frozen=True)
class Schema:
    """Roles of the columns of a log.

    Make one with ``Schema.read(path)`` from YAML, or with ``Schema.from_dict``.
    """

    action: str
    reward: str
    propensity: str | None = None
    logging: Logging | None = None
    timestamp: str | None = None
    context: Columns = field(default_factory=Columns)
    actions: ActionTable | None = None
    pair: tuple[str, ...] = ()
    candidates: str | None = None
    keep: tuple[str, ...] = ()
    sparse: bool = False
    """whether a pair feature is stored as (actions with a nonzero value, values); the Open Bandit Dataset's is"""

    PROPENSITY: ClassVar[str] = "propensity"

    @property
    def propensity_column(self) -> str:
        """The column of the log that holds propensities; without one in the table, it is added."""
        return self.propensity or self.PROPENSITY

    @property
    def key(self) -> str:
        """The column with the names of the actions in the table of actions."""
        return self.actions.key if self.actions else self.action

    @property
    def action_features(self) -> Columns:
        return Columns(self.actions.numeric, self.actions.categorical) if self.actions else Columns()

    @staticmethod
    def sparse_items(name: str) -> str:
        """The column with the actions of a sparse pair feature."""
        return f"{name}_item"

    @property
    def source_columns(self) -> tuple[str, ...]:
        """The columns that a table of events must have."""
        named = (self.timestamp, self.action, self.reward, self.propensity, *self.context, self.candidates, *self.pair)
        return tuple(dict.fromkeys(name for name in (*named, *self.keep) if name))

    @property
    def log_columns(self) -> tuple[str, ...]:
        """The columns of a log's events: those of the source and those that the log adds."""
        added = map(self.sparse_items, self.pair) if self.sparse else ()
        return tuple(dict.fromkeys((*self.source_columns, self.propensity_column, *added)))

    @property
    def item_columns(self) -> tuple[str, ...]:
        """The columns of a log's actions."""
        return (self.key, *self.action_features)

    @property
    def visible_columns(self) -> tuple[str, ...]:
        """The columns that a policy may look at: all that are known when an action is chosen."""
        hidden = (self.action, self.reward, self.propensity_column)
        return tuple(name for name in self.source_columns if name not in hidden)

    def to_dict(self) -> dict[str, Any]:
        """The schema as it is written in YAML, without what is left out."""
        given = asdict(self) | {"pair": {"numeric": list(self.pair)} if self.pair else {}}
        return {name: value for name, value in _plain(given).items() if value not in (None, {}, [], False)}

    @classmethod
    def read(cls, path: str | Path) -> "Schema":
        """Read a schema from a YAML file."""
        try:
            text = Path(path).read_bytes().decode("utf-8-sig")
            given = yaml.load(text, _UniqueKeys)
        except UnicodeDecodeError as error:
            raise InputError(f"The schema {path} is not UTF-8 text. Save it as UTF-8.") from error
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            place = f", line {mark.line + 1}" if mark else ""
            why = getattr(error, "problem", None) or str(error)
            raise InputError(f"The schema {path}{place} is not valid YAML: {why}.") from error
        except FileNotFoundError as error:
            raise InputError(f"The schema {path} does not exist. Expected a YAML file.") from error
        except (OSError, RecursionError) as error:
            raise InputError(f"The schema {path} cannot be read ({error}). Expected a YAML file.") from error
        except ValueError as error:
            # a date that there is not, or a number of too many digits
            raise InputError(f"The schema {path} is not valid YAML: {error}.") from error
        return cls.from_dict(given, f"The schema {path}")

    @classmethod
    def from_dict(cls, given: Any, source: str = "The schema", stored: bool = False) -> "Schema":
        """Make a schema from the mapping that its YAML holds; ``source`` names it in errors."""
        if isinstance(given, Schema):
            given._check(source)
            return given
        known = {"action": str, "reward": str, "propensity": str, "logging": str, "timestamp": str, "candidates": str}
        nested = {"context": {"numeric": list, "categorical": list}, "pair": {"numeric": list}, "keep": list}
        table = {"table": str, "key": str, "numeric": list, "categorical": list}
        shape = {**known, **nested, "actions": table, **({"sparse": bool} if stored else {})}
        got = _checked(given, shape, source, "")
        for name in ("action", "reward"):
            if name not in got:
                raise InputError(f"{source} does not say which column is the {name}. Add `{name}: COLUMN`.")
        actions = got.pop("actions", None)
        if actions is not None:
            if "key" not in actions:
                raise InputError(f"{source}, actions: there is no key. Add `key: COLUMN`, the column of the action.")
            check_no_credentials(actions.get("table") or "", f"{source}, actions.table")
            got["actions"] = ActionTable(**actions)
        if "context" in got:
            got["context"] = Columns(**got["context"])
        if "pair" in got:
            got["pair"] = got["pair"].get("numeric", ())
        schema = cls(**got)
        schema._check(source)
        return schema

    def _check(self, source: str) -> None:
        if self.logging is not None and self.logging not in LOGGING:
            raise InputError(f"{source}, logging: expected one of {', '.join(LOGGING)}, got {self.logging!r:.60}.")
        if (self.propensity is None) == (self.logging is None):
            what = "both a propensity column and `logging`" if self.propensity else "no propensity column"
            raise InputError(
                f"{source} has {what}. Name the column of propensities (`propensity: COLUMN`), or say how the log was "
                "made: `logging: uniform`, or `logging: estimated`, whose results say so."
            )
        roles = [
            self.timestamp, self.action, self.reward, self.propensity_column, *self.context, self.candidates, *self.pair
        ]  # fmt: skip
        for names, where in (
            ([name for name in roles if name], ""),
            ([*self.action_features, self.key], ", actions"),
            (list(self.keep), ", keep"),
        ):
            twice = [name for name, number in Counter(names).items() if number > 1]
            if self.propensity is None and self.PROPENSITY in twice:
                raise InputError(
                    f"{source}: the column {self.PROPENSITY} has a role, but the log adds a column of that name. "
                    "Rename it, or, if it holds the propensities, write `propensity: propensity` instead of `logging`."
                )
            if twice:
                raise InputError(f"{source}{where}: the column {twice[0]} has two roles. A column has one.")
        hidden = {self.action, self.reward, self.propensity_column} & set(self.keep)
        if hidden:
            raise InputError(f"{source}, keep: {min(hidden)} has a role already, and policies must not see it.")


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key.value, str):
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value:.60} is there twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _plain(value: Any) -> Any:
    """Tuples as lists, without what is left out."""
    if isinstance(value, dict):
        inner = {key: _plain(part) for key, part in value.items()}
        return {key: part for key, part in inner.items() if part is not None and part != []}
    return list(value) if isinstance(value, tuple) else value


_KINDS = {str: "the name of a column", list: "a list of column names", bool: "true or false"}


def _checked(given: Any, shape: Mapping[str, Any], source: str, key: str) -> dict[str, Any]:
    """A mapping whose keys are known and whose values have their kinds; lists as tuples, without nulls."""
    place = f"{source}, {key}" if key else source
    if not isinstance(given, Mapping):
        raise InputError(f"{place}: expected a mapping with {', '.join(shape)}; got {given!r:.60}.")
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in shape:
            near = difflib.get_close_matches(str(name), list(shape), 1)
            meant = f" Did you mean {near[0]}?" if near else ""
            raise InputError(f"{place}: there is no key {name!r:.60}.{meant} Its keys are {', '.join(shape)}.")
        kind = shape[name]
        if value is None:
            continue
        if isinstance(kind, Mapping):
            found[name] = _checked(value, kind, source, f"{key}.{name}" if key else str(name))
        elif kind is list:
            found[name] = _names(value, f"{place}.{name}" if key else f"{place}, {name}")
        elif not isinstance(value, kind) or value == "":
            raise InputError(f"{place}, {name}: expected {_KINDS[kind]}, got {value!r:.60}.")
        else:
            found[name] = value
    return found


def _names(value: Any, place: str) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise InputError(f"{place}: expected a list of column names, such as [age, country]; got {value!r:.60}.")
    for name in value:
        if not isinstance(name, str) or not name:
            raise InputError(f"{place}: expected names of columns, got {name!r:.60}.")
    return tuple(value)
