"""Logs at addresses: file://, and a file system that is not local."""

import pickle
from pathlib import Path

import fsspec
import lightning as L
import pytest
import torch

from nl_lightning import NeuralLogUCB2
from nl_lightning.core.errors import InputError
from nl_lightning.rollout.data import BanditData
from replay import ReplayLog
from replay.__main__ import main
from replay.evaluation.evaluate import evaluate_agent
from replay.logs.address import RemotePath, address
from replay.logs.reader import Log
from replay.protocol.events import ReplaySettings
from replay.protocol.obd_features import ObdFeatures
from replay.simulation.simulated_world import SimulatedWorld
from tests.support.fits import QUIET
from tests.support.replay_logs import SMALL, damaged, write_log

REMOTE = "fsspec+memory://bucket/logs/a"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """A log in a local directory with a strange name, and the same in a file system of memory."""
    local = write_log(tmp_path_factory.mktemp("logs") / "a b%20c", SimulatedWorld(**SMALL), 900, group=250)
    memory = fsspec.filesystem("memory")
    for file in local.path.iterdir():
        memory.pipe(f"/bucket/logs/a/{file.name}", file.read_bytes())
    return local


def test_paths_stay_paths(log: Log) -> None:
    assert address("runs/log") == Path("runs/log")
    assert address(Path("runs/log")) == Path("runs/log")
    assert address(log.path.as_uri()) == log.path
    assert Log(log.path.as_uri()).path == log.path
    assert isinstance(address(REMOTE), RemotePath)


def test_a_remote_log_is_the_same_log(log: Log) -> None:
    remote = Log(REMOTE)
    assert remote.description == log.description
    assert str(remote.groups[3]) == f"{REMOTE}/events-00001.parquet, row group 1"
    for ours, theirs in zip(log.groups, remote.groups, strict=True):
        assert ours[1:] == theirs[1:]
        assert log.read(ours).equals(remote.read(theirs))
    agent, setting = NeuralLogUCB2(42), ReplaySettings("affinity", 5, None, 0)
    found = [evaluate_agent(agent, ObdFeatures.fit(where), where, setting) for where in (log, remote)]
    assert found[1]["log"].pop("path") == REMOTE
    found[0]["log"].pop("path")
    assert found[0] == found[1]
    again = pickle.loads(pickle.dumps(remote))
    assert again.read(again.groups[0]).equals(log.read(log.groups[0]))


def test_agents_learn_on_a_remote_log(log: Log) -> None:
    weights = []
    for where in (str(log.path), REMOTE):
        agent = NeuralLogUCB2(42, steps=5)
        trainer = L.Trainer(**QUIET, enable_checkpointing=False)
        trainer.fit(agent, BanditData(ReplayLog(where), rounds=60))
        weights.append(torch.cat([weight.flatten() for weight in agent.weights()]))
    assert torch.equal(*weights)


def test_info_finds_remote_logs(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    main(["info", str(log.path)])
    local = capsys.readouterr().out.splitlines()[1:]
    for place in (REMOTE, "fsspec+memory://bucket", log.path.as_uri()):
        main(["info", place])
        title, *shown = capsys.readouterr().out.splitlines()
        assert shown == local
        assert place.startswith("file:") or title.strip() == REMOTE


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("fsspec+memory://nosuch/log", "fsspec+memory://nosuch/log does not exist. Make a log with"),
        ("fsspec+memory://bucket", f"holds no log: it has no log.json. There are logs below it, for example {REMOTE}"),
        (f"{REMOTE}/log.json", "is a file; a log is a directory"),
        ("nosuch://host/log?region=x", "nosuch://host/log is not an address that pyarrow can open"),
        ("s3://me:secret@host/log", "The place of the log holds credentials in an address (s3://...)"),
        ("fsspec+nosuch://a", "Expected a path, or an address like s3://bucket/log"),
        ("file://host/log", "file://host/log is not an address"),
        ("s3:///log", "s3:///log is not an address"),
    ],
)
def test_addresses_without_a_log_are_refused(place: str, text: str, log: Log) -> None:
    with pytest.raises(InputError) as error:
        Log(place)
    assert text in str(error.value)
    assert "secret" not in str(error.value)


def test_what_a_file_system_refuses_is_told(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError("ACCESS_DENIED")

    memory = type(fsspec.filesystem("memory"))
    with monkeypatch.context() as patch:
        patch.setattr(memory, "info", refused)
        with pytest.raises(InputError, match=f"{REMOTE.split(':')[1]} cannot be reached .ACCESS_DENIED.*credentials"):
            Log(REMOTE)
    remote = Log(REMOTE)
    monkeypatch.setattr(memory, "open", refused)
    with pytest.raises(InputError, match="events-00000.parquet is not a complete Parquet file .ACCESS_DENIED"):
        remote.read(remote.groups[0])


def test_a_damaged_remote_file_is_told(log: Log) -> None:
    memory = fsspec.filesystem("memory")
    memory.copy("/bucket/logs/a", "/bucket/damaged", recursive=True)
    name = "/bucket/damaged/events-00000.parquet"
    memory.pipe(name, damaged(memory.cat(name), 1))
    log = Log("fsspec+memory://bucket/damaged")
    log.events(log.groups[0])
    with pytest.raises(InputError, match="row group 1, column item_id: .*Check that its file system responds"):
        log.events(log.groups[1])
    memory.rm(name)
    with pytest.raises(InputError, match="fsspec.memory://bucket/damaged/events-00000.parquet is missing"):
        Log("fsspec+memory://bucket/damaged")
