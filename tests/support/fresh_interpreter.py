"""What a fresh interpreter loads."""

import subprocess
import sys

from tests.support.paths import ROOT

HEAVY = ("torch", "lightning", "torchmetrics", "obp", "sklearn", "matplotlib")


def heavy_after(code: str) -> list[str]:
    """The heavy packages that are loaded after running some code."""
    program = f"import sys\n{code}\nprint(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].split()
