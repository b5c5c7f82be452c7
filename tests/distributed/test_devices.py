"""Everything runs where the agent is, and nothing waits for the device between two rounds.

The same tests run on the CPU, on a pretended accelerator (``device_modes``), and on CUDA where there is one. On MPS,
which has no float64, agents refuse to go: see the last tests.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import yaml
from lightning.pytorch.accelerators import MPSAccelerator
from torch import Tensor

from nl_lightning import NeuralLogUCB2
from nl_lightning.agents.base import Agent
from nl_lightning.cli.main import main
from nl_lightning.core.errors import InputError
from nl_lightning.core.types import Deal, Window
from nl_lightning.environments import Environment, Synthetic
from nl_lightning.rollout.data import BanditData
from nl_lightning.rollout.loop import play as play_rounds
from nl_lightning.runs.recorder import Recorder
from replay import ReplayLog
from replay.evaluation.estimators import Estimate
from replay.evaluation.evaluator import Evaluation, batches
from replay.logs.reader import Log
from replay.protocol.candidates import Protocol
from replay.protocol.events import CandidateEvents, ReplaySettings
from replay.protocol.obd_features import ObdFeatures
from replay.simulation.simulated_world import SimulatedWorld
from tests.support.cli import H1, fails
from tests.support.cli import SMALL as FEW
from tests.support.device_modes import PRETENDED, Accelerator, ExplicitDevices, host_pulls
from tests.support.fits import QUIET, Keep
from tests.support.paths import ROOT
from tests.support.replay_agents import learner as make_for_log
from tests.support.replay_logs import SMALL, write_log
from tests.support.small_agents import SETTINGS, VARIANTS, deal, make

ACCELERATORS = ["pretended", "cuda"]


@pytest.fixture(params=["cpu", *ACCELERATORS])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device on this machine; the pretended one stands in for it")
    if request.param == "pretended":
        with Accelerator():
            yield PRETENDED
    else:
        yield torch.device(request.param, *([0] if request.param == "cuda" else []))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    return write_log(tmp_path_factory.mktemp("logs") / "log", SimulatedWorld(**SMALL), 1100, group=300)


@pytest.fixture(scope="module")
def undivided(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """A log of one row group."""
    return write_log(tmp_path_factory.mktemp("logs") / "undivided", SimulatedWorld(**SMALL), 1500, group=1500)


class Checked(Keep):
    """Also counts how often a guess was checked, where rounds are looked ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.checks, self.windows = 0, 0

    def on_window_end(self, trainer: L.Trainer, agent: Agent, window: Window) -> None:
        self.checks, self.windows = self.checks + window.checks, self.windows + 1


def same(found: Tensor, expected: Tensor) -> None:
    """Of two devices: other hardware may round otherwise, a pretended one is the CPU."""
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-9, atol=1e-11)


def play(agent: Agent, environment: Environment, rounds: int, directory: Path | None = None) -> Checked:
    """A fit without a Trainer's loops, which would move the agent to a device that Lightning knows of."""
    keep, data = Checked(), BanditData(environment, rounds)
    recorders = [] if directory is None else [Recorder(directory)]
    trainer: Any = L.Trainer(**QUIET, enable_checkpointing=False, callbacks=[keep, *recorders])
    trainer.strategy.connect(agent)
    trainer.datamodule, data.trainer, agent.trainer = data, trainer, trainer
    trainer.callbacks.extend(agent.configure_callbacks())
    trainer.strategy.setup_optimizers(trainer)
    data.setup("fit")
    for recorder in recorders:
        recorder.setup(trainer, agent, "fit")
    for number, batch in enumerate(data.train_dataloader()):
        agent.training_step(batch, number)
    return keep


def simulated(name: str, design: str, **settings: Any) -> Agent:
    return make(name, design=design, **{"steps": 3, "update_every": 20, **SETTINGS, **settings}).double()


def logged(name: str, design: str, **settings: Any) -> Agent:
    kind = {"mode": "theory"} if design == "theory" else {"design": design}
    return make_for_log(name, replicas=2, **kind, **settings)


def problem(pool: int = 30) -> Synthetic:
    return Synthetic("h1", dim=4, arms=4, pool=pool)


# ---- the same everywhere --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "design"), VARIANTS)
def test_act_observe_and_train(name: str, design: str, device: torch.device) -> None:
    """40 rounds: whole design matrices change from their dual to their primal form on the way."""
    agent, reference = simulated(name, design), simulated(name, design)
    arms, rewards = deal(1, replicas=2, rounds=40)
    accepted = torch.tensor([True, False])
    agent.to(device)
    with ExplicitDevices():
        for t in range(40):
            # arms and rewards come from wherever the user has them
            choice, expected = agent.act(arms[t]), reference.act(arms[t])
            same(choice.score, expected.score)
            for each, chosen in ((agent, choice), (reference, expected)):
                each.observe(chosen, rewards[t], accepted if t % 3 == 0 else None)
                if t % 10 == 9:
                    each.train_nn()
    assert {tensor.device for tensor in (*agent.parameters(), *agent.buffers())} == {device}
    for found, kept in zip(agent.state_dict().values(), reference.state_dict().values(), strict=True):
        if isinstance(kept, Tensor):
            same(found, kept)


@pytest.mark.parametrize(("name", "design"), VARIANTS)
def test_a_simulation(name: str, design: str, device: torch.device, tmp_path: Path) -> None:
    expected = play(simulated(name, design), problem(), 60)
    agent = simulated(name, design).to(device)
    with ExplicitDevices():
        keep = play(agent, problem(), 60, tmp_path)
    for column in ("arm", "reward", "regret", "score", "mean", "bonus", "radius", "effective_dimension"):
        same(getattr(keep, column), getattr(expected, column))


@pytest.mark.parametrize(("name", "design"), VARIANTS)
def test_a_log(name: str, design: str, device: torch.device, log: Log, tmp_path: Path) -> None:
    expected = play(logged(name, design), ReplayLog(str(log.path)), 60)
    agent = logged(name, design).to(device)
    with ExplicitDevices():
        keep = play(agent, ReplayLog(str(log.path)), 60, tmp_path)
    for column in ("event", "arm", "reward", "score", "mean", "bonus", "radius", "effective_dimension"):
        same(getattr(keep, column), getattr(expected, column))


def test_a_log_that_ends_at_once(device: torch.device, tmp_path: Path) -> None:
    """Nothing is played, and nothing is made elsewhere."""
    log = write_log(tmp_path / "log", SimulatedWorld(**SMALL), 200, group=100)
    agent, environment = logged("NeuralLog-UCB-2", "diagonal").to(device), ReplayLog(str(log.path))
    environment.prepare(agent.settings.seeds, agent.network.weights[0])
    with ExplicitDevices(), torch.inference_mode():
        play_rounds(agent, environment, 0, 10**6, lambda played: None)
        history = play_rounds(agent, environment, 10**6, 10, lambda played: None)
    assert len(history.t) == 0
    assert history.score.device == history.x.device == device


@pytest.mark.parametrize("protocol", ["affinity", "uniform", "all"])
@pytest.mark.parametrize("name", ["NeuralLog-UCB-2", "NeuralLog-TS-1"])
def test_a_frozen_agent_and_its_metrics(name: str, protocol: Protocol, device: torch.device, log: Log) -> None:
    features, setting = ObdFeatures.fit(log), ReplaySettings(protocol, log.n_items if protocol == "all" else 5, None, 0)

    def results(evaluation: Evaluation) -> dict[str, Estimate]:
        evaluation.on_test_start()
        for number, batch in enumerate(batches(log, features, setting, replicas=2)):
            evaluation.test_step(CandidateEvents(*(column.to(evaluation.device) for column in batch)), number)
        return evaluation.results()

    draws = 3 if name == "NeuralLog-TS-1" else 1
    expected = results(Evaluation(logged(name, "full"), features, draws))
    evaluation = Evaluation(logged(name, "full"), features, draws).to(device)
    with ExplicitDevices():
        found = results(evaluation)
    assert evaluation.estimates["ips"].sums.device == device
    for metric, values in expected.items():
        for ours, theirs in zip(found[metric], values, strict=True):
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-9, atol=1e-11, equal_nan=True)


@pytest.mark.parametrize(("name", "design"), VARIANTS)
def test_an_agent_is_made_where_torch_makes_modules(name: str, design: str, device: torch.device) -> None:
    """As under ``trainer.init_module()``; its numbers are those of the CPU."""
    with device:
        agent = simulated(name, design)
    assert {tensor.device for tensor in (*agent.parameters(), *agent.buffers())} == {device}
    for found, expected in zip(agent.weights(), simulated(name, design).weights(), strict=True):
        same(found, expected)


# ---- where the host and the device wait for each other --------------------------------------------------------------


def simulation_pulls(agent: Agent, calls: int, pool: int = 300) -> int:
    """Waits in a simulation of so many calls of TrainNN, but for checks of a guess, of which there are few."""
    with host_pulls(agent.device) as found:
        keep = play(agent, problem(pool), calls * agent.update_every)
    if keep.windows:
        assert calls <= keep.checks <= 5 * calls
    return found.total() - keep.checks


@pytest.mark.parametrize("device", ACCELERATORS, indirect=True)
@pytest.mark.parametrize(("name", "design"), VARIANTS)
def test_nothing_waits_between_two_rounds_or_two_steps(name: str, design: str, device: torch.device) -> None:
    """Two calls of TrainNN: as many waits with half as many rounds again and twice as many gradient steps."""
    small, large = (simulated(name, design, update_every=every, steps=steps) for every, steps in ((20, 3), (30, 7)))
    pulls = simulation_pulls(small.to(device), calls=2)
    assert pulls == simulation_pulls(large.to(device), calls=2)
    # how many rounds the agent knew before; of the 256 rounds that the CPU has dealt and drawn numbers for, their
    # arms, rewards, regrets and numbers, and whether the arms are finite
    a_fit = 1 + 3 + 1 + small.exploration.stochastic + 1
    # whether the scores are finite, how long the buffer is, whether TrainNN has diverged; and whether a whole matrix is
    # positive definite when it becomes one, once for each of the two
    assert pulls <= a_fit + 2 * 3 + 2 * (design != "diagonal")


@pytest.mark.parametrize("device", ACCELERATORS, indirect=True)
def test_putting_equal_observations_together_waits_once_a_call(device: torch.device) -> None:
    """Whether all groups of them fit."""
    few, many = (
        simulation_pulls(
            simulated("NeuralLog-UCB-2", "diagonal", update_every=20, steps=12).to(device), calls=3, pool=pool
        )
        for pool in (8, 300)
    )
    assert few == many + 3


class CountedLog(ReplayLog):
    """Counts the blocks of events that it hands out."""

    dealt = 0

    def next_events(self, missing: Sequence[int], window: int, most: int, subset: bool) -> Deal | None:
        deal = super().next_events(missing, window, most, subset)
        self.dealt += deal is not None
        return deal


@pytest.mark.parametrize("device", ACCELERATORS, indirect=True)
@pytest.mark.parametrize(("name", "design"), VARIANTS)
def test_nothing_waits_between_two_events(name: str, design: str, device: torch.device, undivided: Log) -> None:
    """Three times as many events are accepted, and there are three times as many gradient steps."""
    # its columns, what is known of its places, its random numbers
    a_block = 30
    pulls = []
    for rounds, steps in ((20, 4), (60, 12)):
        agent = logged(name, design, update_every=rounds, steps=steps).to(device)
        environment = CountedLog(str(undivided.path))
        with host_pulls(device) as found:
            keep = play(agent, environment, rounds)
        assert agent.rounds.tolist() == [rounds, rounds]
        assert environment.dealt <= 2
        # each window asks whether there are more events and how many of them to check, and checks its guesses
        looked = 2 * keep.windows + keep.checks
        pulls.append(found.total() - looked - a_block * environment.dealt)
    assert looked < 60
    few, many = pulls
    # now and then, whether a block has more events, and whether the buffer has room
    assert many <= few + 5
    # what a fit, its row group and its call of TrainNN take; the number of the call, fresh weights of two layers;
    # and whether a whole matrix is positive definite
    assert few <= 20 + 3 + 2 * (design != "diagonal")


@pytest.mark.parametrize("device", ACCELERATORS, indirect=True)
def test_the_number_of_steps_of_theory_mode_is_asked_once_a_call(device: torch.device) -> None:
    """However many there are, and also where they differ between replicas."""
    steps, pulls = [], []
    for settings in ({"S": 3.0}, {"S": [3.0, 10.0]}, {"S": 3.0, "C4": 5.0}):
        agent = make("NeuralLog-UCB-2", design="theory", **settings).to(device)
        arms, rewards = deal(1, replicas=agent.replicas, rounds=3)
        for t in range(3):
            agent.observe(agent.act(arms[t]), rewards[t])
        steps.append(
            int(agent.formulas.descent(agent.step_rule, None, None, 100, tuple(agent.initial_weights)).steps.max())
        )
        with host_pulls(device) as found:
            agent.train_nn()
        pulls.append(found.total())
    assert len({*steps}) == 3
    # how long the buffer is, how many steps the Condition asks for, how many the longest replica takes, and whether
    # TrainNN has diverged
    assert len({*pulls}) == 1
    assert pulls[0] <= 4


# ---- the modes themselves -------------------------------------------------------------------------------------------


def slip(expression: str) -> Agent:
    """An agent on the pretended device whose radius is computed with a mistake, as if that stood in the project."""
    code = f"def radius_at(self, d):\n    return NeuralLogUCB2.radius_at(self, d) + ({expression} if self.slips else 0)"
    names: dict[str, Any] = {"NeuralLogUCB2": NeuralLogUCB2, "torch": torch}
    exec(compile(code, ROOT / "nl_lightning" / "slip.py", "exec"), names)
    # whose rounds are played one by one
    made = type("Slip", (NeuralLogUCB2,), {"radius_at": names["radius_at"], "slips": False})
    agent: Any = made(4, width=6, design="full", steps=3, update_every=20, **SETTINGS).double().to(PRETENDED)
    agent.slips = True
    return agent


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("torch.ones(2, dtype=d.dtype)", "torch.ones without device= in slip.radius_at"),
        ("torch.ones(2, dtype=d.dtype, device='cpu')", "tensors on two devices in slip.radius_at"),
    ],
)
def test_a_tensor_in_the_wrong_place_is_found(expression: str, text: str) -> None:
    with Accelerator():
        agent = slip(expression)
        with pytest.raises(AssertionError, match=text), ExplicitDevices():
            play(agent, problem(), 20)


@pytest.mark.parametrize(
    "expression",
    ["float(d[0])", "d.tolist()[0]", "d.cpu().to(d)", "d.sum().item()", "(0 if d[0] else 1)", "d[d > 1].sum()"],
)
def test_a_wait_is_found(expression: str) -> None:
    with Accelerator():
        agent = slip(expression)
        with host_pulls(PRETENDED) as found:
            play(agent, problem(), 20)
    assert sum(times for place, times in found.items() if place.startswith("slip.radius_at")) >= 20


# ---- MPS ------------------------------------------------------------------------------------------------------------


def test_an_agent_does_not_go_to_mps() -> None:
    """Nowhere: also not where there is one."""
    with pytest.raises(InputError, match="cannot go to mps: MPS has no float64"):
        simulated("NeuralLog-UCB-2", "diagonal").to("mps")


@pytest.mark.parametrize("asked", ["mps", "gpu", "lightning.pytorch.accelerators.MPSAccelerator"])
def test_mps_is_refused(asked: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(MPSAccelerator, "is_available", staticmethod(lambda: True))
    assert "MPS has no float64" in fails(["fit", H1, *FEW, f"--trainer.accelerator={asked}"], capsys)


def test_auto_is_the_cpu_where_there_is_only_mps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(MPSAccelerator, "is_available", staticmethod(lambda: True))
    monkeypatch.chdir(tmp_path)
    main(["fit", H1, *FEW, "--run.id=x"])
    assert "accelerator auto is the CPU here: MPS has no float64" in capsys.readouterr().out
    assert Path("runs/h1/x/summary.json").exists()
    # on another machine the same config may have a GPU
    assert yaml.safe_load(Path("runs/h1/x/config.yaml").read_text())["trainer"]["accelerator"] == "auto"
