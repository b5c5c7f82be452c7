"""Errors that a user can mend. The command line shows their text and no traceback."""


class InputError(ValueError):
    """What came in cannot be used; the text says what was expected, what came and what to do."""


class ProcessLost(RuntimeError):
    """Another process of a run has ended or does not answer."""


class TrainNNDiverged(RuntimeError):
    """TrainNN left the finite numbers or was bound to."""
