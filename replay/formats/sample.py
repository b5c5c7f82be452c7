"""The samples of the Open Bandit Dataset that come with obp, converted to logs in the user's cache."""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from nl_lightning.core.errors import InputError
from replay.formats.convert import convert_log
from replay.formats.obd import sample
from replay.logs.layout import LOG_FILE, VERSION

__all__ = ["bundled_log"]


def bundled_log(policy: str = "random", campaign: str = "all") -> Path:
    """The log of a sample of 10,000 events, converted on first use."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    target = cache / "nl-lightning" / f"obd-sample-{VERSION}" / policy / campaign
    if not (target / LOG_FILE).exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        # Several processes may do this at once: each converts into a directory of its own, and the first rename wins.
        beside = Path(tempfile.mkdtemp(dir=target.parent))
        try:
            convert_log(sample(policy, campaign), beside / campaign)
            with suppress(OSError):
                (beside / campaign).rename(target)
            if not (target / LOG_FILE).exists():
                raise InputError(f"{target} exists and is not a log. Remove it.")
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return target
