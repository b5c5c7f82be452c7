"""Reading logs loads neither torch nor Lightning; the public names are there all the same."""

import pytest

import replay
from tests.support.fresh_interpreter import heavy_after


@pytest.mark.parametrize(
    "code",
    [
        "import replay, nl_lightning",
        "import replay.logs",
        "import replay.logs.reader, replay.logs.writer, replay.logs.statistics, replay.logs.address",
        "import replay.formats.convert, replay.formats.obd, replay.formats.obd_rows, replay.formats.sample",
        "import replay.formats.table, replay.formats.guess, replay.logs.table, replay.logs.propensities",
        "from replay import Log",
        "import replay.simulation.simulate",
    ],
)
def test_logs_are_light(code: str) -> None:
    assert heavy_after(code) == []


def test_public_names_are_resolved() -> None:
    assert set(replay.__all__) <= set(dir(replay))
    for name in replay.__all__:
        assert getattr(replay, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'Nosuch'"):
        _ = replay.Nosuch  # type: ignore[attr-defined]
