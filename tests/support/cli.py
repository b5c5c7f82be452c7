"""Small runs of the command line, and errors that it must report."""

import pytest

from nl_lightning.cli.main import main
from tests.support.paths import ROOT

CONFIGS = ROOT / "configs"
H1 = f"--config={CONFIGS / 'h1.yaml'}"
SMALL = ["--data.rounds=40", "--model.update_every=20", "--model.steps=3", "--trainer.enable_progress_bar=false"]
"""Options of a fit that takes a second."""


def fails(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What is printed by a command that must fail."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code not in (0, None)
    return capsys.readouterr().err
