"""The paper's own numbers: its table of final CTRs on the Open Bandit Dataset, T = 2000, 5 runs."""

from typing import NamedTuple

from nl_lightning.experiments.paper import PAPER_AGENTS

__all__ = ["CTR", "SWEEPS", "TableSetting"]

SWEEPS: dict[str, tuple[int, ...]] = {"m": (20, 50, 100), "kappa": (50, 100, 200), "S": (1, 10, 100)}
"""What the three figures vary. While one varies, the others keep their first value."""


class TableSetting(NamedTuple):
    """One of the seven settings of the table."""

    m: int = SWEEPS["m"][0]
    kappa: int = SWEEPS["kappa"][0]
    S: int = SWEEPS["S"][0]


_ROWS: dict[TableSetting, tuple[float, ...]] = {
    TableSetting(): (0.0020, 0.0021, 0.0024, 0.0017, 0.0025, 0.0050, 0.0041),
    TableSetting(m=50): (0.0017, 0.0021, 0.0024, 0.0024, 0.0028, 0.0052, 0.0051),
    TableSetting(m=100): (0.0022, 0.0021, 0.0024, 0.0026, 0.0020, 0.0051, 0.0049),
    TableSetting(kappa=100): (0.0017, 0.0020, 0.0024, 0.0022, 0.0025, 0.0050, 0.0041),
    TableSetting(kappa=200): (0.0014, 0.0015, 0.0024, 0.0023, 0.0025, 0.0051, 0.0041),
    TableSetting(S=10): (0.0023, 0.0018, 0.0021, 0.0023, 0.0013, 0.0051, 0.0050),
    TableSetting(S=100): (0.0021, 0.0016, 0.0022, 0.0023, 0.0015, 0.0051, 0.0050),
}

CTR: dict[TableSetting, dict[str, float]] = {
    setting: dict(zip(PAPER_AGENTS, row, strict=True)) for setting, row in _ROWS.items()
}
"""The 49 numbers by setting and agent."""
