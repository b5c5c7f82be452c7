"""Completes the loggers of a config with what the run knows."""

from typing import Any

from lightning.pytorch.loggers import WandbLogger

from nl_lightning.runs.directory import RunDirectory
from nl_lightning.runs.wandb import wandb_is_offline

__all__ = ["complete_loggers"]


def complete_loggers(config: Any, run: RunDirectory) -> None:
    """Fill in what the user left out; a logger's save_dir of ``.`` means the run directory."""
    loggers = config.trainer.logger
    for logger in loggers if isinstance(loggers, list) else [loggers]:
        given: Any = getattr(logger, "init_args", None)
        if given is not None and getattr(given, "save_dir", None) == ".":
            given.save_dir = str(run.path)
        if str(getattr(logger, "class_path", "")).endswith(f".{WandbLogger.__name__}"):
            label = f"{run.path.parent.name}-{run.path.name}"
            given.project = given.project if given.project != "lightning_logs" else "nl-lightning"
            given.name, given.id = given.name or label, given.version or given.id or label
            kwargs = {"resume": "allow", **(getattr(logger, "dict_kwargs", None) or {})}
            if "mode" not in kwargs and (given.offline or wandb_is_offline()):
                kwargs["mode"] = "offline"
            logger.dict_kwargs = kwargs
