"""Simulated martingales and three tail bounds against plain loops and dense linear algebra."""

import csv
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nl_lightning.cli.tailbound import main
from nl_lightning.core.errors import InputError
from nl_lightning.core.rng import Stream, generator
from nl_lightning.diagnostics import tailbound
from nl_lightning.diagnostics.martingales import (
    DESIGNS,
    MartingalePaths,
    MartingaleSetting,
    bounds,
    faury,
    paper,
    simulate,
    verma,
)


def setting(design: str, **changes: Any) -> MartingaleSetting:
    return MartingaleSetting(design, d=4, S=3.0, rounds=40, runs=3, lam=0.7, delta=0.05, seed=5)._replace(**changes)


def logdet(matrix: Tensor) -> float:
    return float(torch.linalg.slogdet(matrix)[1])


def twin_x(design: str, t: int, normal: Tensor, y: Tensor) -> Tensor:
    """x_t (d,) of one run; ``normal`` is (k,), y = H^-1 s is (d,)."""
    d, k = len(y), len(normal)
    x = torch.zeros(d, dtype=torch.float64)
    if design == "axes":
        x[t % d] = 1
    elif design == "aligned":
        x[0] = 0.95
        if d > 1:
            x[1:] = normal[1:] / normal[1:].norm() * (1 - 0.95**2) ** 0.5
    elif design == "adversarial" and t > 0 and d > 1:
        across = normal - (normal @ y) / (y @ y) * y
        x[:] = across / across.norm()
    else:
        x[:k] = normal / normal.norm()
    return x


def twin(given: MartingaleSetting) -> dict[str, Tensor]:
    """Norm and bounds, (T, n): dense matrices in all d dimensions, solved and factored anew in every round."""
    design, d, S, rounds, runs, lam, delta, seed = given
    k = min(d, 2) if design == "low-rank" else d
    numbers = generator(seed, Stream.ROUNDS, list(DESIGNS).index(design), d)
    draws = [
        (
            torch.randn(runs, k, generator=numbers, dtype=torch.float64),
            torch.rand(runs, generator=numbers, dtype=torch.float64),
        )
        for _ in range(rounds)
    ]
    kappa = 2 + 2 * math.cosh(S)
    eye = torch.eye(d, dtype=torch.float64)
    names = ("norm", "paper", "paper_R", "faury", "faury_original", "verma")
    found = {name: torch.zeros(rounds, runs, dtype=torch.float64) for name in names}
    for run in range(runs):
        H, V, W, s = lam * eye, kappa * lam * eye, eye.clone(), torch.zeros(d, dtype=torch.float64)
        for t in range(rounds):
            x = twin_x(design, t, draws[t][0][run], torch.linalg.solve(H, s))
            p = 1 / (1 + math.exp(-S * float(x[0])))
            s = s + x * ((1.0 if draws[t][1][run] < p else 0.0) - p)
            H, V, W = (A + w * torch.outer(x, x) for A, w in ((H, p * (1 - p)), (V, 1.0), (W, 0.25 / lam)))
            D, log = logdet(H) - d * math.log(lam), math.log(4 * (t + 1) ** 2 / delta)
            values = (
                math.sqrt(float(s @ torch.linalg.solve(H, s))),
                8 * math.sqrt(D * log) + 4 / math.sqrt(lam) * log,
                8 * math.sqrt(logdet(W) * log) + 4 / math.sqrt(lam) * log,
                2 / math.sqrt(lam) * (D + math.log(1 / delta) + d * math.log(2)) + math.sqrt(lam) / 2,
                2 / math.sqrt(lam) * (D / 2 + math.log(1 / delta) + d * math.log(2)) + math.sqrt(lam) / 2,
                math.sqrt(kappa * (logdet(V) - d * math.log(kappa * lam)) + 2 * kappa * math.log(1 / delta)),
            )
            for name, value in zip(names, values, strict=True):
                found[name][t, run] = value
    return found


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("changes", [{}, {"d": 1}, {"d": 7, "S": 0.5, "lam": 20.0}, {"d": 2, "S": 9.0, "lam": 0.01}])
def test_norm_and_bounds_equal_dense_algebra(design: str, changes: dict[str, Any]) -> None:
    given = setting(design, **changes)
    paths = simulate(given)
    for name, expected in twin(given).items():
        actual = paths.norm if name == "norm" else bounds(paths, given)[name]
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9, msg=name)


def test_many_rounds_and_a_small_lam_cost_few_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the smallest lam that is allowed, after many rank-one updates."""
    given, kept = setting("sphere", d=6, lam=1e-6, rounds=2000, runs=2), []

    def keep(t: int, normal: Tensor, y: Tensor) -> Tensor:
        kept.append(normal / normal.norm(dim=-1, keepdim=True))
        return kept[-1]

    monkeypatch.setitem(DESIGNS, "sphere", DESIGNS["sphere"]._replace(x=keep))
    paths, x = simulate(given), torch.stack(kept)
    p = (3 * x[:, :, 0]).sigmoid()
    H = torch.einsum("tn,tni,tnj->nij", p * (1 - p), x, x) + 1e-6 * torch.eye(6, dtype=torch.float64)
    for run in range(2):
        assert float(paths.logdet_H[-1, run]) == pytest.approx(logdet(H[run] / 1e-6), abs=1e-8)


@pytest.mark.parametrize(("M", "N"), [(2.0, 1.0), (1.0, 3.0), (0.5, 4.0)])
def test_bounds_do_not_change_with_the_units(M: float, N: float) -> None:
    """eta M, x N, lam (MN)^2 and kappa / M^2 leave the norm, and every log det, as they are."""
    D, t = torch.tensor([0.1, 2.0, 30.0], dtype=torch.float64), torch.tensor([1, 10, 1000])
    lam = 0.3
    torch.testing.assert_close(paper(D, t, lam * (M * N) ** 2, 0.1, M, N), paper(D, t, lam, 0.1))
    torch.testing.assert_close(faury(D, 5, lam * (M * N) ** 2, 0.1, M, N), faury(D, 5, lam, 0.1))
    torch.testing.assert_close(verma(D, 40 / M**2, 0.1, M), verma(D, 40.0, 0.1))


def expected_square(paths: MartingalePaths) -> Tensor:
    """sum_t mu' h / (1 + mu' h), h = x^T H_{t-1}^-1 x, (n,): E|s_T|^2 where every x is orthogonal to H^-1 s."""
    steps = paths.logdet_H.diff(dim=0, prepend=torch.zeros_like(paths.logdet_H[:1]))
    return (1 - (-steps).exp()).sum(dim=0)


def test_the_mean_square_of_the_norm_is_what_theory_says() -> None:
    """Fixed x: E|s_T|^2_{H_T^-1} = sum mu' x^T H_T^-1 x = d - lam tr H_T^-1. Adversarial x: see ``expected_square``."""
    given = setting("axes", rounds=60, runs=4000)
    square = simulate(given).norm[-1].square()
    diagonal = [0.7 + 15 * slope for slope in (math.exp(-3) / (1 + math.exp(-3)) ** 2, 0.25, 0.25, 0.25)]
    expected = 4 - 0.7 * sum(1 / h for h in diagonal)
    assert abs(float(square.mean()) - expected) < 4 * float(square.std()) / 4000**0.5

    paths = simulate(setting("adversarial", rounds=60, runs=4000))
    excess = paths.norm[-1].square() - expected_square(paths)
    assert abs(float(excess.mean())) < 4 * float(excess.std()) / 4000**0.5
    # a design that does not look at the noise forgets some of it
    oblivious = simulate(setting("sphere", rounds=60, runs=4000))
    assert float((oblivious.norm[-1].square() - expected_square(oblivious)).mean()) < -0.5


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("delta", [0.05, 0.5])
def test_every_bound_holds_at_all_times_as_often_as_promised(design: str, delta: float) -> None:
    for S in (0.5, 6.0):
        given = setting(design, S=S, rounds=150, runs=500, lam=1.0, delta=delta)
        paths = simulate(given)
        for name, bound in bounds(paths, given).items():
            held = float((paths.norm <= bound).all(dim=0).double().mean())
            assert held >= 1 - delta, (name, S)


@pytest.mark.parametrize("design", DESIGNS)
def test_a_bound_that_is_too_small_is_found_out(design: str) -> None:
    """A hundredth of the paper's bound does not hold, and summarise says so."""
    given = setting(design, rounds=150, runs=500, lam=1.0)
    paths = simulate(given)
    row, _ = tailbound.summarise(given, paths._replace(norm=100 * paths.norm))
    assert row["paper_coverage"] <= row["paper_coverage_high"] < 0.95
    assert any(line.startswith("paper FAILED") for line in tailbound.remarks([row]))


def test_order_of_the_variants() -> None:
    found = bounds(simulate(given := setting("sphere")), given)
    assert (found["paper"] <= found["paper_R"]).all()
    assert (found["faury_original"] <= found["faury"]).all()


@pytest.mark.parametrize("design", DESIGNS)
def test_a_seed_repeats_bit_for_bit(design: str) -> None:
    first, again, other = (simulate(setting(design, seed=seed)) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.norm, other.norm)
    # and a longer run begins as a shorter one
    assert torch.equal(simulate(setting(design, seed=1, rounds=60)).norm[:40], first.norm)


def test_low_rank_says_from_which_d_on_the_paper_is_below_faury() -> None:
    given = setting("low-rank", d=5, runs=50)
    row, _ = tailbound.summarise(given, paths := simulate(given))
    line = next(line for line in tailbound.remarks([row]) if line.startswith("low-rank"))
    d = int(line.removesuffix(".").split()[-1])
    ends = [float(faury(paths.logdet_H[-1], each, given.lam, given.delta).mean()) for each in (d - 1, d)]
    assert ends[0] <= row["paper"] <= ends[1]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_command_writes_table_curves_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "er"
    small = ["--rounds", "70", "--runs", "20", "--norms", "0.5", "8"]
    main(["--dims", "3", "2", "--designs", "low-rank", "axes", *small, "--out", str(out)])
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert "the tightest in" in shown
    assert "the paper's bound is below Faury's where d >=" in shown
    assert sorted(path.name for path in out.iterdir()) == ["tailbound.csv", "tailbound.png", "tailbound_curves.csv"]
    assert (out / "tailbound.png").stat().st_size > 10_000
    rows, curves = rows_of(out / "tailbound.csv"), rows_of(out / "tailbound_curves.csv")
    assert [(row["design"], row["d"], row["S"]) for row in rows] == [
        (design, d, S) for design in ("low-rank", "axes") for d in ("2", "3") for S in ("0.5", "8.0")
    ]
    for row in rows:
        points = [p for p in curves if all(p[key] == row[key] for key in ("design", "d", "S"))]
        assert [points[0]["t"], points[-1]["t"]] == ["1", "70"]
        assert 30 <= len(points) <= 50
        assert all(points[-1][name] == row[name] for name in ("quantile", "paper", "paper_R", "faury", "verma"))
        assert float(row["paper_ratio"]) == pytest.approx(float(row["paper"]) / float(row["quantile"]))
        assert 0 <= float(row["verma_coverage_low"]) <= float(row["verma_coverage"]) <= 1
    # a setting's result does not depend on which others are asked for
    main(["--dims", "3", "--designs", "axes", *small, "--out", str(tmp_path / "alone")])
    assert rows_of(tmp_path / "alone" / "tailbound.csv") == [r for r in rows if (r["design"], r["d"]) == ("axes", "3")]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--delta", "0"], "delta must lie between 0 and 1, got 0.0"),
        (["--delta", "1"], "delta must"),
        (["--delta", "nan"], "delta must"),
        (["--lam", "0"], "lam must be a finite number of at least 1e-6, got 0.0"),
        (["--lam", "inf"], "lam must"),
        (["--designs", "sphere", "cube"], "no design 'cube'. The designs: sphere, axes"),
        (["--dims", "2", "0"], "dims must be a whole number of at least 1, got 0"),
        (["--norms", "-1"], "norms must be greater than 0 and at most 30, got -1.0"),
        (["--norms", "nan"], "norms must"),
        (["--norms", "31"], "norms must"),
        (["--rounds", "0"], "rounds must"),
        (["--runs", "0"], "runs must"),
        (["--seed", "-1"], "seed must"),
        (["--dims", "5000"], "take fewer runs, rounds or dims"),
    ],
)
def test_what_cannot_be_simulated_is_refused(arguments: list[str], text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        main([*arguments, "--out", str(tmp_path / "out")])
    assert text in str(error.value)
    assert not (tmp_path / "out").exists()
