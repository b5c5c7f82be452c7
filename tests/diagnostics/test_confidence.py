"""The confidence sets of theory mode, on problems whose true parameter is known."""

import csv
import math
from pathlib import Path

import pytest
import torch

from nl_lightning import NeuralLogUCB2
from nl_lightning.cli.main import main
from nl_lightning.core.statistics import wilson
from nl_lightning.diagnostics.confidence import ConfidencePaths, KnownProblem, simulate
from tests.support.theory_twin import TheoryTwin


def agent(runs: int, rounds: int, **settings: float) -> NeuralLogUCB2:
    return NeuralLogUCB2(4, width=6, mode="theory", horizon=rounds, replicas=runs, **settings).double()  # type: ignore[arg-type]


def full_truth(problem: KnownProblem, replica: int) -> torch.Tensor:
    """theta* - theta_0 of all parameters (p,): the pairs of the symmetric start share what the halves have."""
    theory = problem.theory
    parts = problem.truth[replica].split([out * fan_in for out, fan_in in theory.shapes])
    (hidden, last), (out, fan_in) = (part for part in parts), theory.shapes[0]
    half = hidden.view(out, fan_in) / 2
    whole = torch.cat([torch.cat([half, half], dim=1), torch.cat([-half, -half], dim=1)])
    return torch.cat([whole.flatten(), last / math.sqrt(2), last / math.sqrt(2)])


def test_h_and_distance_equal_dense_algebra() -> None:
    """h = g_0 . (theta* - theta_0) by autograd, and sqrt(m) |theta* - theta_t|_W with the twin's W."""
    tried = agent(2, 25, S=[1.0, 0.5])  # type: ignore[arg-type]
    problem = KnownProblem(tried)
    twins = [TheoryTwin("NeuralLog-UCB-2", tried.weights(r), kappa=10.0, S=[1.0, 0.5][r], horizon=25) for r in range(2)]
    g = torch.Generator().manual_seed(0)
    for t in range(20):
        arms = torch.randn(2, 3, 4, generator=g, dtype=torch.float64)
        h, choice = problem.h(arms), tried.act(arms)
        for r, twin in enumerate(twins):
            truth = full_truth(problem, r)
            assert math.sqrt(6) * float(truth.norm()) == pytest.approx([1.0, 0.5][r], rel=1e-12)
            expected = torch.stack([twin.gradient_at_start(x) @ truth for x in arms[r]])
            torch.testing.assert_close(h[r], expected, rtol=1e-9, atol=1e-12)
            twin.observe(arms[r, choice.arm[r]], float(t % 2))
        tried.observe(choice, torch.full((2,), t % 2))
        if t % 2:
            tried.train_nn()
            for twin in twins:
                twin.train_nn()
        for r, twin in enumerate(twins):
            moved = torch.cat([(w - w_0).flatten() for w, w_0 in zip(twin.weights, twin.initial, strict=True)])
            v = full_truth(problem, r) - moved
            expected = math.sqrt(6) * float((v @ twin.design_matrix() @ v).sqrt())
            assert float(problem.distance()[r]) == pytest.approx(expected, rel=1e-8)


def test_the_sets_hold_in_enough_runs() -> None:
    """sqrt(m) |theta* - theta_t|_W <= nu2_t at all t; the promise is 1 - delta of runs."""
    paths = simulate(agent(150, 40, delta=0.1, S=1.0), rounds=40, arms=3)
    held, runs = int(paths.holds().sum()), 150
    assert held / runs >= 1 - 0.1
    assert wilson(held, runs)[0] >= 0.9
    # It could have failed: a quarter of the radius would not do, and theta_t is no constant.
    assert not ConfidencePaths(4 * paths.distance, *paths[1:]).holds().any()
    assert (paths.distance[-1] > paths.distance[0]).all()
    assert paths.distance[-1].std() > 0


def test_a_seed_repeats_and_runs_do_not_depend_on_each_other() -> None:
    one, again = (simulate(agent(3, 10), rounds=10, arms=3) for _ in range(2))
    assert torch.equal(one.distance, again.distance)
    alone = simulate(NeuralLogUCB2(4, width=6, mode="theory", horizon=10, seed=2).double(), rounds=10, arms=3)
    torch.testing.assert_close(alone.distance[:, 0], one.distance[:, 2], rtol=1e-9, atol=0)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "sets"
    main(["confidence", "--dim=3", "--width=4", "--rounds=12", "--runs=8", f"--out={out}"])
    text = capsys.readouterr().out
    assert "in 8 of 8 runs: 100.0%" in text
    assert "much larger than they need to be" in text
    assert "not kept" not in text
    assert sorted(path.name for path in out.iterdir()) == ["confidence.csv", "confidence.png"]
    with (out / "confidence.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["t"]) for row in rows] == list(range(13))
    assert all(float(row["distance_max"]) < float(row["nu2"]) for row in rows)


def test_a_promise_that_is_not_kept_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["confidence", "--dim=3", "--width=4", "--rounds=5", "--runs=20", "--C7=0.001", f"--out={tmp_path / 'sets'}"])
    text = capsys.readouterr().out
    assert "in 0 of 20 runs" in text
    assert "The promise is not kept" in text
    assert "larger than" not in text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--delta=2"], "delta must lie between 0 and 1"),
        (["--width=5"], "width must be even"),
        (["--runs=0"], "runs must be a whole number of at least 1"),
        (["--out", __file__, "--runs=1"], "--out must be a directory that can be made and written"),
    ],
)
def test_errors(options: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["confidence", *options])
    assert stop.value.code == 1
    assert text in capsys.readouterr().err
