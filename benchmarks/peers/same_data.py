"""The same data for all: rounds that were dealt, and logs, as files that need nothing but NumPy."""

import json
from pathlib import Path

import numpy as np
import torch

from benchmarks.learners import WORLD
from benchmarks.peers.world import ROWS
from benchmarks.replay import simulated
from nl_lightning.environments import Synthetic
from replay import Log
from replay.formats.sample import bundled_log
from replay.logs.obd import POSITION, USER_FEATURES
from replay.simulation.simulate import make_log
from replay.simulation.simulated_world import SimulatedWorld


def write_rounds(directory: Path, seeds: list[int], rounds: int) -> None:
    """``online-SEED.npz``: arms (T, K, d), the reward and the regret (T, K) of each, on h1."""
    for seed in seeds:
        environment = Synthetic("h1")
        environment.prepare([seed], torch.empty(0, device="cpu"))
        deal = environment.deal(0, rounds)
        arms, reward, regret = (values.squeeze(0).numpy() for values in deal[:3] if values is not None)
        np.savez(directory / f"online-{seed}.npz", arms=arms, reward=reward, regret=regret)


def write_sample(directory: Path) -> None:
    """``sample.npz``: the 10,000 events of random/all that obp carries."""
    _write_events(Log(bundled_log()), directory / "sample.npz")


def write_simulated(directory: Path, rows: int) -> None:
    """``log-ROWS``, a simulated log for us, and ``log-ROWS.npz``, the same events for peers."""
    _write_events(simulated(directory / f"log-{rows}", rows), directory / f"log-{rows}.npz")


def write_world(directory: Path, logging: str, logs: int) -> None:
    """``world-LOGGING``, the logs of a world one behind the other, for us; ``world-LOGGING.json``, those for peers"""
    world = SimulatedWorld(**{**WORLD, "policy": logging, "positions": 1})
    path = directory / f"world-{logging}"
    make_log(path, world, logs * ROWS)
    user, _ = world.draw_context(0, logs * ROWS)
    log = Log(path)
    parts = [log.events(group) for group in log.groups]
    action, reward, propensity = (
        np.concatenate([getattr(part, name) for part in parts]).tolist() for name in ("item", "click", "propensity")
    )
    events = list(zip(user.tolist(), action, map(int, reward), propensity, strict=True))
    items = world.item_table().to_pylist()
    described = {
        "user_names": world.profiles(),
        # categories and the item itself; its number is left out
        "item_names": [[f"item{number}", *map(str, list(item.values())[2:])] for number, item in enumerate(items)],
        "rates": world.probability[:, 0].tolist(),
        "logs": [events[number * ROWS : (number + 1) * ROWS] for number in range(logs)],
    }
    (directory / f"world-{logging}.json").write_text(json.dumps(described))


def _write_events(log: Log, path: Path) -> None:
    parts = [log.events(group) for group in log.groups]
    # Which categories there are is the same in all parts of a log, but a part lists those that it has.
    names = {
        name: sorted({value for part in parts for value in part.categorical[name].values}) for name in USER_FEATURES
    }
    columns = []
    for name, known in names.items():
        number = {value: place for place, value in enumerate(known)}
        codes = [
            np.array([number[value] for value in part.categorical[name].values])[part.categorical[name].codes]
            for part in parts
        ]
        # As obp's own preprocessing does: booleans, and of each feature one category is left out.
        columns.append(np.eye(len(known), dtype=bool)[np.concatenate(codes), 1:])
    np.savez(
        path,
        context=np.concatenate(columns, axis=1),
        action=np.concatenate([part.item for part in parts]),
        position=np.concatenate([part.numeric[POSITION] for part in parts]) - 1,
        reward=np.concatenate([part.click for part in parts]).astype(int),
        propensity=np.concatenate([part.propensity for part in parts]),
        n_items=log.n_items,
    )
