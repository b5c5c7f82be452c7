"""The real data sets, which lie beside the project on some machines only."""

from pathlib import Path

import pytest

from tests.support.paths import ROOT

SHARED = ROOT.parent / "shared" / "data"


def shared_file(name: str) -> Path:
    """The file of a data set; a test that needs it is skipped where there is none."""
    path = SHARED / f"{name}.parquet"
    if not path.is_file():
        pytest.skip(
            f"the data set {name} is not on this machine (data/{name}.parquet, in a directory beside the project)"
        )
    return path
