"""The run directory: everything a run leaves behind, and everything it needs to go on.

    config.yaml            all that is needed to repeat the run
    rounds.parquet         one row a round and replica
    summary.json           the result
    curve.png              mean regret or reward and its band
    checkpoints/last.ckpt  the state after a call of TrainNN

While a run goes on, its rounds lie in ``rounds/``, one file a checkpoint. A part is written before its checkpoint, and
parts that no checkpoint knows of are dropped on resumption: no round is missing or doubled.
"""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from platform import python_version
from typing import Any, cast

import lightning as L
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from lightning.pytorch.callbacks import Checkpoint
from torch import Tensor

from nl_lightning.reporting import curves as report
from nl_lightning.agents.base import Agent
from nl_lightning.agents.callbacks import RoundCallback
from nl_lightning.rollout.data import BanditData
from nl_lightning.core.errors import InputError
from nl_lightning.core.files import write_beside
from nl_lightning.core.types import History, TrainingBatch
from nl_lightning.core.replicas import Share
from nl_lightning.core.statistics import interval
from nl_lightning.distributed.strategy import collected, gathered


def schema(measure: report.Measure) -> pa.Schema:
    """The columns of rounds.parquet."""
    fields = [
        ("replica", pa.int32()),
        ("t", pa.int32()),
        *([("event", pa.int64())] if measure is report.CTR else []),
        ("arm", pa.int32()),
        ("reward", pa.float32()),
        ("score", pa.float64()),
        ("mean", pa.float64()),
        ("bonus", pa.float64()),
        (measure.column, pa.float64()),
        ("radius", pa.float64()),
        ("logdet", pa.float64()),
        ("lam", pa.float64()),
    ]
    return pa.schema(fields)


class RunDirectory:
    """Where the parts of a run lie."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.rounds = path / "rounds.parquet"
        self.parts = path / "rounds"
        self.summary = path / "summary.json"
        self.curve = path / "curve.png"
        self.checkpoint = path / "checkpoints" / "last.ckpt"
        self.lock = path / ".lock"

    def read_summary(self) -> dict[str, Any] | None:
        """The result, if the run has come to its end or was stopped in good order."""
        return json.loads(self.summary.read_text()) if self.summary.exists() else None

    @contextmanager
    def claimed(self, config: str) -> Iterator[None]:
        """Have the directory alone, with its config written first of all; the lock ends with the process.

        If it was made here and nothing came that a run could go on from, nothing of it stays.
        """
        try:
            new = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
            lock = self.lock.open("w")
        except OSError as error:
            text = f"{self.path} cannot be written: {error.strerror}. Set run.dir to another directory."
            raise InputError(text) from error
        with lock:
            try:
                flock(lock, LOCK_EX | LOCK_NB)
            except OSError as error:
                text = f"{self.path} is in use by another process. Wait for it, or choose another run.id."
                raise InputError(text) from error
            write_beside(self.config, lambda path: path.write_text(config))
            try:
                yield
            finally:
                self.lock.unlink(missing_ok=True)
                if new and not self.checkpoint.exists() and not self.summary.exists():
                    shutil.rmtree(self.path, ignore_errors=True)
                    with suppress(OSError):
                        self.path.parent.rmdir()

    def check_same(self, config: dict[str, Any]) -> None:
        """A run goes on with the settings it began with; Trainer flags may change, but for the precision."""
        stored = yaml.safe_load(self.config.read_text()) or {}
        differing = sorted(
            key for part in ("model", "data") for key in _differing(part, stored.get(part), config[part])
        )
        old, new = (str(c.get("trainer", {}).get("precision") or "32-true") for c in (stored, config))
        differing += _differing("trainer.precision", old, new)
        if differing:
            raise InputError(
                f"{self.path} holds a run with other settings; they differ in {', '.join(differing)}. "
                "Choose another run.id, or leave these settings as they were to go on with that run."
            )

    def part(self, first: int) -> Path:
        """The rounds from ``first`` on, up to the next part."""
        return self.parts / f"from-{first:09d}.parquet"

    def sorted_parts(self) -> list[Path]:
        return sorted(self.parts.glob("from-*.parquet"))


class Checkpoints(Checkpoint):
    """Keeps the state after every N calls of TrainNN and after the last batch, be it of the run or of this session.

    Args:
        path: the checkpoint's file.
        every: calls of TrainNN between two checkpoints; ``trainer.global_step`` counts them.
    """

    def __init__(self, path: str | Path, every: int) -> None:
        self.path = Path(path)
        self.every = every

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: TrainingBatch, batch_idx: int
    ) -> None:
        stops = trainer.should_stop or trainer.global_step == trainer.max_steps
        last = trainer.datamodule.finished  # type: ignore[attr-defined]
        if stops or last or (batch.due and trainer.global_step % self.every == 0):
            # no checkpoint behind a failure that the others do not know of yet
            cast(Agent, pl_module).sync()
            trainer.save_checkpoint(self.path, weights_only=False)


class Recorder(RoundCallback):
    """Writes the run directory, and tells loggers how the regret, or in a replay the reward, grows.

    Args:
        directory: the run directory.
        picture: whether curve.png is drawn, which takes longer than a small run.
    """

    def __init__(self, directory: str | Path, picture: bool = True) -> None:
        self.run = RunDirectory(Path(directory))
        self.picture = picture
        self.measure = report.REGRET
        self.cumulative = torch.zeros(0, dtype=torch.float64, device="cpu")
        """(R,), regret or reward so far"""
        self.clicks = torch.zeros(0, dtype=torch.float64, device="cpu")
        """(R,), rewards so far"""
        self.share = Share([], 0, 0)
        """the replicas above: those of this process, and in the end all"""
        self.recorded = 0
        self.seconds = 0.0
        self._pending: list[pa.Table] = []
        self._pending_from = 1
        self._started = time.monotonic()

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.measure = report.REGRET if _data(trainer).environment.knows_regret else report.CTR
        assert isinstance(pl_module, Agent)
        self.share = pl_module.share
        self.cumulative = torch.zeros(self.share.n_local, dtype=torch.float64, device="cpu")
        self.clicks = torch.zeros(self.share.n_local, dtype=torch.float64, device="cpu")

    # ---- rounds -------------------------------------------------------------------------------------------------

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.is_global_zero:
            self.run.parts.mkdir(parents=True, exist_ok=True)
            for part in self.run.sorted_parts():
                if part >= self.run.part(self.recorded + 1):
                    part.unlink()
        self._pending_from = self.recorded + 1
        self._started = time.monotonic()

    def on_rounds_end(self, trainer: L.Trainer, agent: Agent, history: History) -> None:
        valid = torch.ones_like(history.reward, dtype=torch.bool) if history.valid is None else history.valid
        valid = valid[: self.share.n_local].cpu()
        gained = (history.reward if history.regret is None else history.regret)[: self.share.n_local]
        grown = self.cumulative[:, None] + (gained.double().cpu() * valid).cumsum(1)
        lam = agent.formulas.lam_at(history.effective_dimension.T, history.t).T
        self._pending.append(_rows(history, grown, lam, valid, self.measure, self.share))
        self.cumulative = grown[:, -1]
        self.clicks += (history.reward[: self.share.n_local].double().cpu() * valid).sum(1)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: TrainingBatch, batch_idx: int
    ) -> None:
        """Regret or reward with its band, of every setting where replicas compare settings; radius and dimension."""
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
        for label, members in report.groups(replicas).items():
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
        self._write_part(trainer)
        # Here and not in state_dict, which has no trainer to ask the other processes by.
        cumulative, clicks = self._of_all(trainer)
        checkpoint["callbacks"][self.state_key] |= {"cumulative": cumulative, "clicks": clicks}

    def _of_all(self, trainer: L.Trainer) -> tuple[Tensor, Tensor]:
        """Regret or reward, and clicks, of all replicas."""
        cumulative, clicks = zip(*gathered(trainer, (self.cumulative, self.clicks)), strict=True)
        return torch.cat(cumulative), torch.cat(clicks)

    def _write_part(self, trainer: L.Trainer) -> None:
        """The rounds since the last part, of all replicas, by round and then replica."""
        tables = [table for pending in collected(trainer, self._pending) for table in pending]
        if tables:
            table = pa.concat_tables(tables)
            if trainer.world_size > 1:
                table = table.sort_by([("t", "ascending"), ("replica", "ascending")])
            write_beside(
                self.run.part(self._pending_from), lambda path: pq.write_table(table, path, compression="zstd")
            )
        self._pending, self._pending_from = [], self.recorded + 1

    def state_dict(self) -> dict[str, Any]:
        return {"recorded": self.recorded, "seconds": self._elapsed()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.recorded, self.seconds = state_dict["recorded"], state_dict["seconds"]
        own = self.share.replicas[: self.share.n_local]
        self.cumulative, self.clicks = state_dict["cumulative"][own], state_dict["clicks"][own]

    def _elapsed(self) -> float:
        return self.seconds + time.monotonic() - self._started

    # ---- the end ------------------------------------------------------------------------------------------------

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Put the result together; also when a resumed run has no round left to play."""
        finished = _data(trainer).finished
        if stage == "fit" and (self.recorded or finished):
            assert isinstance(pl_module, Agent)
            self._conclude(trainer, pl_module, finished, self.picture)

    def record_divergence(self, trainer: L.Trainer, agent: Agent) -> None:
        """The result of a fit that TrainNNDiverged has ended: no replica is left that could play another round."""
        self._conclude(trainer, agent, finished=True, picture=False)

    def _conclude(self, trainer: L.Trainer, agent: Agent, finished: bool, picture: bool) -> None:
        self._write_part(trainer)
        self.cumulative, self.clicks = self._of_all(trainer)
        self.share = agent.share
        if not trainer.is_global_zero:
            return
        write_beside(self.run.rounds, self._merge_parts)
        summary = self._summary(agent, _data(trainer), finished)
        if picture:
            curves = report.read_curves(self.run.rounds, agent.replicas, self.measure)
            write_beside(self.run.curve, lambda path: report.plot(curves, summary, path))
            report.log_result(trainer.loggers, curves, summary, self.run.curve)
        write_beside(self.run.summary, lambda path: path.write_text(json.dumps(summary, indent=2) + "\n"))
        if finished:
            for part in self.run.sorted_parts():
                part.unlink()
            self.run.parts.rmdir()

    def _merge_parts(self, target: Path) -> None:
        with pq.ParquetWriter(target, schema(self.measure), compression="zstd") as writer:
            for part in self.run.sorted_parts():
                writer.write_table(pq.read_table(part))

    def _summary(self, agent: Agent, data: BanditData, finished: bool) -> dict[str, Any]:
        diverged, played = agent.diverged_at.tolist(), agent.rounds.tolist()
        counts = data.environment.counts()
        counted = counts.pop("replicas", [{}] * agent.replicas)
        replicas = []
        for replica in range(agent.replicas):
            clicks = float(self.clicks[replica])
            rate = clicks / played[replica] if played[replica] else None
            regret = {"regret": float(self.cumulative[replica]), "mean_reward": rate}
            replicas.append(
                {
                    "replica": replica,
                    **agent.settings.of(replica),
                    **(regret if self.measure is report.REGRET else {"ctr": rate, "clicks": clicks}),
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
            "over_replicas": report.over_replicas(replicas, self.measure),
            "replicas": replicas,
            "seconds": round(self._elapsed(), 3),
            "versions": {
                "python": python_version(),
                **{name: version(name) for name in ("nl-lightning", "torch", "lightning", "numpy")},
            },
        }


def _differing(key: str, old: Any, new: Any) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        return [d for k in old.keys() | new.keys() for d in _differing(f"{key}.{k}", old.get(k), new.get(k))]
    return [] if old == new else [key]


def _data(trainer: L.Trainer) -> BanditData:
    return trainer.datamodule  # type: ignore[attr-defined, no-any-return]


def _rows(
    history: History, grown: Tensor, lam: Tensor, valid: Tensor, measure: report.Measure, share: Share
) -> pa.Table:
    """One row a round and replica, by round and then replica, without the rounds that a replica did not have."""
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
    return pa.table({field.name: pa.array(columns[field.name], type=field.type) for field in schema(measure)})
