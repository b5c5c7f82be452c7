"""RESULTS.md: what the benchmarks gave, written from their stored parts."""

from pathlib import Path
from typing import Any

from benchmarks import pictures, stored
from benchmarks.measure import Row
from benchmarks.peers import tables
from benchmarks.stored import Part
from nl_lightning.core.files import write_beside
from nl_lightning.experiments.tables import markdown

_METHOD = """\
One thread (where nothing else is said), repetitions in turn, so that all see the same moods of the machine; medians \
with their quartiles, of three repetitions or fewer the lowest and the highest. Only ratios within one run count: \
identical runs differ by up to 2 times. Everyone has a process of its own, which is started once; the time of imports \
and of a first short run stand apart."""

_ONLINE = """\
Synthetic `h1`, d = 20, K = 5, T = 2000, width 20; the same arms and clicks for all. TrainNN runs every 50 rounds: 75 \
full-batch steps of Adam for ours, its default, and 100 for the peers' same work; ours with 100 steps of gradient \
descent, as the paper has it, stands beside it. Everyone's exploration, regularisation, step and, where it has one, \
way to start are those with the least regret on two seeds that are not measured (`python -m benchmarks.peers.tune`). \
calvera's best in normal use lies at the edge of its grid, so it may do better still. Chance has a regret of about \
430."""

_LEARNING = """\
The 10,000 events of `random/all` that obp carries. With 38 clicks the CTRs say nothing of who is better; they and the \
accepted events show that the work was done."""


_VALUES = """\
The value of a policy that learns on a log, estimated by its evaluator, beside what the same learner earns when it is \
played online in the same world, in as many rounds as it accepted: ten simulated logs of 10,000 events, 20 items, a \
click rate of 20% under the uniform policy. Everyone has a learner of its own, so the error counts and not the value: \
its mean with its standard error, and its root mean square."""

_FROZEN = """\
1.4 million events. Policies learnt from the first 10,000 of them, ours until it had accepted 2,000. Who chooses from \
all 80 items has more to choose from than the five of the paper's protocol, and a CTR that does not compare with it."""


def write(directory: Path, parts: Path = stored.DIRECTORY) -> Path:
    """RESULTS.md and its plots, of whatever parts there are."""
    found = {name: part for name in ORDER if (part := stored.load(name, parts)) is not None}
    if "peers" in found:
        pictures.draw(found["peers"].detail, directory)
    text = "\n\n".join(_document(found)) + "\n"
    target = directory / "RESULTS.md"
    write_beside(target, lambda path: path.write_text(text))
    return target


ORDER = {
    "peers": "Beside our peers",
    "values": "Beside our peers: the value of a policy that learns",
    "profile": "Where our own time goes",
    "fit": "A fit",
    "long": "Long runs",
    "learning": "How well agents learn untuned",
    "fixed": "Fixed arms: untuned, beside Greedy",
    "grid": "The paper's grid, untuned TrainNN",
    "tried": "What else was tried",
    "blocks": "Blocks",
    "theory": "Theory mode",
    "replay": "Replay",
    "coverage": "How sure the intervals are",
    "learners": "Agents that learn on a log that is not uniform",
    "sample": "How fast agents learn on the bundled sample",
    "devices": "A second process",
    "variants": "TrainNN in other ways",
    "threads": "Threads",
}


def _document(found: dict[str, Part]) -> list[str]:
    text = [
        "# Speed and memory",
        "Written by `make bench`; do not edit. One part alone is measured by `python -m benchmarks --only PART`.",
        _METHOD,
        marks([row for part in found.values() for row in part.rows]),
    ]
    for name, part in found.items():
        where = part.where
        text += [
            f"## {ORDER[name]}",
            f"`--only {name}`, {where['date']}: {where['cpu']}, {where['cores']} cores, Python {where['python']}, "
            f"torch {where['torch']}, lightning {where['lightning']}.",
        ]
        text += {
            "peers": _peers,
            "values": _values,
            "profile": _profile,
            "learning": _learning,
            "tried": _tried,
            "coverage": coverage_table,
        }.get(name, lambda part: [marks(part.rows)])(part)
    return text


def marks(rows: list[Row]) -> str:
    """What we hold ourselves to."""
    shown = [
        [what, value, limit, "" if limit == "-" else "yes" if holds else "**no**"] for what, value, limit, holds in rows
    ]
    return markdown(["what", "measured", "to reach", "reached"], shown, right=4)


def _peers(part: Part) -> list[str]:
    found = part.detail
    return [
        *_versions(found),
        f"![How many times as fast we are]({pictures.RATIOS})",
        "### (a) A whole online run, and (b) ten seeds of it",
        _ONLINE,
        tables.online(found["online"]),
        "### (c) Learning from a log",
        _LEARNING,
        tables.events(found["learning"]),
        "### (d) A frozen policy over a simulated log",
        _FROZEN,
        tables.events(found["frozen"]),
        "### (e) How it grows",
        f"![How time and memory grow]({pictures.GROWTH})",
        "Seconds of an online run, by rounds:",
        tables.growing_rounds(found["growth"]["online"]),
        "Memory of our own longer runs, with one gradient step for a hundred:",
        tables.growing_memory(found["growth"]["long"]),
        "Learning from simulated logs of several lengths to their ends: an event without TrainNN, and peak memory. We "
        "take one gradient step for a hundred; obp fits at each accepted event, which is in its time.",
        tables.growing_log(found["growth"]["learning"]),
    ]


def _values(part: Part) -> list[str]:
    return [*_versions(part.detail), _VALUES, tables.values(part.detail["values"])]


def _versions(found: dict[str, Any]) -> list[str]:
    versions = ", ".join(f"{peer} {version}" for peer, version in found["versions"].items())
    missing = [f"**{peer} could not be installed: {why}**" for peer, why in found["not_installed"].items()]
    return [f"Peers, each in an environment of its own: {versions}.", *missing]


def _profile(part: Part) -> list[str]:
    """Shares of the whole, a column a number of replicas."""
    profiles: dict[str, dict[str, dict[str, float]]] = part.detail
    head = ["part of a fit", *profiles]
    shares = _by_name(profiles, "shares")
    operations = _by_name(profiles, "operations")
    return [
        "A fit of (a), by clocks around its parts; the products of TrainNN are two a gradient step, measured alone.",
        markdown(head, [[name, *(f"{value:.0%}" for value in values)] for name, values in shares.items()], right=1),
        "The same fit as torch's profiler sees it, which makes small operations dearer than they are:",
        markdown(
            head,
            [
                [name, *(f"{v:.0f}" if name.startswith("operations") else f"{v:.0%}" for v in values)]
                for name, values in operations.items()
            ],
            right=1,
        ),
    ]


_UNTUNED = """\
Final regret after 2000 rounds with the defaults of every class: the mean over seeds that no setting was chosen on, \
with its standard error. *Tuned* is a NeuralLog-UCB-2 whose settings were searched for that problem alone. With \
fixed arms the same 20 arms are shown in every round; elsewhere contexts are fresh, and exploration matters little: \
Greedy is the control. Regret differs between problems by what there is to lose, so only rows compare."""

_TRIED = """\
NeuralLog-UCB-2 on four seeds of each problem (other seeds than above). Of every way to train, the pair of nu and lam \
with the least mean ratio to the best regret that any way had on a problem; X where a seed diverged."""


def _learning(part: Part) -> list[str]:
    told = part.detail["untuned"]
    agents = [name for name in next(iter(told.values())) if name != "tuned"]

    def cell(found: dict[str, Any]) -> str:
        if found["regret"] is None:
            return "all diverged"
        lost = f", {found['diverged']} diverged" if found["diverged"] else ""
        return f"{found['regret']:.0f} ± {found['error'] or 0:.0f}{lost}"

    rows = [
        [
            f"{name} ({of_problem[agents[0]]['seeds']} seeds)",
            *(cell(of_problem[agent]) for agent in agents),
            "" if of_problem["tuned"] is None else f"{of_problem['tuned']:.0f}",
        ]
        for name, of_problem in told.items()
    ]
    return [marks(part.rows), _UNTUNED, markdown(["problem", *agents, "tuned"], rows, right=1)]


def _tried(part: Part) -> list[str]:
    found: dict[str, dict[str, dict[str, float]]] = part.detail["tried"]
    problems = list(next(iter(next(iter(found.values())).values())))
    everything = [values for ways in found.values() for values in ways.values()]
    best = {p: min(values[p] for values in everything if values[p] == values[p]) for p in problems}

    def mean_ratio(values: dict[str, float]) -> float:
        ratios = [values[p] / max(best[p], 1.0) for p in problems]
        return float("inf") if any(r != r for r in ratios) else sum(ratios) / len(ratios)

    rows = []
    for way, by_setting in found.items():
        setting, values = min(by_setting.items(), key=lambda pair: mean_ratio(pair[1]))
        nu, lam = setting.split()
        shown = ["X" if values[p] != values[p] else f"{values[p]:.0f}" for p in problems]
        lost = sum(any(value != value for value in each.values()) for each in by_setting.values())
        mean = mean_ratio(values)
        rows.append(
            [way, nu, lam, *shown, "X" if mean == float("inf") else f"{mean:.2f}", f"{lost} of {len(by_setting)}"]
        )
    return [_TRIED, markdown(["way", "nu", "lam", *problems, "mean ratio", "settings with divergence"], rows, right=1)]


_COVERAGE = """\
Nominal 95% intervals on {logs:,} simulated logs a setting: click rate 0.4%, 80 items. *Above* and *below* are the \
shares of logs whose interval lies above, and below, the truth. Widths are multiples of the normal interval's, whose \
own coverage stands beside it; those of a difference, of two separate intervals, for policies that agree on 80% of \
the events."""


def coverage_table(part: Part) -> list[str]:
    head = ["logging", "agent", "rows", "interval", "coverage", "above", "below", "width", "the other's coverage"]
    rows = [
        [
            line["logging"],
            line["agent"],
            f"{line['rows']:,}",
            line["interval"],
            *(f"{line[name]:.1%}" for name in ("coverage", "above", "below")),
            f"{line['width']:.2f}",
            f"{line['other_coverage']:.1%}",
        ]
        for line in part.detail["lines"]
    ]
    return [marks(part.rows), _COVERAGE.format(logs=part.detail["logs"]), markdown(head, rows, right=2)]


def _by_name(profiles: dict[str, dict[str, dict[str, float]]], kind: str) -> dict[str, list[Any]]:
    names = next(iter(profiles.values()))[kind]
    return {name: [profile[kind][name] for profile in profiles.values()] for name in names}
