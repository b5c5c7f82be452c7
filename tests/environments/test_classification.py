"""Classification data sets as bandits, against plain loops in float64."""

import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from nl_lightning import NeuralLogUCB2
from nl_lightning.core.errors import InputError
from nl_lightning.core.replicas import Share
from nl_lightning.core.rng import Stream, generator
from nl_lightning.environments import Classification, Environment, Synthetic
from nl_lightning.environments.classification import averaged, category_values, order, scaled
from nl_lightning.environments.datasets import DATASETS, load
from nl_lightning.rollout.data import BanditData
from tests.support.fits import QUIET
from tests.support.shared_data import shared_file

DOUBLE = torch.empty(0, dtype=torch.float64)


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """A banknote of 100 rows, 60 of class 0, in the cache; its entropy is constant."""
    g = np.random.default_rng(3)
    frame = pd.DataFrame(g.normal(size=(100, 3)), columns=["variance", "skewness", "curtosis"])
    frame = frame.assign(entropy=2.5, **{"class": g.permutation([0] * 60 + [1] * 40)})
    return stored(frame, "banknote", (60, 40), tmp_path, monkeypatch)


@pytest.fixture
def mushrooms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """A mushroom of 90 rows, 50 poisonous."""
    g = np.random.default_rng(4)
    names = DATASETS["mushroom"].features[0]
    columns = {name: g.choice(list("zyxa?")[: 1 + place % 5], 90) for place, name in enumerate(names)}
    frame = pd.DataFrame({**columns, "class": g.permutation(["p"] * 50 + ["e"] * 40)})
    return stored(frame, "mushroom", (50, 40), tmp_path, monkeypatch)


def stored(frame: pd.DataFrame, name: Any, counts: Any, where: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    monkeypatch.setitem(DATASETS, name, DATASETS[name]._replace(counts=counts))
    monkeypatch.setenv("NL_LIGHTNING_DATA", str(where))
    frame.to_parquet(where / f"{name}.parquet")
    return frame


def prepared(dataset: Any, seeds: list[int], like: torch.Tensor = DOUBLE, **settings: Any) -> Classification:
    environment = Classification(dataset, **settings)
    environment.prepare(seeds, like)
    return environment


def slow_scaled(columns: list[list[float]]) -> list[list[float]]:
    """Each column to [-1, 1], or to 0."""
    result = []
    for column in columns:
        low, high = min(column), max(column)
        result.append([2 * (v - low) / (high - low) - 1 if high > low else 0.0 for v in column])
    return result


def slow_order(seed: int, rows: int, rounds: int) -> list[int]:
    """The row of each round: permutation after permutation."""
    shown: list[int] = []
    while len(shown) < rounds:
        g = generator(seed, Stream.ROUNDS, len(shown) // rows)
        shown += torch.randperm(rows, generator=g).tolist()
    return shown[:rounds]


def slow_arms(x: list[float], classes: int, dense: bool) -> list[list[float]]:
    d = len(x)
    if not dense:
        return [[*x, float(k)] for k in range(classes)]
    return [[0.0] * (k * d) + x + [0.0] * ((classes - 1 - k) * d) for k in range(classes)]


def test_scaling() -> None:
    random.seed(1)
    columns = [[random.gauss(5, 100) for _ in range(40)], [7.25] * 40, [float(k % 3) for k in range(40)], [-0.0] * 40]
    found = scaled(torch.tensor(columns, dtype=torch.float64).T)
    for column, expected in zip(found.T.tolist(), slow_scaled(columns), strict=True):
        assert column == pytest.approx(expected, abs=1e-14)
    assert found.T[0].aminmax() == (-1, 1)
    assert not found.T[[1, 3]].any()
    # by vector: the rows instead of the columns
    by_row = scaled(torch.tensor(columns, dtype=torch.float64), dim=1)
    for row, expected in zip(by_row.tolist(), slow_scaled(columns), strict=True):
        assert row == pytest.approx(expected, abs=1e-14)


def test_every_row_is_scaled_by_its_own_numbers(notes: pd.DataFrame) -> None:
    by_column, by_vector = (prepared("banknote", [0], scaling=scaling) for scaling in ("column", "vector"))
    first, other = (environment.deal(0, 30).arms[0, :, 0, :-1] for environment in (by_column, by_vector))
    assert not torch.equal(first, other)
    assert (other.amin(-1) == -1).all()
    assert (other.amax(-1) == 1).all()
    with pytest.raises(InputError, match="scaling must be column or vector, got 'row'"):
        Classification("banknote", scaling="row")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="mushroom has categories, which are not scaled"):
        Classification("mushroom", scaling="vector")


def test_averaging() -> None:
    g = torch.Generator().manual_seed(2)
    pixels = torch.randint(0, 256, (6, 784), generator=g, dtype=torch.uint8)
    expected = []
    for image in pixels.tolist():
        # the square in row i and column j has the pixels of rows 2i, 2i + 1 and columns 2j, 2j + 1
        expected.append(
            [
                sum(image[28 * row + column] for row in (2 * i, 2 * i + 1) for column in (2 * j, 2 * j + 1)) / 4
                for i in range(14)
                for j in range(14)
            ]
        )
    found = averaged(pixels)
    assert found.dtype == torch.float64
    assert found.tolist() == expected


@pytest.mark.parametrize("dense", [False, True])
def test_rounds_of_numbers(dense: bool, notes: pd.DataFrame) -> None:
    """700 rounds of 100 rows: chunks of 256 reach over several orders of the rows."""
    environment = prepared("banknote", [5, 11], dense=dense)
    deal = environment.deal(0, 700)
    columns = slow_scaled([notes[name].tolist() for name in ("variance", "skewness", "curtosis", "entropy")])
    for replica, seed in enumerate([5, 11]):
        for t, row in enumerate(slow_order(seed, 100, 700)):
            x, label = [column[row] for column in columns], notes["class"][row]
            for arm, expected in zip(deal.arms[replica, t].tolist(), slow_arms(x, 2, dense), strict=True):
                assert arm == pytest.approx(expected, abs=1e-14)
            assert deal.reward[replica, t].tolist() == [float(label == k) for k in range(2)]
            assert deal.regret[replica, t].tolist() == [float(label != k) for k in range(2)]
    assert (environment.dim, environment.blocks) == ((8, 1) if dense else (5, 2))
    assert environment.latent(0, 3) is None


@pytest.mark.parametrize("dense", [False, True])
def test_rounds_of_categories(dense: bool, mushrooms: pd.DataFrame) -> None:
    environment = prepared("mushroom", [8, 2], seed=[21, 22], dense=dense)
    deal = environment.deal(0, 300)
    names = DATASETS["mushroom"].features[0]
    for replica, (seed, noise_seed) in enumerate([(21, 8), (22, 2)]):
        g = generator(seed, Stream.PROBLEM)
        count = sum(len(set(mushrooms[name])) for name in names)
        drawn = iter(torch.rand(count, generator=g, dtype=torch.float64).tolist())
        values = {(name, letter): 2 * next(drawn) - 1 for name in names for letter in sorted(set(mushrooms[name]))}
        for t, row in enumerate(slow_order(noise_seed, 90, 300)):
            x = [values[name, mushrooms[name][row]] for name in names]
            assert deal.arms[replica, t].tolist() == slow_arms(x, 2, dense)
            # edible is 1
            right = "pe".index(mushrooms["class"][row])
            assert deal.reward[replica, t].tolist() == [float(right == k) for k in range(2)]


def test_values_of_categories_are_uniform_and_differ_between_seeds() -> None:
    values = torch.stack([category_values(seed, 100) for seed in range(40)])
    assert stats.kstest(values.flatten().numpy(), stats.uniform(-1, 2).cdf).pvalue > 1e-3
    correlation = np.corrcoef(values.numpy())[np.triu_indices(40, 1)]
    assert abs(correlation).max() < 5 / math.sqrt(100)


def test_every_order_is_equally_likely() -> None:
    drawn = Counter(tuple(order(seed, 4, 4 * epoch, 4).tolist()) for seed in range(60) for epoch in range(40))
    assert len(drawn) == 24
    assert stats.chisquare(list(drawn.values())).pvalue > 1e-3


def test_every_row_comes_once_before_one_comes_again() -> None:
    shown = order(3, 10, 0, 45)
    assert [sorted(part.tolist()) for part in shown.split(10)[:4]] == [list(range(10))] * 4
    # whatever part of the rounds is asked for
    for start in range(45):
        for stop in range(start + 1, 46):
            assert torch.equal(order(3, 10, start, stop - start), shown[start:stop])


@pytest.mark.parametrize("dataset", ["banknote", "mushroom"])
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.usefixtures("notes", "mushrooms")
def test_deals_are_a_function_of_the_round(dataset: str, dense: bool) -> None:
    """Whatever was asked before, whatever runs beside, and from an environment that begins anew."""
    like = torch.empty(0)
    environment = prepared(dataset, [0, 1], like, dense=dense)
    whole = environment.deal(0, 700)
    again = prepared(dataset, [1], like, dense=dense)
    for start, count in ((0, 50), (250, 20), (600, 100), (255, 2), (0, 1)):
        part, alone = environment.deal(start, count), again.deal(start, count)
        fresh = prepared(dataset, [7, 0, 1], like, dense=dense).deal(start, count)
        for a, b, c, d in zip(whole[:3], part[:3], alone[:3], fresh[:3], strict=True):
            assert torch.equal(a[:, start : start + count], b)
            assert torch.equal(b[1:], c)
            assert torch.equal(b, d[1:])


@pytest.mark.usefixtures("notes", "mushrooms")
def test_seeds_of_problem_and_order() -> None:
    def arms(dataset: str, seeds: list[int], share: Share | None = None, **settings: Any) -> torch.Tensor:
        environment = Classification(dataset, **settings)  # type: ignore[arg-type]
        environment.prepare(seeds, DOUBLE, share)
        return environment.deal(0, 90).arms

    same = arms("mushroom", [1, 2], seed=5, noise_seed=6)
    assert torch.equal(same[0], same[1])
    other_order = arms("mushroom", [1, 2], seed=5)
    assert not torch.equal(other_order[0], other_order[1])
    assert torch.equal(*(replica[:, 0].unique(dim=0) for replica in other_order))
    other_problem = arms("mushroom", [1, 2], noise_seed=5)
    assert (other_problem[0] != other_problem[1])[..., :-1].all()
    assert torch.equal(arms("mushroom", [1, 2])[1], arms("mushroom", [9], seed=[2], noise_seed=[2])[0])
    # The problem of numbers is the data set, whatever its seed.
    assert torch.equal(arms("banknote", [1], seed=3), arms("banknote", [1]))
    # A process that has replica 2 of three takes the third of a list.
    part = arms("mushroom", [4], Share([2], 1, 3), seed=[6, 7, 8])
    assert torch.equal(part, arms("mushroom", [4], seed=8))
    with pytest.raises(InputError, match="The environment's noise_seed has 2 entries for 1 replicas"):
        arms("banknote", [1], noise_seed=[1, 2])


@pytest.mark.usefixtures("notes", "mushrooms")
def test_features_are_stored_once_and_in_the_precision_of_the_run() -> None:
    """Neither a row for every class nor a copy for every replica."""
    for dataset, numbers in (("banknote", 100 * 4), ("mushroom", 90 * 22)):
        for like in (torch.empty(0), DOUBLE, torch.empty(0, dtype=torch.bfloat16)):
            environment = prepared(dataset, list(range(6)), like)
            dealt = environment.deal_chunk(0)
            assert dealt.arms.dtype == like.dtype
            exact = prepared(dataset, list(range(6))).deal(0, 256)
            assert torch.equal(dealt.arms, exact.arms.to(like.dtype))
            assert torch.equal(dealt.reward, exact.reward)
            held = [value for value in vars(environment).values() if isinstance(value, torch.Tensor)]
            assert sum(value.numel() for value in held if len(value) != 6) == numbers


@pytest.mark.parametrize(
    ("dataset", "d", "classes"),
    [
        ("mnist", 196, 10),
        ("mushroom", 22, 2),
        ("shuttle", 9, 7),
        ("magic", 10, 2),
        ("banknote", 4, 2),
        ("phoneme", 5, 2),
    ],
)
def test_real_data(dataset: Any, d: int, classes: int) -> None:
    path = shared_file(dataset)
    environment, dense = Classification(dataset, str(path)), Classification(dataset, str(path), dense=True)
    assert (environment.dim, environment.blocks, environment.arms) == (d + 1, classes, classes)
    assert (dense.dim, dense.blocks, dense.arms) == (d * classes, 1, classes)
    for one in (environment, dense):
        one.prepare([3, 4], torch.empty(0))
    deal, same = environment.deal(0, 300), dense.deal(0, 300)
    assert deal.arms.shape == (2, 300, classes, d + 1)
    x, block = deal.arms[..., :-1], deal.arms[..., -1]
    assert (block == torch.arange(classes)).all()
    assert (x == x[:, :, :1]).all()
    assert x.min() >= -1
    assert x.max() <= 1
    assert (deal.reward.sum(-1) == 1).all()
    assert torch.equal(deal.regret, 1 - deal.reward)
    # [0, ..., x, ..., 0]
    for k in range(classes):
        expected = torch.zeros_like(same.arms[:, :, k])
        expected[..., k * d : (k + 1) * d] = x[:, :, k]
        assert torch.equal(same.arms[:, :, k], expected)
    # The data set itself, of some rounds: columns scaled by pandas and NumPy.
    table = load(dataset, str(path))
    rows = slow_order(3, len(table.label), 300)
    assert deal.reward[0].argmax(-1).tolist() == [table.label[row] for row in rows]
    if dataset == "mushroom":
        return
    values = table.x.numpy()
    if dataset == "mnist":
        values = values.reshape(-1, 14, 2, 14, 2).sum((2, 4), dtype=np.float64).reshape(-1, 196) / 4
    low, high = values.min(0), values.max(0)
    with np.errstate(invalid="ignore"):
        expected = torch.from_numpy(np.nan_to_num(2 * (values[rows] - low) / (high - low) - 1))
    torch.testing.assert_close(x[0, :, 0].double(), expected, atol=1e-6, rtol=0)


def test_an_agent_learns_on_dense_arms(notes: pd.DataFrame, tmp_path: Path) -> None:
    """An agent that knows of no blocks. A feature tells the class, which 300 rounds suffice to see."""
    smallest = notes["variance"].rank() <= 60
    notes.assign(**{"class": (~smallest).astype(int)}).to_parquet(tmp_path / "banknote.parquet")
    environment = Classification("banknote", dense=True)
    agent = NeuralLogUCB2(dim=environment.dim, width=8, nu=0.01, replicas=3, steps=50)
    L.Trainer(**QUIET, enable_checkpointing=False).fit(agent, BanditData(environment, rounds=400))
    x, reward, _ = agent.buffer.rows()
    assert x.shape == (3, 400, 8)
    assert reward[:, :50].mean() < 0.8
    assert reward[:, -100:].mean() > 0.9


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"dataset": "iris"}, "dataset must be one of mnist, .*, phoneme; got 'iris'"),
        ({"dataset": "magic", "seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"dataset": "magic", "noise_seed": [1, 0.5]}, "noise_seed must be a whole number of at least 0, got 0.5"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        Classification(**settings)


def test_other_environments_have_no_blocks() -> None:
    assert Environment.blocks == Synthetic().blocks == 1
