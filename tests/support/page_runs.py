"""Small runs for the tests of the report, made by the command line."""

from pathlib import Path

from nl_lightning.cli.main import main
from tests.support.cli import CONFIGS

QUICK = ["--model.update_every=20", "--model.steps=2", "--trainer.enable_progress_bar=false"]


def fit(where: Path, config: str, name: str, *options: str) -> Path:
    """A small run; its directory."""
    place = [f"--run.dir={where}", f"--run.name={config}", f"--run.id={name}"]
    main(["fit", f"--config={CONFIGS / f'{config}.yaml'}", *QUICK, *place, *options])
    return where / config / name


def make(where: Path) -> None:
    """Two agents on the same problems, a grid with settings that diverge, two replays, and a run that was stopped."""
    fit(where, "h1", "one", "--data.rounds=500", "--model.replicas=3")
    fit(where, "h1", "two", "--data.rounds=500", "--model.replicas=4", "--model=LogisticUCB1")
    grid = "--model.grid={nu: [0.01, 0.1, 1.0], lam: [0.1, 1.0, 300.0]}"
    fit(where, "grid", "g", "--data.rounds=40", "--model.replicas=2", "--model.optimizer=gd", grid)
    fit(where, "obd", "one", "--data.rounds=300", "--model.replicas=3", "--model.nu=0.1", "--model.optimizer=gd")
    fit(where, "obd", "two", "--data.rounds=300", "--model.replicas=3", "--model=NeuralLogTS1")
    fit(where, "h2", "stopped", "--data.rounds=60", "--model.replicas=2", "--trainer.max_steps=1")
