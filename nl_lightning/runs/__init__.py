"""Runs on disk: the run directory, the recorder, checkpoints, summaries and the progress bar."""
