"""Which settings end with the least regret, on seeds that are not measured: ``python -m benchmarks.peers.tune``.

Every contender of the online runs gets the same chance; the best ones stand in ``contenders.TUNED``.
"""

import math
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.peers import same_data
from benchmarks.peers.contenders import GRID, ROUNDS, TUNED
from benchmarks.peers.process import Failed, Process

_SEEDS = (1000, 1001)


def main() -> None:
    table = Table("contender", "settings", "final regret", title=f"seeds {_SEEDS}, best first", title_justify="left")
    with tempfile.TemporaryDirectory() as directory:
        same_data.write_rounds(Path(directory), list(_SEEDS), ROUNDS)
        for peer, way in TUNED:
            grid = GRID[peer]
            settings = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
            how: dict[str, Any] = {"way": way} if way else {"replicas": 1}
            found: list[tuple[float, str, str]] = []
            with Process(peer, Path(directory)) as process:
                for chosen in track(settings, description=f"{peer} {way}"):
                    try:
                        runs = [process.ask("online", seed=s, rounds=ROUNDS, **how, **chosen) for s in _SEEDS]
                    except Failed as error:
                        found.append((math.inf, str(chosen), str(error)))
                        continue
                    regret = sum(run["regret"] for run in runs) / len(runs)
                    found.append((regret, str(chosen), f"{regret:.1f}"))
            for _, chosen_text, regret_text in sorted(found):
                table.add_row(f"{peer} {way}", chosen_text, regret_text)
    Console().print(table)


if __name__ == "__main__":
    main()
