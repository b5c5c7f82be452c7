"""What an output directory was asked for, so that only the same is resumed."""

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from nl_lightning.core.errors import InputError
from nl_lightning.core.files import write_beside
from nl_lightning.experiments.readings import Reading

__all__ = ["REPLAY", "check", "identity", "plan", "store"]

REPLAY = ("obd", "simulated")


def plan(figure: str, reading: Reading) -> dict[str, Any]:
    """What the runs of a figure depend on, by the names that a user knows."""
    how = {"TrainNN": reading.train, "horizon": reading.horizon}
    if figure in REPLAY:
        events = {"events of the simulated log": reading.events} if figure == "simulated" else {}
        return {"seeds": reading.replay_seeds, **how, **events}
    sweeps = {"seeds of sweeps": reading.sweep_seeds} if figure == "fixed" else {}
    return {
        "seeds": reading.seeds,
        "most seeds": reading.most_seeds,
        "tuning seeds": reading.tuning_seeds,
        "nu": list(reading.nu),
        "lam": list(reading.lam),
        "environment": dict(reading.environment),
        **how,
        **sweeps,
    }


def check(root: Path, plans: Mapping[str, dict[str, Any]], resume: bool) -> None:
    """Refuse to mix with, or to replace, earlier runs."""
    for figure, wanted in plans.items():
        path = _path(root, figure)
        if not path.exists():
            continue
        if not resume:
            raise InputError(
                f"{path.parent} holds runs of {figure} already. --resume keeps those that are finished and runs what "
                "is left; or choose another --out."
            )
        stored = json.loads(path.read_text())
        differing = [
            f"{name} was {stored.get(name)}, is {wanted.get(name)}"
            for name in sorted(stored.keys() | wanted.keys())
            if stored.get(name) != wanted.get(name)
        ]
        if differing:
            raise InputError(
                f"{path.parent} holds runs of {figure} with other settings: {'; '.join(differing)}. "
                "Resume with the settings of before, or choose another --out."
            )


def store(root: Path, plans: Mapping[str, dict[str, Any]]) -> None:
    for figure, wanted in plans.items():
        _path(root, figure).parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(wanted, indent=2) + "\n"
        write_beside(_path(root, figure), lambda path, text=text: path.write_text(text))  # type: ignore[misc]


def identity(root: Path) -> str:
    """The name of this reproduction: the time of its first start."""
    path = root / "id"
    if not path.exists():
        root.mkdir(parents=True, exist_ok=True)
        name = f"reproduce-{datetime.now().strftime('%Y%m%d-%H%M%S')}\n"
        write_beside(path, lambda beside: beside.write_text(name))
    return path.read_text().strip()


def _path(root: Path, figure: str) -> Path:
    return root / figure / "plan.json"
