"""The theory's quantities against slow twins and wide networks, their warnings, and the command."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from nl_lightning import AGENTS, NeuralLogUCB1, NeuralLogUCB2
from nl_lightning.cli.main import main
from nl_lightning.core.errors import InputError
from nl_lightning.core.link import mu
from nl_lightning.diagnostics import assumptions
from nl_lightning.diagnostics.assumptions import Diagnosis, Problem, diagnose
from nl_lightning.diagnostics.diagnose import failures, power
from nl_lightning.environments import ChunkedSimulation, Deal, Synthetic
from tests.support import diagnostics_twin as twin
from tests.support.cli import CONFIGS, H1

POOL = "--data.environment.pool=60"
SMALL = ["--rounds=6", "--model.width=8", "--data.environment.dim=4", POOL]


def contexts(count: int, dim: int, seed: int = 0) -> Tensor:
    return 2 * torch.rand(count, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1


def problem(x: Tensor, h: Tensor | None, **settings: Any) -> Problem:
    given = {"width": 12, "depth": 2, "seed": 0, "lam": 0.7, "kappa": 20.0, "S": 1.5, "delta": 0.1, "C1": 1.2}
    return Problem(x, h, **{**given, **settings})


# ---- kernels --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_ntk_is_the_papers_recursion(depth: int) -> None:
    x = contexts(5, 3)
    x[4] = -0.5 * x[0]
    printed, limit, _ = twin.ntk(x.tolist(), depth)
    found = assumptions.ntk(x, depth)
    np.testing.assert_allclose(found.printed, printed, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(found.limit, limit, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("depth", [2, 3])
def test_gram_is_that_of_gradients(depth: int) -> None:
    x = contexts(6, 3)
    phi = twin.features(x, width=8, depth=depth, seed=4)
    np.testing.assert_allclose(assumptions.gram(x, 8, depth, 4), phi @ phi.T, rtol=1e-9)


def standard_errors(samples: Sequence[Any], expected: Any) -> np.ndarray:
    """How far the mean of samples (R, N, N) is from what is expected, in standard errors."""
    values = np.stack([np.asarray(sample) for sample in samples])
    return np.abs(values.mean(0) - np.asarray(expected)) / (values.std(0, ddof=1) / math.sqrt(len(values)))


# At L = 2 the mean over networks is the limit at every width, so that many narrow ones will do. At L = 3 it is off by
# O(1/m), which m = 1024 makes smaller than the standard error of 24 networks.
@pytest.mark.parametrize(("depth", "width", "networks"), [(2, 64, 600), (3, 1024, 24)])
def test_wide_networks_come_to_2H_minus_Sigma_and_not_to_H(depth: int, width: int, networks: int) -> None:
    x = contexts(4, 3, seed=1)
    kernels = assumptions.ntk(x, depth)
    printed, limit, sigma = twin.ntk(x.tolist(), depth)
    np.testing.assert_allclose(limit, 2 * printed - sigma, rtol=1e-9)
    grams = [assumptions.gram(x, width, depth, seed) for seed in range(networks)]
    assert standard_errors(grams, kernels.limit).max() < 4
    assert standard_errors(grams, kernels.printed).max() > 8


def test_H_is_the_limit_of_the_blocks_alone() -> None:
    """The zeros beside the blocks are parameters too: without them the network would come to H as printed."""
    x = contexts(3, 3, seed=1)
    kernels = assumptions.ntk(x, depth=2)
    phis = [twin.features(x, 64, 2, seed, blocks_only=True) for seed in range(300)]
    grams = [phi @ phi.T for phi in phis]
    assert standard_errors(grams, kernels.printed).max() < 4
    assert standard_errors(grams, kernels.limit).max() > 8


def test_distance_from_the_limit_falls_like_one_over_the_root_of_the_width() -> None:
    x = contexts(40, 5).view(10, 4, 5)
    distances = [
        np.mean([diagnose(problem(x, None, width=width, seed=seed)).distance for seed in range(6)])
        for width in (20, 2000)
    ]
    assert 5 < distances[0] / distances[1] < 20


# ---- quantities -----------------------------------------------------------------------------------------------------


def repeated_problem(depth: int = 2) -> Problem:
    """Six rounds of three contexts from a pool of eight."""
    pool, h = contexts(8, 3), 4 * contexts(8, 1, seed=5).flatten()
    place = torch.randint(8, (6, 3), generator=torch.Generator().manual_seed(2))
    return problem(pool[place], h[place], depth=depth)


@pytest.mark.parametrize("depth", [2, 3])
def test_effective_dimensions_are_those_of_dense_matrices(depth: int) -> None:
    given = repeated_problem(depth)
    found = diagnose(given).dimensions
    phi = twin.features(given.x.flatten(0, 1), given.width, depth, given.seed)
    H, _, _ = twin.ntk(given.x.flatten(0, 1).tolist(), depth)
    lam_0 = 8 * math.sqrt(2) * 1.2 * math.sqrt(depth) * math.log(4 / 0.1) / 1.5
    assert given.lam_0 == pytest.approx(lam_0)
    for t in range(1, 7):
        n = 3 * t
        design, one = phi[:n].T @ phi[:n], np.eye(phi.shape[1])
        assert found["paper"][t - 1].item() == pytest.approx(twin.logdet(0.25 / lam_0 * design + one), rel=1e-9)
        assert found["verma"][t - 1].item() == pytest.approx(twin.logdet(design / (20 * 0.7) + one), rel=1e-9)
        zhou = twin.logdet(H[:n, :n] / 0.7 + np.eye(n)) / math.log(1 + n / 0.7)
        assert found["zhou"][t - 1].item() == pytest.approx(zhou, rel=1e-6)


def test_quantities_are_those_of_plain_loops() -> None:
    given = repeated_problem()
    assert given.h is not None
    found = diagnose(given)
    x, first = np.unique(given.x.flatten(0, 1).numpy(), axis=0, return_index=True)
    assert (found.contexts, found.distinct) == (18, len(x))
    h = given.h.flatten().numpy()[first]
    H, limit, _ = twin.ntk(x.tolist(), 2)
    assert found.S_min == pytest.approx(math.sqrt(2 * h @ np.linalg.solve(H, h)), rel=1e-6)
    assert found.lam_H == pytest.approx(np.linalg.eigvalsh(H)[0], rel=1e-5)
    np.testing.assert_allclose(found.ntk, np.linalg.eigvalsh(H)[::-1], rtol=1e-5)
    phi = twin.features(torch.tensor(x), given.width, 2, given.seed)
    np.testing.assert_allclose(found.network, np.linalg.eigvalsh(phi @ phi.T)[::-1], rtol=1e-6, atol=1e-10)
    assert found.rank == np.linalg.matrix_rank(phi)
    assert found.distance == pytest.approx(np.linalg.norm(phi @ phi.T - limit) / np.linalg.norm(limit), rel=1e-6)
    assert (found.norm_low, found.norm_high) == pytest.approx((min(n := np.linalg.norm(x, axis=1)), max(n)))
    assert found.phi == pytest.approx(max(np.linalg.norm(phi, axis=1)))
    assert found.log_kappa_seen == pytest.approx(math.log(1 / min(twin.slope(value) for value in h)))
    best = [max(row) for row in given.h.tolist()]
    assert found.log_kappa_star == pytest.approx(math.log(6 / sum(twin.slope(value) for value in best)))


def test_formal_kappa_is_reached_and_not_passed() -> None:
    """Over parameters within S: of random ones, and of those along the largest phi."""
    given = repeated_problem()
    phi = twin.features(given.x.flatten(0, 1), given.width, 2, given.seed)
    largest = phi[np.linalg.norm(phi, axis=1).argmax()]
    directions = np.vstack([np.random.default_rng(0).normal(size=(200, phi.shape[1])), largest])
    # sqrt(m) (theta - theta_0), of length S; phi . it is g . (theta - theta_0)
    scaled = given.S * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    kappa = max(1 / twin.slope(f) for f in (phi @ scaled.T).flatten())
    assert diagnose(given).log_kappa_formal == pytest.approx(math.log(kappa))


def test_large_h_does_not_overflow() -> None:
    """1/mu'(1000) = e^1000 is no floating-point number."""
    h = torch.tensor([[1000.0, -2000.0], [900.0, 0.0]], dtype=torch.float64)
    found = diagnose(problem(contexts(4, 3).view(2, 2, 3), h))
    assert found.log_kappa_seen == pytest.approx(2000)
    assert found.log_kappa_star == pytest.approx(900 + math.log(2))
    assert [power(log) for log in (2000.0, 900 + math.log(2))] == ["3.88e+868", "1.47e+391"]
    assert power(math.log(9.999e7)) == "1.00e+8"
    assert power(math.log(12.5)) == "12.5"


def test_width_of_the_condition() -> None:
    T, K, L, delta, lam_0 = 20, 5, 3, 0.1, 40.0
    for lam_H in (0.5, 1e-6):
        first = T**4 * K**4 * L**6 * math.log(T**2 * K**2 * L / delta) / lam_H**4
        second = [
            T**7 * L**21 / lam_0,
            T**16 * L**27 * 0.25**6 / lam_0**7,
            T**10 * L**21 * 0.25**6 / lam_0**4,
            T**7 * L**18 / lam_0**4,
        ]
        found = assumptions.log10_width(T, K, L, delta, lam_0, lam_H)
        assert found == pytest.approx(math.log10(max(first, *second)))
    assert assumptions.log10_width(T, K, L, delta, lam_0, 0.0) == math.inf


def test_a_determinant_that_is_lost_is_an_error() -> None:
    x = contexts(3, 3)
    with pytest.raises(InputError, match="lost in rounding"):
        diagnose(problem(x[[0, 1, 2, 0, 1, 2]].view(2, 3, 3), None, lam=1e-25))


# ---- warnings -------------------------------------------------------------------------------------------------------


def sound_problem() -> Problem:
    """All that the theory asks for, but for the Condition on the width."""
    x = torch.nn.functional.normalize(contexts(8, 4), dim=1).view(4, 2, 4)
    h = contexts(8, 1, seed=3).view(4, 2)
    given = problem(x, h, width=60, kappa=1e12, C1=4.0)
    return replace(given, S=1.001 * (diagnose(given).S_min or 0))


def warnings(given: Problem) -> tuple[list[str], Diagnosis]:
    found = diagnose(given)
    return failures(given, found, NeuralLogUCB1), found


def test_no_warning_where_all_holds() -> None:
    said, found = warnings(sound_problem())
    assert said == []
    assert found.lam_H > 0.01


def test_each_warning_comes_alone() -> None:
    given = sound_problem()
    assert given.h is not None
    longer, again, opposite = given.x.clone(), given.x.clone(), given.x.clone()
    longer[0, 0] *= 1.01
    again[3, 1], opposite[3, 1] = given.x[0, 0], -given.x[0, 0]
    h = given.h.clone()
    h[3, 1] = h[0, 0]
    for changed, text in (
        (replace(given, x=longer, S=2 * given.S), "|x| is 1 to 1.01, where Assumption 4.2 wants 1"),
        (replace(given, x=again, h=h), "only 7 of 8 contexts are distinct"),
        (replace(given, x=opposite, S=2 * given.S), "1 pairs of distinct contexts are parallel"),
        (replace(given, S=0.99 / 1.001 * given.S), "< S_min = "),
        (replace(given, width=2, C1=9.0), "gradients span"),
        (replace(given, C1=0.5), "C1 sqrt(L) = 0.707"),
        (replace(given, kappa=5.0), "kappa = 5 is too small: 1/mu' reaches"),
    ):
        said, _ = warnings(changed)
        assert len(said) == 1, (text, said)
        assert text in said[0]


def test_kappa_is_held_against_both_definitions() -> None:
    given = sound_problem()
    assert given.h is not None
    found = diagnose(given)
    for h, kappa, texts in (
        (given.h, math.exp(found.log_kappa_formal) * 0.99, ["within S (6.3)"]),
        (0 * given.h + 50, 1e15, ["5.18e+21 at the contexts (Assumption 2.1)"]),
        (0 * given.h + 50, 5, ["5.18e+21 at the contexts (Assumption 2.1) and", "within S (6.3)"]),
    ):
        (said,) = (text for text in warnings(replace(given, h=h, kappa=kappa))[0] if "kappa = " in text[:8])
        assert all(text in said for text in texts)
        assert ("within S" in said) == ("within S (6.3)" in texts)
        assert ("at the contexts" in said) == ("contexts" in texts[0])
    said = failures(replace(given, kappa=5), found, NeuralLogUCB2)[-1]
    assert "NeuralLog-UCB-2 does not use it, but the bound on its regret does" in said


def test_contexts_on_one_line_make_H_singular() -> None:
    x = torch.tensor([1.0, 2.0, -0.5, 3.0], dtype=torch.float64).view(2, 2, 1)
    said, found = warnings(problem(x, x.squeeze(2)))
    assert (found.parallel, found.lam_H, found.S_min, found.log10_width) == (6, 0, math.inf, math.inf)
    assert any("H is singular over the distinct contexts too" in text for text in said)
    assert not any("S_min = " in text for text in said)


# ---- h of a simulation ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["h1", "h3", "h5"])
def test_latent_is_h_of_the_dealt_arms(function: Any) -> None:
    environment = Synthetic(function, dim=3, arms=4, pool=30)
    environment.prepare([3, 8], torch.empty(0, dtype=torch.float64))
    # across the border of two chunks
    deal, h = environment.deal(250, 20), environment.latent(250, 20)
    assert h.shape == (2, 20, 4)
    assert not torch.equal(h[0], h[1])
    torch.testing.assert_close(mu(h).amax(-1, keepdim=True) - mu(h), deal.regret)


class Unknown(ChunkedSimulation):
    """Clicks by chance."""

    dim = 4

    def reset(self, seeds: Sequence[int]) -> None:
        self.replicas = len(seeds)

    def deal_chunk(self, chunk: int) -> Deal:
        arms = contexts(self.replicas * 256 * 2, 4, chunk).view(self.replicas, 256, 2, 4)
        return Deal(arms, torch.zeros(arms.shape[:3]), torch.zeros(arms.shape[:3]))


def test_a_simulation_without_h_has_no_kappa_but_an_ntk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "model: {class_path: nl_lightning.NeuralLogTS1}\n"
        f"data: {{environment: {{class_path: {__name__}.Unknown}}}}\nrun: {{name: unknown}}\n"
    )
    main(["diagnose", f"--config={config}", f"--out={tmp_path}", "--rounds=5"])
    found = json.loads((tmp_path / "diagnose.json").read_text())["found"]
    assert found["S_min"] is found["log10_kappa_seen"] is found["log10_kappa_star"] is None
    assert found["lam_H"] > 0
    assert capsys.readouterr().out.count("unknown") == 3 + 1


# ---- the command ----------------------------------------------------------------------------------------------------


def test_the_command_shows_and_writes_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["diagnose", H1, *SMALL, "--replica", "3", "--model.kappa", "77", "--model", "NeuralLog-UCB-1"])
    out = tmp_path / "runs" / "diagnose" / "h1"
    assert {path.name for path in out.iterdir()} == {"diagnose.json", "dimensions.csv", "diagnose.png"}
    environment = Synthetic("h1", dim=4, pool=60)
    environment.prepare([3], torch.empty(0, dtype=torch.float64))
    given = problem(
        environment.deal(0, 6).arms[0],
        environment.latent(0, 6)[0],
        width=8,
        seed=3,
        lam=0.1,
        kappa=77.0,
        S=1.0,
        delta=0.05,
        C1=1.0,
    )
    expected = diagnose(given)
    stored = json.loads((out / "diagnose.json").read_text())
    assert stored["given"] == {
        **{
            name: getattr(given, name)
            for name in ("width", "depth", "seed", "lam", "kappa", "S", "delta", "C1", "lam_0")
        },
        "rounds": 6,
    }
    found = stored["found"]
    assert found["S_min"] == expected.S_min
    assert found["log10_kappa_seen"] == pytest.approx((expected.log_kappa_seen or 0) / math.log(10))
    assert found["distinct"] == expected.distinct < 30
    table = pd.read_csv(out / "dimensions.csv")
    assert table["t"].tolist() == [1, 2, 3, 4, 5, 6]
    for name, values in expected.dimensions.items():
        assert table[name].tolist() == pytest.approx(values.tolist(), rel=1e-9)
        assert found[f"dimension_{name}"] == pytest.approx(values[-1].item())
    shown = capsys.readouterr().out
    assert "h1: NeuralLog-UCB-1, m = 8, L = 2" in shown
    assert f"{expected.S_min:.4g}" in shown
    assert all(f"Warning: {warning}" in shown for warning in stored["warnings"])
    assert stored["warnings"] == failures(given, expected, NeuralLogUCB1)
    assert (out / "diagnose.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("config", ["h2", "h5", "grid"])
def test_shipped_configs_and_those_of_a_run(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["fit", f"--config={CONFIGS / config}.yaml", "--print_config"])
    stored = tmp_path / "config.yaml"
    stored.write_text(capsys.readouterr().out)
    results = []
    for path in (CONFIGS / f"{config}.yaml", stored):
        main(["diagnose", f"--config={path}", f"--out={tmp_path / 'out'}", "--rounds=3", POOL])
        results.append(json.loads((tmp_path / "out" / "diagnose.json").read_text()))
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--rounds=0"], "rounds must be a whole number of at least 1, got 0"),
        (["--rounds=2001"], "2001 rounds show 10005 contexts"),
        (["--replica=10"], "replica must be one of 0 to 9, got 10"),
        (["--replica=-1"], "replica must be one of 0 to 9, got -1"),
        (["--model.width=7"], "needs an even width, got model.width = 7"),
        (["--model.depth=1"], "model.depth must be a whole number of at least 2, got 1"),
        (["--model.delta=1"], "0 < delta < 1"),
        (["--model.C1=-2"], "C1 = -2"),
        (["--model.kappa=3"], "kappa must be a finite number, at least 4"),
        (["--model.nu=[1,2,3]"], "nu has 3 entries for 10 replicas"),
        (["--data.environment.arms=0"], "arms must be a whole number of at least 1"),
        (["--data.environment.seed=[1,2]"], "seed has 2 entries for 10 replicas"),
        (["--model=LogisticUCB1"], "Logistic-UCB-1 is linear and has no NTK"),
        (["--model=ada-OFU-ECOLog"], "ada-OFU-ECOLog is linear and has no NTK"),
        (["--data.environment=replay.ReplayLog"], "replay.ReplayLog is no simulation"),
        (["--resume=runs/h1/x"], "takes no --resume"),
        (["--model.nosuch=3"], "there is no option --model.nosuch"),
        (["--nosuch=3"], "nosuch"),
        (["--out=file"], "File exists"),
    ],
)
def test_bad_input_is_a_clear_error(
    arguments: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises(SystemExit) as stop:
        main(["diagnose", H1, *arguments])
    assert stop.value.code not in (0, None)
    assert text in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_every_neural_agent_can_be_diagnosed(tmp_path: Path) -> None:
    for name in ("NCBF-UCB", "NeuralLog-TS-2"):
        main(["diagnose", H1, *SMALL, f"--model={name}", f"--out={tmp_path / AGENTS[name].__name__}"])
    assert len(list(tmp_path.glob("*/diagnose.png"))) == 2
