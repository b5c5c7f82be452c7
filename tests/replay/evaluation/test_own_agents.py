"""Agents of a user's own: trained on a log, then evaluated from their checkpoint."""

import json
import shutil
from pathlib import Path

import lightning as L
import pytest
import torch

from nl_lightning import NeuralLogUCB2
from nl_lightning.core.errors import InputError
from nl_lightning.rollout.data import BanditData
from replay import Log, ReplayLog
from replay.__main__ import main
from replay.evaluation.evaluate import evaluate_agent, load
from replay.protocol.events import ReplaySettings
from replay.simulation.simulated_world import SimulatedWorld
from tests.support import own_agents
from tests.support.fits import QUIET
from tests.support.launch import finish, start
from tests.support.own_agents import PatientUCB
from tests.support.own_networks import of_a_log
from tests.support.replay_logs import SMALL, write_log


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    return write_log(tmp_path_factory.mktemp("logs") / "log", SimulatedWorld(**SMALL), 800, group=400)


@pytest.fixture(scope="module")
def agent() -> PatientUCB:
    return PatientUCB(42, patience=3.0, steps=4, lr=0.002, update_every=20, replicas=2)


@pytest.fixture(scope="module")
def checkpoint(log: Log, agent: PatientUCB, tmp_path_factory: pytest.TempPathFactory) -> Path:
    trainer = L.Trainer(**QUIET, enable_checkpointing=False)
    trainer.fit(agent, BanditData(ReplayLog(str(log.path)), rounds=60))
    trainer.save_checkpoint(path := tmp_path_factory.mktemp("runs") / "last.ckpt")
    return path


def test_the_command_evaluates_an_agent_of_the_current_directory(
    log: Log, agent: PatientUCB, checkpoint: Path, tmp_path: Path
) -> None:
    """The class is imported from where the command is started; in the checkpoint it had another place."""
    shutil.copy(own_agents.__file__, tmp_path / "my_module.py")
    given = [f"--log={log.path}", f"--checkpoint={checkpoint}", "--candidates=all", "--output=result.json"]
    process = start("replay", ["evaluate", *given, "--model=my_module.PatientUCB"], cwd=tmp_path)
    output = finish(process)
    assert process.returncode == 0, output
    assert "Patient-UCB, frozen, on 800 events" in output
    result = json.loads((tmp_path / "result.json").read_text())
    settings = ReplaySettings("all", 12, 1 / 12, 0)
    expected = evaluate_agent(agent, load(checkpoint, PatientUCB)[1], log, settings)
    assert result["replicas"] == json.loads(json.dumps(expected["replicas"]))


def test_an_agent_is_loaded_with_its_own_settings(agent: PatientUCB, checkpoint: Path) -> None:
    loaded, _, trained = load(checkpoint, PatientUCB)
    assert isinstance(loaded, PatientUCB)
    assert loaded.patience == 3.0
    assert trained == {"candidates": "affinity", "arms": 5}
    for mine, theirs in zip(loaded.state_dict().values(), agent.state_dict().values(), strict=True):
        if isinstance(mine, torch.Tensor):
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (None, "holds the agent 'Patient-UCB', which does not come with nl_lightning; give its class with --model"),
        ("PatientUCB", "--model must be the import path of an Agent (my_module.MyClass); got 'PatientUCB'"),
        ("nosuch.Agent", "'nosuch.Agent' cannot be imported (ModuleNotFoundError: No module named 'nosuch')"),
        ("tests.support.own_agents.Nosuch", "'tests.support.own_agents.Nosuch' cannot be imported"),
        ("tests.support.own_agents.NoAgent", "NoAgent' is no subclass of Agent"),
        ("tests.support.own_agents.torch_is_no_class", "cannot be imported"),
        (
            "tests.support.own_agents.OtherUCB",
            "holds the agent 'Patient-UCB', but tests.support.own_agents.OtherUCB is the agent 'Other-UCB'",
        ),
        ("nl_lightning.NeuralLogUCB2", "is the agent 'NeuralLog-UCB-2'; give the class that was trained"),
        (
            "tests.support.own_agents.Impostor",
            "is of another agent: its nu is",
        ),
    ],
)
def test_a_wrong_class_is_refused(
    model: str | None, text: str, log: Log, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["evaluate", f"--log={log.path}", f"--checkpoint={checkpoint}"]
    with pytest.raises(SystemExit) as stop:
        main([*given, *([] if model is None else [f"--model={model}"])])
    assert stop.value.code == 1
    error = capsys.readouterr().err
    assert text in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_a_module_that_breaks_is_refused(
    log: Log, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken_agents.py").write_text("raise RuntimeError('out of order')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit):
        main(["evaluate", f"--log={log.path}", f"--checkpoint={checkpoint}", "--model=broken_agents.Agent"])
    assert "broken_agents.Agent' cannot be imported (RuntimeError: out of order)" in capsys.readouterr().err


def test_a_checkpoint_does_not_choose_what_is_imported(checkpoint: Path, tmp_path: Path) -> None:
    """Its agent's name is text, even where it looks like a path."""
    stored = torch.load(checkpoint, weights_only=False)
    stored["state_dict"]["_extra_state"]["identity"]["agent"] = "tests.support.own_agents.PatientUCB"
    torch.save(stored, tmp_path / "other.ckpt")
    with pytest.raises(InputError, match="which does not come with nl_lightning"):
        load(tmp_path / "other.ckpt")


def test_a_network_is_given_again_and_an_optimiser_need_not_be(log: Log, tmp_path: Path) -> None:
    """A frozen agent takes no steps; one that is to go on needs its optimiser."""
    agent = NeuralLogUCB2(42, network=of_a_log, optimizer="torch.optim.RMSprop", steps=2, update_every=20)
    trainer = L.Trainer(**QUIET, enable_checkpointing=False)
    trainer.fit(agent, BanditData(ReplayLog(str(log.path)), rounds=60))
    trainer.save_checkpoint(path := tmp_path / "last.ckpt")
    network = "--network=tests.support.own_networks.of_a_log"
    main(["evaluate", f"--log={log.path}", f"--checkpoint={path}", network, f"--output={tmp_path / 'result.json'}"])
    assert json.loads((tmp_path / "result.json").read_text())["replicas"]
    with pytest.raises(InputError, match="its optimizer is torch.optim.rmsprop.RMSprop"):
        load(path, network=of_a_log)
    assert load(path, network=of_a_log, optimizer=torch.optim.RMSprop)[0].rounds.tolist() == [60]
