"""The synthetic problems against their formulas."""

import math
from collections.abc import Sequence

import pytest
import torch
from scipy import stats

from nl_lightning.core.errors import InputError
from nl_lightning.core.link import mu, slope
from nl_lightning.core.rng import Stream, generator
from nl_lightning.environments import ChunkedSimulation, Deal, Simulation, Synthetic
from nl_lightning.environments.synthetic import FUNCTIONS, different


def value(function: str, x: list[float], th: list[float], Th: list[list[float]]) -> float:
    """h(x) with plain loops."""
    d = range(len(x))
    dot = sum(x[i] * th[i] for i in d)
    form = sum(x[i] * Th[i][j] * x[j] for i in d for j in d)
    square = sum(sum(Th[i][j] * x[j] for j in d) ** 2 for i in d)
    return {
        "h1": 0.2 * dot**4,
        "h2": 20 * math.cos(dot),
        "h3": 5 * form,
        "h4": 10 * dot**2,
        "h5": square,
        "h6": math.cos(3 * dot),
    }[function]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions(function: str) -> None:
    g = torch.Generator().manual_seed(1)
    x, th, Th = (2 * torch.rand(shape, generator=g, dtype=torch.float64) - 1 for shape in ((7, 3), (3,), (3, 3)))
    expected = [value(function, row, th.tolist(), Th.tolist()) for row in x.tolist()]
    assert FUNCTIONS[function](x, th, Th).tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_deal_follows_the_problem(function: str) -> None:
    """Regret is max mu(h) - mu(h), and clicks come with probability mu(h): 40,000 of them."""
    environment = Synthetic(function, dim=3, arms=4, pool=9)
    environment.prepare([3, 8], torch.empty(0, dtype=torch.float64))
    deal = environment.deal(0, 5000)
    g = generator(8, Stream.PROBLEM)
    th, Th = (2 * torch.rand(shape, generator=g, dtype=torch.float64) - 1 for shape in ((3,), (3, 3)))
    probability = mu(FUNCTIONS[function](deal.arms[1], th, Th))
    torch.testing.assert_close(deal.regret[1], probability.amax(-1, keepdim=True) - probability)
    spread = (probability * (1 - probability)).sum().sqrt()
    # The four clicks of a round share one uniform number, hence the factor 2 in the standard deviation.
    assert abs(deal.reward[1].sum() - probability.sum()) < 4 * 2 * spread + 1e-9
    assert set(deal.reward.unique().tolist()) <= {0.0, 1.0}
    assert deal.arms.abs().max() <= 1
    assert len(deal.arms[0].flatten(0, 1).unique(dim=0)) == 9


def test_vectors_of_one_length() -> None:
    """The same directions, another length; clicks and regrets follow."""
    plain, short = Synthetic("h5", dim=3, arms=2, pool=9), Synthetic("h5", dim=3, arms=2, pool=9, norm=0.5)
    for environment in (plain, short):
        environment.prepare([3], torch.empty(0, dtype=torch.float64))
    drawn, deal = plain.deal(0, 50), short.deal(0, 50)
    for x, y in zip(drawn.arms.reshape(-1, 3).tolist(), deal.arms.reshape(-1, 3).tolist(), strict=True):
        length = math.sqrt(sum(number**2 for number in x))
        assert y == pytest.approx([0.5 * number / length for number in x], rel=1e-12)
    latent = short.latent(0, 50)
    assert latent is not None
    probability = mu(latent)
    torch.testing.assert_close(deal.regret, probability.amax(-1, keepdim=True) - probability)
    for norm in (0.0, -1.0, math.inf, "long"):
        with pytest.raises(InputError, match="norm must be a number > 0"):
            Synthetic("h5", norm=norm)  # type: ignore[arg-type]


def test_deals_are_a_function_of_the_round() -> None:
    environment, again = Synthetic(pool=40), Synthetic(pool=40)
    like = torch.empty(0)
    environment.prepare([0, 1], like)
    again.prepare([1], like)
    whole = environment.deal(0, 700)
    for start, count in ((0, 50), (250, 20), (600, 100), (0, 1)):
        part = environment.deal(start, count)
        alone = again.deal(start, count)
        for a, b, c in zip(whole[:3], part[:3], alone[:3], strict=True):
            assert torch.equal(a[:, start : start + count], b)
            assert torch.equal(b[1:], c)


def test_arms_of_a_round_are_different_and_every_set_equally_likely() -> None:
    g = torch.Generator().manual_seed(0)
    drawn = different(torch.rand(40_000, 3, generator=g, dtype=torch.float64), pool=5)
    assert (drawn.sort(dim=1).values.diff(dim=1) > 0).all()
    codes = drawn[:, 0] * 25 + drawn[:, 1] * 5 + drawn[:, 2]
    counts = codes.unique(return_counts=True)[1]
    assert len(counts) == 60
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3
    everything = different(torch.rand(100, 5, generator=g, dtype=torch.float64), pool=5)
    assert (everything.sort(dim=1).values == torch.arange(5)).all()


def test_seeds_of_problem_and_noise() -> None:
    like = torch.empty(0)

    def arms(seeds: list[int], **settings: object) -> torch.Tensor:
        environment = Synthetic(pool=20, **settings)  # type: ignore[arg-type]
        environment.prepare(seeds, like)
        return environment.deal(0, 30).arms

    same = arms([1, 2], seed=5, noise_seed=6)
    assert torch.equal(same[0], same[1])
    other_noise = arms([1, 2], seed=5)
    pool = [set(map(tuple, replica.flatten(0, 1).tolist())) for replica in other_noise]
    assert not torch.equal(other_noise[0], other_noise[1])
    assert pool[0] == pool[1]
    assert torch.equal(arms([1, 2])[1], arms([9], seed=[2], noise_seed=[2])[0])


def test_slope_keeps_its_digits() -> None:
    f = torch.tensor([0.0, 40.0, -40.0, 300.0], dtype=torch.float64)
    expected = [0.25, math.exp(-40), math.exp(-40), math.exp(-300)]
    assert slope(f).tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"reward": torch.full((1, 256, 4), 0.5)}, "rewards must be 0 or 1"),
        ({"reward": torch.full((1, 256, 4), math.nan)}, "rewards must be 0 or 1"),
        ({"reward": torch.zeros(1, 256)}, "reward must have the shape"),
        ({"arms": torch.zeros(1, 256, 4, 2)}, "arms must have the shape"),
        ({"arms": torch.full((1, 256, 4, 3), math.inf)}, "arms must be finite"),
        ({"regret": torch.full((1, 256, 4), math.nan)}, "regrets must be finite"),
    ],
)
def test_what_an_environment_deals_is_checked(change: dict[str, torch.Tensor], text: str) -> None:
    class Odd(ChunkedSimulation):
        dim = 3

        def reset(self, seeds: Sequence[int]) -> None:
            pass

        def deal_chunk(self, chunk: int) -> Deal:
            return Deal(torch.zeros(1, 256, 4, 3), torch.zeros(1, 256, 4), torch.zeros(1, 256, 4))._replace(**change)

    environment = Odd()
    environment.prepare([0], torch.empty(0))
    with pytest.raises(InputError, match=text):
        environment.deal(0, 5)


def test_an_environment_without_dim_says_so() -> None:
    class Nameless(Simulation):
        def deal(self, start: int, count: int) -> Deal:
            raise NotImplementedError

    with pytest.raises(InputError, match="Nameless has no dim. Set it to the number of features"):
        _ = Nameless().dim
    made = Nameless()
    made.dim = 3
    assert made.dim == 3
