"""How the command line reports errors: those that a user can fix are one text without a traceback."""

import sys
from collections.abc import Callable, Iterator

from nl_lightning.core.credentials import check_no_credentials, hide_credentials
from nl_lightning.core.errors import InputError, ProcessLost, TrainNNDiverged

__all__ = ["UsageError", "run_command"]


class UsageError(InputError):
    """The command line or a config names what does not exist, or leaves out what is needed."""


def run_command(command: Callable[[list[str]], None], arguments: list[str]) -> None:
    """Run a command; print an error that a user can fix and exit with code 1."""
    try:
        check_no_credentials(arguments, "The command")
        command(arguments)
    except Exception as error:
        # Loaded here, because a command that needs no Lightning should not load it.
        from lightning.fabric.utilities.exceptions import MisconfigurationException
        from lightning.pytorch.utilities import rank_zero_only

        fixable = (InputError, TrainNNDiverged, ProcessLost, MisconfigurationException, OSError)
        # jsonargparse wraps what a constructor raised
        found = next((cause for cause in _causes(error) if isinstance(cause, fixable)), None)
        if found is None:
            raise
        rank = getattr(rank_zero_only, "rank", 0)
        process = f" in process {rank}" if rank else ""
        print(f"error{process}: {hide_credentials(str(found))}", file=sys.stderr)
        sys.exit(2 if isinstance(found, UsageError) else 1)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
