"""Networks of a user's own: mean, bonus and TrainNN equal per-sample autograd in plain loops."""

import copy
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.plugins.precision import DoublePrecision
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from nl_lightning import BanditData, LogisticUCB1, NeuralLogTS2, NeuralLogUCB2
from nl_lightning.core.errors import InputError
from nl_lightning.environments import Synthetic
from nl_lightning.models import modules
from nl_lightning.runs.checkpoints import Checkpoints
from tests.support.fits import QUIET
from tests.support.own_networks import Calls, Embedded, Frozen, Residual

DIM = 4


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(DIM, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 1))


def samples(network: Any, *shape: int, seed: int = 0) -> torch.Tensor:
    x = torch.rand(*shape, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1
    if network is Embedded:
        x[..., 0] = (x[..., 0] * 3).abs().floor()
    return x


def per_sample(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """f and its gradient at one sample, by autograd."""
    f = module(x.unsqueeze(0)).reshape(())
    gradients = torch.autograd.grad(f, list(module.parameters()), allow_unused=True)
    flat = [torch.zeros_like(p) if g is None else g for p, g in zip(module.parameters(), gradients, strict=True)]
    return f.detach(), torch.cat([g.flatten() for g in flat])


@pytest.mark.parametrize("network", [plain, Residual, Embedded])
@pytest.mark.parametrize("design", ["diagonal", "full"])
def test_mean_bonus_and_training_equal_autograd_in_loops(network: Any, design: str, monkeypatch: Any) -> None:
    """Two replicas, several chunks of gradients, Adam on observations that count more or less."""
    monkeypatch.setattr(modules, "GRADIENT_NUMBERS", 200)
    settings = {"nu": [0.3, 1.0], "lam": [0.5, 2.0], "S": [1.0, 0.7]}
    agent = NeuralLogUCB2(DIM, network=network, design=design, steps=6, lr=0.02, start="warm", **settings).double()
    twins = [agent.module(r) for r in range(2)]
    assert not torch.equal(next(twins[0].parameters()), next(twins[1].parameters()))
    arms, clicks = samples(network, 12, 2, 5), torch.randint(2, (12, 2), generator=torch.Generator().manual_seed(3))
    weight = torch.rand(12, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64) + 0.5
    seen: list[list[Any]] = [[], []]
    for t in range(12):
        choice = agent.act(arms[t])
        for r, twin in enumerate(twins):
            nu, lam, S = (values[r] for values in settings.values())
            p = len(per_sample(twin, arms[t, r, 0])[1])
            W = lam * torch.eye(p, dtype=torch.float64)
            H = torch.eye(p, dtype=torch.float64)
            for g, slope, w in seen[r]:
                W, H = W + w * slope * torch.outer(g, g), H + 0.25 * w * torch.outer(g, g)
            if design == "diagonal":
                W, H = torch.diag(W.diagonal()), torch.diag(H.diagonal())
            d2 = torch.linalg.slogdet(H).logabsdet
            radius = nu * (1 + S + S**2) * (d2.sqrt() + lam**-0.5)
            for arm in range(5):
                f, g = per_sample(twin, arms[t, r, arm])
                torch.testing.assert_close(choice.mean[r, arm], f, rtol=1e-9, atol=1e-10)
                bonus = radius * (g @ torch.linalg.solve(W, g)).sqrt()
                torch.testing.assert_close(choice.bonus[r, arm], bonus, rtol=1e-8, atol=1e-10)
            f, g = per_sample(twin, arms[t, r, choice.arm[r]])
            seen[r].append((g, torch.sigmoid(f) * torch.sigmoid(-f), weight[t, r]))
        agent.observe(choice, clicks[t], weight=weight[t])
        if t % 6 == 5:
            agent.train_nn()
            for r, twin in enumerate(twins):
                rows = range(t + 1)
                steps = torch.optim.Adam(twin.parameters(), lr=0.02)
                for step in range(6):
                    steps.param_groups[0]["lr"] = 0.02 * (6 - step) / 6
                    steps.zero_grad()
                    loss = settings["lam"][r] * sum((w**2).sum() for w in twin.parameters())
                    for i in rows:
                        x, click = agent.buffer.x[r, i], clicks[i, r].double()
                        loss = loss + weight[i, r] * binary_cross_entropy_with_logits(
                            twin(x.unsqueeze(0)).reshape(()), click
                        )
                    loss.backward()
                    steps.step()
                for mine, theirs in zip(agent.weights(r), twin.parameters(), strict=True):
                    torch.testing.assert_close(mine, theirs.detach(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("settings", [{}, {"bias": True}, {"depth": 3, "bias": True}, {"optimizer": "gd", "lr": 1e-3}])
def test_the_built_in_network_equals_the_same_as_a_module(settings: dict[str, Any]) -> None:
    """The fast path and the generic one learn the same, from the same parameters."""
    fast = NeuralLogUCB2(DIM, width=6, start="warm", steps=9, **settings).double()
    module = fast.module()
    rest = {key: value for key, value in settings.items() if key not in ("bias", "depth")}
    slow = NeuralLogUCB2(DIM, network=lambda: copy.deepcopy(module), start="warm", steps=9, **rest).double()
    x = samples(None, 30, 5)
    for t in range(30):
        one, other = fast.act(x[t]), slow.act(x[t])
        torch.testing.assert_close(one.score, other.score, rtol=1e-9, atol=1e-10)
        fast.observe(one, t % 2)
        slow.observe(other, t % 2)
        if t % 10 == 9:
            fast.train_nn()
            slow.train_nn()
    torch.testing.assert_close(fast.module()(x), slow.module()(x).squeeze(-1), rtol=1e-9, atol=1e-10)


def test_a_replica_of_a_module_does_not_depend_on_the_others() -> None:
    """Also with dropout, whose random numbers are a replica's own, and off at decisions."""

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(DIM, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 1))

    torch.manual_seed(5)
    state = torch.get_rng_state()
    together, alone = (NeuralLogTS2(DIM, network=network, replicas=n, seed=s).double() for n, s in ((3, 0), (1, 1)))
    x = samples(None, 20, 5)
    for t in range(20):
        choice = together.act(x[t])
        single = alone.act(x[t])
        assert choice.arm[1] == single.arm[0]
        together.observe(choice, torch.tensor([1, t % 2, 0]))
        alone.observe(single, t % 2)
        if t % 10 == 9:
            together.train_nn()
            alone.train_nn()
    for mine, theirs in zip(together.weights(1), alone.weights(0), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)
    assert torch.equal(torch.get_rng_state(), state), "the user's random numbers are the user's"
    torch.testing.assert_close(together.act(x[0]).mean, together.act(x[0]).mean, rtol=0, atol=0)


@pytest.mark.parametrize("settings", [{}, {"batch_size": 16}, {"window": 25, "bias": False}])
def test_a_module_resumes_to_the_same_bits(tmp_path: Path, settings: dict[str, Any]) -> None:
    stored = tmp_path / "last.ckpt"

    def fit(calls: int = -1, ckpt: Path | None = None) -> NeuralLogUCB2:
        agent = NeuralLogUCB2(DIM, network=plain, replicas=2, update_every=10, steps=5, start="shrink", **settings)
        trainer = L.Trainer(**QUIET, max_steps=calls, callbacks=[Checkpoints(stored, every=100)])
        trainer.fit(agent, BanditData(Synthetic("h1", dim=DIM, pool=30), rounds=60), ckpt_path=ckpt)
        return agent

    assert fit(calls=3).rounds.tolist() == [30, 30]
    resumed, whole = fit(ckpt=stored), fit()
    assert resumed.rounds.tolist() == [60, 60]
    for mine, theirs in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True):
        if isinstance(mine, torch.Tensor):
            assert torch.equal(mine, theirs)


def test_a_module_is_copied_and_reset_for_every_replica() -> None:
    given = nn.Sequential(nn.Linear(DIM, 3), nn.Tanh(), nn.Linear(3, 1))
    before = [p.detach().clone() for p in given.parameters()]
    agent = NeuralLogUCB2(DIM, network=given, replicas=2)
    assert all(torch.equal(a, b) for a, b in zip(before, given.parameters(), strict=True))
    assert not torch.equal(agent.weights(0)[0], before[0])
    assert not torch.equal(agent.weights(0)[0], agent.weights(1)[0])


def test_frozen_parameters_stay_as_they_are() -> None:
    """TrainNN, penalty and design know of the others only; a module's own frozen parameters are not drawn anew."""
    given = Frozen()
    agent = NeuralLogUCB2(DIM, network=given, replicas=2, design="full").double()
    assert [tuple(values.shape) for values in agent.weights()] == [(1, 3), (1,)]
    x = samples(None, 12, 5)
    for t in range(12):
        choice = agent.act(x[t])
        module = agent.module(1)
        rows = [per_sample(module.head, torch.tanh(module.body(each)).detach())[1] for each in x[t]]
        torch.testing.assert_close(choice.view.factors[0][1], torch.stack(rows), rtol=1e-9, atol=1e-12)
        agent.observe(choice, torch.tensor([t % 2, 1]))
    before = agent.weights()
    agent.train_nn()
    assert not torch.equal(agent.weights()[0], before[0])
    for replica in range(2):
        assert torch.equal(agent.module(replica).body.weight, given.body.weight.double())
        assert not agent.module(replica).body.weight.requires_grad
    other = NeuralLogUCB2(DIM, network=Frozen, replicas=2, design="full").double()
    other.load_state_dict(agent.state_dict())
    assert torch.equal(other.act(x[0]).mean, agent.act(x[0]).mean), "a checkpoint holds them"


def test_fresh_parameters_do_not_depend_on_the_precision_of_a_fit() -> None:
    """They are a function of seed and call: Lightning's float64 is another default of torch."""
    agent = NeuralLogUCB2(DIM, network=plain).double()
    outside = agent.network.fresh([3], [2])
    with DoublePrecision().train_step_context():
        inside = agent.network.fresh([3], [2])
    assert all(torch.equal(a, b) for a, b in zip(outside, inside, strict=True))


@pytest.mark.parametrize("name", ["weights", "shapes", "blocks", "draws", "module", "descend"])
def test_a_parameter_may_have_any_name(name: str) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_parameter(name, nn.Parameter(torch.rand(DIM)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight: torch.Tensor = getattr(self, name)
            return x @ weight

    agent = NeuralLogUCB2(DIM, network=Named, replicas=2)
    agent.observe(agent.act(samples(None, 3)), torch.ones(2))
    agent.train_nn()
    assert torch.equal(agent.module(1).get_parameter(name), agent.weights(1)[0])


def test_a_category_without_a_row_in_its_embedding_is_an_error() -> None:
    agent = NeuralLogUCB2(DIM, network=Embedded)
    arms = samples(Embedded, 3)
    arms[1, 0] = 7
    with pytest.raises(InputError, match=r"Embedded failed .*IndexError.*a row for every number"):
        agent.act(arms)


class Strange(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(DIM))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.w


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (lambda: nn.Sequential(nn.Linear(DIM, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)), "mixes the samples"),
        (lambda: nn.Linear(DIM + 1, 1), "must map features"),
        (lambda: nn.Linear(DIM, 2), r"gave \(4, 2\)"),
        (lambda: nn.ReLU(), "no parameters|must map"),
        (lambda: 3, "must make a torch.nn.Module, got int"),
        (Strange(), "no reset_parameters"),
        (nn.LazyLinear(1), "lazy|initiali|reset"),
        (lambda: nn.Linear(DIM, 1).requires_grad_(False), "all of its parameters are frozen"),
        (lambda: Calls(lambda _, x: x / x.norm(dim=-1, keepdim=True)), "gives nan for features of 0 and 1"),
        (lambda: Calls(lambda _, x: x.clamp_(max=0.5)), "changes the features that it is given"),
        (lambda: Calls(lambda m, x: x + 0 * m.count.add_(1)), "changes its buffer count"),
        (lambda: Calls(lambda m, x: nn.functional.dropout(x, 0.5, m.training)), "draws random numbers outside of"),
        (lambda: Calls(lambda _, x: x if float(x.sum()) < 99 else -x), "cannot be computed for several replicas"),
    ],
)
def test_a_network_that_cannot_be_one_is_refused(network: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        NeuralLogUCB2(DIM, network=network)


def test_layers_that_torch_cannot_batch_are_refused_when_the_agent_is_made() -> None:
    with pytest.raises(InputError, match="cannot be computed for several replicas"):
        NeuralLogUCB2(DIM, network=lambda: nn.Sequential(nn.Linear(DIM, 3), nn.PReLU(), nn.Linear(3, 1)), replicas=2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LogisticUCB1(DIM, network=plain), "is linear: it takes no network"),
        (lambda: NeuralLogUCB2(DIM, network=plain, bias=True), "bias is for the built-in network"),
        (lambda: NeuralLogUCB2(DIM, network=plain, init="uniform"), "init is for the built-in network"),
        (lambda: NeuralLogUCB2(DIM, network=plain, mode="theory"), "Theory mode has no network"),
        (lambda: NeuralLogUCB2(DIM + 1, network=plain, blocks=2), "set its dense to true"),
    ],
)
def test_settings_that_a_network_of_ones_own_has_not(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
