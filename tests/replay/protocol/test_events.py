"""Events as agents see them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from replay.logs.reader import Log
from replay.protocol.events import CandidateEvents, ReplaySettings
from replay.protocol.obd_features import ObdFeatures
from replay.simulation.simulated_world import SimulatedWorld
from tests.support.replay_logs import SMALL, write_log


@pytest.mark.parametrize("threads", [1, 2])
def test_a_process_with_one_thread_reads_with_one(
    threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, asked = write_log(tmp_path / "log", SimulatedWorld(**SMALL), 100), []
    read = Log.read

    def watched(self: Log, *arguments: Any, use_threads: bool | None = None) -> Any:
        asked.append(use_threads)
        return read(self, *arguments, use_threads=use_threads)

    monkeypatch.setattr(Log, "read", watched)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    CandidateEvents.read(log, log.groups[0], ObdFeatures.fit(log), ReplaySettings("affinity", 5, None, 0))
    assert asked == [threads > 1] * 2


def test_events_share_the_memory_of_the_log(tmp_path: Path) -> None:
    """Arrays become tensors without a copy."""
    log = write_log(tmp_path / "log", SimulatedWorld(**SMALL), 100)
    events = log.events(log.groups[0])
    log.events = lambda *_, **__: events  # type: ignore[method-assign]
    shown, _ = CandidateEvents.read(log, log.groups[0], ObdFeatures.fit(log), ReplaySettings("all", 12, None, 0))
    for tensor, array in ((shown.propensity, events.propensity), (shown.click, events.click)):
        assert tensor.data_ptr() == array.ctypes.data
