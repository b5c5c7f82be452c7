"""The result of a diagnosis: what fails, a table, a picture and numbers."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from nl_lightning.agents.base import Agent
from nl_lightning.core.files import write_beside
from nl_lightning.diagnostics.assumptions import Diagnosis, Problem, log_inverse_slope, log_kappa_within

__all__ = ["failures", "notes", "power", "table", "write"]

_NAMES = {"paper": "the paper", "zhou": "Zhou et al. 2020", "verma": "Verma et al. 2025"}


def failures(problem: Problem, found: Diagnosis, agent: type[Agent]) -> list[str]:
    """The assumptions of the theory that fail, in words."""
    said = []
    if max(1 - found.norm_low, found.norm_high - 1) > 1e-6:
        said.append(f"|x| is {found.norm_low:.3g} to {found.norm_high:.3g}, where Assumption 4.2 wants 1.")
    if found.distinct < found.contexts:
        said.append(
            f"only {found.distinct} of {found.contexts} contexts are distinct, and H over all of them is singular "
            "(Assumption 4.1, as printed). Learning is not harmed; lambda_H and S_min are those of the distinct ones."
        )
    if found.parallel:
        said.append(f"{found.parallel} pairs of distinct contexts are parallel, which Assumption 4.1 excludes.")
    if not found.lam_H:
        said.append("H is singular over the distinct contexts too (Assumption 4.1): no S is large enough.")
    if found.rank < found.distinct:
        said.append(
            f"at {found.distinct} distinct contexts the network's gradients span {found.rank} dimensions: near theta_0 "
            "no parameters give h at all of them (Lemma 6.1)."
            + ("" if found.parallel else " That takes a wider network.")
        )
    if found.S_min is not None and problem.S < found.S_min < math.inf:
        with_it = power(log_kappa_within(found.S_min, found.phi))
        said.append(
            f"S = {problem.S:g} < S_min = {found.S_min:.4g} (Condition 4.4); kappa would be {with_it} with S_min."
        )
    bound = problem.C1 * math.sqrt(problem.depth)
    if found.phi > bound:
        least = found.phi / math.sqrt(problem.depth)
        said.append(
            f"max |phi| = {found.phi:.3g} > C1 sqrt(L) = {bound:.3g} (Lemma C.4): C1 must be {least:.3g} or more."
        )
    # a little more than kappa, for rounding
    given = math.log(problem.kappa) + 1e-9
    kappas = {"at the contexts (Assumption 2.1)": found.log_kappa_seen, "within S (6.3)": found.log_kappa_formal}
    short = [f"{power(log)} {where}" for where, log in kappas.items() if log and log > given]
    if short:
        unused = f" {agent.name} does not use it, but the bound on its regret does." if agent.variance_weighted else ""
        said.append(f"kappa = {problem.kappa:g} is too small: 1/mu' reaches {' and '.join(short)}.{unused}")
    return said


def power(log: float | None) -> str:
    """exp(log) as a decimal number, however large."""
    if log is None:
        return "unknown"
    if not math.isfinite(log):
        return "infinite"
    digits = log / math.log(10)
    if digits < 5:
        return f"{math.exp(log):.4g}"
    mantissa, carried = f"{10 ** (digits % 1):.2e}".split("e")
    return f"{mantissa}e+{int(digits) + int(carried)}"


def table(problem: Problem, found: Diagnosis, title: str) -> Table:
    """Every quantity with its meaning."""
    last = {name: f"{values[-1]:.4g}" for name, values in found.dimensions.items()}
    rows = [
        ("contexts", f"{found.contexts}", f"in {len(problem.x)} rounds; distinct: {found.distinct}"),
        ("|x|", f"{found.norm_low:.3g} to {found.norm_high:.3g}", "the theory wants 1"),
        ("kappa, given", f"{problem.kappa:g}", "the theory wants at least the next two"),
        ("kappa, seen", power(found.log_kappa_seen), "1/min mu'(h) at these contexts"),
        ("kappa, formal", power(found.log_kappa_formal), "1/mu'(S max |phi|), for parameters within S"),
        ("kappa*", power(found.log_kappa_star), "1/mean mu'(h) at the best arms"),
        ("S, given", f"{problem.S:g}", "the theory wants at least S_min"),
        ("S_min", "unknown" if found.S_min is None else f"{found.S_min:.4g}", "sqrt(2 h^T H^-1 h), H the NTK matrix"),
        ("lambda_H", f"{found.lam_H:.4g}", "smallest eigenvalue of H"),
        ("max |phi|", f"{found.phi:.4g}", "phi = g(x; theta_0)/sqrt(m)"),
        ("rank", f"{found.rank}", f"dimensions that phi spans, of {found.distinct}"),
        ("distance", f"{found.distance:.1%}", "of phi . phi' from infinite width"),
        ("lam_0", f"{problem.lam_0:.4g}", "8 sqrt(2) C1 sqrt(L) log(4/delta)/S"),
        ("d~, the paper", last["paper"], "log det(R/lam_0 H~ + I), H~ = sum phi phi^T"),
        ("d~, Zhou 2020", last["zhou"], "log det(H/lam + I)/log(1 + TK/lam)"),
        ("d~, Verma 2025", last["verma"], "log det(H~/(kappa lam) + I)"),
    ]
    result = Table("quantity", "value", "meaning", title=title, title_justify="left")
    for row in rows:
        result.add_row(*row)
    return result


def notes(problem: Problem, found: Diagnosis) -> list[str]:
    """How the effective dimensions grow, and the width that the theory asks for."""
    rounds, half = len(problem.x), (len(problem.x) + 1) // 2
    grown = [f"{values[-1] / values[half - 1]:.2f} ({_NAMES[name]})" for name, values in found.dimensions.items()]
    width = f"a width of more than 10^{found.log10_width:.0f} (with C0 = 1)" if found.lam_H else "an infinite width"
    return [
        f"From {half} to {rounds} rounds the effective dimensions grow by the factors {', '.join(grown)}.",
        f"Condition C.2 asks for {width}; this network's is {problem.width}.",
    ]


def write(problem: Problem, found: Diagnosis, warnings: list[str], title: str, out: Path) -> None:
    """Write diagnose.json, dimensions.csv and diagnose.png. In JSON, infinite and unknown values are null."""
    given = {name: value for name, value in vars(problem).items() if name not in ("x", "h")} | {"lam_0": problem.lam_0}
    numbers: dict[str, float | None] = {}
    for name, value in vars(found).items():
        if name.startswith("log_"):
            name, value = f"log10_{name.removeprefix('log_')}", None if value is None else value / math.log(10)
        if value is None or isinstance(value, int | float):
            numbers[name] = value if value is None or math.isfinite(value) else None
    numbers |= {f"dimension_{name}": float(values[-1]) for name, values in found.dimensions.items()}
    result = {"given": {"rounds": len(problem.x), **given}, "found": numbers, "warnings": warnings}
    write_beside(out / "diagnose.json", lambda path: path.write_text(json.dumps(result, indent=2) + "\n"))
    rows = np.column_stack([np.arange(1, len(problem.x) + 1), *found.dimensions.values()])
    head = ",".join(["t", *found.dimensions])
    write_beside(out / "dimensions.csv", lambda path: np.savetxt(path, rows, "%.10g", ",", header=head, comments=""))
    write_beside(out / "diagnose.png", lambda path: _draw(problem, found, title, path))


def _draw(problem: Problem, found: Diagnosis, title: str, path: Path) -> None:
    """Draw the effective dimensions over T, the eigenvalues of NTK and network, and the kappa that contexts need."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 4.4), layout="constrained")
    figure.suptitle(title, fontsize="medium")
    left, middle, right = figure.subplots(1, 3)
    for name, values in found.dimensions.items():
        left.plot(np.arange(1, len(values) + 1), values, label=_NAMES[name])
    left.set(title="effective dimension", xlabel="rounds T", xscale="log", yscale="log")
    number = np.arange(1, found.distinct + 1)
    H = found.ntk.clamp_min(1e-16)
    middle.plot(number, H, label=f"NTK matrix H: smallest {found.lam_H:.3g}")
    middle.fill_between(number, H, 2 * H, alpha=0.2, linewidth=0, label="where infinitely wide networks lie")
    kept = found.network[: found.rank]
    middle.plot(number[: found.rank], kept, label=f"network, m = {problem.width}: rank {found.rank}")
    middle.set(title=f"eigenvalues at {found.distinct} distinct contexts", xlabel="number", xscale="log", yscale="log")
    _draw_kappa(problem, found, right)
    for axes in (left, middle, right):
        axes.title.set_fontsize("medium")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)


def _draw_kappa(problem: Problem, found: Diagnosis, axes: Any) -> None:
    """Draw the share of contexts with 1/mu'(h) > kappa over kappa, and mark the kappas."""
    if problem.h is not None:
        for h, name in ((problem.h.flatten(), "all contexts"), (problem.h.amax(1), "best arms")):
            asked = log_inverse_slope(h).sort().values / math.log(10)
            axes.step(asked, 1 - np.arange(1, len(asked) + 1) / len(asked), where="post", label=name)
    marks = [
        ("kappa, given", math.log(problem.kappa), "black", "-"),
        ("kappa, seen", found.log_kappa_seen, "tab:red", "--"),
        ("kappa, formal", found.log_kappa_formal, "tab:purple", "--"),
        ("kappa*", found.log_kappa_star, "tab:green", ":"),
    ]
    for name, log, colour, style in marks:
        if log is not None:
            axes.axvline(log / math.log(10), color=colour, linestyle=style, label=f"{name}: {power(log)}")
    axes.xaxis.set_major_formatter(lambda x, _: f"$10^{{{x:g}}}$")
    axes.set(title="contexts with 1/mu'(h) above kappa", xlabel="kappa", ylabel="share", ylim=(0, 1))
