"""Attacks on run directories: lost, cut and changed files, edited settings, another log."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from nl_lightning.cli.main import main
from nl_lightning.runs.directory import RunDirectory
from tests.support.attacks import Attack, judge, table
from tests.support.cli import H1
from tests.support.stored_runs import (
    COMMAND,
    copied,
    flipped,
    log,
    resume,
    resume_by_command,
    resume_on_log,
    right_by_command,
    stopped,
    stopped_by_command,
    stopped_on_log,
    succeeds,
    whole,
)

pytestmark = pytest.mark.attack

Damage = Callable[[Path], Any]
"""Damages the copy of a run directory."""


# ---- parts of rounds -------------------------------------------------------------------------------------------------


def parts(run: Path) -> list[Path]:
    return sorted((run / "rounds").iterdir())


def replace_by_directory(run: Path) -> None:
    part = parts(run)[0]
    part.unlink()
    part.mkdir()


def swap(run: Path) -> None:
    one, other = parts(run)
    contents = one.read_bytes(), other.read_bytes()
    one.write_bytes(contents[1])
    other.write_bytes(contents[0])


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Write a Parquet file anew, with other values."""
    schema = pq.read_schema(path)
    pq.write_table(change(pq.read_table(path)).cast(schema), path, compression="zstd")


def more_reward(rows: pa.Table) -> pa.Table:
    return rows.set_column(rows.column_names.index("reward"), "reward", pc.add(rows["reward"], 1))


PARTS: dict[str, Damage] = {
    "all removed": lambda run: shutil.rmtree(run / "rounds"),
    "the first removed": lambda run: parts(run)[0].unlink(),
    "the last removed": lambda run: parts(run)[-1].unlink(),
    "cut": lambda run: parts(run)[0].write_bytes(parts(run)[0].read_bytes()[:-10]),
    "emptied": lambda run: parts(run)[1].write_bytes(b""),
    "exchanged": swap,
    "other rewards": lambda run: rewrite(parts(run)[0], more_reward),
    "a row less": lambda run: rewrite(parts(run)[1], lambda rows: rows.slice(1)),
    "a directory": replace_by_directory,
}


def damaged_parts() -> Iterator[Attack]:
    flips: dict[str, Damage] = {
        f"flipped bit {seed}": lambda run, seed=seed: flipped(parts(run)[seed % 2], seed) for seed in range(12)
    }
    for name, damage in {**PARTS, **flips}.items():

        def by_trainer(directory: Path, damage: Damage = damage) -> Any:
            run = copied(stopped(), directory)
            damage(run)
            return resume(run)

        yield Attack("parts of rounds", f"{name}, Trainer", by_trainer, ("from-0000", "--restart"))
    for name in ("all removed", "cut", "other rewards"):

        def by_command(directory: Path, damage: Damage = PARTS[name]) -> Any:
            run = copied(stopped_by_command(), directory)
            damage(run)
            return resume_by_command(run)

        yield Attack("parts of rounds", f"{name}, command line", by_command, ("from-0000", "--restart"))

    @succeeds
    def foreign(directory: Path) -> Any:
        """A part that no checkpoint knows, as a kill leaves it, is played again."""
        run = copied(stopped_by_command(), directory)
        shutil.copy(parts(run)[1], run / "rounds" / "from-000000021.parquet")
        return resume_by_command(run)

    yield Attack("parts of rounds", "one too many", foreign, (), right_by_command)


def restarted() -> Iterator[Attack]:
    """What refuses to go on can begin again, if asked to."""
    damages: dict[str, Damage] = {
        "parts removed": PARTS["all removed"],
        "checkpoint flipped": lambda run: flipped(RunDirectory(run).checkpoint, 1),
        "summary cut": lambda run: (run / "summary.json").write_text('{"agent": "Neur'),
    }
    for name, damage in damages.items():

        @succeeds
        def run(directory: Path, damage: Damage = damage) -> Any:
            here = copied(stopped_by_command(), directory)
            damage(here)
            return resume_by_command(here, "--restart")

        yield Attack("restart", name, run, (), right_by_command)
    nothing = ["fit", H1, *COMMAND, "--run.id=none", "--restart"]
    yield Attack("restart", "of nothing", lambda directory: main([*nothing, f"--run.dir={directory}"]), ("--restart",))


# ---- settings --------------------------------------------------------------------------------------------------------


def edit_config(run: Path, key: str, value: str) -> None:
    path = RunDirectory(run).config
    text, count = re.subn(rf"(?m)^(\s+{key}:).*$", rf"\1 {value}", path.read_text(), count=1)
    assert count == 1
    path.write_text(text)


CONFIG_EDITS = {
    "lr": "0.0001",
    "steps": "3",
    "update_every": "5",
    "start": "cold",
    "optimizer": "torch.optim.SGD",
    "update_growth": "0.5",
    "nu": "0.7",
    "function": "h3",
    "arms": "3",
    "pool": "31",
    "noise_seed": "4",
    "rounds": "60",
    "precision": "64-true",
}

BROKEN_CONFIGS = {
    "empty": b"",
    "a list": b"- model\n- data\n",
    "no YAML": b"model: [",
    "bytes": b"\xff\xfe\x00\x01",
    "text": b"model",
}


def settings() -> Iterator[Attack]:
    for key, value in CONFIG_EDITS.items():

        def run(directory: Path, key: str = key, value: str = value) -> Any:
            here = copied(stopped_by_command(), directory)
            edit_config(here, key, value)
            return resume_by_command(here)

        yield Attack("edited config", key, run, (key,))
    for name, content in BROKEN_CONFIGS.items():

        def broken(directory: Path, content: bytes = content) -> Any:
            here = copied(stopped_by_command(), directory)
            RunDirectory(here).config.write_bytes(content)
            return resume_by_command(here)

        yield Attack("broken config", name, broken, ("config.yaml",))


# ---- the log ---------------------------------------------------------------------------------------------------------


def other_clicks(events: pa.Table) -> pa.Table:
    """As many clicks as before, on other events."""
    clicks = events["click"].to_pylist()
    return events.set_column(events.column_names.index("click"), "click", [clicks[1:] + clicks[:1]])


def other_items(items: pa.Table) -> pa.Table:
    name = items.column_names[-1]
    return items.set_column(items.num_columns - 1, name, [items[name].to_pylist()[::-1]])


LOGS: dict[str, Callable[[Path], Any]] = {
    "other clicks": lambda path: rewrite(events(path), other_clicks),
    "other order": lambda path: rewrite(events(path), lambda rows: rows.take(list(range(rows.num_rows))[::-1])),
    "other items": lambda path: rewrite(path / "items.parquet", other_items),
    "other statistics": lambda path: describe(path, clicks=3),
}


def events(path: Path) -> Path:
    return sorted(path.glob("events-*.parquet"))[0]


def describe(path: Path, **changes: Any) -> None:
    described = json.loads((path / "log.json").read_text())
    described["contents"] |= changes
    (path / "log.json").write_text(json.dumps(described))


def logs() -> Iterator[Attack]:
    for name, change in LOGS.items():

        def run(directory: Path, change: Callable[[Path], Any] = change) -> Any:
            other = Path(shutil.copytree(log(), directory / "log"))
            change(other)
            return resume_on_log(copied(stopped_on_log(), directory), other)

        yield Attack("rewritten log", name, run, ("not the log that this run began with",))

    @succeeds
    def moved(directory: Path) -> Any:
        other = Path(shutil.copytree(log(), directory / "log"))
        return resume_on_log(copied(stopped_on_log(), directory), other)

    yield Attack(
        "rewritten log", "moved", moved, (), lambda found, _: found.equals(whole(resume_on_log, stopped_on_log))
    )


# ---- summaries -------------------------------------------------------------------------------------------------------

SUMMARIES = {
    "cut": b'{"agent": "NeuralLog-UCB-2", "fini',
    "bytes": b"\xff\xfe\x00",
    "a list": b"[]",
    "another thing": b'{"another": "thing"}',
    "empty": b"",
}


def summaries() -> Iterator[Attack]:
    for name, content in SUMMARIES.items():

        def fit(directory: Path, content: bytes = content) -> Any:
            here = copied(stopped_by_command(), directory)
            (here / "summary.json").write_bytes(content)
            return resume_by_command(here)

        def report(directory: Path, content: bytes = content) -> Any:
            here = copied(stopped_by_command(), directory)
            (here / "summary.json").write_bytes(content)
            main(["report", str(here), "--out", str(directory / "page.html")])

        def compare(directory: Path, content: bytes = content) -> Any:
            here = Path(shutil.copytree(stopped_by_command(), directory / "h1-x" / "Other"))
            (here / "summary.json").write_bytes(content)
            where = [f"--dir={directory}", "--id=x"]
            main(["compare", H1, "--agents", "NeuralLogUCB2", *where, *COMMAND, "--trainer.max_steps=0"])

        for command in (fit, report, compare):
            yield Attack("broken summary", f"{name}, {command.__name__}", command, ("summary.json",))


@table([*damaged_parts(), *restarted(), *settings(), *logs(), *summaries()])
def test_refused_or_right(attack: Attack, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    judge(attack, tmp_path, record_property)
