"""From a table of clicks to a decision: would an agent of ours earn more than today's recommender?

    python examples/own_clicks/example.py            # about a minute; results in own_clicks/

The table is that of ``simulate.py``, a shop whose truth is known, so that every estimate can be compared with it. With
a table of your own, begin at step 2: write its schema (``python -m replay schema TABLE`` makes a first one) and leave
out the column "true".
"""

import argparse
import logging
import warnings
from pathlib import Path

import lightning as L
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import simulate

import replay
from nl_lightning import NeuralLogUCB2
from nl_lightning.rollout.data import BanditData
from replay.commands import convert, info
from replay.protocol.events import CandidateEvents, ReplaySettings

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000, help="visitors in the table (default: 50000)")
    parser.add_argument("--directory", type=Path, default=Path("own_clicks"), help="where results are written")
    options = parser.parse_args()
    if (options.directory / "log").exists():
        parser.error(f"{options.directory} holds results already. Remove it, or choose another --directory.")
    options.directory.mkdir(parents=True, exist_ok=True)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", ".*does not have many workers")

    # 1. A table of clicks: one row a visitor.
    table = options.directory / "clicks.csv"
    simulate.clicks(options.rows).to_csv(table, index=False)

    # 2. A schema says which column plays which role. The table becomes a log:
    #    python -m replay convert clicks.csv log --schema clicks.yaml
    #    python -m replay info log
    path = options.directory / "log"
    command = argparse.ArgumentParser()
    convert.add_arguments(command)
    convert.run(command.parse_args([str(table), str(path), "--schema", str(HERE / "clicks.yaml")]))
    info.run(argparse.Namespace(log=str(path)))

    # 3. The first 60% are learned as they were logged, 20% are replayed, the last 20% are kept for the evaluation.
    log = replay.Log(path)
    learn, test = int(0.6 * log.rows), int(0.8 * log.rows)
    agent, features = train(path, f"0:{learn}", f"{learn}:{test}")

    # 4. What would these policies have earned on rows that nobody has learned from?
    policies = {"logged": "logged", "uniform": "uniform", "NeuralLog-UCB-2": (agent, features)}
    result = replay.evaluate(log, policies, rows=f"{test}:")
    print(result)
    found = result.to_pandas().xs("snips", level=1).loc[list(policies)]
    # The truth is the click rate in the simulated world: that of new visitors, who are in no log.
    new = replay.Log.from_pandas(simulate.clicks(20_000, seed=100), HERE / "clicks.yaml", options.directory / "new")
    found["true"] = true_rates(new, agent, features)
    print(found.to_string(float_format="{:.4f}".format))
    best = simulate.click_rate(visitors(new)).max(axis=1).mean()
    today = found.loc["logged", "true"]
    share = (found.loc["NeuralLog-UCB-2", "true"] - today) / (best - today)
    print(f"The best policy there is would have {best:.4f}: the agent goes {share:.0%} of the way from today to there.")
    found.to_csv(options.directory / "result.csv")
    draw(found, best, options.directory / "result.png")
    print(f"Picture: {options.directory / 'result.png'}")


def train(path: Path, warm_start: str, rows: str) -> tuple[NeuralLogUCB2, replay.Features]:
    """An agent that learns what was logged and then goes on by rejection sampling, as in configs/log.yaml."""
    environment = replay.ReplayLog(str(path), warm_start=warm_start, rows=rows, rejection="biased-match")
    agent = NeuralLogUCB2(environment.dim)
    trainer = L.Trainer(
        max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False
    )
    trainer.fit(agent, BanditData(environment, rounds=2000))
    assert environment.features is not None
    return agent, environment.features


def visitors(log: replay.Log) -> simulate.Floats:
    """(rows, 6), the visitors of a log"""
    return np.concatenate([log.frame(group)[simulate.CONTEXT].to_numpy() for group in log.groups])


def true_rates(log: replay.Log, agent: NeuralLogUCB2, features: replay.Features) -> list[float]:
    """The click rates that the three policies really have with the visitors of a log, an expectation over clicks."""
    x = visitors(log)
    click_rate, row = simulate.click_rate(x), np.arange(len(x))
    shown = (simulate.logging_policy(x) * click_rate).sum(axis=1)
    return [float(rates.mean()) for rates in (shown, click_rate, click_rate[row, chosen(agent, features, log)])]


def chosen(agent: NeuralLogUCB2, features: replay.Features, log: replay.Log) -> np.ndarray:
    """(rows,), the offer that the frozen agent shows to each visitor, as a service would ask it."""
    settings = ReplaySettings("all", log.n_items, None, seed=0)
    offers = []
    for group in log.groups:
        events, _ = CandidateEvents.read(log, group, features, settings)
        offers += [int(agent.act(arms).arm) for arms in events.arms(features).float()]
    # the log numbers its actions, and so does the simulation
    number = {name: place for place, name in enumerate(simulate.OFFERS)}
    return np.array([number[log.actions[offer]] for offer in offers])


def draw(found: pd.DataFrame, best: float, path: Path) -> None:
    """The estimates with their intervals, and the truth."""
    figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
    place = np.arange(len(found))[::-1]
    spread = np.stack([found["value"] - found["low"], found["high"] - found["value"]])
    axes.errorbar(
        found["value"], place, xerr=spread, fmt="o", color="#0072B2", capsize=4, label="estimate, 95% interval"
    )
    axes.plot(found["true"], place, "x", color="#D55E00", markersize=9, markeredgewidth=2, label="truth")
    axes.axvline(best, color="0.6", linestyle=":", label="best possible")
    axes.set_yticks(place, list(found.index))
    axes.set_ylim(-0.6, len(found) - 0.4)
    axes.set_xlabel("click rate")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.22), ncols=3, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
