"""How tight the tail inequalities are in simulation: a table, a picture and their numbers."""

import csv
import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from nl_lightning.core.statistics import CLICK_LEVEL, wilson
from nl_lightning.diagnostics.martingales import DESIGNS, MartingalePaths, MartingaleSetting, bounds

__all__ = ["Row", "draw", "remarks", "summarise", "table", "write_csv"]

Row = dict[str, Any]
_SHOWN = {"paper": "paper", "faury": "Faury", "verma": "Verma"}
"""The bounds of the table; the variants are in the files and in the picture."""


def summarise(setting: MartingaleSetting, paths: MartingalePaths) -> tuple[Row, list[Row]]:
    """The row of a setting at T, and its curves at some 50 points: the quantile of the norm, and mean bounds."""
    found, T = bounds(paths, setting), setting.rounds
    points = torch.logspace(0, math.log10(T), 50, dtype=torch.float64).round().long().clamp(1, T).unique()
    quantiles = paths.norm[points - 1].quantile(1 - setting.delta, dim=1)
    curve = {"t": points, "quantile": quantiles} | {name: b[points - 1].mean(1) for name, b in found.items()}
    end = float(quantiles[-1])
    row: Row = {**setting._asdict(), "kappa": setting.kappa, "quantile": end}
    for name, bound in found.items():
        held = int((paths.norm <= bound).all(dim=0).sum())
        row |= {name: float(curve[name][-1]), f"{name}_coverage": held / setting.runs}
        row[f"{name}_ratio"] = row[name] / end
        row[f"{name}_coverage_low"], row[f"{name}_coverage_high"] = wilson(held, setting.runs)
    place = {"design": setting.design, "d": setting.d, "S": setting.S}
    values = zip(*(column.tolist() for column in curve.values()), strict=True)
    return row, [place | dict(zip(curve, value, strict=True)) for value in values]


def table(rows: Sequence[Row]) -> Table:
    """One row per setting, 80 columns wide."""
    title = (
        f"|s_T| in the norm of H_T^-1 after T = {rows[0]['rounds']} rounds: its {1 - rows[0]['delta']:g} quantile q "
        f"over {rows[0]['runs']} runs; the mean of each bound, and how many times q it is; % of runs in which a bound "
        f"held at every t, for the bound that held least, and the {CLICK_LEVEL:.0%} interval."
    )
    result = Table(title=title, title_justify="left", padding=(0, 1, 0, 0), box=None, header_style="underline")
    for head in ["design", "d", "S", "kappa", "q", *_SHOWN.values(), "held"]:
        result.add_column(head, justify="left" if head == "design" else "right", no_wrap=True)
    for row in rows:
        numbers = [f"{row['d']}", f"{row['S']:g}", _short(row["kappa"]), _short(row["quantile"])]
        cells = [f"{_short(row[name])} {_short(row[f'{name}_ratio'], 2)}x" for name in _SHOWN]
        least = min(_SHOWN, key=lambda name: row[f"{name}_coverage"])
        share, low, high = (_short(100 * row[f"{least}_coverage{end}"]) for end in ("", "_low", "_high"))
        result.add_row(row["design"], *numbers, *cells, f"{share} ({low}-{high})")
    return result


def _short(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}g}" if value < 10**digits else f"{value:.0f}"


def remarks(rows: Sequence[Row]) -> list[str]:
    """What the table says, in words."""
    lines = []
    for name, label in _SHOWN.items():
        ratios = [row[f"{name}_ratio"] for row in rows]
        best = [row for row in rows if row[name] == min(row[other] for other in _SHOWN)]
        where = [f"; {key} = {', '.join(dict.fromkeys(f'{row[key]:g}' for row in best))}" for key in ("S", "d") if best]
        loose = f"{_short(min(ratios))} to {_short(max(ratios))} times q"
        lines.append(f"{label}: {loose}, the tightest in {len(best)} of {len(rows)} settings{''.join(where)}.")
    below = {_SHOWN[name]: sum(row["paper"] < row[name] for row in rows) for name in ("faury", "verma")}
    lines.append("The paper's bound is " + " and ".join(f"below {n}'s in {c}" for n, c in below.items()) + " settings.")
    promised = 1 - rows[0]["delta"]
    failed = [(row, label) for row in rows for n, label in _SHOWN.items() if row[f"{n}_coverage_high"] < promised]
    lines += [f"{label} FAILED with {row['design']}, d = {row['d']}, S = {row['S']:g}." for row, label in failed]
    lines += [] if failed else [f"No bound failed its promise to hold at every t with probability {promised:g}."]
    for row in rows:
        rank = DESIGNS[row["design"]].rank
        if rank and row["d"] == rows[-1]["d"]:
            # log det, and so the paper's bound, does not depend on d; Faury's bound grows by 2/sqrt(lam) log 2 with d
            d = row["d"] + math.ceil((row["paper"] - row["faury"]) * math.sqrt(row["lam"]) / (2 * math.log(2)))
            place = f"{row['design']}, S = {row['S']:g}"
            lines.append(f"{place}: the paper's bound is below Faury's where d >= {max(d, rank)}.")
    return lines


_LINES: dict[str, tuple[str, dict[str, Any]]] = {
    "quantile": ("quantile of the norm", {"color": "black", "linewidth": 2}),
    "paper": ("the paper", {"color": "tab:blue"}),
    "paper_R": ("the paper, second form (R = 1/4)", {"color": "tab:blue", "linestyle": ":"}),
    "faury": ("Faury et al. 2020, as the paper prints it", {"color": "tab:orange"}),
    "faury_original": ("Faury et al. 2020, original", {"color": "tab:orange", "linestyle": ":"}),
    "verma": ("Verma et al. 2025", {"color": "tab:green"}),
}


def draw(rows: Sequence[Row], curves: Sequence[Row], path: Path) -> None:
    """Draw one panel per setting: a row per design, a column per d and S."""
    from matplotlib.figure import Figure

    designs = list(dict.fromkeys(row["design"] for row in rows))
    columns = list(dict.fromkeys((row["d"], row["S"], row["kappa"]) for row in rows))
    figure = Figure(figsize=(max(9.0, 1.9 * len(columns) + 0.8), 1.7 * len(designs) + 1.6), layout="constrained")
    panels = figure.subplots(len(designs), len(columns), sharex=True, sharey=True, squeeze=False)
    for (design, (d, S, kappa)), axes in zip(product(designs, columns), panels.flat, strict=True):
        points = [point for point in curves if (point["design"], point["d"], point["S"]) == (design, d, S)]
        for name, (label, style) in _LINES.items():
            axes.plot([point["t"] for point in points], [point[name] for point in points], label=label, **style)
        axes.set(xscale="log", yscale="log", xlabel="round t", ylabel=design)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        if design == designs[0]:
            axes.set_title(f"d = {d}, S = {S:g}\n$\\kappa$ = {_short(kappa)}", fontsize="medium")
        axes.label_outer()
    # The norm can be close to 0 in the first rounds, which is of no interest; all panels share this axis.
    panels[0, 0].set_ylim(bottom=min(row["quantile"] for row in rows) / 4)
    what = f"{1 - rows[0]['delta']:g} quantile over {rows[0]['runs']} runs, and mean bounds"
    figure.suptitle(f"$\\|s_t\\|_{{H_t^{{-1}}}}$: {what}, $\\lambda$ = {rows[0]['lam']:g}")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=120)


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Write rows with the same keys as CSV."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
