"""How the command line reports errors: those that a user can fix are one text without a traceback."""

import sys
from collections.abc import Callable, Iterator

from nl_lightning.core.errors import InputError, ProcessLost, TrainNNDiverged

__all__ = ["run_command"]


def run_command(command: Callable[[list[str]], None], arguments: list[str]) -> None:
    """Run a command; print an error that a user can fix and exit with code 1."""
    try:
        command(arguments)
    except Exception as error:
        # Loaded here, because a command that needs no Lightning should not load it.
        from lightning.fabric.utilities.exceptions import MisconfigurationException
        from lightning.pytorch.utilities import rank_zero_only

        fixable = (InputError, TrainNNDiverged, ProcessLost, MisconfigurationException, OSError)
        # jsonargparse wraps what a constructor raised
        text = next((str(cause) for cause in _causes(error) if isinstance(cause, fixable)), None)
        if text is None:
            raise
        rank = getattr(rank_zero_only, "rank", 0)
        process = f" in process {rank}" if rank else ""
        print(f"error{process}: {text}", file=sys.stderr)
        sys.exit(1)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
