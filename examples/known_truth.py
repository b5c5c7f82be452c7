"""Agents on a log that is long enough to tell them apart, beside the truth.

    python examples/known_truth.py            # about a minute; the log is kept in data/known_truth

The log is simulated and its logging policy is a recommender, so it is not uniform. Everything that is estimated from it
is also known: what an agent earns while it learns, by playing it in the simulated world itself; and what a frozen agent
earns, by summing over all visitors and items of that world.
"""

import argparse
import logging
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import pandas as pd
import torch
from rich.console import Console
from rich.table import Table

import replay
from nl_lightning import LogisticUCB1, NeuralLogTS2, NeuralLogUCB2
from nl_lightning.agents.base import Agent
from nl_lightning.agents.callbacks import RoundCallback
from nl_lightning.core.errors import InputError
from nl_lightning.core.types import History
from nl_lightning.environments import Environment
from nl_lightning.rollout.data import BanditData
from replay.simulation.simulate import make_log
from replay.simulation.simulated_world import SimulatedWorld

AGENTS: tuple[type[Agent], ...] = (NeuralLogUCB2, NeuralLogTS2, LogisticUCB1)
ONLINE = 20
"""Replicas that are played online. Their mean is the truth of an agent that learns; one run may learn more or less."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=600_000, help="events of the log (default: 600000)")
    parser.add_argument("--directory", type=Path, default=Path("data/known_truth"), help="directory of the log")
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", ".*does not have many workers")
    console = Console()

    # 1. A log of a recommender:
    #    python -m replay simulate data/known_truth --rows 600000 --items 20 --policy softmax
    try:
        make_log(options.directory, SimulatedWorld(items=20, policy="softmax"), options.rows)
    except InputError as error:
        parser.error(str(error))
    log, learned = replay.Log(options.directory), options.rows // 3

    # 2. Agents learn on the first third of it (rejection: dr-ns), which also estimates what they earn meanwhile.
    table = Table(title=f"Agents while they learn on the first {learned:,} events", title_justify="left")
    for name in ("agent", "accepted", "value (DR-ns)", "95% interval", f"truth: {ONLINE} online runs"):
        table.add_column(name, justify="left" if name == "agent" else "right")
    frozen: dict[str, Any] = {"logged": "logged", "uniform": "uniform"}
    for kind in AGENTS:
        environment = replay.ReplayLog(str(log.path), "all", rejection="dr-ns", rows=f"0:{learned}")
        agent = kind(environment.dim)
        play(agent, environment, learned)
        (found,) = environment.counts()["replicas"]
        # the rows stand for C = sum c rounds, some of which an accepted event with a weight above 1 stands for alone
        online = kind(environment.dim, replicas=ONLINE, seed=1)
        runs = play(online, replay.Online(str(log.path), "all"), max(1, round(found["sums"]["C"])))
        truth = f"{sum(runs) / ONLINE:.4f} (runs: {min(runs):.4f} to {max(runs):.4f})"
        interval = f"{found['value_low']:.4f} to {found['value_high']:.4f}"
        table.add_row(agent.name, f"{found['accepted']:,}", f"{found['value']:.4f}", interval, truth)
        frozen[agent.name] = (agent, environment.features)
    console.print(table)
    console.print(
        "These intervals are about one run on this log. Runs learn more or less, as those online show, and the mean of "
        "all runs may lie outside.",
        soft_wrap=True,
    )

    # 3. Frozen, on the other rows: python -m replay evaluate --log data/known_truth --rows 200000: --checkpoint ...
    result = replay.evaluate(log, frozen, rows=f"{learned}:", candidates="all")
    for table in result.tables():
        console.print(table)
    for note in result.notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    values = result.to_pandas()
    truth = values["value"].xs("exact", level="estimator")
    intervals = pd.concat(
        [values.xs(name, level="estimator").assign(exact=truth) for name in ("ips", "snips")] + [result.differences]
    )
    held = (intervals["low"] <= intervals["exact"]) & (intervals["exact"] <= intervals["high"])
    console.print(f"Of these {len(held)} intervals of IPS, SNIPS and differences, {held.sum()} hold the truth.")


class Rewards(RoundCallback):
    """The rewards of all rounds, (R, rounds) a part."""

    def __init__(self) -> None:
        self.parts: list[torch.Tensor] = []

    def on_rounds_end(self, trainer: L.Trainer, agent: Agent, history: History) -> None:
        self.parts.append(history.reward)


def play(agent: Agent, environment: Environment, rounds: int) -> list[float]:
    """Let an agent learn, and return the mean reward of every replica."""
    rewards = Rewards()
    trainer = L.Trainer(
        max_epochs=1,
        callbacks=[rewards],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(agent, BanditData(environment, rounds))
    means: list[float] = torch.cat(rewards.parts, dim=1).double().mean(1).tolist()
    return means


if __name__ == "__main__":
    main()
