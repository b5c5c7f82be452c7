"""Features of any log, against the slow twin."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor

from nl_lightning.core.errors import InputError
from replay.logs.layout import CATEGORY
from replay.logs.reader import Log
from replay.protocol.candidates import Candidates, candidates
from replay.protocol.events import CandidateEvents, ReplaySettings
from replay.protocol.features import Encoded
from replay.protocol.fitting import features_from_state, fit_features
from replay.protocol.table_features import TableFeatures
from replay.protocol.table_state import DEFAULTS
from tests.support import table_twin as twin
from tests.support.table_logs import ACTIONS, PLAIN, SCHEMA, events, items, schema_with, table_log


def offered(log: Log, features: TableFeatures, group: int = 0) -> tuple[Candidates, Encoded, Tensor]:
    """Candidates, codes and arms of a row group."""
    block = log.events(log.groups[group])
    protocol = "logged" if log.schema.candidates else "all"
    shown = candidates(block, protocol, log.statistics.most_candidates, log, 0)
    encoded = features.encode(log, block, shown)
    return shown, encoded, features.arms(encoded.codes, encoded.numbers, shown.item, encoded.pair)


def columns_of(log: Log) -> Any:
    table = pa.concat_tables([log.read(group).unify_dictionaries() for group in log.groups])
    return table.to_pandas()


@pytest.mark.parametrize(
    ("schema", "settings"),
    [
        (SCHEMA, {}),
        (SCHEMA, {"numeric": "scale", "products": True}),
        (SCHEMA, {"components": 2}),
        (SCHEMA, {"components": 3, "max_categories": 2}),
        (schema_with(candidates="offered"), {"products": True}),
        (schema_with(actions=None, pair=None), {"components": 5}),
        (schema_with(context={"numeric": ["age"]}, pair=None), {}),
        (schema_with(context=None), {}),
        (PLAIN, {}),
        (PLAIN, {"products": True}),
    ],
)
def test_arms_are_those_of_the_twin(schema: dict[str, Any], settings: dict[str, Any], tmp_path: Path) -> None:
    log = table_log(tmp_path / "log", schema, rows=700, group=300)
    features = fit_features(log, features=settings)
    assert isinstance(features, TableFeatures)
    frame = columns_of(log)
    slow = twin.features(frame, log.items.to_pandas(), log.schema, {**DEFAULTS, **settings})
    for number, group in enumerate(log.groups):
        shown, _, arms = offered(log, features, number)
        assert arms.shape == (*shown.item.shape, features.dim)
        lengths = shown.shown.sum(1) if shown.shown.shape[1] else torch.full((group.rows,), log.n_items)
        for i in range(0, group.rows, 7):
            event, n = frame.iloc[group.first + i], int(lengths[i])
            pairs = {name: event[name] for name in log.schema.pair}
            expected = slow(event, shown.item[i, :n].tolist(), pairs)
            np.testing.assert_allclose(arms[i, :n].numpy(), expected, rtol=0, atol=1e-9)


def test_the_fit_does_not_depend_on_row_groups(tmp_path: Path) -> None:
    logs = [table_log(tmp_path / str(group), rows=500, group=group) for group in (37, 500)]
    one, other = (TableFeatures.fit(log, components=3) for log in logs)
    assert (one.context[:, :3] == other.context[:, :3]).all()
    torch.testing.assert_close(one.context, other.context, rtol=0, atol=1e-12)
    torch.testing.assert_close(one.shift, other.shift, rtol=1e-12, atol=0)
    torch.testing.assert_close(one.factor, other.factor, rtol=1e-12, atol=0)


def test_a_fit_sees_its_rows_only_also_of_a_part(tmp_path: Path) -> None:
    log = table_log(tmp_path / "log", rows=500, group=200)
    few, ages = TableFeatures.fit(log, rows=250), columns_of(log)["age"]
    assert few.shift.item() == pytest.approx(ages[:250].mean())
    part = TableFeatures.fit(log.part("100:"), rows=250)
    assert part.shift.item() == pytest.approx(ages[100:350].mean())
    assert TableFeatures.fit(log, rows=10**9).shift == TableFeatures.fit(log).shift


def test_missing_and_unseen_values_are_defined_and_counted(tmp_path: Path) -> None:
    schema = schema_with(actions=None, pair=None)
    known = table_log(tmp_path / "known", schema)
    features = TableFeatures.fit(known)
    other = events(4, schema)
    changed = {
        "age": pa.array([None, 40.0, 1e9, -1e9]),
        "floor": pa.array([None, 3, 99, -99]),
        "country": pa.array([None, "de", "mars", "fr"]).cast(CATEGORY),
        "device": pa.array(["phone"] * 4).cast(CATEGORY),
    }
    for name, column in changed.items():
        other = other.set_column(other.column_names.index(name), name, column)
    log = table_log(tmp_path / "other", schema, table=other)
    _, encoded, arms = offered(log, features)
    # mars, and the floors that take the nearest known one
    assert (encoded.unseen, encoded.missing) == (3, 3)
    country, floor, age = arms[:, 0, :4], arms[:, 0, 7:9], arms[:, 0, 9:11]
    assert (country[[0, 2]] == 0).all()
    assert country[1].tolist() == [1, 0, 0, 0]
    assert floor[0].tolist() == [0, 1]
    assert age[0].tolist() == [0, 1]
    assert age[2:].tolist() == [[5, 0], [-5, 0]]
    lowest, highest = features.context[-7, 7], features.context[-2, 7]
    assert floor[2:, 0].tolist() == [highest.item(), lowest.item()]


def test_a_column_that_was_never_missing_has_no_indicator(tmp_path: Path) -> None:
    schema = {**PLAIN, "context": {"numeric": ["age", "floor"]}}
    table = events(300, schema)
    for name in ("age", "floor"):
        table = table.set_column(table.column_names.index(name), name, table[name].fill_null(table[name][5]))
    features = TableFeatures.fit(table_log(tmp_path / "whole", schema, table=table))
    assert features.dim == 2 + len(ACTIONS)
    holes = table_log(tmp_path / "holes", schema)
    _, encoded, arms = offered(holes, features)
    assert encoded.missing > 0
    assert arms.isfinite().all()


@pytest.mark.parametrize("numeric", ["standard", "scale"])
def test_columns_without_variance_or_values_are_zero(numeric: str, tmp_path: Path) -> None:
    schema = {**PLAIN, "context": {"numeric": ["age", "floor"]}}
    table = events(50, schema)
    table = table.set_column(table.column_names.index("age"), "age", pa.array([0.1] * 50))
    table = table.set_column(table.column_names.index("floor"), "floor", pa.array([None] * 50, pa.float64()))
    log = table_log(tmp_path / "log", schema, table=table)
    _, _, arms = offered(log, TableFeatures.fit(log, numeric=numeric))
    # two numbers, and the indicator of the one that is never there
    assert arms[:, :, :3].unique(dim=0).tolist() == [[[0.0, 0.0, 1.0]] * len(ACTIONS)]


def test_numbers_that_cannot_be_standardised_are_refused(tmp_path: Path) -> None:
    schema = {**PLAIN, "context": {"numeric": ["age"]}}
    table = events(2, schema)
    table = table.set_column(table.column_names.index("age"), "age", pa.array([-1e200, 1e200]))
    log = table_log(tmp_path / "log", schema, table=table)
    with pytest.raises(InputError, match="The column age has numbers from -1e\\+200 to 1e\\+200"):
        TableFeatures.fit(log)
    assert TableFeatures.fit(log, numeric="scale").dim == 6


def test_many_actions_without_columns_have_different_codes(tmp_path: Path) -> None:
    names = [f"song {i}" for i in range(500)]
    log = table_log(tmp_path / "log", PLAIN, rows=50, actions=items(names))
    features = TableFeatures.fit(log)
    assert features.dim == 64
    products = features.action @ features.action.T
    assert (products.diagonal() == 1).all()
    assert (products - torch.eye(500)).abs().max() < 0.7
    # the code belongs to the name, whatever the other actions are
    fewer = TableFeatures.fit(table_log(tmp_path / "fewer", PLAIN, rows=50, actions=items(names[100:200])))
    assert (fewer.action == features.action[100:200]).all()


def test_an_arm_is_given_by_codes_where_all_columns_are_discrete(tmp_path: Path) -> None:
    assert not TableFeatures.fit(table_log(tmp_path / "a")).is_discrete
    discrete = TableFeatures.fit(table_log(tmp_path / "b", discrete=True))
    assert discrete.is_discrete
    assert len(discrete.radix) == 4
    assert TableFeatures.fit(table_log(tmp_path / "c", PLAIN)).is_discrete
    table = events(300, SCHEMA, discrete=True)
    halves = pa.array([[value + 0.5 for value in row] for row in table["taste"].to_pylist()])
    table = table.set_column(table.column_names.index("taste"), "taste", halves)
    assert not TableFeatures.fit(table_log(tmp_path / "d", table=table)).is_discrete


@pytest.mark.parametrize("settings", [{}, {"components": 3, "max_categories": 2, "products": True}])
def test_features_survive_a_checkpoint_bit_for_bit(settings: dict[str, Any], tmp_path: Path) -> None:
    log = table_log(tmp_path / "log")
    features = TableFeatures.fit(log, **settings)
    torch.save(features.state_dict(), tmp_path / "state")
    again = features_from_state(torch.load(tmp_path / "state", weights_only=True))
    assert isinstance(again, TableFeatures)
    again.check(log)
    assert (again.dim, again.radix, again.is_discrete) == (features.dim, features.radix, features.is_discrete)
    (_, one, arms), (_, other, same) = offered(log, features), offered(log, again)
    assert (one.codes == other.codes).all()
    assert torch.equal(arms, same)
    assert again.state_dict().keys() == features.state_dict().keys()


def test_features_move_with_the_agent(tmp_path: Path) -> None:
    log = table_log(tmp_path / "log")
    features = TableFeatures.fit(log, products=True)
    _, _, arms = offered(log, features)
    _, _, moved = offered(log, features.to(torch.empty(0, dtype=torch.float32)))
    assert moved.dtype == torch.float32
    torch.testing.assert_close(moved.double(), arms, rtol=1e-6, atol=1e-6)


DAMAGES: dict[str, Any] = {
    "actions": ["x", 3],
    "categories": [["de", "de"], 4],
    "values": [None, [3.0, 2.0]],
    "context": torch.zeros(3, 2, dtype=torch.float64),
    "shift": torch.zeros(2, dtype=torch.float64),
    "factor": torch.full((1,), -1.0, dtype=torch.float64),
    "indicators": torch.zeros(1, dtype=torch.float64),
    "action": torch.full((5, 6), torch.nan, dtype=torch.float64),
    "pair_shift": torch.zeros(1),
    "pair_factor": "text",
    "small_pairs": 1,
    "items_digest": None,
    "settings": {"numeric": "standard"},
    "schema": {"action": "drink"},
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_state_is_refused(name: str, tmp_path: Path) -> None:
    state = TableFeatures.fit(table_log(tmp_path / "log", rows=100)).state_dict()
    for damaged in (DAMAGES[name], None, 3, {}, []):
        with pytest.raises(InputError, match=r"The features of the log in the checkpoint are damaged") as error:
            features_from_state({**copy.deepcopy(state), name: damaged})
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="are damaged: their state must be"):
        features_from_state({key: value for key, value in state.items() if key != name})


def test_other_logs_are_refused_and_the_difference_is_named(tmp_path: Path) -> None:
    features = TableFeatures.fit(table_log(tmp_path / "log"))
    features.check(table_log(tmp_path / "lists", schema_with(candidates="offered", keep=["page"])))
    for number, (schema, actions, message) in enumerate(
        [
            (schema_with(context={"numeric": ["age"], "categorical": ["country", "device"]}), items(),
             "its numeric context lacks the column floor. The agent's features were fitted for age, floor, "
             "the log's schema says age."),
            (schema_with(context={"numeric": ["age", "floor"], "categorical": ["country", "device", "page"]}), items(),
             "its categorical context also has the column page"),
            (schema_with(pair=None), items(), "its pair features lacks the column taste"),
            (schema_with(actions=None), items(), "its numeric features of actions lacks the column price"),
            (SCHEMA, items([*ACTIONS[:4], "beer"]), "action number 4 is 'beer', the agent's features were fitted for "
             "'water'"),
            (SCHEMA, items(ACTIONS[:4]), "has 4 actions, the agent's features were fitted for 5"),
        ]
    ):  # fmt: skip
        table = events(50, schema, actions.num_rows)
        table = table.set_column(table.column_names.index("page"), "page", table["page"].cast(CATEGORY))
        other = table_log(tmp_path / f"other {number}", schema, table=table, actions=actions)
        with pytest.raises(InputError) as error:
            features.check(other)
        assert message in str(error.value)


def test_settings_are_checked(tmp_path: Path) -> None:
    log = table_log(tmp_path / "log", rows=50)
    for given, message in (
        ({"product": True}, "there is no setting 'product'. Did you mean products?"),
        ({3: True}, "there is no setting 3"),
        ({"numeric": "log"}, "numeric must be one of standard, scale; got 'log'"),
        ({"components": 0}, "components must be a whole number of at least 1, got 0"),
        ({"max_categories": 2.5}, "max_categories must be a whole number of at least 1, got 2.5"),
        ({"products": 1}, "products must be true or false, got 1"),
        (3, "features must be settings such as"),
        ("nowhere", "features must name a function as my_module:function, got 'nowhere'"),
    ):
        with pytest.raises(InputError) as error:
            fit_features(log, features=given)  # type: ignore[arg-type]
        assert message in str(error.value)
    state = fit_features(log, features={"products": True}).state_dict()
    features_from_state(state, {"products": True})
    with pytest.raises(InputError, match="fitted with products: True, not False"):
        features_from_state(state, {"products": False})
    with pytest.raises(InputError, match="not trained with features of your own"):
        features_from_state(state, lambda frame, actions: actions)


def test_products_that_are_too_many_are_refused(tmp_path: Path) -> None:
    names = [f"song {i}" for i in range(500)]
    schema = {**PLAIN, "context": {"categorical": ["page"]}}
    table = events(500, schema, 500)
    pages = pa.array([f"page {i}" for i in range(500)]).cast(CATEGORY)
    table = table.set_column(table.column_names.index("page"), "page", pages)
    log = table_log(tmp_path / "log", schema, table=table, actions=items(names))
    with pytest.raises(InputError, match="Leave products out, or choose fewer components"):
        TableFeatures.fit(log, products=True, components=256)
    assert TableFeatures.fit(log, products=True, components=8).dim == 8 + 64 + 8 * 64


def test_events_of_a_group_are_read_with_their_numbers(tmp_path: Path) -> None:
    log = table_log(tmp_path / "log", schema_with(candidates="offered"))
    features = TableFeatures.fit(log)
    group, encoded = CandidateEvents.read(log, log.groups[1], features, ReplaySettings("logged", 5, None, 0))
    assert group.mask is not None
    assert (group.numbers.isnan().sum() + (group.codes == torch.tensor(features.radix) - 1).sum()) == encoded.missing
    assert group.arms(features).shape == (400, 5, features.dim)
