"""The picture of the README: regret of all agents on the paper's h1, and click rates estimated from a log.

    python examples/face.py            # under a minute; writes docs/assets/face.png

The log comes from a simulated shop (``own_clicks/simulate.py``) whose truth is known.
"""

import argparse
import logging
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

import replay
from nl_lightning import AGENTS, BanditData, Greedy, LogisticUCB1, NeuralLogUCB2, RoundCallback
from nl_lightning.agents.base import Agent
from nl_lightning.core.statistics import interval
from nl_lightning.environments import Environment, Synthetic
from nl_lightning.reporting.palette import AGENT_COLOURS, GREY
from replay.protocol.events import CandidateEvents, ReplaySettings

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "own_clicks"))
import simulate  # noqa: E402

SIZE, DPI, FONT = (6, 8), 120, 10.5
"""Narrow and with large letters, so that it can be read on a phone."""


class Regret(RoundCallback):
    """Keeps the regret of every round, (R, T)."""

    def __init__(self) -> None:
        self.parts: list[torch.Tensor] = []

    def on_rounds_end(self, trainer: L.Trainer, agent: Any, history: Any) -> None:
        self.parts.append(history.regret.double().cpu())


def fit(agent: Agent, environment: Environment, rounds: int) -> Regret:
    regret = Regret()
    trainer = L.Trainer(
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[regret] if environment.knows_regret else [],
    )
    trainer.fit(agent, BanditData(environment, rounds))
    return regret


def draw_regret(axes: plt.Axes, rounds: int, seeds: int) -> None:
    ends = []
    for name, colour in AGENT_COLOURS.items():
        regret = fit(AGENTS[name](dim=20, replicas=seeds), Synthetic("h1"), rounds)
        band = interval(torch.cat(regret.parts, dim=1).cumsum(1).numpy())
        t = np.arange(1, rounds + 1)
        axes.plot(t, band.mean, color=colour, linewidth=1.8)
        axes.fill_between(t, band.low, band.high, color=colour, alpha=0.12, linewidth=0)
        ends.append((float(band.mean[-1]), name, colour))
    values = sorted(ends)
    # labels in the order of the curves, apart from each other and as close to their ends as that allows
    space = 0.068 * axes.get_ylim()[1]
    places = [value for value, *_ in values]
    for _ in range(200):
        for low in range(len(places) - 1):
            short = space - (places[low + 1] - places[low])
            if short > 0:
                places[low], places[low + 1] = places[low] - short / 2, places[low + 1] + short / 2
    for (value, name, colour), place in zip(values, places, strict=True):
        # the line has the colour; letters in it would be too pale to read
        axes.plot(
            [rounds, rounds * 1.06, rounds * 1.1], [value, place, place], color=colour, linewidth=1.6, clip_on=False
        )
        axes.text(rounds * 1.12, place, f"{name} {value:.0f}", fontsize=FONT, va="center")
    axes.set(xlim=(0, rounds), ylim=(0, None), xlabel="round", ylabel="cumulative regret")
    axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= rounds][::2])
    axes.set_title(f"Learning: the paper's h1, {seeds} seeds, 96% bands", fontsize=FONT + 1, loc="left", x=-0.17)
    axes.spines[["top", "right"]].set_visible(False)


def estimates(directory: Path, rows: int) -> pd.DataFrame:
    """Click rates of five policies on the last fifth of a log, with their intervals and the truth for new visitors."""
    log = replay.Log.from_pandas(simulate.clicks(rows), HERE / "own_clicks" / "clicks.yaml", directory / "log")
    learn, test = int(0.6 * rows), int(0.8 * rows)
    policies: dict[str, Any] = {"uniform": "uniform", "logged": "logged"}
    new = replay.Log.from_pandas(
        simulate.clicks(int(0.4 * rows), seed=100), HERE / "own_clicks" / "clicks.yaml", directory / "new"
    )
    x = np.concatenate([new.frame(group)[simulate.CONTEXT].to_numpy() for group in new.groups])
    rate = simulate.click_rate(x)
    truth = {"uniform": float(rate.mean()), "logged": float((simulate.logging_policy(x) * rate).sum(1).mean())}
    for agent_class in (LogisticUCB1, Greedy, NeuralLogUCB2):
        rows_of = {"warm_start": f"0:{learn}", "rows": f"{learn}:{test}", "rejection": "biased-match"}
        # a linear agent needs products of context and action to tell visitors apart
        products = {"features": {"products": True}} if agent_class.linear else {}
        environment = replay.ReplayLog(str(directory / "log"), **rows_of, **products)
        agent = agent_class(environment.dim)
        fit(agent, environment, 2000)
        features = environment.features
        assert features is not None
        policies[agent.name] = (agent, features)
        settings, picked = ReplaySettings("all", new.n_items, None, seed=0), []
        for group in new.groups:
            events, _ = CandidateEvents.read(new, group, features, settings)
            picked += [simulate.OFFERS.index(new.actions[int(agent.act(a).arm)]) for a in events.arms(features).float()]
        truth[agent.name] = float(rate[np.arange(len(x)), picked].mean())
    found = replay.evaluate(log, policies, rows=f"{test}:").to_pandas().xs("snips", level=1).loc[list(policies)]
    return found.assign(true=truth)


def draw_estimates(axes: plt.Axes, found: pd.DataFrame, rows: int) -> None:
    place = np.arange(len(found))[::-1]
    spread = np.stack([found["value"] - found["low"], found["high"] - found["value"]])
    colours = [AGENT_COLOURS.get(name, GREY) for name in found.index]
    for i, colour in enumerate(colours):
        value, end = found["value"].iloc[i], spread[:, [i]]
        axes.errorbar(value, place[i], xerr=end, fmt="o", color=colour, capsize=4, linewidth=2, markersize=7)
    axes.plot(
        found["true"],
        place,
        marker="d",
        color="white",
        markeredgecolor="black",
        markersize=6,
        linestyle="",
        label="truth",
        zorder=5,
    )
    beside = axes.get_yaxis_transform()
    columns = {1.05: ("SNIPS", found["value"]), 1.31: ("truth", found["true"])}
    for x, (head, values) in columns.items():
        axes.text(x, len(found) - 0.4, head, fontsize=FONT - 0.5, color="0.35", va="center", transform=beside)
        for i, value in enumerate(values):
            axes.text(x, place[i], f"{value:.3f}", fontsize=FONT, va="center", transform=beside)
    axes.set_yticks(place, list(found.index))
    axes.set(ylim=(-0.6, len(found) - 0.2), xlabel="click rate")
    title = f"Replay: click rates from a log of {rows:,} events, 95% intervals"
    axes.set_title(title, fontsize=FONT + 1, loc="left", x=-0.52)
    axes.legend(loc="lower left", frameon=False, fontsize=FONT - 0.5, handletextpad=0.1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", alpha=0.3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "assets" / "face.png", help="the picture")
    parser.add_argument("--rounds", type=int, default=2000, help="of the upper panel (default: 2000)")
    parser.add_argument("--seeds", type=int, default=10, help="of the upper panel (default: 10)")
    parser.add_argument("--rows", type=int, default=50_000, help="events of the log (default: 50000)")
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", ".*does not have many workers")
    plt.rcParams["font.size"] = FONT
    figure = plt.figure(figsize=SIZE)
    upper, lower = figure.add_axes((0.105, 0.565, 0.53, 0.395)), figure.add_axes((0.265, 0.07, 0.475, 0.375))
    draw_regret(upper, options.rounds, options.seeds)
    with tempfile.TemporaryDirectory() as directory:
        found = estimates(Path(directory), options.rows)
    print(found.to_string(float_format="{:.4f}".format))
    draw_estimates(lower, found, options.rows)
    figure.savefig(options.out, dpi=DPI)
    print(f"Picture: {options.out}")


if __name__ == "__main__":
    main()
