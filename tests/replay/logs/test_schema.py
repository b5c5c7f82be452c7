"""A schema says which column plays which role, or an error says what is wrong with it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nl_lightning.core.errors import InputError
from replay import Schema
from replay.logs.obd import OBD
from replay.logs.schema import ActionTable, Columns
from tests.support.own_logs import GIVEN, own_schema

LEAST = {"action": "item", "reward": "click", "propensity": "p"}


def test_every_key_has_its_place() -> None:
    schema = Schema.from_dict(GIVEN)
    assert (schema.action, schema.reward, schema.propensity, schema.timestamp) == ("item", "bought", "p", "time")
    assert schema.context == Columns(("age", "recency"), ("country",))
    assert schema.actions == ActionTable("name", "items.csv", ("price",), ("brand",))
    assert schema.actions is not None
    assert schema.actions.table == "items.csv"
    assert (schema.pair, schema.candidates, schema.keep) == (("affinity",), "shown", ("page",))
    assert schema.action_features == Columns(("price",), ("brand",))
    assert schema.item_columns == ("name", "price", "brand")
    columns = ("time", "item", "bought", "p", "age", "recency", "country", "shown", "affinity", "page")
    assert schema.source_columns == schema.log_columns == columns
    assert schema.visible_columns == ("time", "age", "recency", "country", "shown", "affinity", "page")


def test_what_is_left_out() -> None:
    schema = Schema.from_dict({"action": "item", "reward": "click", "logging": "uniform"})
    assert (schema.key, schema.action_features, schema.item_columns) == ("item", Columns(), ("item",))
    assert schema.source_columns == ("item", "click")
    # the log adds the propensities
    assert schema.log_columns == ("item", "click", "propensity")
    assert schema.visible_columns == ()
    empty = {"context": {}, "pair": {"numeric": []}, "keep": [], "timestamp": None, "actions": None}
    assert Schema.from_dict({"action": "item", "reward": "click", "logging": "uniform", **empty}) == schema


def test_a_kept_column_may_also_be_seen_by_agents() -> None:
    schema = own_schema(keep=["age", "page"])
    assert schema.source_columns.count("age") == schema.visible_columns.count("age") == 1


def test_the_table_of_actions_is_no_role() -> None:
    """The same columns from another file are the same schema."""
    moved = own_schema(actions=GIVEN["actions"] | {"table": "elsewhere.csv"})
    assert moved == own_schema()
    assert moved.to_dict() != own_schema().to_dict()


NAMES = st.text(min_size=1, max_size=8)


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, Any]:
    """Schemas with any roles and any different names."""
    names = iter(draw(st.lists(NAMES.filter(lambda name: name != "propensity"), min_size=20, max_size=20, unique=True)))

    def some(most: int = 3) -> list[str]:
        return [next(names) for _ in range(draw(st.integers(0, most)))]

    found: dict[str, Any] = {"action": next(names), "reward": next(names)}
    if draw(st.booleans()):
        found["propensity"] = next(names)
    else:
        found["logging"] = draw(st.sampled_from(["uniform", "estimated"]))
    for name in ("timestamp", "candidates"):
        if draw(st.booleans()):
            found[name] = next(names)
    found |= {"context": {"numeric": some(), "categorical": some(2)}, "pair": {"numeric": some(2)}, "keep": some(2)}
    if draw(st.booleans()):
        found["actions"] = {"key": next(names), "numeric": some(2), "categorical": some(1)}
    return found


@given(schemas())
def test_there_and_back(given: dict[str, Any]) -> None:
    """Through a dict, through JSON and through YAML."""
    schema = Schema.from_dict(given)
    plain = schema.to_dict()
    assert Schema.from_dict(plain) == schema
    assert Schema.from_dict(plain).to_dict() == plain
    assert Schema.from_dict(json.loads(json.dumps(plain)), stored=True) == schema
    assert Schema.from_dict(yaml.safe_load(yaml.safe_dump(plain))) == schema
    assert not any(value in (None, [], {}, False) for value in plain.values()), "what is left out is not written"
    assert Schema.from_dict(schema) is schema


def test_there_and_back_in_a_log() -> None:
    assert Schema.from_dict(OBD.to_dict(), stored=True) == OBD
    assert OBD.to_dict()["sparse"] is True
    with pytest.raises(InputError, match="there is no key 'sparse'"):
        Schema.from_dict(OBD.to_dict())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"action": None}, "does not say which column is the action. Add `action: COLUMN`"),
        ({"reward": None}, "does not say which column is the reward. Add `reward: COLUMN`"),
        ({"action": ""}, "action: expected the name of a column, got ''"),
        ({"action": 3}, "action: expected the name of a column, got 3"),
        ({"action": ["item"]}, "action: expected the name of a column, got ['item']"),
        ({"propensity": None}, "has no propensity column. Name the column of propensities (`propensity: COLUMN`)"),
        ({"logging": "uniform"}, "has both a propensity column and `logging`"),
        ({"propensity": None, "logging": "random"}, "logging: expected one of uniform, estimated, got 'random'"),
        ({"context": ["age"]}, "context: expected a mapping with numeric, categorical; got ['age']"),
        ({"context": {"numeric": "age"}}, "context.numeric: expected a list of column names, such as [age, country]"),
        ({"context": {"numeric": [3]}}, "context.numeric: expected names of columns, got 3"),
        ({"context": {"numeric": [""]}}, "context.numeric: expected names of columns, got ''"),
        ({"context": {"numerical": []}}, "context: there is no key 'numerical'. Did you mean numeric?"),
        ({"keep": "page"}, "keep: expected a list of column names"),
        ({"keep": {"page": 1}}, "keep: expected a list of column names"),
        ({"pair": ["affinity"]}, "pair: expected a mapping with numeric; got"),
        ({"pair": {"categorical": ["x"]}}, "pair: there is no key 'categorical'. Its keys are numeric."),
        ({"actions": {"numeric": ["price"]}}, "actions: there is no key. Add `key: COLUMN`"),
        ({"actions": {"key": "item", "tabel": "x"}}, "actions: there is no key 'tabel'. Did you mean table?"),
        ({"actions": {"key": "item", "table": "s3://me:secret@b/x"}}, "actions.table"),
        ({"propensities": "p"}, "there is no key 'propensities'. Did you mean propensity?"),
        ({"candidate": "shown"}, "there is no key 'candidate'. Did you mean candidates?"),
        ({"xyz": 1}, "there is no key 'xyz'. Its keys are action, reward"),
        ({"sparse": True}, "there is no key 'sparse'"),
        ({3: 1}, "there is no key 3"),
        ({"reward": "item"}, "the column item has two roles. A column has one."),
        ({"timestamp": "p"}, "the column p has two roles"),
        ({"context": {"numeric": ["age", "age"]}}, "the column age has two roles"),
        ({"context": {"numeric": ["age"], "categorical": ["age"]}}, "the column age has two roles"),
        ({"candidates": "shown", "pair": {"numeric": ["shown"]}}, "the column shown has two roles"),
        ({"actions": {"key": "item", "numeric": ["item"]}}, "actions: the column item has two roles"),
        ({"keep": ["page", "page"]}, "keep: the column page has two roles"),
        ({"keep": ["p", "page"]}, "keep: p has a role already, and policies must not see it"),
        ({"keep": ["click"]}, "keep: click has a role already"),
        (
            {"propensity": None, "logging": "uniform", "context": {"numeric": ["propensity"]}},
            "the column propensity has a role, but the log adds a column of that name",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_refusals(change: dict[Any, Any], text: str) -> None:
    given = {key: value for key, value in (LEAST | change).items() if value is not None}
    with pytest.raises(InputError) as refused:
        Schema.from_dict(given, "my schema")
    assert str(refused.value).startswith("my schema")
    assert text in str(refused.value)
    assert "secret" not in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("given", [None, [], "schema", 3])
def test_a_schema_is_a_mapping(given: Any) -> None:
    with pytest.raises(InputError, match="The schema: expected a mapping with action, reward, .*; got"):
        Schema.from_dict(given)


def test_a_schema_that_was_made_by_hand_is_checked() -> None:
    with pytest.raises(InputError, match="the column a has two roles"):
        Schema.from_dict(Schema(action="a", reward="a", propensity="p"))


def written(path: Path, content: str | bytes) -> Path:
    file = path / "mine.yaml"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def test_the_schema_of_the_documentation_is_read(tmp_path: Path) -> None:
    from replay.logs import schema

    assert schema.__doc__
    text = schema.__doc__.partition("\n\n")[2]
    found = Schema.read(written(tmp_path, text))
    assert found.context == Columns(("age", "recency"), ("country", "device"))
    assert (found.propensity, found.candidates, found.keep) == ("p", "shown", ("page", "campaign"))
    assert found.actions is not None
    assert found.actions.table == "items.csv"
    # with a byte order mark, as some editors write it
    assert Schema.read(str(written(tmp_path, b"\xef\xbb\xbf" + text.encode()))) == found


TEXT = "action: item\nreward: click\npropensity: p\n"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (TEXT + "reward: bought\n", "line 4 is not valid YAML: the key reward is there twice"),
        (TEXT + "context:\n  numeric: [a]\n  numeric: [b]\n", "line 6 is not valid YAML: the key numeric is"),
        (TEXT + "keep: [a\n", "is not valid YAML"),
        (TEXT + "keep: *nothing\n", "line 4 is not valid YAML"),
        (TEXT + "keep: !!python/name:os.system\n", "line 4 is not valid YAML"),
        (TEXT + "timestamp: 2019-99-99\n", "is not valid YAML: month must be in 1..12"),
        (TEXT + f"timestamp: {'9' * 5000}\n", "is not valid YAML: Exceeds the limit"),
        (TEXT + "timestamp: 2019-01-01\n", "timestamp: expected the name of a column, got datetime.date(2019, 1, 1)"),
        (TEXT + "keep: [yes]\n", "keep: expected names of columns, got True"),
        (TEXT + "candidats: shown\n", "there is no key 'candidats'. Did you mean candidates?"),
        (TEXT.encode("utf-16"), "is not UTF-8 text. Save it as UTF-8."),
        (b"action: \xe9\n", "is not UTF-8 text"),
        (b"action: \0\n", "is not valid YAML"),
        ("[" * 50_000, "cannot be read"),
        ("", "expected a mapping with action, reward"),
        ("- action\n", "expected a mapping with action, reward"),
        ("? [a, b]\n: c\n", "is not valid YAML"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_files_that_are_refused(content: str | bytes, text: str, tmp_path: Path) -> None:
    file = written(tmp_path, content)
    with pytest.raises(InputError) as refused:
        Schema.read(file)
    assert str(refused.value).startswith(f"The schema {file}")
    assert text in str(refused.value)


def test_a_schema_that_is_not_there(tmp_path: Path) -> None:
    for path, what in ((tmp_path / "nosuch.yaml", "does not exist"), (tmp_path, "cannot be read .*")):
        with pytest.raises(InputError, match=f"The schema {path} {what}. Expected a YAML file"):
            Schema.read(path)
