"""What Lightning says that is of no use to a user of bandits."""

import logging
import warnings

_KNOWN_WARNINGS = (
    "LightningCLI's args parameter",
    ".*isinstance.treespec, LeafSpec.*",
    # Regret goes to the loggers after every call of TrainNN, whatever this interval is.
    ".*is smaller than the logging interval.*",
    # A batch is a whole TrainNN, made by the rounds before it: there is nothing for workers to load.
    ".*does not have many workers.*",
    # `test` needs the agent of a checkpoint, not the files of its run.
    ".*callbacks used to create the checkpoint need to be provided.*",
)


def silence() -> None:
    """Leave out Lightning's notes on hardware and its advertisements; warnings stay, but for those known here."""
    for source in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.distributed"):
        logging.getLogger(source).setLevel(logging.WARNING)
    for message in _KNOWN_WARNINGS:
        warnings.filterwarnings("ignore", message=message)
