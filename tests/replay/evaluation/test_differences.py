"""Differences of policies: paired by event, against plain loops; the one rule for what is better."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm

import replay
from nl_lightning.core.errors import InputError
from replay.__main__ import main
from replay.evaluation import shown
from replay.evaluation.differences import DifferenceSums, compare_sums
from replay.evaluation.evaluator import Weighed
from replay.logs.reader import Log
from replay.protocol.obd_features import ObdFeatures
from replay.simulation.simulated_world import SimulatedWorld
from tests.support.policy_logs import ACTIONS, ROWS, Made, lean, make
from tests.support.replay_agents import trained
from tests.support.replay_logs import SMALL, write_log

Weights = list[tuple[float, float]]
"""w and pi of each event"""


def twin(first: Weights, second: Weights, click: list[float], level: float) -> tuple[float, float, float]:
    """The difference and its interval, event by event."""
    n, clicks, clicks2 = len(click), 0.0, 0.0
    mass, square = {True: 0.0, False: 0.0}, {True: 0.0, False: 0.0}
    for (w1, pi1), (w2, pi2), r in zip(first, second, click, strict=True):
        d = w1 - w2
        clicks, clicks2 = clicks + d * r, clicks2 + d * d * r
        if d:
            mass[d > 0] += abs(pi1 - pi2)
            square[d > 0] += abs(pi1 - pi2) * d * d
    unmet = 0.0
    for side, own in ((True, first), (False, second)):
        if mass[side]:
            unmet += square[side] / mass[side]
        else:
            unmet += sum(pi * w * w for w, pi in own) / sum(pi for _, pi in own)
    half = norm.ppf((1 + level) / 2) * (clicks2 + unmet) ** 0.5 / n
    return clicks / n, max(-1, clicks / n - half), min(1, clicks / n + half)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("logs") / "log")


def weights_of(name: str, made: Made) -> Weights:
    found = []
    for event in made.events:
        scores = np.exp(-event["age"] * np.arange(5))
        pi = {
            "logged": event["p"],
            "uniform": 0.2,
            "column:choice": float(ACTIONS.index(event["choice"]) == event["item"]),
            "lean": scores[event["item"]] / scores.sum(),
        }[name]
        found.append((pi / event["p"], pi))
    return found


GIVEN: dict[str, Any] = {"uniform": "uniform", "lean": lean, "logged": "logged", "column:choice": "column:choice"}


@pytest.mark.parametrize("baseline", [None, "uniform", "column:choice"])
@pytest.mark.parametrize("at_once", [None, 37])
def test_differences_are_those_of_plain_loops(
    baseline: str | None, at_once: int | None, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    if at_once:
        monkeypatch.setattr("replay.evaluation.contenders.EVENTS_AT_ONCE", at_once)
    result = replay.evaluate(made.log, GIVEN, baseline=baseline)
    assert result.baseline == (baseline or "logged")
    frame = result.differences
    assert list(frame.index) == [name for name in GIVEN if name != result.baseline]
    click = [float(event["click"]) for event in made.events]
    level = 1 - 0.05 / 3
    for name, row in frame.iterrows():
        expected = twin(weights_of(str(name), made), weights_of(result.baseline, made), click, level)
        assert tuple(row[["value", "low", "high"]]) == pytest.approx(expected, rel=1e-9)
        assert row["level"] == pytest.approx(level)
        assert row["verdict"] == ("better" if row["low"] > 0 else "worse" if row["high"] < 0 else "cannot tell")
    stored = json.loads(json.dumps(result.to_dict()))["differences"]
    assert stored["baseline"] == result.baseline
    assert [row["value"] for row in stored["rows"]] == frame["value"].tolist()
    assert "all hold together at 95% (Bonferroni)" in " ".join(str(result).split())
    assert f"Differences from {result.baseline}" in str(result)


def test_a_value_is_the_difference_of_the_values(made: Made) -> None:
    result = replay.evaluate(made.log, ["logged", "uniform"])
    values = result.to_pandas()["value"]
    expected = values["uniform", "ips"] - values["logged", "ips"]
    assert result.differences.loc["uniform", "value"] == pytest.approx(expected, rel=1e-12)
    assert result.differences.loc["uniform", "level"] == 0.95


def test_policies_that_never_differ_have_an_interval(made: Made) -> None:
    row = replay.evaluate(made.log, {"a": lean, "b": lean}).differences.loc["b"]
    assert row["value"] == 0
    assert row["low"] < 0 < row["high"]
    assert row["verdict"] == "cannot tell"


@pytest.mark.parametrize(
    ("policies", "baseline", "text"),
    [
        (["uniform"], "uniform", "needs another policy"),
        (["uniform", "logged"], "loged", "must be one of the policies, uniform, logged; got 'loged'. Did you mean"),
    ],
)
def test_an_impossible_baseline_is_refused(policies: list[str], baseline: str, text: str, made: Made) -> None:
    with pytest.raises(InputError, match=text):
        replay.evaluate(made.log, policies, baseline=baseline)


def test_one_policy_has_no_differences(made: Made) -> None:
    result = replay.evaluate(made.log, "uniform")
    assert result.differences.empty
    assert result.baseline is None
    assert "differences" not in result.to_dict()


def sums_of(weight: list[list[float]], base: list[float], click: list[float]) -> torch.Tensor:
    """pi = w / 10"""
    # many more events without a click, so that no interval reaches 1
    nothing = [0.0] * 500
    first = torch.tensor([[*each, *nothing] for each in weight]).double()
    metric, second, click = DifferenceSums(len(weight)), torch.tensor([[*base, *nothing]]).double(), [*click, *nothing]
    metric.update(Weighed(torch.tensor(click), first, first / 10), second, second / 10)
    return metric.compute()


def test_replicas_share_the_clicks() -> None:
    """Ten equal replicas are as sure as one, and not more: they saw the same clicks."""
    one, base, click = [5.0, 0.0, 2.0, 5.0, 0.0, 0.0], [0.0, 3.0, 2.0, 0.0, 1.0, 0.0], [1.0, 0.0, 1.0, 1.0, 1.0, 0.0]
    alone = compare_sums("base", [("x", sums_of([one], base, click))]).rows
    many = compare_sums("base", [("x", sums_of([one] * 10, base, click))]).rows
    assert len(many) == 11
    assert many[-1]["mean"]
    for name in ("value", "low", "high", "level", "events_needed"):
        assert many[-1][name] == pytest.approx(alone[0][name], rel=1e-12)
    # a replica is one of ten that are looked at
    assert many[0]["level"] == pytest.approx(0.995)
    assert many[0]["high"] > alone[0]["high"]


def test_more_comparisons_are_wider() -> None:
    sums = sums_of([[5.0, 0.0, 2.0]], [0.0, 3.0, 1.0], [1.0, 1.0, 0.0])
    widths = []
    for count in (1, 2, 5):
        row = compare_sums("base", [(str(i), sums) for i in range(count)]).rows[0]
        assert row["level"] == pytest.approx(1 - 0.05 / count)
        widths.append(row["high"] - row["low"])
    assert widths[0] < widths[1] < widths[2]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Log:
    world = SimulatedWorld(**SMALL, policy="softmax", temperature=2.0)
    return write_log(tmp_path_factory.mktemp("logs") / "log", world, 1300, group=500)


@pytest.mark.parametrize("candidates", ["all", "uniform"])
def test_agents_are_compared_whatever_their_batches(
    candidates: Any, simulated: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = ObdFeatures.fit(simulated)
    given = {
        "logged": "logged",
        "ucb": (trained("NeuralLog-UCB-2", simulated, replicas=2), features),
        "ts": (trained("NeuralLog-TS-1", simulated), features),
    }
    options: dict[str, Any] = {"candidates": candidates, "draws": 3, "baseline": "ucb"}
    usual = replay.evaluate(simulated, given, **options)
    assert set(usual.differences.index.get_level_values("policy")) == {"logged", "ts"}
    values = usual.to_pandas()["value"]
    mean = (values["ucb", 0, "ips"] + values["ucb", 1, "ips"]) / 2
    for name in ("logged", "ts"):
        found = usual.differences.xs(name, level="policy") if "replica" in usual.differences.index.names else None
        row = usual.differences.loc[name] if found is None else found.iloc[-1]
        assert row["value"] == pytest.approx(values[name, 0, "ips"] - mean, rel=1e-9)
    # batches of 41 events for two replicas, of 83 for one
    monkeypatch.setattr(shown, "SCORES_AT_ONCE", 1000)
    small = replay.evaluate(simulated, given, **options).differences
    np.testing.assert_allclose(small["value"], usual.differences["value"], rtol=1e-12)
    np.testing.assert_allclose(small["high"], usual.differences["high"], rtol=1e-12)


def test_the_true_differences_stand_beside_the_estimates(simulated: Log, made: Made) -> None:
    """Of a log whose world is known: of each replica, and of their mean; of another log there are none."""
    agent = (trained("NeuralLog-UCB-2", simulated, replicas=2), ObdFeatures.fit(simulated))
    result = replay.evaluate(simulated, {"logged": "logged", "uniform": "uniform", "ucb": agent}, candidates="all")
    exact = result.to_pandas()["value"].xs("exact", level="estimator")
    found = result.differences["exact"]
    logged = exact["logged", 0]
    assert found["uniform", 0] == pytest.approx(exact["uniform", 0] - logged, abs=1e-12)
    for replica in range(2):
        assert found["ucb", replica] == pytest.approx(exact["ucb", replica] - logged, abs=1e-12)
    assert found["ucb", "mean"] == pytest.approx(exact["ucb"].mean() - logged, abs=1e-12)
    assert "exact" in str(result).split("Differences")[1]
    assert "exact" not in replay.evaluate(made.log, ["logged", "uniform"]).differences.columns


def test_the_affinity_protocol_is_not_compared(simulated: Log) -> None:
    agent, features = trained("NeuralLog-UCB-2", simulated), ObdFeatures.fit(simulated)
    result = replay.evaluate(simulated, {"logged": "logged", "x": (agent, features)}, candidates="affinity")
    assert result.differences.empty
    assert any("x is not compared with logged: candidates: affinity" in note for note in result.notes)
    result = replay.evaluate(
        simulated, {"logged": "logged", "x": (agent, features)}, candidates="affinity", baseline="x"
    )
    assert any("Nothing is compared with x" in note for note in result.notes)


def test_the_command_prints_a_second_table(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "result.json"
    given = ["--policy=uniform", "--policy=logged", "--policy=best-fixed"]
    main(["evaluate", f"--log={made.log.path}", *given, f"--output={output}"])
    text = capsys.readouterr().out
    assert "Differences from logged (IPS, paired by event); 97.5% intervals" in text
    assert "uniform and best-fixed cannot be told apart from logged: with 80% power these events show" in text
    stored = json.loads(output.read_text())["differences"]
    assert [row["policy"] for row in stored["rows"]] == ["uniform", "best-fixed"]
    assert stored["rows"][0]["events_needed"] > ROWS
    main(["evaluate", f"--log={made.log.path}", *given, "--baseline=uniform"])
    assert "Differences from uniform" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["evaluate", f"--log={made.log.path}", *given, "--baseline=nosuch"])
    assert "must be one of the policies, uniform, logged, best-fixed; got 'nosuch'" in capsys.readouterr().err


def test_the_command_logs_to_wandb(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    main(["evaluate", f"--log={made.log.path}", "--policy=uniform", "--policy=logged", "--wandb"])
    (run,) = Path("wandb").glob("offline-run-*")
    assert f"upload it with: wandb sync {run}" in capsys.readouterr().out
    tables = {path.name.split("_")[0]: json.loads(path.read_text()) for path in run.glob("files/media/table/*.json")}
    expected = replay.evaluate(made.log, ["uniform", "logged"]).differences.loc["uniform"]
    row = dict(zip(tables["differences"]["columns"], tables["differences"]["data"][0], strict=True))
    assert (row["policy"], row["baseline"], row["verdict"]) == ("uniform", "logged", expected["verdict"])
    assert row["low"] == pytest.approx(expected["low"])
    assert len(tables["estimates"]["data"]) == 2
