"""Threads follow from the size of the work, or are those that the user says."""

import os
import subprocess
import sys

import pytest
import torch

from nl_lightning.core.threads import LARGE_WORK
from tests.support.paths import ROOT


def asked(code: str, **environment: str) -> str:
    """What a new process prints, without the settings of this one."""
    kept = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, env={**kept, **environment}, cwd=ROOT, capture_output=True, text=True, check=True)
    return found.stdout.strip()


THREADS = f"""
from nl_lightning.core.threads import default_threads
print(*(default_threads(work, cores) for work, cores in (({LARGE_WORK} - 1, 3), ({LARGE_WORK}, 3), (10**12, 64))))
"""


@pytest.mark.parametrize(
    ("before", "environment", "expected"),
    [
        # nl_lightning comes first: waiting threads sleep
        ("", {}, "1 3 4"),
        # nobody can tell how torch's threads wait
        ("import torch", {}, "1 1 1"),
        ("import torch", {"OMP_WAIT_POLICY": "PASSIVE"}, "1 3 4"),
        ("", {"OMP_NUM_THREADS": "2"}, "2 2 2"),
    ],
)
def test_default_threads(before: str, environment: dict[str, str], expected: str) -> None:
    assert asked(f"{before}\n{THREADS}", **environment) == expected


FIT = """
import torch, logging, warnings
import nl_lightning, lightning as L
from nl_lightning import BanditData, NeuralLogUCB2, RoundCallback
from nl_lightning.core import lightning_logging
from nl_lightning.environments import Synthetic
lightning_logging.silence()

class Threads(RoundCallback):
    def on_rounds_end(self, trainer, agent, history):
        print(torch.get_num_threads(), end=" ")

def fit(**settings):
    trainer = L.Trainer(max_epochs=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
                        enable_checkpointing=False, accelerator="cpu", callbacks=[Threads()])
    trainer.fit(NeuralLogUCB2(20, lr=0.001), BanditData(Synthetic(), rounds=50, **settings))

torch.set_num_threads(2)
fit()
fit(threads=3)
print(torch.get_num_threads())
"""


def test_a_fit_has_its_threads_and_gives_them_back() -> None:
    assert asked(FIT).split()[-3:] == ["1", "3", "2"]
    assert asked(FIT, OMP_NUM_THREADS="2").split()[-3:] == ["2", "3", "2"]


def test_threads_are_given_back_when_a_fit_fails() -> None:
    import lightning as L

    from nl_lightning import BanditData, NeuralLogUCB2
    from nl_lightning.core.errors import InputError, TrainNNDiverged
    from nl_lightning.environments import Synthetic
    from tests.conftest import QUIET

    before = torch.get_num_threads()
    data = BanditData(Synthetic(), rounds=60, threads=before + 1)
    with pytest.raises(TrainNNDiverged):
        L.Trainer(**QUIET, enable_checkpointing=False).fit(NeuralLogUCB2(20, lr=100.0), data)
    assert torch.get_num_threads() == before
    with pytest.raises(InputError, match="threads must be a whole number of at least 1"):
        BanditData(Synthetic(), threads=0)
