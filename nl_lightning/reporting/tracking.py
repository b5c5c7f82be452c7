"""Results of several runs or policies on Weights & Biases: a comparison or an evaluation is a run of its own there."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nl_lightning.core.errors import InputError
from nl_lightning.runs.wandb import wandb_is_offline

if TYPE_CHECKING:
    import wandb

__all__ = ["PROJECT", "flat_differences", "log_tables", "needs_wandb", "wandb_logger", "wandb_table"]

PROJECT = "nl-lightning"

Rows = Sequence[Mapping[str, Any]]


def needs_wandb(option: str) -> None:
    """Refuse an option that needs W&B where it is not installed."""
    try:
        import wandb  # noqa: F401
    except ImportError as error:
        raise InputError(f"{option} needs the package wandb: pip install 'nl-lightning[wandb]'.") from error


def wandb_table(rows: Rows) -> "wandb.Table":
    """A W&B table. Rows may lack columns: linear agents have no m."""
    import wandb

    columns: list[str | int] = list(dict.fromkeys(name for row in rows for name in row))
    return wandb.Table(columns=columns, data=[[row.get(str(name)) for name in columns] for row in rows])


def flat_differences(result: Rows) -> list[dict[str, Any]]:
    """The differences of a comparison.json, one row per agent that is compared with the baseline."""
    return [
        {"agent": row["agent"], "baseline": row["baseline"], **row["difference"]}
        for row in result
        if row["difference"] is not None
    ]


def wandb_logger(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The arguments of the W&B logger in the config of a run; None without one."""
    loggers = (config.get("trainer") or {}).get("logger") or []
    for logger in loggers if isinstance(loggers, list) else [loggers]:
        if isinstance(logger, dict) and str(logger.get("class_path", "")).endswith(".WandbLogger"):
            return {**(logger.get("dict_kwargs") or {}), **(logger.get("init_args") or {})}
    return None


def log_tables(
    name: str,
    job_type: str,
    directory: Path,
    tables: Mapping[str, Rows],
    pictures: Sequence[Path] = (),
    given: Mapping[str, Any] | None = None,
) -> str:
    """Log tables and pictures as a run of their own; returns where that is, as a sentence.

    Args:
        name: name of the run.
        job_type: what kind of run it is.
        directory: where W&B keeps its files.
        tables: rows by the name of their table; a table without rows is left out.
        pictures: PNG files.
        given: what the user set for the W&B logger of fits: project, entity, group, offline, mode.
    """
    import wandb

    given = given or {}
    project = given.get("project")
    offline = given.get("offline") or wandb_is_offline()
    run = wandb.init(
        project=PROJECT if project in (None, "lightning_logs") else project,
        entity=given.get("entity"),
        group=given.get("group"),
        job_type=job_type,
        name=name,
        dir=str(directory),
        mode=given.get("mode") or ("offline" if offline else "online"),
        settings=wandb.Settings(silent=True),
    )
    shown: dict[str, Any] = {key: wandb_table(rows) for key, rows in tables.items() if rows}
    run.log(shown | {path.stem: wandb.Image(str(path)) for path in pictures})
    where, url = Path(run.dir).parent, None if run.offline else run.url
    run.finish()
    return f"W&B run at {url}" if url else f"W&B run offline in {where}; upload it with: wandb sync {where}"
