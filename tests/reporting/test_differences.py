"""Differences of learning runs: against plain loops over the events, and their coverage on simulated logs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pandas as pd
import pytest
import yaml

from nl_lightning import Greedy, LogisticUCB1, NeuralLogTS2
from nl_lightning.core.differences import ClickSums, click_difference
from nl_lightning.core.errors import InputError
from nl_lightning.environments.learner_value import sampled
from nl_lightning.reporting.comparison import compare_runs
from nl_lightning.reporting.contenders import Contender, seeds_luck
from nl_lightning.reporting.differences import compare, default_baseline, difference
from nl_lightning.reporting.discovery import StoredRun
from nl_lightning.rollout.data import BanditData
from nl_lightning.runs.directory import RunDirectory
from nl_lightning.runs.recorder import Recorder
from replay.learning import ReplayLog
from replay.logs.reader import Log
from replay.simulation.simulated_world import SimulatedWorld
from tests.support.fits import QUIET
from tests.support.replay_logs import SMALL, write_log

AGENTS: dict[str, Any] = {"linear": LogisticUCB1, "thompson": NeuralLogTS2, "greedy": Greedy}
ROWS = 900


@pytest.fixture(scope="module", autouse=True)
def few_sampled_events() -> Iterator[None]:
    """A third of the events is recorded whether clicked or not."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("environments.learner_value", "reporting.contenders"):
            patch.setattr(f"nl_lightning.{module}.SAMPLED_EVENTS", ROWS // 3)
        yield


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    world = SimulatedWorld(**SMALL, policy="softmax", temperature=2.0)
    return write_log(tmp_path_factory.mktemp("logs") / "log", world, ROWS, group=300)


RULES: dict[str, dict[str, Any]] = {
    "accepted": {"candidates": "affinity", "rejection": "biased-match"},
    "ips": {"candidates": "all", "rejection": "dr-ns", "quantile": 0.05, "reward_model": "none"},
    "modelled": {"candidates": "all", "rejection": "dr-ns", "quantile": 0.05},
    "resampled": {"candidates": "all", "rejection": "biased-match", "resample": 3},
}


def fit(kind: str, name: str, log: Log, where: Path, replicas: int = 3, **settings: Any) -> Contender:
    environment = ReplayLog(str(log.path), **{**RULES[kind], **settings})
    agent = AGENTS[name](environment.dim, replicas=replicas, update_every=20, nu=0.3)
    directory = where / name
    flags = {**QUIET, "enable_checkpointing": False}
    L.Trainer(**flags, callbacks=[Recorder(directory)]).fit(agent, BanditData(environment, 400))
    return stored(directory, name)


def stored(directory: Path, name: str) -> Contender:
    summary = json.loads((directory / "summary.json").read_text())
    return Contender(name, StoredRun(name, RunDirectory(directory), summary, {}), summary["over_replicas"][0])


@pytest.fixture(scope="module", params=["accepted", "ips", "modelled"])
def pair(request: pytest.FixtureRequest, log: Log, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any, Any]:
    where = tmp_path_factory.mktemp(request.param)
    return request.param, fit(request.param, "linear", log, where), fit(request.param, "thompson", log, where)


def event_weights(kind: str, run: Contender) -> tuple[dict[int, dict[int, float]], dict[int, list[float]], set[int]]:
    """By replica and row e of that replica alone; by row pi of every replica; the rows with a click."""
    each: dict[int, dict[int, float]] = {}
    chance: dict[int, list[float]] = {}
    clicked = set()
    if kind in ("accepted", "resampled"):
        rounds = pd.read_parquet(run.run.directory.rounds)
        for row in rounds.itertuples():
            own = each.setdefault(int(row.replica), {})
            own[int(row.event)] = own.get(int(row.event), 0.0) + 1 / (rounds["replica"] == row.replica).sum()
            chance.setdefault(int(row.event), []).append(1.0)
            clicked |= {int(row.event)} if row.reward else set()
    else:
        for row in pd.read_parquet(run.run.directory.events).itertuples():
            C = run.run.summary["replicas"][row.replica]["sums"]["C"]
            each.setdefault(int(row.replica), {})[int(row.row)] = row.weight / C
            chance.setdefault(int(row.row), []).append(row.pi)
            clicked |= {int(row.row)} if row.click else set()
    return each, chance, clicked


def twin(kind: str, first: Contender, second: Contender, z: float) -> tuple[float, float]:
    """Middle and half of the interval, by loops over the events."""
    sides, clicked = [], set()
    luck = excess = 0.0
    for run in (first, second):
        each, chance, met = event_weights(kind, run)
        replicas = run.run.summary["replicas"]
        accepted = [replica["accepted"] for replica in replicas]
        mean: dict[int, float] = {}
        for replica, own in each.items():
            # the CTR pools the accepted events of all seeds, the value is the mean of theirs
            share = accepted[replica] / sum(accepted) if kind in ("accepted", "resampled") else 1 / len(replicas)
            for row, e in own.items():
                mean[row] = mean.get(row, 0.0) + share * e
        sides.append((mean, {row: sum(pis) / len(replicas) for row, pis in chance.items()}))
        clicked |= met
        values = [sum(own.get(row, 0.0) for row in met) for own in each.values()]
        noise = 0.0
        for row in met:
            here = [own.get(row, 0.0) for own in each.values()]
            noise += sum((e - sum(here) / len(here)) ** 2 for e in here)
        n = len(values)
        luck += max(0.0, np.var(values, ddof=1) - noise / (n - 1)) / n
        if kind == "modelled":
            for sums in (replica["sums"] for replica in replicas):
                more, y = sums["pi_w2"] / sums["pi"], sums["A"] / sums["C"]
                value = sums["c2_V2"] - 2 * y * sums["c2_V"] + y * y * sums["c2"]
                excess = max(excess, (value + more) / (sums["clicks2"] + more))
    (e1, pi1), (e2, pi2) = sides
    middle = square = 0.0
    unmet = {1: [0.0, 0.0], -1: [0.0, 0.0]}
    for row in sorted(e1.keys() | e2.keys()):
        d = e1.get(row, 0.0) - e2.get(row, 0.0)
        if row in clicked:
            middle += d
            square += d * d
        if d and (kind in ("accepted", "resampled") or sampled(np.array([row]), ROWS)[0]):
            apart = abs(pi1.get(row, 0.0) - pi2.get(row, 0.0))
            unmet[1 if d > 0 else -1][0] += apart * d * d
            unmet[1 if d > 0 else -1][1] += apart
    b = sum(total / weight for total, weight in unmet.values())
    if kind == "modelled":
        middle = first.row["value"] - second.row["value"]
    return middle, z * (max(1.0, excess) * (square + luck + b)) ** 0.5


def test_differences_are_those_of_plain_loops(pair: tuple[str, Contender, Contender]) -> None:
    kind, first, second = pair
    found = difference(first, second, 0.95)
    middle, half = twin(kind, first, second, 1.959963984540054)
    assert found["value"] == pytest.approx(middle, rel=1e-9)
    assert (found["low"], found["high"]) == pytest.approx((middle - half, middle + half), rel=1e-9)
    name = "ctr" if kind == "accepted" else "value"
    assert found["value"] == pytest.approx(first.row[name] - second.row[name], rel=1e-9)
    turned = difference(second, first, 0.95)
    assert (turned["low"], turned["high"]) == pytest.approx((-found["high"], -found["low"]), rel=1e-9)


def test_a_log_that_was_drawn_several_times_has_the_evidence_of_one(tmp_path: Path) -> None:
    uniform = write_log(tmp_path / "log", SimulatedWorld(**SMALL), ROWS)
    first, second = (fit("resampled", name, uniform, tmp_path, replicas=2) for name in ("linear", "thompson"))
    found = difference(first, second, 0.95)
    middle, half = twin("resampled", first, second, 1.959963984540054)
    assert (found["value"], found["high"]) == pytest.approx((middle, middle + half), rel=1e-9)
    rounds = pd.read_parquet(first.run.directory.rounds)
    assert rounds.groupby(["replica", "event"]).size().max() > 1


def test_a_difference_is_narrower_than_two_intervals(pair: tuple[str, Contender, Contender]) -> None:
    """Of an agent and itself nothing is different, and the interval is not empty."""
    _, first, _ = pair
    found = difference(first, first, 0.95)
    assert found["value"] == 0
    assert found["low"] < 0 < found["high"]
    assert found["verdict"] == "cannot tell"


def test_more_comparisons_are_wider_and_the_baseline_is_greedy(log: Log, tmp_path: Path) -> None:
    runs = [fit("accepted", name, log, tmp_path, replicas=2) for name in AGENTS]
    two, three = compare(runs[:2], 0), compare(runs, 0)
    assert two.rows[0] is three.rows[0] is None
    one, other = two.rows[1], three.rows[1]
    assert one is not None
    assert other is not None
    assert (one["level"], other["level"]) == (0.95, 0.975)
    assert other["high"] - other["low"] > one["high"] - one["low"]
    assert "2 comparisons: each at 97.5%" in " ".join(three.notes)
    assert compare(runs[:1], 0).notes == []
    assert default_baseline(["NCBF-UCB", "NeuralLog-TS-2", "Greedy"]) == 2
    assert default_baseline(["NCBF-UCB", "NeuralLog-TS-2"]) == 0
    directories = [(run.run.directory, run.run.summary) for run in runs]
    for run in runs:
        run.run.directory.config.write_text(yaml.safe_dump({}))
    report = compare_runs(directories, tmp_path, baseline="NeuralLog-TS-2")
    by_agent = {row["agent"]: row for row in json.loads((tmp_path / "comparison.json").read_text())}
    assert by_agent["NeuralLog-TS-2"]["difference"] is None
    assert by_agent["Greedy"]["baseline"] == "NeuralLog-TS-2"
    assert by_agent["Greedy"]["difference"] == difference(runs[2], runs[1], 0.975)
    assert by_agent["Greedy"]["difference"]["verdict"] in ("better", "worse", "cannot tell")
    assert report.result == list(by_agent.values())
    # without a config the report says of the comparison what can be said
    assert (tmp_path / "comparison.png").stat().st_size > 10_000


def test_a_missing_file_is_named(log: Log, tmp_path: Path) -> None:
    first, second = (fit("ips", name, log, tmp_path, replicas=2) for name in ("linear", "greedy"))
    first.run.directory.events.unlink()
    with pytest.raises(
        InputError, match=r"events.parquet is missing, damaged or not that of a run .* linear cannot be"
    ):
        difference(first, second, 0.95)


def test_without_a_click_the_power_is_that_of_the_logs_clicks(log: Log, tmp_path: Path) -> None:
    first, second = (fit("accepted", name, log, tmp_path, replicas=2) for name in ("linear", "greedy"))
    for run in (first, second):
        path = run.run.directory.rounds
        pd.read_parquet(path).assign(reward=0.0).to_parquet(path)
        run.row = {**run.row, "ctr": 0.0}
    found = difference(first, second, 0.95)
    assert found["value"] == 0
    assert found["verdict"] == "cannot tell"
    assert found["effect"] == pytest.approx(0.1 * log.statistics.ctr)
    assert found["events_needed"] > ROWS


# ---- coverage --------------------------------------------------------------------------------------------------------


def learn(random: np.random.Generator, logs: int, rows: int, truth: Any, p: Any, seeds: int) -> dict[str, Any]:
    """Two simple learners on simulated logs by DR-ns with c the smallest propensity: their weights and true values.

    Both pick the action with the highest mean of the clicks they learned, one of them with a bonus; the seeds of an
    agent differ in what they believe before the first event.
    """
    items = len(truth)
    learned, clicked = np.zeros((2, 2, seeds, logs, items))
    before = random.gamma(1.0, 1.0, (2, seeds, logs, items))
    e, click, value = np.zeros((2, seeds, logs, rows)), np.zeros((logs, rows)), np.zeros((2, seeds, logs))
    for t in range(rows):
        action = random.choice(items, logs, p=p)
        click[:, t] = random.random(logs) < truth[action]
        for agent in range(2):
            n, s = learned[agent], clicked[agent]
            score = (s + before[agent] * truth.mean()) / (n + 1)
            if agent == 0:
                score = score + 0.5 * np.sqrt(truth.mean() * np.log(n.sum(-1, keepdims=True) + 2) / (n + 1))
            picked = score.argmax(-1)
            value[agent] += truth[picked] / rows
            match = picked == action
            e[agent, :, :, t] = match / p[action] / rows
            taken = match & (random.random((seeds, logs)) < p.min() / p[action])
            place = (*np.nonzero(taken), np.broadcast_to(action, taken.shape)[taken])
            n[place] += 1
            s[place] += np.broadcast_to(click[:, t], taken.shape)[taken]
    return {"e": e, "click": click, "value": value}


def covered(
    truth: list[float], p: list[float], logs: int = 120, rows: int = 1200, seeds: int = 5
) -> tuple[float, float]:
    """How often the interval has the difference of the values of these runs, and that of the agents' mean value."""
    rows, seeds = 1200, 5
    found = learn(np.random.default_rng(7), logs, rows, np.array(truth), np.array(p), seeds)
    e, click, value = found["e"], found["click"], found["value"]
    own = value.mean(1)[0] - value.mean(1)[1]
    hits = []
    for k in range(logs):
        d = e[0, :, k].mean(0) - e[1, :, k].mean(0)
        apart = np.abs((e[0, :, k] > 0).mean(0) * 1.0 - (e[1, :, k] > 0).mean(0))
        b = [(apart * d**2)[side].sum() / max(apart[side].sum(), 1e-300) for side in (d > 0, d < 0)]
        replica, row = np.repeat(np.arange(seeds), rows), np.tile(np.arange(rows), seeds)
        luck = sum(seeds_luck(replica, row, each.ravel(), click[k][row]) for each in e[:, :, k])
        variance = float((d**2 * click[k]).sum()) + luck
        sums = ClickSums(1, float((d * click[k]).sum()), variance, *map(float, b), 0.0)
        low, high = (click_difference(sums)[end] for end in ("low", "high"))
        hits.append((low <= own[k] <= high, low <= own.mean() <= high))
    return tuple(np.mean(hits, axis=0))  # type: ignore[return-value]


@pytest.mark.parametrize("p", [[0.2] * 5, [0.1, 0.4, 0.1, 0.3, 0.1]])
def test_differences_of_learners_cover(p: list[float]) -> None:
    """Of 120 logs at 95%, fewer than 0.90 are covered with a chance of about 1 in 100."""
    rare, _ = covered([0.004, 0.004, 0.008, 0.003, 0.004], p)
    assert rare >= 0.95
    these, expected = covered([0.05, 0.05, 0.08, 0.03, 0.05], p)
    assert these >= 0.93
    # that another log would teach the agents otherwise is not in the interval
    assert expected >= 0.9
