"""What a learning agent would have earned, from logged clicks: logs in Parquet, rejection sampling, estimates."""

from replay.learning import ReplayLog
from replay.logs.reader import Log
from replay.protocol.features import Features
from replay.simulation.ground_truth import Online

__all__ = ["Features", "Log", "Online", "ReplayLog"]
