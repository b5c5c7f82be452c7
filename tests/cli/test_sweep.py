"""The shipped W&B sweep: what its agent would start runs, and logs the metric that the sweep looks at."""

import json
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nl_lightning.cli.shipped import shipped_configs
from tests.support.launch import finish, start
from tests.support.paths import ROOT

wandb = pytest.importorskip("wandb")

SWEEP = ROOT / "configs" / "sweep.yaml"


def command(sweep: dict[str, Any], chosen: dict[str, Any]) -> list[str]:
    """What W&B's agent runs for one choice of the parameters, by its own functions."""
    utils = pytest.importorskip("wandb.sdk.launch.sweeps.utils")
    parts = utils.create_sweep_command_args({"args": {name: {"value": value} for name, value in chosen.items()}})
    parts |= {"interpreter": ["python"], "program": [sweep["program"]], "env": ["/usr/bin/env"]}
    expanded: list[str] = []
    for part in utils.create_sweep_command(list(sweep["command"])):
        macro = re.fullmatch(r"\$\{(.+)\}", part)
        expanded += parts[macro[1]] if macro else [part]
    return expanded


def records(file: Path) -> Iterator[Any]:
    """The records of an offline run: LevelDB's log format, blocks of 32 KiB behind a head of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    content, place, whole = file.read_bytes(), 7, b""
    while place + 7 <= len(content):
        room = 32768 - place % 32768
        if room < 7:
            place += room
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + 7])
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        # 1: a whole record, 2 to 4: the first, middle and last part of one
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def history(file: Path) -> dict[str, Any]:
    """The last value of every key that a run has logged."""
    found: dict[str, Any] = {}
    for record in records(file):
        for item in record.history.item:
            found[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
    return found


def test_the_file_is_a_sweep() -> None:
    sweep = yaml.safe_load(SWEEP.read_text())
    assert set(sweep) == {"project", "name", "program", "command", "method", "metric", "parameters"}
    assert sweep["method"] == "grid"
    assert sweep["metric"] == {"name": "final/regret", "goal": "minimize"}
    assert all(set(parameter) == {"values"} for parameter in sweep["parameters"].values())
    assert (ROOT / sweep["program"]).exists()
    assert sweep["command"].count("${args}") == 1
    configs = [part.removeprefix("--config=") for part in sweep["command"] if part.startswith("--config=")]
    assert len(configs) == 2
    assert set(configs) <= set(shipped_configs())


def test_the_file_follows_the_schema_of_wandb() -> None:
    """The schema is in W&B's package ``sweeps``, which nothing else here needs."""
    sweeps = pytest.importorskip("sweeps", reason="the schema of sweeps is in W&B's package sweeps: pip install sweeps")
    assert sweeps.config.schema_violations_from_proposed_config(yaml.safe_load(SWEEP.read_text())) == []


def test_what_the_agent_starts_logs_the_metric(tmp_path: Path) -> None:
    sweep = yaml.safe_load(SWEEP.read_text())
    chosen = {name: parameter["values"][1] for name, parameter in sweep["parameters"].items()}
    env, python, dash, module, *arguments = command(sweep, chosen)
    assert (env, python, dash, module) == ("/usr/bin/env", "python", "-m", "nl_lightning")
    small = ["--data.rounds=60", "--model.replicas=2", "--trainer.enable_progress_bar=false", f"--run.dir={tmp_path}"]
    # as the agent sets them
    mine = {"WANDB_MODE": "offline", "WANDB_SWEEP_ID": "sweep1", "WANDB_RUN_ID": "run1", "WANDB_DIR": str(tmp_path)}
    output = finish(start(module, [*arguments, *small], ROOT, mine))
    (summary_file,) = tmp_path.glob("sweep/*/summary.json")
    summary = json.loads(summary_file.read_text())
    (best,) = summary["over_replicas"]
    assert (best["nu"], best["lam"]) == (chosen["model.nu"], chosen["model.lam"]), output
    (record,) = summary_file.parent.glob("wandb/offline-run-*-run1/run-run1.wandb")
    # W&B's own process writes the record, on a busy machine a moment after the command has ended.
    for _ in range(60):
        logged = history(record)
        if sweep["metric"]["name"] in logged:
            break
        time.sleep(1)
    assert logged[sweep["metric"]["name"]] == pytest.approx(best["regret"])
    assert logged["round"] == 60
