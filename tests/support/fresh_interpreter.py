"""What a fresh interpreter loads."""

import subprocess
import sys

from tests.support.paths import ROOT

HEAVY = ("torch", "lightning", "torchmetrics", "obp", "sklearn", "matplotlib")


def run_fresh(program: str) -> "subprocess.CompletedProcess[str]":
    """Run a program in a new interpreter."""
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)


def heavy_after(code: str) -> list[str]:
    """The heavy packages that are loaded after running some code."""
    done = run_fresh(f"import sys\n{code}\nprint(*(name for name in {HEAVY} if name in sys.modules))")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()
