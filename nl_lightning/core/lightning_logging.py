"""Silences messages of Lightning that do not apply to bandits."""

import logging
import warnings

__all__ = ["silence"]

_KNOWN_WARNINGS = (
    "LightningCLI's args parameter",
    ".*isinstance.treespec, LeafSpec.*",
    # Regret is logged after every call of TrainNN, whatever this interval is.
    ".*is smaller than the logging interval.*",
    # A batch is a whole TrainNN, made from the rounds before it: workers would have nothing to load.
    ".*does not have many workers.*",
    # `test` needs the agent of a checkpoint, not the files of its run.
    ".*callbacks used to create the checkpoint need to be provided.*",
)


def silence() -> None:
    """Hide Lightning's notes on hardware and the warnings listed here. All other warnings stay."""
    for source in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.distributed"):
        logging.getLogger(source).setLevel(logging.WARNING)
    for message in _KNOWN_WARNINGS:
        warnings.filterwarnings("ignore", message=message)
