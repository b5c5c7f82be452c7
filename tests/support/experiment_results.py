"""Made-up results of experiments, for tests of what is said and drawn of them."""

from collections.abc import Mapping, Sequence

import numpy as np

from nl_lightning.experiments import claims
from nl_lightning.experiments.paper import PAPER_AGENTS
from nl_lightning.experiments.results import AgentResult, FigureResult, PanelResult


def agent_result(
    agent: str, final: Sequence[float], seeds: Sequence[int] | None = None, rounds: int = 400, points: int = 300
) -> AgentResult:
    """Curves that rise like the root of t to the final number; a NaN is a seed that diverged half-way."""
    numbers = np.array(final, dtype=np.float64)
    t = np.unique(np.linspace(1, rounds, points).round().astype(np.int64))
    ends = np.where(np.isnan(numbers), 1.0, numbers)
    curves = ends[:, None] * np.sqrt(t / rounds)
    curves[np.isnan(numbers), len(t) // 2 :] = np.nan
    chosen = list(range(len(numbers))) if seeds is None else list(seeds)
    diverged = [seed for seed, number in zip(chosen, numbers, strict=True) if np.isnan(number)]
    settings = {"nu": 0.1, "lam": 1.0, "kappa": 10.0, "S": 1.0}
    if agent not in claims.LINEAR:
        settings["m"] = 20.0
    return AgentResult(agent, settings, chosen, t, curves, numbers, diverged)


def panel(numbers: Mapping[str, Sequence[float]], name: str = "h1", row: int = 0, column: int = 0) -> PanelResult:
    """A panel of the final numbers of some agents."""
    results = [agent_result(agent, final) for agent, final in numbers.items()]
    return PanelResult(name, rf"${name.partition('-')[0]}$", results, row, column)


def spread(
    means: Sequence[float], seeds: int = 10, noise: float = 3.0, source: int = 0, agents: Sequence[str] = PAPER_AGENTS
) -> dict[str, np.ndarray]:
    """Normal final numbers of exactly these means, one an agent; what a problem adds is common to all of a seed."""
    generator = np.random.default_rng(source)
    drawn = generator.normal(0, noise, (len(agents) + 1, seeds))
    common, *own = drawn - drawn.mean(axis=1, keepdims=True)
    return {a: m + 10 * common + rest for a, m, rest in zip(agents, means, own, strict=False)}


GRID = (0.01, 0.1, 1.0, 10.0, 100.0)


def tuning(panels: Sequence[PanelResult]) -> list[dict[str, object]]:
    """Rows of a grid search in which lam = 100 diverged."""
    return [
        {
            "panel": panel.name,
            "agent": result.agent,
            "lr": 0.01,
            "nu": nu,
            "lam": lam,
            "mean": None if lam == 100 else 100 + nu + lam,
            "seeds": 3,
            "diverged": 3 if lam == 100 else 0,
            "chosen": (nu, lam) == (0.1, 1.0),
        }
        for panel in panels
        for result in panel.agents
        for nu in GRID
        for lam in GRID
    ]


def figure(name: str = "fig1", seeds: int = 10, diverging: bool = True) -> FigureResult:
    """One of the paper's figures with made-up numbers."""
    if name in ("fig3", "fig6"):
        functions = ("h1", "h2", "h3") if name == "fig3" else ("h4", "h5", "h6")
        places = [(f"{h}-{d}", r, c) for r, h in enumerate(functions) for c, d in enumerate(("low", "middle", "high"))]
    elif name.startswith("fig"):
        names = {"fig1": ("h1", "h2", "h3"), "fig2": ("mnist", "mushroom", "shuttle"), "fig4": ("h4", "h5", "h6")}
        places = [(panel_name, 0, c) for c, panel_name in enumerate(names[name])]
    else:
        parameter = name.rpartition("-")[2]
        values = {"m": (20, 50, 100), "kappa": (50, 100, 200), "S": (1, 10, 100)}[parameter]
        places = [(f"{parameter}={value}", 0, c) for c, value in enumerate(values)]
    regret = claims.measure_of(name) is claims.REGRET
    agents = PAPER_AGENTS[:5] if name in ("fig1", "fig2", "fig3") else PAPER_AGENTS
    panels = []
    for i, (panel_name, row, column) in enumerate(places):
        means = (170.0, 300.0, 290.0, 150.0, 140.0, 160.0, 155.0) if regret else (20, 21, 24, 17, 25, 50, 41)
        numbers = spread(means, seeds, 4.0 if regret else 0.5, i, agents)
        if not regret:
            numbers = {agent: np.abs(final) / 10_000 for agent, final in numbers.items()}
        if diverging and i == 0:
            numbers["NCBF-UCB"][[1, 4]] = np.nan
        panels.append(panel(numbers, panel_name, row, column))
    return FigureResult(
        name=name,
        title="Comparison of cumulative regret",
        measure="regret" if regret else "ctr",
        panels=panels,
        verdicts=claims.verdicts(name, panels),
        tuning=tuning(panels) if regret else [],
        notes=["The paper repeats 10 times."],
        seconds=12.5,
    )
