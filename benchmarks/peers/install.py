"""An environment of its own for every peer, so that its pins do not touch ours."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

PEERS = ("calvera", "agilerl", "obp", "contextualbandits", "vowpalwabbit", "coba")

PINS = Path(__file__).parent / "pins"
"""A file for every peer, of the packages it needs."""
ENVIRONMENTS = Path(__file__).parents[2] / ".peers"
"""An environment for every peer."""


class NotInstalled(Exception):
    """Why there is no environment of a peer."""


def python_of(peer: str) -> Path:
    """The interpreter of a peer's environment, which is made if it is not there, or if its pins have changed."""
    pins, directory = PINS / f"{peer}.txt", ENVIRONMENTS / peer
    python, ready = directory / "bin" / "python", directory / ".ready"
    wanted = hashlib.sha256(pins.read_bytes()).hexdigest()
    if ready.exists() and ready.read_text() == wanted:
        return python
    shutil.rmtree(directory, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(directory)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if any(line.startswith("torch==") for line in pins.read_text().splitlines()):
        # First and alone, with what it needs: see the Makefile.
        _run([*pip, "torch", "--constraint", str(pins)])
    # The pins are all that a peer needs; what it asks for beyond them is said there.
    _run([*pip, "--no-deps", "--requirement", str(pins)])
    ready.write_text(wanted)
    return python


def version_of(peer: str) -> str:
    """The pinned version."""
    (line,) = (line for line in (PINS / f"{peer}.txt").read_text().splitlines() if line.startswith(f"{peer}=="))
    return line.partition("==")[2]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise NotInstalled(said[-1] if said else f"exit code {done.returncode}")
