"""Simulated logs against the world they come from, and the world against plain loops."""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from nl_lightning.core.errors import InputError
from replay.commands import simulate
from replay.logs import writer
from replay.logs.layout import ITEMS_FILE, LOG_FILE, ROW_GROUP
from replay.logs.obd import EVENTS, ITEMS, USER_FEATURES
from replay.simulation.simulated_world import CHUNK, ITEM_VALUES, USER_VALUES, SimulatedWorld, inverse_cdf

ARGUMENTS = ("--rows", 2 * ROW_GROUP + 1000, "--policy", "softmax", "--seed", 5)


def run(path: Path, *arguments: object) -> None:
    parser = argparse.ArgumentParser()
    simulate.add_arguments(parser)
    simulate.run(parser.parse_args([str(path), *map(str, arguments)]))


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def small(policy: str, **arguments: Any) -> SimulatedWorld:
    return SimulatedWorld(
        **{"items": 6, "users": 5, "positions": 2, "policy": policy, "ctr": 0.2, "seed": 3, **arguments}
    )


def test_probability_is_that_of_the_docstring() -> None:
    """The latent vectors are drawn again, then plain loops; c is left open, so the logits may differ by a constant."""
    world = small("uniform")
    # stream 2 of seed 3; the numbers of the streams are part of the format
    random = np.random.default_rng(np.random.SeedSequence(3, spawn_key=(2,)))
    users = [random.standard_normal((size, 8)) for size in USER_VALUES]
    number = random.standard_normal(8)
    items = [random.standard_normal((size, 8)) for size in ITEM_VALUES]
    positions = random.standard_normal((2, 8)) / 2
    h = np.empty((5, 2, 6))
    for u, p, i in np.ndindex(h.shape):
        z = sum(table[code] for table, code in zip(users, world.user_codes[u], strict=True)) / 2 + positions[p]
        b = sum(table[code] for table, code in zip(items, world.item_codes[i], strict=True)) / math.sqrt(3)
        b = (b + world.item_number[i] * number) / math.sqrt(2)
        linear, angle = (sum(z[j] * b[j] for j in half) / 2 for half in (range(4), range(4, 8)))
        h[u, p, i] = linear + math.cos(3 * angle)
    h = (h - h.mean()) / h.std()
    f = [h[u, p, i] + math.log(1 + world.affinity[u, i]) / 2 - math.log(p + 1) / 4 for u, p, i in np.ndindex(h.shape)]
    c = stats.logistic.ppf(world.probability).ravel() - f
    assert np.ptp(c) < 1e-10


@pytest.mark.parametrize("ctr", [0.0038, 0.05, 0.1, 0.8])
@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_click_rates(ctr: float, seed: int) -> None:
    world = SimulatedWorld(ctr=ctr, seed=seed, policy="softmax")
    rates = world.rates()
    assert world.value(np.full(world.probability.shape, 1 / 80)) == pytest.approx(ctr, abs=1e-9)
    assert rates["uniform"] == pytest.approx(ctr, abs=1e-9)
    assert rates["uniform"] < rates["logging"] < rates["best"]
    assert ctr > 0.1 or rates["best"] > 2.5 * ctr
    assert ((world.probability > 0) & (world.probability < 1)).all()
    assert 0.01 < (world.affinity > 0).mean() < 0.03


def test_value_is_a_sum_over_contexts_and_items() -> None:
    world = small("softmax")
    policy = np.random.default_rng(0).dirichlet(np.ones(6), size=(5, 2))
    total = sum(policy[cell] * world.probability[cell] for cell in np.ndindex(5, 2, 6))
    assert world.value(policy) == pytest.approx(total / (5 * 2), rel=1e-12)
    assert world.value(world.propensity) == world.rates()["logging"]
    best = np.eye(6)[world.probability.argmax(-1)]
    assert world.value(best) == pytest.approx(world.rates()["best"], rel=1e-12)
    for wrong in (policy[0], 2 * policy, -policy, policy * math.nan):
        with pytest.raises(InputError, match="policy"):
            world.value(wrong)


def test_policies_share_the_truth_and_the_visitors() -> None:
    uniform, softmax = small("uniform"), small("softmax")
    assert np.array_equal(uniform.probability, softmax.probability)
    assert uniform.item_table().equals(softmax.item_table())
    assert all(
        np.array_equal(a, b) for a, b in zip(uniform.draw_context(5, 9), softmax.draw_context(5, 9), strict=True)
    )
    assert not np.array_equal(small("uniform", seed=4).probability, uniform.probability)


def test_temperature() -> None:
    hot, cold = small("softmax", temperature=1e9), small("softmax", temperature=1e-300)
    np.testing.assert_allclose(hot.propensity, 1 / 6, rtol=1e-6)
    assert (cold.propensity.max(-1) == 1).all()
    assert set(cold.draw(0, 1000)["propensity_score"].to_pylist()) == {1.0}


def test_inverse_cdf_is_the_search_in_each_row() -> None:
    random = np.random.default_rng(0)
    for items in (2, 7, 8, 9):
        weight = random.random((4, items)) * (random.random((4, items)) < 0.7) + 1e-300
        cdf = weight.cumsum(-1) / weight.sum(-1, keepdims=True)
        cdf[:, -1] = 1
        row, uniform = random.integers(4, size=500), random.random(500)
        uniform[:4], uniform[4:8], uniform[8:12] = 0, 1 - 2**-53, cdf[row[8:12], 0] % 1
        expected = [np.searchsorted(cdf[r], u, side="right") for r, u in zip(row, uniform, strict=True)]
        assert inverse_cdf(cdf, row, uniform).tolist() == expected


WRONG: list[tuple[str, list[Any]]] = [
    ("items", [1, 2.5]),
    ("users", [0, 10_000_000]),
    ("positions", [0, 128]),
    ("ctr", [0.0, 0.9, math.nan]),
    ("temperature", [0.0, math.inf, math.nan]),
    ("policy", ["greedy"]),
    ("seed", [-1]),
]


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG for value in values])
def test_bad_arguments(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"^{name} .*must"):
        SimulatedWorld(**{name: value})


@pytest.mark.parametrize("policy", ["uniform", "softmax"])
def test_frequencies_are_the_worlds(policy: str) -> None:
    """Contexts, shown items and clicks of 300,000 events: three chi-square tests at the level 1e-4."""
    world = small(policy)
    events = world.draw(1000, 300_000)
    user, position = world.draw_context(1000, 300_000)
    cell = (user, position, events["item_id"].to_numpy())
    shown, clicks = np.zeros((5, 2, 6)), np.zeros((5, 2, 6))
    np.add.at(shown, cell, 1)
    np.add.at(clicks, cell, events["click"].to_numpy())
    visits = shown.sum(-1, keepdims=True)
    expected, p = visits * world.propensity, world.probability
    assert stats.chisquare(visits.ravel()).pvalue > 1e-4
    assert stats.chi2.sf(((shown - expected) ** 2 / expected).sum(), 5 * 2 * (6 - 1)) > 1e-4
    assert stats.chi2.sf(((clicks - shown * p) ** 2 / (shown * p * (1 - p))).sum(), 5 * 2 * 6) > 1e-4


@pytest.mark.parametrize("policy", ["uniform", "softmax"])
def test_events_record_what_the_world_holds(policy: str) -> None:
    world = SimulatedWorld(policy=policy, positions=127, seed=2)
    start = CHUNK - 300
    events = world.draw(start, 600)
    users, positions = world.draw_context(start, 600)
    events.validate(full=True)
    assert events.schema.equals(EVENTS)
    assert world.item_table().schema.equals(ITEMS)
    for t, (row, u, p) in enumerate(zip(events.to_pylist(), users, positions, strict=True)):
        liked = {i: a for i, a in enumerate(world.affinity[u].tolist()) if a}
        assert dict(zip(row["affinity_item"], row["affinity"], strict=True)) == liked
        assert row["affinity_item"] == sorted(liked)
        assert row["position"] == p + 1
        assert row["propensity_score"] == world.propensity[u, p, row["item_id"]]
        assert [row[name] for name in USER_FEATURES] == [f"user{k}-{v}" for k, v in enumerate(world.user_codes[u])]
        assert row["timestamp"].timestamp() == 1_574_553_600 + (start + t) / 2


def test_events_are_a_function_of_their_index() -> None:
    world, again = SimulatedWorld(policy="softmax"), SimulatedWorld(policy="softmax")
    whole = world.draw(0, 2 * CHUNK + 500)
    for start, count in ((0, 1), (7, 0), (0, CHUNK), (CHUNK, CHUNK), (CHUNK - 3, CHUNK + 6), (2 * CHUNK, 500)):
        assert again.draw(start, count).equals(whole.slice(start, count))
    for part, all_ in zip(again.draw_context(CHUNK - 3, 10), world.draw_context(0, CHUNK + 7), strict=True):
        assert np.array_equal(part, all_[-10:])
    assert not world.draw(0, 500).select(["item_id"]).equals(world.draw(CHUNK, 500).select(["item_id"]))


def test_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(writer, "PART_ROWS", ROW_GROUP)
    run(tmp_path / "log", *ARGUMENTS)
    world = SimulatedWorld(policy="softmax", seed=5)
    parts = [pq.read_table(file) for file in sorted((tmp_path / "log").glob("events-*"))]
    assert [part.num_rows for part in parts] == [ROW_GROUP, ROW_GROUP, 1000]
    assert all(part.schema.equals(EVENTS) for part in parts)
    plain = pa.schema([field.with_type(pa.string()) if field.name in USER_FEATURES else field for field in EVENTS])
    assert pa.concat_tables(parts).cast(plain).equals(world.draw(0, 2 * ROW_GROUP + 1000).cast(plain))
    assert pq.read_table(tmp_path / "log" / ITEMS_FILE).equals(world.item_table())
    log = json.loads((tmp_path / "log" / LOG_FILE).read_text())
    assert (log["campaign"], log["policy"], log["items"]) == ("simulated", "softmax", 80)
    again = SimulatedWorld.from_description(log)
    assert again.description() == log["world"] == world.description()
    assert again.draw(9, 9).equals(world.draw(9, 9))
    text = capsys.readouterr().out
    clicks = sum(part["click"].to_numpy().sum(dtype=int) for part in parts)
    assert f"{2 * ROW_GROUP + 1000:,} rows, {clicks:,} clicks" in text
    assert all(f"{rate:.6f}" in text for rate in world.rates().values())


@pytest.mark.parametrize("parts", [0, 1, 2])
def test_stopped_and_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: int) -> None:
    """Only whole files are left, and in the end the files of a simulation in one go."""
    monkeypatch.setattr(writer, "PART_ROWS", ROW_GROUP)
    run(tmp_path / "whole", *ARGUMENTS)
    whole, draw = contents(tmp_path / "whole"), SimulatedWorld.draw
    with monkeypatch.context() as patch:

        def stopping(world: SimulatedWorld, start: int, count: int) -> pa.Table:
            if start == parts * ROW_GROUP:
                raise KeyboardInterrupt
            return draw(world, start, count)

        patch.setattr(SimulatedWorld, "draw", stopping)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "log", *ARGUMENTS)
    if parts:
        files = {ITEMS_FILE, *(f"events-{part:05d}.parquet" for part in range(parts))}
        assert set(contents(tmp_path / "log")) == files
    else:
        assert not (tmp_path / "log").exists()
    run(tmp_path / "log", *ARGUMENTS)
    assert contents(tmp_path / "log") == whole
    # stopped behind the last part
    (tmp_path / "log" / LOG_FILE).unlink()
    with pytest.raises(InputError, match="another source"):
        run(tmp_path / "log", *ARGUMENTS, "--ctr", 0.1)
    run(tmp_path / "log", *ARGUMENTS)
    assert contents(tmp_path / "log") == whole


def test_finished_log_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, "--rows", 100)
    before = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in tmp_path.iterdir()}
    capsys.readouterr()
    run(tmp_path, "--rows", 100)
    assert "nothing to do" in capsys.readouterr().out
    for other in (("--rows", 101), ("--rows", 100, "--seed", 1)):
        with pytest.raises(InputError, match="already holds a log"):
            run(tmp_path, *other)
    assert before == {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in tmp_path.iterdir()}


@pytest.mark.parametrize("wrong", [("--rows", 0), ("--rows", 9, "--items", 1), ("--rows", 9, "--ctr", 2)])
def test_bad_input_writes_nothing(tmp_path: Path, wrong: tuple[object, ...]) -> None:
    with pytest.raises(InputError, match="must"):
        run(tmp_path / "log", *wrong)
    assert not list(tmp_path.iterdir())


def test_description_of_another_world() -> None:
    description = SimulatedWorld(seed=1).description()
    with pytest.raises(InputError, match="Only simulated logs"):
        SimulatedWorld.from_description({"campaign": "all", "policy": "random"})
    with pytest.raises(InputError, match="another version"):
        SimulatedWorld.from_description(
            {"world": {**description, "ctr": {"logging": 0.05, "uniform": 0.05, "best": 0.06}}}
        )
