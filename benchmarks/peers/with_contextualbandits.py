"""contextualbandits' policies and its evaluation by rejection sampling, in its environment."""

from benchmarks.peers.asked import answer, path_of

# isort: split
import time
import warnings
from typing import Any

import numpy as np
from contextualbandits.evaluation import evaluateRejectionSampling
from contextualbandits.online import LinUCB, LogisticUCB


def learning(log: str, policy: str) -> dict[str, Any]:
    """A policy that learns from the events whose item it picks, which it looks at ten at a time."""
    data = np.load(path_of(log))
    # LogisticUCB fits all that it has accepted anew; LinUCB can add to what it has.
    learner = _policy(policy, int(data["n_items"]))
    start = time.perf_counter()
    ctr, accepted = evaluateRejectionSampling(
        learner,
        *_logged(data),
        online=True,
        partial_fit=policy == "LinUCB",
        start_point_online=0,
    )
    taken = time.perf_counter() - start
    return {"seconds": taken, "events": len(data["action"]), "ctr": float(ctr), "accepted": int(accepted)}


def frozen(log: str, fitted_on: int) -> dict[str, Any]:
    """A policy learnt from the first events, asked for all of them at once."""
    data = np.load(path_of(log))
    context, action, reward = _logged(data)
    learner = _policy("LogisticUCB", int(data["n_items"])).fit(
        context[:fitted_on], action[:fitted_on], reward[:fitted_on]
    )
    start = time.perf_counter()
    ctr, accepted = evaluateRejectionSampling(learner, context, action, reward, online=False)
    taken = time.perf_counter() - start
    return {"seconds": taken, "events": len(data["action"]), "ctr": float(ctr), "accepted": int(accepted)}


def _policy(name: str, n_items: int) -> Any:
    return {"LogisticUCB": LogisticUCB, "LinUCB": LinUCB}[name](nchoices=n_items, random_state=1, njobs=1)


def _logged(data: Any) -> tuple[Any, Any, Any]:
    return data["context"].astype(float), data["action"], data["reward"].astype(float)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    answer({"learning": learning, "frozen": frozen})
