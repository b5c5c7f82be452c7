"""Errors that a user can fix. The command line prints their text without a traceback."""

__all__ = ["InputError", "ProcessLost", "TrainNNDiverged"]


class InputError(ValueError):
    """The input cannot be used. The text says what was expected, what was given and what to do."""


class ProcessLost(RuntimeError):
    """Another process of a run has ended or does not answer."""


class TrainNNDiverged(RuntimeError):
    """The weights or the loss of TrainNN are no longer finite, or could not have stayed finite."""
