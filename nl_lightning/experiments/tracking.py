"""Experiments on Weights & Biases: a run for every final run, and one for every figure with its tables and files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from lightning.pytorch.loggers import Logger, WandbLogger

from nl_lightning.experiments.results import FigureResult
from nl_lightning.reporting.tracking import PROJECT, needs_wandb, wandb_table
from nl_lightning.runs.wandb import wandb_is_offline

__all__ = ["PROJECT", "WandbGroup", "log_figure", "run"]


class WandbGroup(NamedTuple):
    """W&B's runs of one reproduction."""

    id: str
    offline: bool
    """without a key, or on request; ``wandb sync`` uploads such runs"""

    @classmethod
    def of(cls, id: str) -> "WandbGroup":
        needs_wandb("--wandb")
        return cls(id, wandb_is_offline())

    def settings(self, directory: Path, job_type: str, name: str) -> dict[str, Any]:
        """Arguments of ``wandb.init``; a resumed run has the same id."""
        import wandb

        return {
            "project": PROJECT,
            "group": self.id,
            "job_type": job_type,
            "name": name,
            "id": f"{self.id}-{job_type}-{name}".replace("=", "-").replace(" ", "-"),
            "dir": str(directory),
            "resume": "allow",
            "mode": "offline" if self.offline else "online",
            # its messages would disturb the progress display
            "settings": wandb.Settings(silent=True),
        }


@contextmanager
def run(group: WandbGroup | None, directory: Path, figure: str, panel: str, agent: str) -> Iterator[list[Logger]]:
    """The loggers of a final run: none without a group."""
    if group is None:
        yield []
        return
    settings = group.settings(directory, figure, f"{panel}-{agent}")
    directory.mkdir(parents=True, exist_ok=True)
    logger = WandbLogger(save_dir=settings.pop("dir"), **settings)
    try:
        yield [logger]
    finally:
        if logger._experiment is not None:
            logger.experiment.finish()


def log_figure(group: WandbGroup, result: FigureResult, directory: Path) -> None:
    """Final numbers, verdicts, chosen settings, pictures, and all files of a figure as an artifact."""
    import wandb

    directory = directory / result.reading
    files = sorted(path for path in directory.glob(f"{result.name}*") if _belongs(path, result.name))
    with wandb.init(**group.settings(directory, "result", f"{result.reading}-{result.name}")) as made:
        tables = {
            "finals": wandb_table(_finals(result)),
            "verdicts": wandb_table([verdict._asdict() for verdict in result.verdicts]),
            "chosen": wandb_table([row for row in result.tuning if row["chosen"]]),
        }
        shown: dict[str, Any] = {name: table for name, table in tables.items() if table.data}
        pictures = {path.stem: wandb.Image(str(path)) for path in files if path.suffix == ".png"}
        made.log(shown | pictures)
        artifact = wandb.Artifact(f"{group.id}-{result.reading}-{result.name}", type="result")
        for path in files:
            artifact.add_file(str(path))
        made.log_artifact(artifact)


def _belongs(path: Path, name: str) -> bool:
    """``fig1.csv``, ``fig1-curves.csv`` and ``fig1-sweeps.png``, but no directory."""
    return path.is_file() and path.stem.removesuffix("-curves").removesuffix("-sweeps") == name


def _finals(result: FigureResult) -> list[dict[str, Any]]:
    return [
        {"panel": panel.name, "agent": agent.agent, "seed": seed, result.measure: float(final), **agent.settings}
        for panel in result.panels
        for agent in panel.agents
        for seed, final in zip(agent.seeds, agent.final, strict=True)
    ]
