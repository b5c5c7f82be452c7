"""A fit under Lightning is the same as acting, observing and training by hand; to stop and go on changes nothing."""

from pathlib import Path
from typing import Any, Literal

import lightning as L
import pyarrow.parquet as pq
import pytest
import torch

from nl_lightning import AGENTS, NeuralLogTS2, NeuralLogUCB2
from nl_lightning.agents.base import Agent, LinearAgent
from nl_lightning.agents.callbacks import Confidence, RoundCallback
from nl_lightning.core.errors import InputError
from nl_lightning.core.types import Round, Window
from nl_lightning.environments import Synthetic
from nl_lightning.reporting.conclusion import conclude
from nl_lightning.rollout.data import BanditData
from nl_lightning.runs.checkpoints import Checkpoints
from nl_lightning.runs.recorder import Recorder
from tests.support.fits import QUIET, Fit
from tests.support.small_agents import VARIANTS


def make(name: str, design: str = "diagonal", **settings: Any) -> Agent:
    size = {} if issubclass(AGENTS[name], LinearAgent) else {"width": 6}
    if design == "theory":
        # lr and steps of the paper's Condition, whose horizon is that of the fit; TrainNN by hand must be told
        return AGENTS[name](4, **size, mode="theory", **{"update_every": 20, "replicas": 2, **settings})
    settings = {"design": design, "optimizer": "gd", **settings}
    return AGENTS[name](4, **size, **{"steps": 10, "update_every": 20, "replicas": 2, "lr": 0.005, **settings})


@pytest.mark.parametrize(("name", "design"), VARIANTS)
def test_fit_equals_act_observe_train_nn(name: str, design: str, fit: Fit) -> None:
    agent, rounds = fit(make(name, design=design), rounds=70)
    by_hand = make(name, design=design, horizon=70)
    environment = Synthetic("h1", dim=4, arms=4, pool=30)
    environment.prepare(by_hand.settings.seeds, torch.empty(0))
    for t in range(70):
        deal = environment.deal(t, 1)
        choice = by_hand.act(deal.arms[:, 0])
        assert torch.equal(choice.arm, rounds.arm[:, t])
        torch.testing.assert_close(choice.chosen(choice.score), rounds.score[:, t], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(choice.chosen(deal.regret[:, 0]), rounds.regret[:, t], rtol=0, atol=0)
        by_hand.observe(choice, choice.chosen(deal.reward[:, 0]))
        torch.testing.assert_close(by_hand.radius, rounds.radius[:, t], rtol=1e-5, atol=1e-7)
        if t % 20 == 19:
            by_hand.train_nn()
    assert rounds.t.tolist() == list(range(1, 71))
    for mine, theirs in zip(agent.network.weights, by_hand.network.weights, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "design"), VARIANTS)
def test_replicas_of_a_fit_equal_single_fits(name: str, design: str, fit: Fit) -> None:
    _, together = fit(make(name, design, replicas=3).double(), rounds=60)
    for r in range(3):
        _, alone = fit(make(name, design, replicas=1, seed=r).double(), rounds=60)
        assert torch.equal(alone.arm[0], together.arm[r])
        torch.testing.assert_close(alone.regret[0].cumsum(0), together.regret[r].cumsum(0))
        torch.testing.assert_close(alone.score[0], together.score[r], rtol=1e-8, atol=1e-10)


def test_global_step_counts_calls_of_train_nn_and_the_rest_is_played(fit: Fit) -> None:
    class Count(L.Callback):
        def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            self.steps = trainer.global_step

    count = Count()
    agent, rounds = fit(make("NeuralLog-UCB-1"), rounds=53, callbacks=[count])
    assert count.steps == 2
    assert len(rounds.t) == 53
    assert agent.rounds.tolist() == [53, 53]
    few, _ = fit(make("NeuralLog-UCB-1"), rounds=7, callbacks=[count])
    assert count.steps == 0
    assert few.rounds.tolist() == [7, 7]


def test_callbacks_see_every_round_after_its_update(fit: Fit) -> None:
    class See(RoundCallback):
        seen: list[tuple[int, float, float]] = []

        def on_round_end(self, trainer: L.Trainer, agent: Agent, played: Round) -> None:
            self.seen.append((int(played.t[0]), float(agent.radius[0]), float(played.regret[0])))

    see = See()
    _, rounds = fit(make("NeuralLog-UCB-2"), rounds=40, callbacks=[see, Confidence()])
    assert [t for t, _, _ in see.seen] == list(range(1, 41))
    assert [radius for _, radius, _ in see.seen] == rounds.radius[0].tolist()
    assert [regret for _, _, regret in see.seen] == rounds.regret[0].tolist()


def trainer_of(directory: Path, every: int = 1, **flags: Any) -> L.Trainer:
    return L.Trainer(
        **QUIET,
        callbacks=[Recorder(directory), Checkpoints(directory / "checkpoints" / "last.ckpt", every)],
        **flags,
    )


def data(rounds: int = 130) -> BanditData:
    return BanditData(Synthetic("h3", dim=4, arms=4, pool=30), rounds=rounds)


def assert_same_result(one: Path, other: Path) -> None:
    assert pq.read_table(one / "rounds.parquet").equals(pq.read_table(other / "rounds.parquet"))
    first, second = (
        torch.load(d / "checkpoints" / "last.ckpt", weights_only=False)["state_dict"] for d in (one, other)
    )
    for key, value in first.items():
        assert torch.equal(value, second[key]) if isinstance(value, torch.Tensor) else value == second[key]


@pytest.mark.parametrize(("name", "design"), VARIANTS)
@pytest.mark.parametrize(("stop", "precision"), [(1, "32-true"), (3, "64-true"), (6, "32-true")])
def test_stop_and_resume_is_bit_for_bit(name: str, design: str, stop: int, precision: Any, tmp_path: Path) -> None:
    """With 15 dimensions (theory) or 30 (full), some stop before the primal form of the matrices and some behind."""
    last = tmp_path / "cut" / "checkpoints" / "last.ckpt"
    trainer_of(tmp_path / "whole", precision=precision).fit(make(name, design), data())
    trainer_of(tmp_path / "cut", max_steps=stop, precision=precision).fit(make(name, design), data())
    trainer_of(tmp_path / "cut", precision=precision).fit(make(name, design), data(), ckpt_path=last)
    assert_same_result(tmp_path / "whole", tmp_path / "cut")
    assert not (tmp_path / "cut" / "rounds").exists()


class Die(RoundCallback):
    """Stops a fit in the middle of its rounds, without a word to anybody."""

    def __init__(self, t: int) -> None:
        self.t = t

    def on_round_end(self, trainer: L.Trainer, agent: Agent, played: Round) -> None:
        self._pass(1)

    def on_window_end(self, trainer: L.Trainer, agent: Agent, window: Window) -> None:
        self._pass(window.arm.shape[1])

    def _pass(self, rounds: int) -> None:
        self.t -= rounds
        if self.t <= 0:
            raise SystemExit("killed")


@pytest.mark.parametrize("t", [45, 61, 129])
def test_a_run_cut_between_checkpoints_loses_and_doubles_no_round(t: int, tmp_path: Path) -> None:
    trainer_of(tmp_path / "whole").fit(make("NeuralLog-TS-1"), data())
    cut = trainer_of(tmp_path / "cut", every=2)
    cut.callbacks.insert(0, Die(t))  # type: ignore[attr-defined]
    with pytest.raises(SystemExit):
        cut.fit(make("NeuralLog-TS-1"), data())
    # as if the kill had come after a part was written and before its checkpoint
    (part, *_) = (tmp_path / "cut" / "rounds").glob("*.parquet")
    (tmp_path / "cut" / "rounds" / "from-000000121.parquet").write_bytes(part.read_bytes())
    trainer_of(tmp_path / "cut", every=2).fit(
        make("NeuralLog-TS-1"), data(), ckpt_path=tmp_path / "cut" / "checkpoints" / "last.ckpt"
    )
    assert_same_result(tmp_path / "whole", tmp_path / "cut")


def test_a_data_module_serves_agent_after_agent(fit: Fit) -> None:
    module = BanditData(Synthetic("h1", dim=4, arms=4, pool=30), rounds=40)
    for name in ("NeuralLog-UCB-2", "NeuralLog-TS-2"):
        agent = make(name)
        L.Trainer(**QUIET, enable_checkpointing=False).fit(agent, module)
        assert agent.rounds.tolist() == [40, 40]


def test_many_rounds_between_two_calls_are_played_in_blocks(fit: Fit) -> None:
    agent, rounds = fit(make("NeuralLog-TS-1", update_every=600, steps=2), rounds=700)
    assert [len(block.t) for block in rounds.blocks] == [256, 256, 88, 100]
    assert rounds.t.tolist() == list(range(1, 701))
    assert agent.rounds.tolist() == [700, 700]


def test_diverged_replicas_end_in_the_record(tmp_path: Path) -> None:
    """Their rows stop at the round of the failed TrainNN; the others are as without them."""
    grid = make("NeuralLog-UCB-2", grid={"lam": [1.0, 300.0]}, replicas=2)
    trainer_of(tmp_path / "grid").fit(grid, data())
    trainer_of(tmp_path / "alone").fit(make("NeuralLog-UCB-2", lam=1.0), data())
    rows = pq.read_table(tmp_path / "grid" / "rounds.parquet").to_pandas()
    alone = pq.read_table(tmp_path / "alone" / "rounds.parquet").to_pandas()
    assert rows.groupby("replica").t.max().tolist() == [130, 130, 20, 20]
    kept = rows[rows.replica < 2].reset_index(drop=True)
    assert kept.arm.tolist() == alone.arm.tolist()
    assert kept.cumulative_regret.to_numpy() == pytest.approx(alone.cumulative_regret.to_numpy())
    import json

    summary = json.loads((tmp_path / "grid" / "summary.json").read_text())
    assert [r["diverged_at"] for r in summary["replicas"]] == [None, None, 20, 20]
    best, worst = summary["over_replicas"]
    assert (best["lam"], best["diverged"], worst["diverged"], worst["regret"]) == (1.0, 0, 2, None)


def test_all_diverged_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="TrainNN diverged in replica 0 .* at round 20"):
        trainer_of(tmp_path / "run").fit(make("NeuralLog-UCB-2", lam=[250.0, 300.0]), data())


def test_record_is_what_was_played(tmp_path: Path, fit: Fit) -> None:
    import numpy as np

    recorder = Recorder(tmp_path / "run", conclude)
    agent, rounds = fit(make("NeuralLog-UCB-2"), rounds=50, callbacks=[recorder])
    rows = pq.read_table(tmp_path / "run" / "rounds.parquet").to_pandas()
    assert rows.t.tolist() == [t for t in range(1, 51) for _ in range(2)]
    for r in range(2):
        mine = rows[rows.replica == r]
        for column in ("arm", "reward", "score", "mean", "bonus", "radius"):
            assert np.array_equal(mine[column], getattr(rounds, column)[r].numpy())
        assert mine.cumulative_regret.to_numpy() == pytest.approx(rounds.regret[r].cumsum(0).numpy())
        assert np.array_equal(mine.logdet, rounds.effective_dimension[r].numpy())
    assert (tmp_path / "run" / "curve.png").stat().st_size > 5000
    assert agent.diverged_at.tolist() == [0, 0]


def test_a_checkpoint_of_another_agent_is_refused(tmp_path: Path) -> None:
    trainer_of(tmp_path / "a").fit(make("NeuralLog-UCB-2"), data(40))
    with pytest.raises(InputError, match="its agent is NeuralLog-UCB-2, here it is NeuralLog-UCB-1"):
        trainer_of(tmp_path / "b").fit(
            make("NeuralLog-UCB-1"), data(40), ckpt_path=tmp_path / "a" / "checkpoints" / "last.ckpt"
        )
    assert not (tmp_path / "b" / "rounds.parquet").exists()


def test_dim_of_agent_and_environment_must_agree(fit: Fit) -> None:
    with pytest.raises(InputError, match="agent takes 4 features, the environment's arms have 5"):
        fit(make("NeuralLog-UCB-2"), dim=5)


def test_agents_learn_h1(fit: Fit) -> None:
    """At T = 600, NeuralLog-UCB-2 has far less regret than chance, and less than the linear agents."""
    settings: dict[str, Any] = {"dim": 20, "arms": 5, "pool": 2500}

    def regret(name: str, nu: float) -> float:
        size = {} if issubclass(AGENTS[name], LinearAgent) else {"width": 20}
        agent = AGENTS[name](20, nu=nu, lr=0.005, replicas=8, **size)
        return float(fit(agent, rounds=600, **settings)[1].regret.sum(1).mean())

    chance = regret("NeuralLog-TS-2", nu=1e6)
    neural, linear = regret("NeuralLog-UCB-2", nu=0.01), regret("ada-OFU-ECOLog", nu=0.01)
    assert neural < 0.85 * linear
    assert linear < 0.95 * chance


def test_test_plays_a_frozen_agent_on_new_rounds(tmp_path: Path) -> None:
    agent, module = make("NeuralLog-UCB-2"), data(60)
    trainer = trainer_of(tmp_path / "run")
    trainer.fit(agent, module)
    before = {k: v.clone() for k, v in agent.state_dict().items() if isinstance(v, torch.Tensor)}
    (result,) = trainer.test(agent, module, verbose=False)
    assert all(torch.equal(before[k], agent.state_dict()[k]) for k in before)
    fresh = Synthetic("h3", dim=4, arms=4, pool=30)
    fresh.prepare(agent.settings.seeds, torch.empty(0))
    deal = fresh.deal(60, 60)
    choices = torch.stack([agent.act(deal.arms[:, t]).arm for t in range(60)], dim=1)
    assert result["test/regret"] == pytest.approx(float(deal.regret.gather(2, choices[..., None]).mean()))
    assert result["test/reward"] == pytest.approx(float(deal.reward.gather(2, choices[..., None]).mean()))


def test_double_precision_by_trainer_flag(tmp_path: Path) -> None:
    agent = NeuralLogTS2(4, width=6, steps=5, update_every=20)
    trainer_of(tmp_path / "run", precision="64-true").fit(agent, data(40))
    assert agent.network.weights[0].dtype == agent.buffer.x.dtype == torch.float64


@pytest.mark.parametrize("mode", ["practical", "theory"])
def test_the_buffer_and_the_designs_move_with_the_agent(mode: Literal["practical", "theory"]) -> None:
    agent = NeuralLogUCB2(4, mode=mode).double()
    tensors = {**dict(agent.named_buffers()), **dict(agent.named_parameters())}
    assert {t.dtype for t in tensors.values()} == {torch.float64, torch.int64}
