"""Features of a user's own."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from nl_lightning.core.errors import InputError
from replay.logs.reader import Log
from replay.protocol import own_features
from replay.protocol.candidates import candidates
from replay.protocol.events import CandidateEvents, ReplaySettings
from replay.protocol.fitting import features_from_state, fit_features
from replay.protocol.own_features import OwnFeatures
from tests.support.own_features import PRICES, Counting, priced
from tests.support.table_logs import ACTIONS, schema_with, table_log

PATH = "tests.support.own_features:priced"


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return table_log(tmp_path / "log", schema_with(candidates="offered", keep=["page"]), rows=700, group=300)


def test_arms_are_what_the_function_returns(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_features, "EVENTS_AT_ONCE", 64)
    features = fit_features(log, features=PATH)
    assert features.dim == 3
    for part in (log, log.part("150:650")):
        for group in part.groups:
            events, encoded = CandidateEvents.read(part, group, features, ReplaySettings("logged", 5, None, 0))
            arms, age = events.arms(features.to(torch.empty(0))), part.frame(group)["age"].fillna(40).to_numpy()
            assert encoded.codes.shape == (group.rows, 0)
            assert arms.dtype == torch.float32
            x = arms.numpy()
            price = np.array([PRICES[name] for name in ACTIONS])[events.item.numpy()] / 5
            np.testing.assert_allclose(x[..., 0], np.repeat(age[:, None] / 40 - 1, 5, axis=1), atol=1e-6)
            np.testing.assert_allclose(x[..., 1], price, atol=1e-6)
            np.testing.assert_allclose(x[..., 2], x[..., 0] * price, atol=1e-6)


def test_the_function_sees_what_is_known_before_the_choice(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[pd.DataFrame] = []

    def features(frame: pd.DataFrame, actions: np.ndarray) -> np.ndarray:
        seen.append(frame)
        assert all(set(listed) >= set(shown) for listed, shown in zip(frame["offered"], actions, strict=True))
        return np.ones((*actions.shape, 1), dtype=int)

    fitted = OwnFeatures.fit(log, features)
    block = log.events(log.groups[1])
    fitted.encode(log, block, candidates(block, "logged", 5, log, 0))
    assert set(seen[-1].columns) == {"age", "floor", "country", "device", "taste", "offered", "page"}
    assert list(seen[-1].index) == list(range(300, 600))


def test_the_function_is_asked_for_blocks(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_features, "EVENTS_AT_ONCE", 128)
    fitted = OwnFeatures.fit(log, asked := Counting())
    block = log.events(log.groups[0])
    fitted.encode(log, block, candidates(block, "logged", 5, log, 0))
    assert asked.calls == [(8, 1), (128, 5), (128, 5), (44, 5)]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda x: x[..., 0], r"must return an array of shape \(300, 5, 3\); got the shape \(300, 5\)"),
        (lambda x: x[..., :2], r"got the shape \(300, 5, 2\)"),
        (lambda x: x[:-1], r"got the shape \(299, 5, 3\)"),
        (lambda x: np.where(x == x[2, 3, 1], np.nan, x), "of finite numbers; feature 1 of arm"),
        (lambda x: x.astype(str), "of numbers; got ndarray of <U"),
        (lambda x: None, "of numbers; got NoneType of object"),
        (lambda x: [[1], [1, 2]], "got list"),
        (lambda x: 1 / 0, "failed for rows of the log: ZeroDivisionError: division by zero"),
    ],
)
def test_what_is_returned_is_checked(returned: Any, message: str, log: Log) -> None:
    def features(frame: pd.DataFrame, actions: np.ndarray) -> Any:
        x = priced(frame, actions)
        return x if actions.shape[1] == 1 else returned(x)

    fitted, block = OwnFeatures.fit(log, features), log.events(log.groups[0])
    with pytest.raises(InputError, match=message):
        fitted.encode(log, block, candidates(block, "logged", 5, log, 0))


def test_no_features_at_all_are_refused(log: Log) -> None:
    with pytest.raises(InputError, match=r"shape \(8, 1, d\); got the shape \(8, 1, 0\)"):
        OwnFeatures.fit(log, lambda frame, actions: np.ones((*actions.shape, 0)))


def test_more_than_memory_holds_is_refused(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_features, "MOST_BYTES", 300 * 5 * 3 * 8 - 1)
    fitted, block = OwnFeatures.fit(log, priced), log.events(log.groups[0])
    with pytest.raises(InputError, match="The features of 300 events with 5 arms and 3 features each take"):
        fitted.encode(log, block, candidates(block, "logged", 5, log, 0))


def test_a_checkpoint_names_the_function_and_does_not_import_it(log: Log, tmp_path: Path) -> None:
    state = fit_features(log, features=priced).state_dict()
    assert state["path"] == PATH
    torch.save(state, tmp_path / "state")
    state = torch.load(tmp_path / "state", weights_only=True)
    for given in (PATH, priced):
        again = features_from_state(state, given)
        assert isinstance(again, OwnFeatures)
        assert again.function is priced
        assert again.dim == 3
    for given in (None, {"products": True}):
        with pytest.raises(InputError, match=r"Give the function again: --features my_module:function"):
            features_from_state(state, given)
    with pytest.raises(InputError, match="trained with the features 'tests.support.own_features:priced', not with"):
        features_from_state(state, Counting())
    # run as a script, a module has another name
    features_from_state({**state, "path": "__main__:priced"}, priced)
    for name, value in (("path", 3), ("dim", 0), ("columns", [3]), ("n_items", None)):
        with pytest.raises(InputError, match="are damaged"):
            features_from_state({**state, name: value}, priced)
    with pytest.raises(InputError, match="are damaged"):
        features_from_state({"kind": "own"}, priced)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("priced", "features must name a function as my_module:function, got 'priced'"),
        ("tests.support.own_features:nosuch", "cannot be imported"),
        ("no_such_module:priced", "cannot be imported"),
        ("tests.support.own_features:not_a_function", "is a int"),
    ],
)
def test_a_path_that_names_no_function_is_refused(path: str, message: str, log: Log) -> None:
    with pytest.raises(InputError, match=message):
        fit_features(log, features=path)


def test_a_log_without_a_column_is_refused(log: Log, tmp_path: Path) -> None:
    fitted = fit_features(log, features=priced)
    fitted.check(log)
    with pytest.raises(InputError, match="has no column offered, page, which tests.support.own_features:priced"):
        fitted.check(table_log(tmp_path / "other"))
