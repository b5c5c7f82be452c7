"""Who is measured at what, and how their work differs from ours."""

from typing import Any, NamedTuple

from benchmarks.peers.process import OURS

ROUNDS = 2000
SEEDS = 10


class Contender(NamedTuple):
    """Somebody at a piece of work.

    ``settings`` are those of the work (``with_PEER.py``). ``repetitions``: how often; ``counts``: how many times the
    work that a ratio is about is done at once (ten replicas). ``differs``: what it does differently.
    """

    name: str
    peer: str
    work: str
    settings: dict[str, Any]
    differs: str
    repetitions: int
    counts: int = 1
    seeded: bool = False
    """Whether repetitions have seeds 0, 1, 2, ..."""


class Mark(NamedTuple):
    """``ours`` is to be at least so many times as fast as ``theirs``."""

    title: str
    ours: str
    theirs: str
    at_least: float


# ---- (a) and (b): a whole online run ---------------------------------------------------------------------------------

# What ended with the least regret on seeds that are not measured: python -m benchmarks.peers.tune
TUNED: dict[tuple[str, str], dict[str, Any]] = {
    (OURS, ""): {"nu": 0.001, "lam": 0.3, "lr": 0.02, "start": "cold"},
    ("calvera", "natural"): {"nu": 10.0, "lam": 0.01, "lr": 0.03},
    ("calvera", "fastest"): {"nu": 1.0, "lam": 0.01, "lr": 0.01},
    ("agilerl", "natural"): {"nu": 1.0, "lam": 1.0, "lr": 0.001},
    ("agilerl", "same"): {"nu": 1.0, "lam": 1.0, "lr": 0.001},
}
"""By peer and way of training."""
GRID: dict[str, dict[str, list[Any]]] = {
    OURS: {"nu": [0.001, 0.005], "lam": [0.1, 0.3, 1.0], "lr": [0.02, 0.03], "start": ["shrink", "cold"]},
    "calvera": {"nu": [0.1, 1.0, 10.0], "lam": [0.001, 0.01, 0.1], "lr": [0.001, 0.01, 0.03]},
    "agilerl": {"nu": [0.1, 1.0, 10.0], "lam": [0.1, 1.0, 10.0], "lr": [0.0003, 0.001, 0.01]},
}

_NETWORK = "one matrix entry a parameter (diagonal), 441 parameters with biases; squared loss, Adam"


def online_run(
    name: str, peer: str, way: str, differs: str, repetitions: int = SEEDS, rounds: int = ROUNDS
) -> Contender:
    # the same work, faster or not, is the same learning
    tuned = TUNED.get((peer, way)) or TUNED[peer, "fastest"]
    settings = {"way": way, "rounds": rounds, **tuned}
    return Contender(name, peer, "online", settings, differs, repetitions, seeded=True)


LITERAL = {"nu": 0.01, "lam": 1.0, "optimizer": "gd", "lr": 0.005, "steps": 100, "update_growth": 0.0}
"""The paper's TrainNN with a step that no seed diverges with: the same work as that of the peers, step by step."""


def our_run(replicas: int, rounds: int = ROUNDS, literal: bool = False) -> Contender:
    way = ", gradient descent" if literal else ""
    name = f"NeuralLog-UCB-2{way}" if replicas == 1 else f"NeuralLog-UCB-2{way}, {replicas} seeds at once"
    settings = {"replicas": replicas, "rounds": rounds, **(LITERAL if literal else TUNED[OURS, ""])}
    steps = "100 steps of gradient descent" if literal else "75 steps of Adam, **a quarter less** than the same work"
    differs = (
        f"one matrix entry a parameter (diagonal), {420 if literal else 441} parameters; logistic loss; rounds are "
        f"dealt within the time; {steps}"
    )
    return Contender(name, OURS, "online", settings, differs, SEEDS, counts=replicas, seeded=replicas == 1)


def _with_seed(contender: Contender) -> Contender:
    return contender if contender.seeded else contender._replace(settings={**contender.settings, "seed": 0})


CALVERA_FASTEST = online_run(
    "calvera, same work, loader bypassed",
    "calvera",
    "fastest",
    f"{_NETWORK}; its buffer is handed to its training step as one batch",
)
AGILERL_SAME = online_run(
    "agilerl, same work",
    "agilerl",
    "same",
    "a matrix of the last layer's 21 parameters only; squared loss, Adam; full batches handed to `learn`",
)
ONLINE = [
    our_run(1),
    _with_seed(our_run(SEEDS)),
    our_run(1, literal=True),
    _with_seed(our_run(SEEDS, literal=True)),
    online_run(
        "calvera, normal use",
        "calvera",
        "natural",
        f"{_NETWORK}; **less work**: one epoch of minibatches of 32 every 50 rounds, 1 to 63 steps instead of 100",
    ),
    online_run("calvera, same work", "calvera", "same", f"{_NETWORK}; 100 epochs of one full batch", repetitions=2),
    CALVERA_FASTEST,
    online_run(
        "agilerl, normal use",
        "agilerl",
        "natural",
        "a matrix of the last layer's 21 parameters only; squared loss, Adam; **less work**: its training loop, two "
        "minibatches of 64 after each round",
    ),
    AGILERL_SAME,
]
ONLINE_MARKS = [
    Mark("(a) one run", ONLINE[0].name, "agilerl, same work", 8),
    Mark("(a) one run", ONLINE[0].name, "calvera, normal use", 8),
    Mark("(a) one run", ONLINE[0].name, "calvera, same work", 100),
    Mark("(b) ten seeds, a seed", ONLINE[1].name, "agilerl, same work", 25),
    Mark("(a) one run, gradient descent", ONLINE[2].name, "agilerl, same work", 8),
    Mark("(a) one run, gradient descent", ONLINE[2].name, "calvera, normal use", 8),
    Mark("(a) one run, gradient descent", ONLINE[2].name, "calvera, same work", 100),
    Mark("(b) ten seeds, a seed, gradient descent", ONLINE[3].name, "agilerl, same work", 25),
]

# ---- (c): learning on the bundled sample -----------------------------------------------------------------------------

_ALL_ITEMS = (
    "chooses from all 80 items, so it accepts one event in 80 and learns from that; four user features, none of items"
)


_OUR_ALL_ITEMS = "chooses from all 80 items by user and item features, so it accepts one event in 80"


def our_learning(replicas: int, threads: int) -> Contender:
    name = f"NeuralLog-UCB-2, {'one replica' if replicas == 1 else f'{replicas} replicas'}, {threads} thread" + (
        "s" if threads > 1 else ""
    )
    settings = {"log": "", "replicas": replicas, "rounds": 2000, "threads": threads, "steps": 100, "lr": 0.01}
    differs = (
        "chooses from five items by user and item features, accepts one event in five to eight, 100 steps on all of "
        "them after every 50; reads Parquet within the time"
    )
    return Contender(name, OURS, "learning", settings, differs, 5, counts=replicas)


def obp_learning(policy: str, kind: str, log: str = "sample.npz") -> Contender:
    differs = f"{_ALL_ITEMS}, for each of three positions; " + (
        "contexts as booleans, as its own preprocessing gives them" if kind == "bool" else "contexts as floats"
    )
    name = f"obp {policy}" + (", floats" if kind == "float" else "")
    return Contender(name, "obp", "learning", {"log": log, "policy": policy, "kind": kind}, differs, 5)


def contextualbandits_learning(policy: str, differs: str, repetitions: int) -> Contender:
    settings = {"log": "sample.npz", "policy": policy}
    return Contender(f"contextualbandits {policy}", "contextualbandits", "learning", settings, differs, repetitions)


LEARNING = [
    our_learning(1, threads=1),
    our_learning(10, threads=1),
    our_learning(10, threads=2),
    our_learning(1, threads=1)._replace(
        name="NeuralLog-UCB-2, all items, 1 thread",
        settings={**our_learning(1, threads=1).settings, "candidates": "all"},
        differs=f"{_OUR_ALL_ITEMS}; reads Parquet within the time",
    ),
    obp_learning("LogisticUCB", "bool"),
    obp_learning("LogisticUCB", "float"),
    obp_learning("LogisticTS", "bool"),
    contextualbandits_learning("LogisticUCB", f"{_ALL_ITEMS}; ten events at a time, fitted anew each time", 2),
    contextualbandits_learning("LinUCB", f"{_ALL_ITEMS}; **linear**; ten events at a time, added to what it has", 5),
]
LEARNING_MARKS = [
    Mark("(c) one replica", LEARNING[0].name, "obp LogisticUCB", 8),
    Mark("(c) ten replicas, a replica", LEARNING[1].name, "obp LogisticUCB", 20),
]

# ---- (c): the value of a policy that learns, beside the known truth --------------------------------------------------

LOGS = 10
"""Logs of a world, each with so many events as ``world.ROWS`` says."""
LOGGINGS = ("uniform", "softmax")


def value_of(name: str, peer: str, logging: str, differs: str, **rule: Any) -> Contender:
    return Contender(f"{name}, {logging}", peer, "value", {"logging": logging, **rule}, differs, LOGS, seeded=True)


VALUES = [
    contender
    for logging in LOGGINGS
    for contender in (
        value_of("Logistic-UCB-1, DR-ns", OURS, logging, "quantile 0.01; doubly robust over all events"),
        value_of(
            "Logistic-UCB-1, DR-ns, IPS",
            OURS,
            logging,
            "quantile 0.01; IPS over all events",
            reward_model="none",
        ),
        value_of(
            "Vowpal Wabbit --explore_eval",
            "vowpalwabbit",
            logging,
            "`--cb_explore_adf --epsilon 0.05`; IPS over all events; its file driver, text",
        ),
        value_of(
            "coba RejectionCB",
            "coba",
            logging,
            "Vowpal Wabbit's epsilon-greedy by its Python interface; mean reward of accepted events",
        ),
    )
]

# ---- (d): a frozen policy --------------------------------------------------------------------------------------------

LOG_ROWS = 1_400_000
_FITTED_ON = {"log": f"log-{LOG_ROWS}.npz", "fitted_on": 10_000}
FROZEN = [
    Contender(
        f"NeuralLog-UCB-2, {threads} thread{'s' if threads > 1 else ''}",
        OURS,
        "frozen",
        {"log": f"log-{LOG_ROWS}", "threads": threads},
        "scores five items an event; from Parquet to CTR with intervals (IPS and SNIPS too)",
        3,
    )
    for threads in (1, 2)
] + [
    Contender(
        "NeuralLog-UCB-2, all items, 1 thread",
        OURS,
        "frozen",
        {"log": f"log-{LOG_ROWS}", "threads": 1, "candidates": "all"},
        f"{_OUR_ALL_ITEMS}; from Parquet to CTR with intervals (IPS and SNIPS too)",
        3,
    ),
    Contender(
        "obp IPWLearner, ReplayMethod",
        "obp",
        "frozen",
        _FITTED_ON,
        "a logistic classifier over 80 items for each of three positions; from arrays in memory",
        3,
    ),
    Contender(
        "contextualbandits LogisticUCB",
        "contextualbandits",
        "frozen",
        _FITTED_ON,
        "80 logistic models; from arrays in memory",
        3,
    ),
]
