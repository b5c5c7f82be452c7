"""The end of a run: its picture, and its final numbers for the loggers."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.loggers import Logger, WandbLogger

from nl_lightning.core.files import write_beside
from nl_lightning.reporting import plots
from nl_lightning.reporting.curves import Curves, bands, read_curves, setting_label
from nl_lightning.runs.directory import RunDirectory
from nl_lightning.runs.summary import MEASURES, VALUE

__all__ = ["conclude", "log_result"]


def conclude(run: RunDirectory, summary: dict[str, Any], loggers: Sequence[Logger]) -> None:
    """Draw curve.png and log the final numbers: what a :class:`~nl_lightning.runs.recorder.Recorder` may be given."""
    curves = read_curves(run.rounds, len(summary["replicas"]), MEASURES[summary["measure"]])
    write_beside(run.curve, lambda path: plots.plot(curves, summary, path))
    log_result(loggers, curves, summary, run.curve)


def log_result(loggers: Iterable[Logger], curves: Curves, summary: dict[str, Any], curve: Path) -> None:
    """Log the final numbers to every logger, and to W&B also the plot and the curves with their bands."""
    best, measure = summary["over_replicas"][0], MEASURES[summary["measure"]]
    names = (f"{measure.name}{end}" for end in ("", "_low", "_high"))
    final = {f"final/{name}": best[name] for name in (*names, *VALUE) if best.get(name) is not None}
    for logger in loggers:
        if not isinstance(logger, WandbLogger):
            logger.log_metrics(final, step=summary["rounds"])
            continue
        import wandb

        columns = [
            (f"{setting_label(row, summary)} {name}", getattr(band, name).tolist())
            for row, band in bands(curves, summary)
            for name in ("low", "mean", "high")
            if not np.isnan(getattr(band, name)).all()
        ]
        chart = wandb.plot.line_series(
            xs=curves.t.tolist(),
            ys=[values for _, values in columns],
            keys=[key for key, _ in columns],
            title=f"{measure.text}, mean and band",
            xname="round",
        )
        # Logged, so that the final numbers are in W&B's history as well as in its summary: sweeps look there.
        logger.experiment.log({**final, f"{measure.name} curves": chart, "curve": wandb.Image(str(curve))})
        logger.experiment.summary.update({"finished": summary["finished"], "result": summary["over_replicas"]})
