"""What a learning agent would have earned, from logged clicks: logs in Parquet, rejection sampling, estimates."""

from replay.environment import ReplayLog
from replay.features import Features
from replay.stream import Log
from replay.truth import Online

__all__ = ["Features", "Log", "Online", "ReplayLog"]
