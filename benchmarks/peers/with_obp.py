"""obp's simulation of bandit policies on a log and its ReplayMethod, in its environment."""

from benchmarks.peers.asked import answer, path_of

# isort: split
import contextlib
import io
import time
import warnings
from typing import Any

import numpy as np
from obp.ope import ReplayMethod
from obp.policy import IPWLearner, LogisticTS, LogisticUCB
from obp.simulator import run_bandit_simulation
from sklearn.linear_model import LogisticRegression

_PLACES = 3


def learning(log: str, policy: str, kind: str) -> dict[str, Any]:
    """A policy that learns from the events whose item it picks; ``kind`` is the type of the contexts' numbers."""
    data = np.load(path_of(log))
    n_items = int(data["n_items"])
    feedback = {
        "n_rounds": len(data["action"]),
        "n_actions": n_items,
        "action": data["action"],
        "position": data["position"],
        "reward": data["reward"],
        "pscore": data["propensity"],
        "context": data["context"].astype(kind),
    }
    chosen_class = {"LogisticUCB": LogisticUCB, "LogisticTS": LogisticTS}[policy]
    learner = chosen_class(
        dim=feedback["context"].shape[1], n_actions=n_items, len_list=_PLACES, batch_size=1, random_state=0
    )
    start = time.perf_counter()
    with contextlib.redirect_stderr(io.StringIO()):
        action_dist = run_bandit_simulation(feedback, learner)
    found = _replay(data, action_dist)
    return {"seconds": time.perf_counter() - start, **found}


def frozen(log: str, fitted_on: int) -> dict[str, Any]:
    """A logistic policy learnt from the first events, asked for all of them at once, and ReplayMethod."""
    data = np.load(path_of(log))
    names = ("context", "action", "position", "reward", "propensity")
    context, action, position, reward, propensity = (data[name] for name in names)
    learner = IPWLearner(
        n_actions=int(data["n_items"]), len_list=_PLACES, base_classifier=LogisticRegression(max_iter=100)
    )
    first = slice(fitted_on)
    learner.fit(
        context=context[first],
        action=action[first],
        reward=reward[first],
        pscore=propensity[first],
        position=position[first],
    )
    start = time.perf_counter()
    found = _replay(data, learner.predict(context))
    return {"seconds": time.perf_counter() - start, **found}


def _replay(data: Any, action_dist: Any) -> dict[str, Any]:
    logged = {name: data[name] for name in ("reward", "action", "position")}
    picked = action_dist[np.arange(len(logged["action"])), logged["action"], logged["position"]]
    ctr = ReplayMethod().estimate_policy_value(action_dist=action_dist, **logged)
    return {"events": len(picked), "ctr": float(ctr), "accepted": int(picked.sum())}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    answer({"learning": learning, "frozen": frozen})
