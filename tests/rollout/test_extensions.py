"""What users bring is what runs: agents, rules, designs, environments, callbacks, in a fit, a test and a resumption."""

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from nl_lightning import Agent, Deal, NeuralAgent, NeuralLogTS2, NeuralLogUCB2, Simulation
from nl_lightning.agents.callbacks import Confidence
from nl_lightning.agents.exploration import UCB, Thompson
from nl_lightning.core.errors import InputError
from nl_lightning.core.types import Window
from nl_lightning.environments import Synthetic
from nl_lightning.rollout.data import BanditData
from nl_lightning.rollout.loop import make_plan
from nl_lightning.runs.checkpoints import Checkpoints
from tests.conftest import QUIET, Fit, Keep
from tests.support import extensions as own

SMALL: dict[str, Any] = {"width": 6, "update_every": 20, "steps": 10, "lr": 0.002, "replicas": 3}


def agent(kind: type[Agent] = NeuralLogUCB2, **settings: Any) -> Any:
    return kind(4, **{**SMALL, "optimizer": "gd", "nu": 1.0, **settings}).double()


def fitted(one: Agent, environment: Simulation, rounds: int = 60, **flags: Any) -> Keep:
    keep = Keep()
    callbacks = [keep, *flags.pop("callbacks", [])]
    trainer = L.Trainer(**{**QUIET, "enable_checkpointing": False, **flags.pop("trainer", {})}, callbacks=callbacks)
    trainer.fit(one, BanditData(environment, rounds), weights_only=False, **flags)
    return keep


# ---- agents ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [own.RandomAgent, own.FirstArm, own.Pessimist, own.Observer, own.SlowConfidence])
def test_a_method_of_ones_own_is_called_for_every_round(kind: Any, fit: Fit) -> None:
    one, rounds = fit(agent(kind), rounds=60)
    assert one.calls == 60
    assert one.rounds.tolist() == [60] * 3
    by_default = fit(agent(), rounds=60)[1]
    assert not torch.equal(rounds.score, by_default.score) or not torch.equal(rounds.arm, by_default.arm)


def test_an_agent_that_picks_at_random_does(fit: Fit) -> None:
    _, rounds = fit(agent(own.RandomAgent, replicas=20), rounds=200)
    counts = rounds.arm.flatten().bincount(minlength=4).double()
    # chi^2 with 3 degrees of freedom is above 16.3 once in a thousand times
    assert ((counts - 1000) ** 2 / 1000).sum() < 16.3


def test_an_agent_that_takes_the_first_arm_does(fit: Fit) -> None:
    _, rounds = fit(agent(own.FirstArm), rounds=40)
    assert not rounds.arm.any()


def test_an_observe_of_ones_own_is_what_is_learned(fit: Fit) -> None:
    one, rounds = fit(agent(own.Observer), rounds=40)
    learned = one.buffer.rows()[1]
    assert torch.equal(learned[:, ::2], rounds.reward[:, ::2])
    assert not learned[:, 1::2].any()
    assert rounds.reward[:, 1::2].any()


def test_a_radius_of_ones_own_is_used(fit: Fit) -> None:
    _, rounds = fit(agent(own.OwnRadius), rounds=60)
    torch.testing.assert_close(rounds.radius, (1 + rounds.effective_dimension).log() + 0.1)


def test_a_mean_of_ones_own_is_used_where_rounds_are_looked_ahead(fit: Fit) -> None:
    one = agent(own.OwnMean, nu=0.0, update_every=100)
    assert make_plan(one, Synthetic(), 40, together=True).ahead
    one, rounds = fit(one, rounds=40)
    expected = one.network(rounds.x).detach() + rounds.x[..., 0]
    torch.testing.assert_close(rounds.score, expected.to(rounds.score.dtype), rtol=1e-6, atol=1e-6)


def test_a_train_nn_of_ones_own_is_what_trains(fit: Fit) -> None:
    twice, _ = fit(agent(own.TwiceTrained), rounds=60)
    assert twice.calls == 3
    once, _ = fit(agent(), rounds=60)
    long, _ = fit(agent(steps=20), rounds=60)
    assert not torch.equal(twice.weights(0)[0], once.weights(0)[0])
    torch.testing.assert_close(twice.weights(0)[0], long.weights(0)[0], rtol=1e-6, atol=1e-8)


def test_a_method_of_an_instance_counts_like_that_of_a_class(fit: Fit) -> None:
    one, seen = agent(), []
    plain = one.choose
    one.choose = lambda view: seen.append(1) or plain(view)
    fit(one, rounds=30)
    assert len(seen) == 30


def test_the_fast_way_steps_aside_only_where_it_must() -> None:
    assert make_plan(agent(), Synthetic(), 50, together=True).ahead
    for kind in (own.RandomAgent, own.FirstArm, own.Pessimist, own.Observer, own.SlowConfidence, own.OwnRadius):
        assert not make_plan(agent(kind), Synthetic(), 50, together=True).ahead


def test_what_can_only_be_ignored_is_refused(fit: Fit) -> None:
    class Windows(NeuralLogUCB2):
        def observe_window(self, window: Window) -> None:
            raise AssertionError

    with pytest.raises(InputError, match="redefine observe instead"):
        fit(agent(Windows), rounds=30)

    class Nobody(NeuralLogUCB2):
        def configure_callbacks(self) -> list[L.Callback]:
            return []

    with pytest.raises(InputError, match="exactly one Confidence callback.*got none"):
        fit(agent(Nobody), rounds=30)

    class NoRadius(NeuralAgent):
        pass

    with pytest.raises(InputError, match="NoRadius has no radius: define radius_at"):
        NoRadius(4)


def test_an_agent_without_a_name_goes_by_that_of_its_class() -> None:
    assert own.OwnRadius.name == "OwnRadius"
    assert NeuralLogUCB2.name == "NeuralLog-UCB-2"


def test_help_begins_with_the_algorithm_and_its_settings() -> None:
    assert NeuralLogUCB2.__doc__ is not None
    for text in ("score = f + nu rho", "Args:", "nu: exploration parameter", "on_divergence:"):
        assert text in NeuralLogUCB2.__doc__


def test_one_replica_takes_a_plain_number() -> None:
    one = NeuralLogUCB2(4)
    for reward in (1, 0.0, True):
        one.observe(one.act(torch.rand(3, 4)), reward)
    assert one.buffer.rows()[1].tolist() == [[1.0, 0.0, 1.0]]
    two = NeuralLogUCB2(4, replicas=2)
    with pytest.raises(InputError, match="reward must have the shape"):
        two.observe(two.act(torch.rand(3, 4)), 1)


# ---- rules and designs -----------------------------------------------------------------------------------------------


def test_an_exploration_rule_of_ones_own(fit: Fit) -> None:
    half, rounds = fit(agent(exploration=own.HalfBonus(0.25)), rounds=60)
    torch.testing.assert_close(rounds.score, rounds.mean + 0.25 * rounds.bonus)
    again, same = fit(agent(exploration="tests.support.extensions.HalfBonus"), rounds=60)
    torch.testing.assert_close(same.score, same.mean + 0.5 * same.bonus)
    _, greedy = fit(agent(exploration="greedy"), rounds=60)
    assert torch.equal(greedy.score, greedy.mean)
    _, ucb = fit(agent(NeuralLogTS2, exploration=UCB()), rounds=60)
    torch.testing.assert_close(ucb.score, ucb.mean + ucb.bonus)
    with pytest.raises(InputError, match="its exploration is"):
        again.load_state_dict(half.state_dict())


def test_a_rule_that_chooses_at_random_is_looked_ahead(fit: Fit) -> None:
    one = agent(exploration=own.EpsilonGreedy(0.5), replicas=10)
    assert make_plan(one, Synthetic(), 20, together=True).ahead
    ahead = fit(one, rounds=60)[1]
    by_round = fit(agent(exploration=own.EpsilonGreedy(0.5), replicas=10), rounds=60, callbacks=[own.CountRounds()])[1]
    assert torch.equal(ahead.arm, by_round.arm)


@pytest.mark.parametrize("design", [own.DenseDesign, "tests.support.extensions.DenseDesign"])
def test_a_design_of_ones_own(design: Any, fit: Fit) -> None:
    mine, rounds = fit(agent(design=design), rounds=60)
    _, exact = fit(agent(design="full"), rounds=60)
    assert torch.equal(rounds.arm, exact.arm)
    for name in ("score", "bonus", "radius", "effective_dimension"):
        torch.testing.assert_close(getattr(rounds, name), getattr(exact, name), rtol=1e-7, atol=1e-9)
    _, scaled = fit(agent(design=design, design_args={"scale": 2.0}, update_every=100), rounds=1)
    _, plain = fit(agent(design="full", update_every=100), rounds=1)
    same = scaled.arm == plain.arm
    assert same.any()
    torch.testing.assert_close(scaled.bonus[same], 2 * plain.bonus[same], rtol=1e-9, atol=0)
    with pytest.raises(InputError, match="its design is tests.support.extensions.DenseDesign, here it is full"):
        agent(design="full").load_state_dict(mine.state_dict())


def test_settings_of_a_design_are_checked() -> None:
    with pytest.raises(InputError, match="DiagonalDesign has no setting rank"):
        agent(design_args={"rank": 3})
    with pytest.raises(InputError, match="DenseDesign cannot be made with design_args"):
        agent(design=own.DenseDesign, design_args={"rank": 3})
    with pytest.raises(InputError, match="'torch.nn.Linear' is no subclass of DesignMatrix"):
        agent(design="torch.nn.Linear")


def test_a_design_that_redefines_its_norm_is_not_looked_ahead(fit: Fit) -> None:
    one = agent(design=own.DoubledNorm)
    assert not make_plan(one, Synthetic(), 50, together=True).ahead
    _, rounds = fit(one, rounds=1)
    _, plain = fit(agent(), rounds=1)
    chosen = rounds.arm == plain.arm
    torch.testing.assert_close(rounds.bonus[chosen], 2 * plain.bonus[chosen])
    assert chosen.any()


# ---- environments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [NeuralLogUCB2, NeuralLogTS2, own.RandomAgent, own.FirstArm])
@pytest.mark.parametrize("design", ["diagonal", "full"])
def test_rounds_that_come_in_small_pieces_with_different_numbers_of_arms(kind: Any, design: str) -> None:
    one, environment = agent(kind, design=design), own.FewRounds()
    keep = fitted(one, environment, rounds=110)
    assert keep.t.tolist() == list(range(1, 111))
    assert one.rounds.tolist() == [110] * 3
    x = torch.cat([block.x for block in keep.blocks], dim=1)
    for replica, seed in enumerate((0, 1, 2)):
        for t in range(110):
            arms, clicks, mask = own.FewRounds.round(seed, t)
            arm = int(keep.arm[replica, t])
            assert mask[arm], "an arm was chosen that the round does not have"
            assert keep.reward[replica, t] == clicks[arm]
            torch.testing.assert_close(x[replica, t].float(), arms[arm])


def test_a_test_plays_all_rounds_of_small_pieces() -> None:
    one, data = agent(own.FirstArm), BanditData(own.FewRounds(), 50)
    trainer = L.Trainer(**QUIET, enable_checkpointing=False)
    trainer.fit(one, data)
    one.calls = 0
    (found,) = trainer.test(one, data, verbose=False)
    assert one.calls == 50
    rewards = [own.FewRounds.round(seed, t)[1][0] for seed in range(3) for t in range(50, 100)]
    assert found["test/reward"] == pytest.approx(float(torch.stack(rewards).mean()), rel=1e-6)


def test_pieces_and_whole_give_the_same_run() -> None:
    class Whole(own.FewRounds):
        def deal(self, start: int, count: int) -> Deal:
            parts = [own.FewRounds.deal(self, t, 1) for t in range(start, start + count)]
            return Deal(*(torch.cat(column, dim=1) for column in list(zip(*parts, strict=True))[:4]))

    one, other = (fitted(agent(), environment, rounds=60) for environment in (own.FewRounds(), Whole()))
    assert torch.equal(one.arm, other.arm)
    torch.testing.assert_close(one.score, other.score, rtol=1e-9, atol=1e-11)


def _deal(count: int, **changes: Any) -> Deal:
    shape = (3, count, 5)
    whole = Deal(torch.zeros(*shape, 4), torch.zeros(shape), torch.zeros(shape), torch.ones(shape, dtype=torch.bool))
    return whole._replace(**changes)


@pytest.mark.parametrize(
    ("deal", "text"),
    [
        (lambda n: _deal(0), r"was asked for 20 rounds: expected 1 to 20, got 0"),
        (lambda n: _deal(n + 1), r"was asked for 20 rounds: expected 1 to 20, got 21"),
        (lambda n: None, "Odd.deal must return a Deal, got NoneType"),
        (lambda n: tuple(_deal(n)), "Odd.deal must return a Deal, got tuple"),
        (lambda n: _deal(n, arms=[1.0]), "arms must be a tensor, got list"),
        (lambda n: _deal(n, reward=None), "reward must be a tensor, got NoneType"),
        (
            lambda n: _deal(n, arms=torch.zeros(3, n, 5, 4).long()),
            "arms must be floating-point numbers, got torch.int64",
        ),
        (lambda n: _deal(n, arms=torch.zeros(3, n, 4, 4)), r"arms must have the shape \(3, C, max_arms = 5, 4\)"),
        (lambda n: _deal(n, arms=torch.zeros(2, n, 5, 4)), r"arms must have the shape .*got \(2, 20, 5, 4\)"),
        (lambda n: _deal(n, reward=torch.zeros(3, n)), r"reward must have the shape \(3, 20, 5\), got \(3, 20\)"),
        (lambda n: _deal(n, regret=None), "regret is missing; set knows_regret = False"),
        (lambda n: _deal(n, mask=torch.ones(3, n, 5)), "mask must be boolean, got torch.float32"),
        (lambda n: _deal(n, mask=torch.zeros(3, n, 5).bool()), "mask leaves a round without arms"),
        (lambda n: _deal(n, reward=torch.full((3, n, 5), 2.0)), "rewards must be 0 or 1"),
    ],
)
def test_what_cannot_be_played_is_refused_by_name(deal: Any, text: str) -> None:
    class Odd(Simulation):
        dim, max_arms = 4, 5

        def deal(self, start: int, count: int) -> Deal:
            return deal(count)  # type: ignore[no-any-return]

    with pytest.raises(InputError, match=text):
        fitted(agent(), Odd())


def test_whatever_padding_holds_is_not_looked_at() -> None:
    class Dirty(own.FewRounds):
        def deal(self, start: int, count: int) -> Deal:
            clean = super().deal(start, count)
            assert clean.mask is not None
            assert clean.regret is not None
            nan = float("nan")
            return Deal(
                clean.arms.masked_fill(~clean.mask.unsqueeze(-1), nan),
                clean.reward.masked_fill(~clean.mask, nan),
                clean.regret.masked_fill(~clean.mask, nan),
                clean.mask,
            )

    one, other = (fitted(agent(), environment, rounds=60) for environment in (own.FewRounds(), Dirty()))
    assert torch.equal(one.arm, other.arm)


def test_an_environment_that_does_not_know_regrets(tmp_path: Path) -> None:
    class Silent(own.FewRounds):
        knows_regret = False

        def deal(self, start: int, count: int) -> Deal:
            return super().deal(start, count)._replace(regret=None)

    keep = fitted(agent(), Silent())
    assert all(block.regret is None for block in keep.blocks)


# ---- callbacks, resumption -------------------------------------------------------------------------------------------


def test_a_callback_sees_every_round_with_the_buffer_up_to_date() -> None:
    count = own.CountRounds()
    fitted(agent(), own.FewRounds(), rounds=60, callbacks=[count])
    assert count.rounds == 60


def test_a_confidence_callback_of_ones_own_replaces_the_agents() -> None:
    class Watched(Confidence):
        rounds = 0

        def on_round_end(self, trainer: L.Trainer, agent: Any, played: Any) -> None:
            super().on_round_end(trainer, agent, played)
            self.rounds += 1

    watched = Watched()
    keep = fitted(agent(), own.FewRounds(), rounds=60, callbacks=[watched])
    plain = fitted(agent(), own.FewRounds(), rounds=60)
    assert watched.rounds == 60
    assert torch.equal(keep.arm, plain.arm)
    torch.testing.assert_close(keep.radius, plain.radius)
    with pytest.raises(InputError, match=r"got 2 of them \(Watched, Confidence\)"):
        fitted(agent(), own.FewRounds(), callbacks=[Watched(), Confidence()])


@pytest.mark.parametrize(
    "make",
    [
        lambda: agent(own.RandomAgent),
        lambda: agent(own.FirstArm),
        lambda: agent(own.Observer),
        lambda: agent(own.OwnRadius),
        lambda: agent(exploration=own.EpsilonGreedy()),
        lambda: agent(design=own.DenseDesign),
    ],
)
def test_what_is_ones_own_stops_and_resumes_bit_for_bit(make: Any, tmp_path: Path) -> None:
    whole, path = make(), tmp_path / "last.ckpt"
    expected = fitted(whole, own.FewRounds(), rounds=100)
    first, second = make(), make()
    flags = {"max_steps": 2, "enable_checkpointing": True}
    fitted(first, own.FewRounds(), rounds=100, callbacks=[Checkpoints(path, 1)], trainer=flags)
    found = fitted(second, own.FewRounds(), rounds=100, ckpt_path=path)
    assert found.t.tolist() == list(range(41, 101))
    assert torch.equal(found.arm, expected.arm[:, 40:])
    for mine, theirs in zip(second.state_dict().values(), whole.state_dict().values(), strict=True):
        if isinstance(mine, torch.Tensor):
            assert torch.equal(mine, theirs)


# ---- nothing is stale, nothing hangs, nothing is ignored -------------------------------------------------------------


def test_an_agent_that_asks_for_its_rounds_gets_them(fit: Fit) -> None:
    class Forced(NeuralLogUCB2):
        seen: list[int]

        def act(self, arms: Any, mask: Any = None) -> Any:
            self.seen.append(int(self.rounds[0]))
            return super().act(arms, mask)

    class Growing(NeuralLogUCB2):
        def radius_at(self, dimension: torch.Tensor) -> torch.Tensor:
            return super().radius_at(dimension) * (1 + self.rounds)

    forced = agent(Forced)
    forced.seen = []
    fit(forced, rounds=45)
    assert forced.seen == list(range(45))
    _, rounds = fit(agent(Growing), rounds=30)
    factor = rounds.radius / agent().formulas.radius(rounds.effective_dimension.mT).mT
    torch.testing.assert_close(factor, (1 + rounds.t).double().expand_as(factor))


def test_a_rule_with_random_numbers_of_its_own_is_refused(fit: Fit) -> None:
    class Dice(UCB):
        def choose(self, score: Any, uniform: Any, normal: Any, tolerance: float) -> torch.Tensor:
            return torch.randint(score.shape[-1], score.shape[:-1])

    with pytest.raises(InputError, match="gives other answers when it is asked again"):
        fit(agent(exploration=Dice()), rounds=40)


def test_own_choices_are_checked(fit: Fit) -> None:
    def choosing(answer: Any) -> Any:
        class Odd(NeuralLogUCB2):
            def choose(self, view: Any) -> Any:
                return answer(super().choose(view))

        return agent(Odd)

    for answer, text in (
        (lambda choice: choice.arm, "Odd.choose must return a Choice, got Tensor"),
        (lambda choice: choice._replace(arm=choice.arm + 50), "arm must lie between 0 and 3, got 5"),
        (lambda choice: choice._replace(arm=choice.arm[:1]), r"arm must be int64 of shape \(3,\)"),
        (lambda choice: choice._replace(arm=choice.arm.float()), "got torch.float32"),
    ):
        with pytest.raises(InputError, match=text):
            fit(choosing(answer), rounds=10)
    last = choosing(lambda choice: choice._replace(arm=torch.full_like(choice.arm, 4)))
    with pytest.raises(InputError, match="has chosen an arm that the round does not have"):
        fitted(last, own.FewRounds())


def test_overrides_without_effect_are_refused(fit: Fit) -> None:
    class Optimizers(NeuralLogUCB2):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e9)

    with pytest.raises(InputError, match="configure_optimizers, which has no effect"):
        fit(agent(Optimizers), rounds=10)

    class Radius(NeuralLogUCB2):
        def radius_terms(self) -> Any:
            return super().radius_terms()

    agent(Radius)
    with pytest.raises(InputError, match="have no effect in theory mode"):
        Radius(4, mode="theory")

    class WindowsOnly(own.RoundCallback):
        def on_window_end(self, trainer: L.Trainer, agent: Any, window: Window) -> None:
            pass

    fit(agent(), rounds=40, callbacks=[WindowsOnly()])
    with pytest.warns(UserWarning, match=r"WindowsOnly.on_window_end is not called: .* Define on_round_end"):
        fit(agent(design="full"), rounds=40, callbacks=[WindowsOnly()])

    class OwnConfidence(Confidence):
        def on_window_end(self, trainer: L.Trainer, agent: Any, window: Window) -> None:
            pass

    with pytest.raises(InputError, match="OwnConfidence defines on_window_end without on_round_end"):
        fit(agent(), rounds=10, callbacks=[OwnConfidence()])


def test_what_a_subclass_of_a_shipped_environment_deals_is_checked() -> None:
    class Rich(Synthetic):
        def deal(self, start: int, count: int) -> Deal:
            dealt = super().deal(start, count)
            return dealt._replace(reward=dealt.reward + 5)

    with pytest.raises(InputError, match="Rich.deal: rewards must be 0 or 1"):
        fitted(agent(), Rich(dim=4))


def test_a_simulation_that_ends() -> None:
    class Ends(own.FewRounds):
        dealt = 0

        def deal(self, start: int, count: int) -> Deal:
            found = super().deal(start, min(count, 50 - start))
            self.dealt = start + found.arms.shape[1]
            return found

        @property
        def ended(self) -> bool:
            return self.dealt >= 50

    one = agent()
    keep = fitted(one, Ends(), rounds=200)
    assert keep.t.tolist() == list(range(1, 51))
    assert one.rounds.tolist() == [50] * 3


def test_state_that_a_user_rebinds_can_be_written_after_a_fit(fit: Fit) -> None:
    class Total(NeuralLogUCB2):
        total: torch.Tensor

        def observe(self, choice: Any, reward: Any, accepted: Any = None) -> None:
            super().observe(choice, reward, accepted)
            self.total = self.total + reward

    one = agent(Total)
    one.register_buffer("total", torch.zeros(3, dtype=torch.float64))
    _, rounds = fit(one, rounds=30)
    one.total += 1
    torch.testing.assert_close(one.total, rounds.reward.sum(1).to(one.total) + 1)


def test_parts_that_are_replaced_after_construction_are_used(fit: Fit) -> None:
    one = agent()
    one.exploration = Thompson()
    _, rounds = fit(one, rounds=40)
    _, thompson = fit(agent(exploration="thompson"), rounds=40)
    assert torch.equal(rounds.score, thompson.score)
    other = agent()
    other.design = own.DoubledNorm(other.network.shapes, other.lam)
    doubled = other.act(torch.ones(3, 2, 4)).bonus
    torch.testing.assert_close(doubled, 2 * agent().act(torch.ones(3, 2, 4)).bonus)
    fit(other, rounds=20)
    assert (other.design.diagonal > other.lam.unsqueeze(1)).any()
