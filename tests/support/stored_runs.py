"""Small runs that were stopped half way, made once a session and copied for every test that damages one."""

import copy
import random
import shutil
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lightning as L
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from nl_lightning import NeuralLogUCB2
from nl_lightning.cli.main import main
from nl_lightning.core.errors import InputError
from nl_lightning.environments import Synthetic
from nl_lightning.rollout.data import BanditData
from nl_lightning.runs.checkpoints import Checkpoints
from nl_lightning.runs.directory import RunDirectory
from nl_lightning.runs.recorder import Recorder
from replay.evaluation.evaluate import load
from replay.learning import ReplayLog
from replay.simulation.simulated_world import SimulatedWorld
from tests.support.cli import H1
from tests.support.fits import QUIET
from tests.support.replay_logs import SMALL, write_log

SETTINGS: dict[str, Any] = {"width": 6, "steps": 2, "update_every": 10, "replicas": 2, "nu": 0.3}
COMMAND = ["--data.rounds=40", "--model.replicas=2", "--model.update_every=10", "--model.steps=2", "--model.width=6"]
COMMAND += ["--data.environment.dim=4", "--run.checkpoint_every=1", "--trainer.enable_progress_bar=false"]

Edit = Callable[[dict[str, Any]], Any]
"""Changes the content of a checkpoint in place, or returns what is stored instead."""


@cache
def room() -> Path:
    """A directory for what is made once."""
    directory = TemporaryDirectory()
    kept.append(directory)
    return Path(directory.name)


kept: list[TemporaryDirectory[str]] = []
"""Removed when Python ends."""


# ---- a simulation ----------------------------------------------------------------------------------------------------


def agent() -> NeuralLogUCB2:
    return NeuralLogUCB2(4, **SETTINGS)


def data() -> BanditData:
    return BanditData(Synthetic("h3", dim=4, arms=4, pool=30), rounds=40)


def trainer(run: RunDirectory, **flags: Any) -> L.Trainer:
    return L.Trainer(**QUIET, callbacks=[Recorder(run.path), Checkpoints(run.checkpoint, 1)], **flags)


@cache
def stopped() -> Path:
    """A run of 40 rounds, stopped after 20."""
    run = RunDirectory(room() / "stopped")
    trainer(run, max_steps=2).fit(agent(), data())
    return run.path


def resume(directory: Path) -> pa.Table:
    """Go on with a run to its end; returns its rounds."""
    run = RunDirectory(directory)
    trainer(run).fit(agent(), data(), ckpt_path=run.checkpoint)
    return pq.read_table(run.rounds)


def test(checkpoint: Path) -> dict[str, float]:
    """The frozen agent of a checkpoint on other rounds."""
    flags = {**QUIET, "callbacks": []}
    (result,) = L.Trainer(**flags).test(agent(), data(), ckpt_path=checkpoint, verbose=False)
    return dict(result)


# ---- a log -----------------------------------------------------------------------------------------------------------


def log_agent() -> NeuralLogUCB2:
    return NeuralLogUCB2(42, **SETTINGS)


@cache
def log() -> Path:
    """A log of 1400 events in one file."""
    return Path(str(write_log(room() / "log", SimulatedWorld(**SMALL), 1400).path))


@cache
def stopped_on_log() -> Path:
    """A run on the log, stopped after 20 rounds."""
    run = RunDirectory(room() / "on-log")
    trainer(run, max_steps=2).fit(log_agent(), BanditData(ReplayLog(str(log())), 40))
    return run.path


def resume_on_log(directory: Path, where: Path | None = None) -> pa.Table:
    """Go on with a run on the log, or on a copy of it at ``where``."""
    run = RunDirectory(directory)
    trainer(run).fit(log_agent(), BanditData(ReplayLog(str(where or log())), 40), ckpt_path=run.checkpoint)
    return pq.read_table(run.rounds)


# ---- the command line ------------------------------------------------------------------------------------------------


@cache
def stopped_by_command() -> Path:
    """A run of the command line of 40 rounds, stopped after 20."""
    main(["fit", H1, *COMMAND, f"--run.dir={room()}", "--run.id=stopped", "--trainer.max_steps=2"])
    return room() / "h1" / "stopped"


def resume_by_command(directory: Path, *options: str) -> pa.Table:
    main(["fit", f"--resume={directory}", "--trainer.enable_progress_bar=false", *options])
    return pq.read_table(RunDirectory(directory).rounds)


# ---- copies, and what is right ---------------------------------------------------------------------------------------


def copied(original: Path, directory: Path) -> Path:
    return Path(shutil.copytree(original, directory / "run"))


@cache
def whole(resumed: Callable[[Path], pa.Table], original: Callable[[], Path]) -> pa.Table:
    """The rounds of a run that goes on undisturbed."""
    return resumed(Path(shutil.copytree(original(), room() / f"whole-{original.__name__}")))


def right_by_command(found: pa.Table, _: Path) -> bool:
    """Whether these are the rounds of the command line's run that went on undisturbed."""
    return bool(found.equals(whole(resume_by_command, stopped_by_command)))


def succeeds(run: Callable[..., Any]) -> Callable[..., Any]:
    """An attack that must end with the right result: a refusal will not do."""

    @wraps(run)
    def attack(*args: Any, **kwargs: Any) -> Any:
        try:
            return run(*args, **kwargs)
        except (InputError, SystemExit) as error:
            raise AssertionError(f"it was refused: {error}") from error

    return attack


@cache
def tested() -> dict[str, float]:
    return test(RunDirectory(stopped()).checkpoint)


def same_state(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two states agree in every bit."""
    return one.keys() == other.keys() and all(
        torch.equal(value, other[key]) if isinstance(value, torch.Tensor) else value == other[key]
        for key, value in one.items()
    )


@cache
def content(original: Callable[[], Path]) -> dict[str, Any]:
    """What a checkpoint of ours holds."""
    return dict(torch.load(RunDirectory(original()).checkpoint, weights_only=True))


def edited(original: Callable[[], Path], edit: Edit, target: Path) -> None:
    """Store a checkpoint whose content was changed, with checksums that fit."""
    stored = copy.deepcopy(content(original))
    torch.save(edit(stored) or stored, target)


def flipped(path: Path, seed: int) -> None:
    """Flip one bit of a file, anywhere."""
    raw = bytearray(path.read_bytes())
    bit = random.Random(seed).randrange(8 * len(raw))
    raw[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(raw))


# ---- the ways in which a checkpoint is used --------------------------------------------------------------------------


def by_resume(directory: Path) -> Any:
    return resume(directory)


def by_test(directory: Path) -> Any:
    return test(RunDirectory(directory).checkpoint)


def by_load(directory: Path) -> Any:
    return NeuralLogUCB2.load_from_checkpoint(RunDirectory(directory).checkpoint).state_dict()


def by_evaluate(directory: Path) -> Any:
    found, features, settings = load(RunDirectory(directory).checkpoint)
    return {**found.state_dict(), **features.state_dict(), **settings}


WAYS: dict[str, tuple[Callable[[Path], Any], Callable[[], Path], Callable[[Any], bool]]] = {
    "resume": (by_resume, stopped, lambda table: table.equals(whole(resume, stopped))),
    "test": (by_test, stopped, lambda result: result == tested()),
    "load_from_checkpoint": (by_load, stopped, lambda state: same_state(state, by_load(stopped()))),
    "evaluate": (by_evaluate, stopped_on_log, lambda state: same_state(state, by_evaluate(stopped_on_log()))),
}
"""By name: what uses the checkpoint of a run directory, the run it is made for, and whether its result is right."""
