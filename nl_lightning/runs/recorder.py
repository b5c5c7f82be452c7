"""The recorder: writes a run's rounds and its summary, and logs how regret or reward grows."""

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from platform import python_version
from typing import Any

import lightning as L
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from lightning.pytorch.loggers import Logger
from torch import Tensor

from nl_lightning.agents.base import Agent
from nl_lightning.agents.callbacks import RoundCallback
from nl_lightning.core.checkpoint import restoring
from nl_lightning.core.errors import InputError
from nl_lightning.core.files import write_beside
from nl_lightning.core.replicas import Share
from nl_lightning.core.statistics import interval
from nl_lightning.core.types import History, TrainingBatch
from nl_lightning.distributed.strategy import collected, gathered
from nl_lightning.environments import LoggedEnvironment
from nl_lightning.environments.learner_value import EventRecord
from nl_lightning.rollout.data import BanditData
from nl_lightning.runs.directory import RunDirectory, checksum, differences, schema, settings_of
from nl_lightning.runs.summary import CTR, REGRET, Measure, groups, over_replicas

__all__ = ["Conclude", "Recorder"]

Conclude = Callable[[RunDirectory, dict[str, Any], Sequence[Logger]], None]
"""Presents the result of a run: takes its directory, its summary and the loggers of the fit."""


class Recorder(RoundCallback):
    """Writes the run directory and logs how the regret, or in a replay the reward, grows.

    Args:
        directory: the run directory.
        conclude: called with the run directory, the summary and the loggers at the end of a fit, before summary.json is
            written, for example to draw curve.png. The command line passes
            ``nl_lightning.reporting.conclusion.conclude``; left out, there is no picture.
        config: the config of the run, as in config.yaml. It is stored in checkpoints, and a run resumes with the same
            settings only.
    """

    def __init__(
        self, directory: str | Path, conclude: Conclude | None = None, config: Mapping[str, Any] | None = None
    ) -> None:
        self.run = RunDirectory(Path(directory))
        self.conclude = conclude
        self.settings = None if config is None else settings_of(config)
        self.parts: dict[str, str] = {}
        """the files of the rounds so far, with their checksums"""
        self.measure = REGRET
        self.cumulative = torch.zeros(0, dtype=torch.float64, device="cpu")
        """(R,), cumulative regret or reward"""
        self.clicks = torch.zeros(0, dtype=torch.float64, device="cpu")
        """(R,), cumulative reward"""
        self.share = Share([], 0, 0)
        """the replicas of the two tensors above: those of this process, and all of them at the end"""
        self.recorded = 0
        self.seconds = 0.0
        self._pending: list[pa.Table] = []
        self._pending_from = 1
        self._logged = False
        self._started = time.monotonic()

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        environment = _data(trainer).environment
        self.measure = REGRET if environment.knows_regret else CTR
        self._logged = isinstance(environment, LoggedEnvironment)
        assert isinstance(pl_module, Agent)
        self.share = pl_module.share
        self.cumulative = torch.zeros(self.share.n_local, dtype=torch.float64, device="cpu")
        self.clicks = torch.zeros(self.share.n_local, dtype=torch.float64, device="cpu")

    # ---- rounds -------------------------------------------------------------------------------------------------

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        problem = self._settle_parts() if trainer.is_global_zero else None
        for told in gathered(trainer, problem):
            if told is not None:
                raise InputError(told)
        self._pending_from = self.recorded + 1
        self._started = time.monotonic()

    def _settle_parts(self) -> str | None:
        """Make the directory of the parts, or check those that the checkpoint lists. Returns what is wrong, if any."""
        try:
            self.run.parts.mkdir(parents=True, exist_ok=True)
            self.run.keep_parts(self.parts)
        except (InputError, OSError) as error:
            return str(error)
        return None

    def on_rounds_end(self, trainer: L.Trainer, agent: Agent, history: History) -> None:
        valid = torch.ones_like(history.reward, dtype=torch.bool) if history.valid is None else history.valid
        valid = valid[: self.share.n_local].cpu()
        gained = (history.reward if self.measure is CTR or history.regret is None else history.regret)[
            : self.share.n_local
        ]
        grown = self.cumulative[:, None] + (gained.double().cpu() * valid).cumsum(1)
        lam = agent.formulas.lam_at(history.effective_dimension.T, history.t).T
        self._pending.append(_rows(history, grown, lam, valid, self.measure, self.share))
        self.cumulative = grown[:, -1]
        self.clicks += (history.reward[: self.share.n_local].double().cpu() * valid).sum(1)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: TrainingBatch, batch_idx: int
    ) -> None:
        """Log regret or reward with its band, the radius and the effective dimension, for every setting."""
        self.recorded = _data(trainer).played
        if not trainer.loggers:
            return
        assert isinstance(pl_module, Agent)
        agent, own = pl_module, self.share.n_local
        settings = [agent.settings.of(r) for r in range(own)]
        columns = (agent.diverged_at == 0, agent.radius, agent.effective_dimension)
        mine = (settings, self.cumulative.tolist(), *(column[:own].tolist() for column in columns))
        replicas, cumulative, alive, radius, dimension = (
            list(chain.from_iterable(parts)) for parts in zip(*gathered(trainer, mine), strict=True)
        )
        metrics = {"round": float(self.recorded)}
        name = self.measure.column.removeprefix("cumulative_")
        for label, members in groups(replicas).items():
            kept = [r for r in members if alive[r]]
            if not kept:
                continue
            where = f"{label}/" if label else ""
            band = interval(np.array([cumulative[r] for r in kept]))
            for end in ("mean", "low", "high"):
                metrics[f"{name}/{where}{end}"] = float(getattr(band, end))
            metrics[f"{where}radius"] = float(np.mean([radius[r] for r in kept]))
            metrics[f"{where}effective_dimension"] = float(np.mean([dimension[r] for r in kept]))
        for logger in trainer.loggers:
            logger.log_metrics({k: v for k, v in metrics.items() if not np.isnan(v)}, step=self.recorded)

    # ---- parts and checkpoints ----------------------------------------------------------------------------------

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        # ``state_dict`` has no trainer through which to ask the other processes.
        self._write_part(trainer)
        cumulative, clicks = self._of_all(trainer)
        checkpoint["callbacks"][self.state_key] = {
            "recorded": self.recorded,
            "seconds": self._elapsed(),
            "cumulative": cumulative,
            "clicks": clicks,
            "parts": dict(self.parts),
            "settings": self.settings,
        }

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        with restoring("a run directory", trainer.ckpt_path):
            state = checkpoint["callbacks"].get(self.state_key)
            if state is None:
                raise InputError("This checkpoint was written without a Recorder: the rounds before it are not kept.")
            if self.settings is not None and state["settings"] is not None:
                self._check_settings(state["settings"], self.settings)
            self.recorded, self.seconds = int(state["recorded"]), float(state["seconds"])
            self.parts = dict(state["parts"])
            own = self.share.replicas[: self.share.n_local]
            self.cumulative, self.clicks = state["cumulative"][own].double(), state["clicks"][own].double()

    def _check_settings(self, then: Any, now: Any) -> None:
        differing = differences(then, now)
        if differing:
            raise InputError(
                f"The run in {self.run.path} began with other settings; they differ in {', '.join(differing)}. Put "
                f"{self.run.config.name} back as it was, or play the run again from its beginning: {self.run.command} "
                "--restart"
            )

    def _of_all(self, trainer: L.Trainer) -> tuple[Tensor, Tensor]:
        """Cumulative regret or reward, and clicks, of all replicas."""
        cumulative, clicks = zip(*gathered(trainer, (self.cumulative, self.clicks)), strict=True)
        return torch.cat(cumulative), torch.cat(clicks)

    def _write_part(self, trainer: L.Trainer) -> None:
        """Write the rounds of all replicas since the last part, sorted by round and then replica."""
        tables = [table for pending in collected(trainer, self._pending) for table in pending]
        if tables:
            table = pa.concat_tables(tables)
            if trainer.world_size > 1:
                table = table.sort_by([("t", "ascending"), ("replica", "ascending")])
            path, content = self.run.part(self._pending_from), pa.BufferOutputStream()
            pq.write_table(table, content, compression="zstd")
            written = content.getvalue().to_pybytes()
            write_beside(path, lambda beside: beside.write_bytes(written))
            self.parts[path.name] = checksum(written)
        self._pending, self._pending_from = [], self.recorded + 1

    def _elapsed(self) -> float:
        return self.seconds + time.monotonic() - self._started

    # ---- the end ------------------------------------------------------------------------------------------------

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Write the result; also when a resumed run has no rounds left to play."""
        finished = _data(trainer).finished
        if stage == "fit" and (self.recorded or finished):
            assert isinstance(pl_module, Agent)
            self._write_result(trainer, pl_module, finished, self.conclude)

    def record_divergence(self, trainer: L.Trainer, agent: Agent) -> None:
        """Write the result of a fit that ended with TrainNNDiverged: no replica can play another round."""
        self._write_result(trainer, agent, finished=True, conclude=None)

    def _write_result(self, trainer: L.Trainer, agent: Agent, finished: bool, conclude: Conclude | None) -> None:
        self._write_part(trainer)
        self.cumulative, self.clicks = self._of_all(trainer)
        self.share = agent.share
        if not trainer.is_global_zero:
            return
        write_beside(self.run.rounds, self._merge_parts)
        environment = _data(trainer).environment
        records = environment.event_records() if isinstance(environment, LoggedEnvironment) else None
        if records is not None:
            write_beside(self.run.events, lambda path: pq.write_table(_events(records), path, compression="zstd"))
        summary = self._summary(agent, _data(trainer), finished)
        if conclude is not None:
            conclude(self.run, summary, trainer.loggers)
        write_beside(self.run.summary, lambda path: path.write_text(json.dumps(summary, indent=2) + "\n"))
        if finished:
            shutil.rmtree(self.run.parts)

    def _merge_parts(self, target: Path) -> None:
        with pq.ParquetWriter(target, schema(self.measure, self._logged), compression="zstd") as writer:
            for name in self.parts:
                writer.write_table(pq.read_table(pa.BufferReader(self.run.read_part(name, self.parts))))

    def _summary(self, agent: Agent, data: BanditData, finished: bool) -> dict[str, Any]:
        diverged, played = agent.diverged_at.tolist(), agent.rounds.tolist()
        counts = data.environment.counts()
        counted = counts.pop("replicas", [{}] * agent.replicas)
        replicas = []
        for replica in range(agent.replicas):
            clicks = float(self.clicks[replica])
            rate = clicks / played[replica] if played[replica] else None
            # a simulation accepts all that it shows
            every = {"accepted": played[replica], "seen": played[replica]}
            regret = {"regret": float(self.cumulative[replica]), "mean_reward": rate}
            replicas.append(
                {
                    "replica": replica,
                    **agent.settings.of(replica),
                    **(regret if self.measure is REGRET else {"ctr": rate, "clicks": clicks, **every}),
                    **counted[replica],
                    "diverged_at": diverged[replica] or None,
                }
            )
        return {
            "agent": agent.name,
            "mode": agent.mode,
            "measure": self.measure.name,
            "finished": finished,
            "rounds": self.recorded,
            **counts,
            "over_replicas": over_replicas(replicas, self.measure, counts.get("resample")),
            "replicas": replicas,
            "seconds": round(self._elapsed(), 3),
            "versions": {
                "python": python_version(),
                **{name: version(name) for name in ("nl-lightning", "torch", "lightning", "numpy")},
            },
        }


def _data(trainer: L.Trainer) -> BanditData:
    return trainer.datamodule  # type: ignore[attr-defined, no-any-return]


EVENTS = pa.schema(
    [
        ("replica", pa.int32()),
        ("row", pa.int64()),
        ("weight", pa.float64()),
        ("pi", pa.float64()),
        ("click", pa.int8()),
    ]
)
"""The columns of events.parquet; see ``EventRecord``."""


def _events(records: Sequence[Sequence[EventRecord]]) -> pa.Table:
    rows = [(replica, *record) for replica, kept in enumerate(records) for record in kept]
    columns = list(zip(*rows, strict=True)) or [()] * len(EVENTS)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, EVENTS, strict=True)], schema=EVENTS
    )


def _rows(history: History, grown: Tensor, lam: Tensor, valid: Tensor, measure: Measure, share: Share) -> pa.Table:
    """One row per round and replica, sorted by round and then replica, without rounds that a replica did not play."""
    rounds, replicas = valid.T.nonzero(as_tuple=True)
    number = torch.tensor(share.replicas, device="cpu")

    def column(values: Tensor) -> Any:
        return values.cpu()[replicas, rounds].numpy()

    columns = {
        "replica": number[replicas].numpy(),
        "t": history.t[rounds].numpy(),
        measure.column: column(grown),
        "logdet": column(history.effective_dimension),
        "lam": column(lam),
        **{name: column(getattr(history, name)) for name in ("arm", "reward", "score", "mean", "bonus", "radius")},
        **({} if history.event is None else {"event": column(history.event)}),
    }
    return pa.table(
        {
            field.name: pa.array(columns[field.name], type=field.type)
            for field in schema(measure, history.event is not None)
        }
    )
