"""Policies of any kind on a log: their estimates against plain loops, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import replay
from nl_lightning import NeuralLogUCB2
from nl_lightning.core.errors import InputError
from nl_lightning.core.rng import Stream, row_numbers
from replay.evaluation.estimators import METRICS
from replay.evaluation.evaluate import evaluate_agent
from replay.evaluation.learned_rows import LearnedRows
from replay.evaluation.policies import FunctionPolicy, Policy
from replay.evaluation.probabilities import check_probabilities, pick
from replay.logs.digest import digest
from replay.logs.reader import Log
from replay.protocol.events import ReplaySettings
from replay.protocol.obd_features import ObdFeatures
from replay.simulation.simulated_world import SimulatedWorld
from tests.support import replay_twin as twin
from tests.support.policy_logs import ACTIONS, ROWS, Made, lean, make, write
from tests.support.replay_agents import trained
from tests.support.replay_logs import SMALL, write_log


@pytest.fixture(scope="module", params=[False, True], ids=["all", "listed"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("logs") / "log", request.param)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("logs") / "log")


# ---- twins -----------------------------------------------------------------------------------------------------------


def best_of_half(events: list[dict[str, Any]], candidates: list[int]) -> int:
    """The candidate with the highest SNIPS on some events, the first one of equals; actions without events last."""
    best, highest = -1, -np.inf
    for action in sorted(candidates):
        of_action = [event for event in events if event["item"] == action]
        weight = sum(1 / event["p"] for event in of_action)
        value = sum(event["click"] / event["p"] for event in of_action) / weight if weight else -1.0
        if value > highest:
            best, highest = action, value
    return best


def twin_probabilities(name: str, events: list[dict[str, Any]]) -> list[list[float]]:
    found = []
    half = len(events) // 2
    for i, event in enumerate(events):
        row = [0.0] * 5
        if name == "uniform":
            for action in event["shown"]:
                row[action] = 1 / len(event["shown"])
        elif name == "best-fixed":
            row[best_of_half(events[half:] if i < half else events[:half], event["shown"])] = 1.0
        elif name == "column:choice":
            row[ACTIONS.index(event["choice"])] = 1.0
        elif name in ("column:chances", "column:all_chances"):
            for action, chance in zip(event["shown"], event["chances"], strict=True):
                row[action] = chance
        else:
            scores = {action: np.exp(-event["age"] * action) for action in event["shown"]}
            for action, score in scores.items():
                row[action] = score / sum(scores.values())
        found.append(row)
    return found


def twin_estimates(
    probabilities: list[list[float]], events: list[dict[str, Any]], first: int, seed: int, c: float
) -> dict[str, float]:
    rows = range(first, first + len(events))
    choice = row_numbers(rows, 1, seed, Stream.POLICY_CHOICES).squeeze(1).tolist()
    keep = row_numbers(rows, 1, seed, Stream.REJECTION).squeeze(1).tolist()
    match, pi, click, p = [], [], [], []
    for event, chances, u, v in zip(events, probabilities, choice, keep, strict=True):
        total, chosen = 0.0, None
        for action, chance in enumerate(chances):
            total += chance
            if chosen is None and u < total:
                chosen = action
        match.append(float(chosen == event["item"] and v < c / event["p"]))
        pi.append(chances[event["item"]])
        click.append(event["click"])
        p.append(event["p"])
    low, high = twin.wilson(sum(m * r for m, r in zip(match, click, strict=True)), sum(match))
    return {
        "match": twin.match_ctr(click, match),
        "match_low": low,
        "match_high": high,
        "ips": twin.ips(click, pi, p),
        "snips": twin.snips(click, pi, p),
        **dict(zip(("ips_low", "ips_high"), twin.ips_interval(click, pi, p), strict=True)),
        **dict(zip(("snips_low", "snips_high"), twin.snips_interval(click, pi, p), strict=True)),
        "acceptance": twin.acceptance_rate(match),
        "effective_sample_size": twin.effective_sample_size(pi, p),
    }


POLICIES: dict[str, Any] = {
    "uniform": "uniform",
    "best-fixed": "best-fixed",
    "column:choice": "column:choice",
    "column:chances": "column:chances",
    "column:all_chances": "column:all_chances",
    "lean": lean,
}


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("rows", [None, "130:", "57:301"])
def test_estimates_are_those_of_plain_loops(name: str, rows: str | None, made: Made) -> None:
    start, stop = {None: (0, ROWS), "130:": (130, ROWS), "57:301": (57, 301)}[rows]
    events = made.events[start:stop]
    result = replay.evaluate(made.log, POLICIES[name], rows=rows, seed=4, propensity_floor=0.1)
    ((policy,), found) = (result.to_dict()["policies"], result.to_pandas())
    (row,) = policy["replicas"]
    expected = twin_estimates(twin_probabilities(name, events), events, start, seed=4, c=0.1)
    for estimate, value in expected.items():
        assert row[estimate] == pytest.approx(value, rel=1e-9 if "_" in estimate else 1e-12), estimate
    assert row["ips_low"] < row["ips"] < row["ips_high"]
    assert row["accepted"] + sum(row["rejected"].values()) == row["seen"] == len(events)
    assert result.to_dict()["log"]["rows"] == [start, stop]
    assert list(found.columns) == ["value", "low", "high"]
    assert list(found.index) == list(METRICS)
    assert found.loc["snips", "value"] == row["snips"]


@pytest.mark.parametrize("rows", [None, "130:"])
def test_the_logging_policy_earns_the_mean_reward(rows: str | None, made: Made) -> None:
    result = replay.evaluate(made.log, "logged", rows=rows).to_pandas()
    clicks = [event["click"] for event in made.events[0 if rows is None else 130 :]]
    for name in ("match", "ips", "snips"):
        assert result.loc[name, "value"] == pytest.approx(np.mean(clicks), rel=1e-12)
    assert tuple(result.loc["match", ["low", "high"]]) == pytest.approx(twin.wilson(sum(clicks), len(clicks)))
    assert result.loc["acceptance", "value"] == 1
    assert result.loc["effective_sample_size", "value"] == pytest.approx(len(clicks))


def test_several_policies_in_one_pass_are_as_one_by_one(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {**POLICIES, "logged": "logged"}
    alone = {name: replay.evaluate(made.log, policy, rows="30:") for name, policy in given.items()}
    # once for the pass itself, once for best-fixed
    read: list[int] = []
    events = Log.events
    monkeypatch.setattr(Log, "events", lambda self, group, **kw: read.append(group.first) or events(self, group, **kw))
    together = replay.evaluate(made.log, given, rows="30:")
    assert len(read) == 2 * len(made.log.part("30:").groups)
    frame = together.to_pandas()
    assert frame.index.names == ["policy", "estimator"]
    for name, one in alone.items():
        pd.testing.assert_frame_equal(frame.loc[name], one.to_pandas(), check_exact=True)
    listed = replay.evaluate(made.log, list(given.values()), rows="30:").to_pandas()
    pd.testing.assert_frame_equal(listed, frame, check_exact=True)
    twice = replay.evaluate(made.log, ["uniform", "uniform"]).to_pandas()
    pd.testing.assert_frame_equal(twice.loc["uniform"], twice.loc["uniform (2)"], check_exact=True)


def test_a_result_prints_as_a_table_and_is_json(plain: Made) -> None:
    result = replay.evaluate(str(plain.log.path), {"mine [x]": lean, "best-fixed": "best-fixed"})
    assert f"on {ROWS} events" in str(result)
    assert "mine [x]" in str(result)
    assert json.loads(json.dumps(result.to_dict()))["policies"][1]["policy"] == "best-fixed"
    assert any("cross-fitted: rows 0:215 are given" in note for note in result.notes)
    assert "estimated" not in str(result)


def test_estimated_propensities_are_said(tmp_path: Path) -> None:
    made = make(tmp_path / "log", propensity=False, logging="estimated")
    for policy in ("logged", "uniform", ["logged", lean]):
        result = replay.evaluate(made.log, policy)
        assert any("Propensities are estimated" in note for note in result.notes)
        assert "propensities are estimated" in str(result).splitlines()[0]


def test_true_values_lie_in_the_intervals(tmp_path: Path) -> None:
    world = SimulatedWorld(**SMALL, policy="softmax", temperature=2.0)
    log = write_log(tmp_path / "log", world, 6000, group=1000)
    frame = replay.evaluate(log, ["logged", "uniform"]).to_pandas()
    for name, rate in (("logged", "logging"), ("uniform", "uniform")):
        exact = world.rates()[rate]
        assert frame.loc[(name, "exact"), "value"] == exact
        for estimator in ("ips", "snips", "match"):
            low, high = frame.loc[(name, estimator), ["low", "high"]]
            assert low < exact < high


# ---- functions -------------------------------------------------------------------------------------------------------


def as_frame(frame: pd.DataFrame) -> pd.DataFrame:
    made = pd.DataFrame(lean(frame), columns=ACTIONS, index=frame.index)
    return made[sorted(ACTIONS)].sample(frac=1, random_state=1)


FORMS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "frame in another order": as_frame,
    "fresh frame": lambda frame: pd.DataFrame(lean(frame), columns=ACTIONS),
    "tensor": lambda frame: torch.from_numpy(lean(frame)).requires_grad_(),
    "lists": lambda frame: lean(frame).tolist(),
}


@pytest.mark.parametrize("form", FORMS)
def test_probabilities_come_in_several_forms(form: str, made: Made) -> None:
    expected = replay.evaluate(made.log, lean).to_pandas()
    pd.testing.assert_frame_equal(replay.evaluate(made.log, FORMS[form]).to_pandas(), expected, check_exact=True)


def test_a_policy_may_change_its_table(made: Made) -> None:
    def careless(frame: pd.DataFrame) -> np.ndarray:
        chances = lean(frame)
        frame["age"] = 0.0
        return chances

    expected = replay.evaluate(made.log, lean).to_pandas()
    found = replay.evaluate(made.log, {"careless": careless, "lean": lean}).to_pandas()
    pd.testing.assert_frame_equal(found.loc["lean"], expected, check_exact=True)
    pd.testing.assert_frame_equal(found.loc["careless"], expected, check_exact=True)


def test_a_policy_sees_what_is_known_before_the_choice(made: Made) -> None:
    seen: list[pd.DataFrame] = []

    def look(frame: pd.DataFrame) -> np.ndarray:
        assert torch.is_grad_enabled()
        seen.append(frame)
        return lean(frame)

    replay.evaluate(made.log, look, rows="90:")
    whole = pd.concat(seen)
    assert list(whole.index) == list(range(90, ROWS))
    assert not {"item", "click", "p", "propensity"} & set(whole.columns)
    assert whole["age"].tolist() == [event["age"] for event in made.events[90:]]


def changed(row: int, change: Callable[[np.ndarray], Any]) -> Callable[[pd.DataFrame], Any]:
    """A policy whose probabilities of one row are changed."""

    def policy(frame: pd.DataFrame) -> Any:
        chances = lean(frame)
        for i in np.flatnonzero(frame.index == row):
            change(chances[i])
        return chances

    return policy


BAD: dict[str, tuple[Any, str]] = {
    "nan": (changed(217, lambda p: p.__setitem__(1, np.nan)), "Policy bad, row 217: .* 'coffee' to be a finite .* nan"),
    "inf": (changed(3, lambda p: p.__setitem__(4, np.inf)), "row 3: .* 'water' to be a finite number; got inf"),
    "negative": (changed(429, lambda p: p.__setitem__(0, -0.5)), "row 429: .* 'tea' to be a number of at least 0"),
    "sum": (changed(5, lambda p: p.__imul__(1.1)), "row 5: expected probabilities that sum to 1 .* sum to 1.1"),
    "choices": (
        lambda frame: np.zeros(len(frame)),
        r"of shape \(100, 5\), one row .* got the shape \(100,\)",
    ),
    "fewer": (lambda frame: lean(frame)[1:], r"of shape \(100, 5\)"),
    "names": (lambda frame: ["tea"] * len(frame), "got a list that holds no such numbers"),
    "nothing": (lambda frame: None, "got a NoneType"),
    "ragged": (lambda frame: [[1.0], [0.5, 0.5]], "got a list that holds no such numbers"),
    "missing column": (lambda frame: as_frame(frame).drop(columns="tea"), "there is no column 'tea'"),
    "unknown column": (lambda frame: as_frame(frame).assign(beer=0.0), "'beer' is no action of the log"),
    "column twice": (
        lambda frame: as_frame(frame)[[*ACTIONS, "tea"]],
        "the column 'tea' .* is there twice",
    ),
    "another index": (lambda frame: as_frame(frame).set_axis(range(7, 7 + len(frame))), "got another index"),
    "error": (
        lambda frame: frame["nosuch"],
        r"Policy bad failed on rows 0:100: KeyError: 'nosuch' .*test_policies.py, line \d+.. The columns are age, ",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_probabilities_are_refused(name: str, plain: Made) -> None:
    policy, text = BAD[name]
    with pytest.raises(InputError, match=text):
        replay.evaluate(plain.log, {"bad": policy})


def test_a_probability_outside_the_candidates_is_refused(tmp_path: Path) -> None:
    made = make(tmp_path / "log", listed=True)
    row = next(i for i, event in enumerate(made.events) if len(event["shown"]) < 5)
    with pytest.raises(InputError, match=f"Policy even, row {row}: .* to be 0, because it is not a candidate; got 0.2"):
        replay.evaluate(made.log, {"even": lambda frame: np.full((len(frame), 5), 0.2)})


def test_single_precision_sums_to_one(plain: Made) -> None:
    expected = replay.evaluate(plain.log, lean).to_pandas()
    single = replay.evaluate(plain.log, lambda frame: lean(frame).astype(np.float32)).to_pandas()
    pd.testing.assert_frame_equal(single, expected, rtol=1e-6)


def test_a_choice_is_drawn_in_proportion() -> None:
    chances = np.array([[0.0, 0.5, 0.0, 0.5, 0.0]])
    uniform = np.array([0.0, 0.49, 0.5, 0.999, np.nextafter(1.0, 0.0)])
    assert pick(np.repeat(chances, 5, axis=0), uniform).tolist() == [1, 1, 3, 3, 3]
    short = np.array([[0.3, 0.3, 0.4 - 1e-7, 0.0]])
    assert pick(short, np.array([np.nextafter(1.0, 0.0)])).tolist() == [2]
    assert check_probabilities(short, range(1), "abcd").dtype == np.float64


class Stubborn(Policy):
    """A policy as a subclass: what it says last time it was prepared."""

    def prepare(self, log: Log) -> None:
        self.action = log.n_items - 1
        self.notes = ["It is stubborn."]

    def probabilities(self, batch: Any) -> np.ndarray:
        return np.eye(batch.log.n_items)[np.full(len(batch.item), self.action)]


def test_a_policy_may_be_a_subclass(plain: Made) -> None:
    policy = Stubborn("last")
    result = replay.evaluate(plain.log, {"x": policy, "y": FunctionPolicy(lambda f: np.eye(5)[np.full(len(f), 4)])})
    frame = result.to_pandas()
    pd.testing.assert_frame_equal(frame.loc["x"], frame.loc["y"])
    assert "x: It is stubborn." in result.notes
    assert policy.name == "last"
    assert not policy.notes


# ---- what is no policy -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ("unifrm", "got 'unifrm'. Did you mean uniform?"),
        ("column:", "column: needs the name of a column"),
        ("column:nosuch", "nosuch is not among the columns .* age, country, choice, chances, all_chances. Name it in"),
        ("column:item", "item is not among the columns .* It is known only after the choice"),
        ("column:age", r"row 0: expected the name of an action \('tea', 'coffee', 'cocoa', ...\), got "),
        ("nosuch:f", "'nosuch:f' cannot be imported .ModuleNotFoundError"),
        ("tests.support.policy_logs:nosuch", "cannot be imported .AttributeError"),
        ("tests.support.policy_logs:ROWS", "'tests.support.policy_logs:ROWS' is a int"),
        ("nosuch.ckpt", "There is no checkpoint nosuch.ckpt"),
        (7, "A policy must be one of logged, uniform, best-fixed, .*; got 7"),
        (None, "A policy must be .*; got None"),
        ([], "the list is empty"),
        ({}, "the dict is empty"),
        (NeuralLogUCB2, "got the class NeuralLogUCB2; make an instance of it"),
        (NeuralLogUCB2(3), "can only be evaluated with the features it was trained with"),
    ],
    ids=str,
)
def test_what_is_no_policy_is_refused(policy: Any, text: str, plain: Made) -> None:
    with pytest.raises(InputError, match=text):
        replay.evaluate(plain.log, policy)


def test_a_column_needs_an_action_or_probabilities_in_every_row(tmp_path: Path) -> None:
    from replay.logs.schema import Schema

    made = make(tmp_path / "log", rows=150)
    schema = made.log.schema
    assert isinstance(schema, Schema)

    def with_value(name: str, column: str, value: Any) -> Log:
        return write(
            tmp_path / name, schema, [*made.events[:120], {**made.events[120], column: value}, *made.events[121:]]
        )

    with pytest.raises(InputError, match="Policy column:choice, row 120: expected the name .*, got nothing"):
        replay.evaluate(with_value("a", "choice", None), "column:choice")
    with pytest.raises(InputError, match="row 120: .*, got 'beer'"):
        replay.evaluate(with_value("b", "choice", "beer"), "column:choice")
    with pytest.raises(InputError, match=r"row 120: expected a list of 5 \(the actions\) .*; got 3 of them"):
        replay.evaluate(with_value("c", "chances", [0.5, 0.25, 0.25]), "column:chances")
    with pytest.raises(InputError, match="row 120: .* sum to 1 .* sum to 2"):
        replay.evaluate(with_value("d", "chances", [1.0, 1.0, 0.0, 0.0, 0.0]), "column:chances")
    with pytest.raises(InputError, match="row 120: .* 'milk' to be a finite number"):
        replay.evaluate(with_value("e", "chances", [0.5, 0.5, 0.0, None, 0.0]), "column:chances")


def test_lists_that_fit_neither_candidates_nor_actions_are_refused(tmp_path: Path) -> None:
    made = make(tmp_path / "log", listed=True, rows=150)
    short = next(i for i, event in enumerate(made.events) if i > 100 and len(event["shown"]) < 5)
    mixed = [{**event, "chances": event["all_chances"]} if i == short else event for i, event in enumerate(made.events)]
    number = len(made.events[short]["shown"])
    with pytest.raises(InputError, match=rf"row {short}: expected a list of {number} \(its candidates\) or 5 \(the ac"):
        replay.evaluate(write(tmp_path / "mixed", made.log.schema, mixed), "column:chances")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rows": "5"}, "rows must be like"),
        ({"rows": "900:"}, "rows"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"rejection": "match"}, "was not logged uniformly"),
        ({"rejection": "nosuch"}, "rejection must be one of"),
        ({"propensity_floor": 2.0}, "propensity_floor must lie in"),
    ],
)
def test_impossible_settings_are_refused(options: dict[str, Any], text: str, plain: Made) -> None:
    with pytest.raises(InputError, match=text):
        replay.evaluate(plain.log, "uniform", **options)


def test_without_propensities_the_logging_policy_has_a_value(tmp_path: Path) -> None:
    made = make(tmp_path / "log", rows=150)
    events = [{**event, "p": event["p"] if i else None} for i, event in enumerate(made.events)]
    log = write(tmp_path / "some", made.log.schema, events)
    assert replay.evaluate(log, "logged").to_pandas().loc["ips", "value"] == pytest.approx(log.statistics.ctr)
    with pytest.raises(InputError, match="1 of 150 events have no propensity"):
        replay.evaluate(log, "uniform")
    with pytest.raises(InputError, match="best-fixed is chosen by SNIPS"):
        replay.evaluate(log, "best-fixed", rejection="biased-match")
    result = replay.evaluate(log, "uniform", rejection="biased-match")
    assert np.isnan(result.to_pandas().loc["ips", "value"])
    assert result.to_dict()["policies"][0]["replicas"][0]["ips"] is None
    assert any("IPS needs propensities" in note for note in result.notes)


def test_one_event_is_too_few_to_choose_on(plain: Made) -> None:
    with pytest.raises(InputError, match="needs at least two events"):
        replay.evaluate(plain.log, "best-fixed", rows="7:8")


# ---- agents ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Log:
    world = SimulatedWorld(**SMALL, policy="softmax", temperature=2.0)
    return write_log(tmp_path_factory.mktemp("logs") / "log", world, 1300, group=500)


def test_agents_beside_others_are_as_alone(simulated: Log) -> None:
    features = ObdFeatures.fit(simulated)
    agents = {name: trained(name, simulated, replicas=2) for name in ("NeuralLog-UCB-2", "NeuralLog-TS-1")}
    given = {**{name: (agent, features) for name, agent in agents.items()}, "uniform": "uniform"}
    result = replay.evaluate(simulated, given, rows="300:", candidates="all", draws=3, propensity_floor=0.02, seed=2)
    part = simulated.part("300:")
    frame = result.to_pandas()
    assert frame.index.names == ["policy", "replica", "estimator"]
    for (name, agent), found in zip(agents.items(), result.to_dict()["policies"], strict=False):
        alone = evaluate_agent(agent, features, part, ReplaySettings("all", 12, 0.02, 2), draws=3)
        assert found["replicas"] == alone["replicas"]
        assert frame.loc[(name, 1, "ips"), "high"] == alone["replicas"][1]["ips_high"]
        one = replay.evaluate(part, agent, features=features, candidates="all", draws=3, propensity_floor=0.02, seed=2)
        assert one.to_dict()["policies"][0]["replicas"] == alone["replicas"]


@pytest.mark.parametrize(
    ("learned", "rows", "count"),
    [
        ([[0, 500], [400, 700]], None, 700),
        ([[0, 500]], "400:600", 100),
        ([[0, 500]], "500:", 0),
        ([[0, 100], [600, 700]], "50:650", 100),
        ([], None, 0),
    ],
)
def test_rows_that_were_learned_from_are_counted(
    learned: list[list[int]], rows: str | None, count: int, simulated: Log
) -> None:
    parts = simulated.description["parts"]
    state = {"learned_rows": learned, "log": {"digest": digest(simulated.path), "parts": parts}}
    found, part = LearnedRows.from_state(state), simulated.part(rows)
    assert found is not None
    assert found.overlap(part) == count
    warning = found.warning(part, "agent")
    assert (warning is not None) == (count > 0)
    if warning:
        assert f"agent has learned from {count:,} of the {part.rows:,} rows" in warning
    other = found._replace(digest="another log")
    assert other.overlap(part) == 0


def test_without_learned_rows_all_that_were_replayed_count(simulated: Log) -> None:
    parts = simulated.description["parts"]
    state = {"places": [(0, 3, 2, [10, 0, 0]), (1, 0, 9, [507, 3, 4])], "log": {"digest": "x", "parts": parts}}
    found = LearnedRows.from_state(state)
    assert found is not None
    assert found.rows == ((0, 507),)
    assert LearnedRows.from_state({"places": []}) is None
