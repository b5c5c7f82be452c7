"""What was measured, a file a part: RESULTS.md is written from these, and one part can be measured again alone."""

import json
import os
import platform
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measure import Row
from nl_lightning.core.files import write_beside

DIRECTORY = Path(__file__).parent / "results"


class Part(NamedTuple):
    """The rows of a part, what else it tells, and where and when it was measured."""

    rows: list[Row]
    detail: dict[str, Any]
    where: dict[str, Any]


def store(name: str, rows: list[Row], detail: dict[str, Any], directory: Path = DIRECTORY) -> None:
    directory.mkdir(exist_ok=True)
    text = json.dumps(Part(rows, detail, _here())._asdict(), indent=1)
    write_beside(directory / f"{name}.json", lambda path: path.write_text(text + "\n"))


def load(name: str, directory: Path = DIRECTORY) -> Part | None:
    """None where it has not been measured."""
    path = directory / f"{name}.json"
    if not path.exists():
        return None
    found = json.loads(path.read_text())
    return Part([(*row,) for row in found["rows"]], found["detail"], found["where"])


def _here() -> dict[str, Any]:
    return {
        "date": date.today().isoformat(),
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "lightning", "numpy")},
    }


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
