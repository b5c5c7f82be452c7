"""The samples of the Open Bandit Dataset that obp carries, as logs in the user's cache."""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from nl_lightning.core.errors import InputError
from replay.formats import convert
from replay.logs.schema import LOG_FILE, VERSION


def bundled_log(policy: str = "random", campaign: str = "all") -> Path:
    """A sample of 10,000 events, converted when it is asked for first."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    target = cache / "nl-lightning" / f"obd-sample-{VERSION}" / policy / campaign
    if not (target / LOG_FILE).exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        # Two processes may do this at once: each converts beside, and the first to be ready is taken.
        beside = Path(tempfile.mkdtemp(dir=target.parent))
        try:
            convert.convert_log(convert.sample(policy, campaign), beside / campaign)
            with suppress(OSError):
                (beside / campaign).rename(target)
            if not (target / LOG_FILE).exists():
                raise InputError(f"{target} is in the way: it is no log. Remove it.")
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return target
