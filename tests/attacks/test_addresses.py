"""Attacks by mistake: credentials inside an address must not leave the process, in a file or in an error."""

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path

import fsspec
import pytest
import yaml

from nl_lightning.cli.main import main as bandits
from nl_lightning.core.errors import InputError
from nl_lightning.environments.datasets import load
from replay import Log, Online, ReplayLog
from replay.__main__ import main as replay
from tests.support.attacked_logs import intact_log
from tests.support.attacks import Attack, judge, table
from tests.support.paths import ROOT

pytestmark = pytest.mark.attack

SECRET = "Wq7ZxSecretx9"
HIDDEN = {
    "key and secret": f"s3://AKIA7:{SECRET}@bucket/log",
    "secret with a slash": f"s3://AKIA7:ab/{SECRET}/c@bucket/log",
    "secret with an at": f"s3://AKIA7:a@b/{SECRET}@bucket/log",
    "secret after digits": f"s3://AKIA7:12/{SECRET}@bucket/log",
    "secret with a question mark": f"s3://AKIA7:ab?{SECRET}@bucket/log",
    "secret alone": f"s3://{SECRET}@bucket/log",
    "one slash": f"s3:/AKIA7:{SECRET}@bucket/log",
    "three slashes": f"s3:///AKIA7:{SECRET}@bucket/log",
    "capitals": f"S3://AKIA7:{SECRET}@bucket/log",
    "fsspec": f"fsspec+s3://AKIA7:{SECRET}@bucket/log",
    "escaped": f"s3://AKIA7%3A{SECRET}@bucket/log",
    "Google": f"gs://me:{SECRET}@bucket/log",
    "Google's token": f"gs://bucket/log?access_token={SECRET}",
    "Azure's password": f"abfs://container:{SECRET}@account.dfs.core.windows.net/log",
    "Azure's signature": f"abfs://container@account.dfs.core.windows.net/log?sig={SECRET}",
    "Azure's key": f"abfss://container@account/log?account_key={SECRET}",
    "Hadoop": f"hdfs://me:{SECRET}@host:8020/log",
    "web": f"https://{SECRET}@host/log",
    "unknown scheme": f"nosuch://me:{SECRET}@host/log",
    "secret option": f"s3://bucket/log?region=a&secret_key={SECRET}",
    "password option": f"s3://bucket/log?password={SECRET}",
    "credential option": f"s3://bucket/log?Credential={SECRET}",
    "fragment": f"s3://bucket/log#token={SECRET}",
    "address in an option": f"s3://bucket/log?endpoint_override=https://me:{SECRET}@host",
}
PLAIN = HIDDEN["secret with a slash"]


def kept(work: Callable[[Path], object], directory: Path) -> None:
    """Do the work; neither what it prints, nor its error, nor a file that it writes may have the secret."""
    printed, errors, ended = io.StringIO(), io.StringIO(), None
    before = {file for file in directory.rglob("*") if file.is_file()}
    try:
        with redirect_stdout(printed), redirect_stderr(errors):
            work(directory)
    except (InputError, SystemExit) as error:
        ended = error
    shown = printed.getvalue() + errors.getvalue() + str(ended)
    assert SECRET not in shown, f"the secret is shown:\n{shown}"
    for file in {file for file in directory.rglob("*") if file.is_file()} - before:
        assert SECRET.encode() not in file.read_bytes(), f"the secret is in {file}"
    if ended is not None:
        # to be judged like any other refusal
        print(errors.getvalue(), file=sys.stderr)
        raise ended


LOGGERS = [
    "--trainer.logger+=CSVLogger",
    "--trainer.logger.save_dir=.",
    "--trainer.logger+=WandbLogger",
    "--trainer.logger.save_dir=.",
]


def fitted(options: list[str], config: object, directory: Path, command: str = "fit") -> None:
    """A fit with two loggers, of a config or options that hold the secret."""
    given = directory / "given.yaml"
    given.write_text(yaml.safe_dump(config))
    runs = [f"--run.dir={directory / 'runs'}"] if command == "fit" else [f"--dir={directory / 'runs'}"]
    options = [option.replace("{given}", str(given)) for option in options]
    kept(lambda _: bandits([command, f"--config={ROOT / 'configs/obd.yaml'}", *options, *runs, *LOGGERS]), directory)


def served(place: str, as_option: bool, directory: Path) -> None:
    """A fit on a log that is there: with credentials in its address it would end, and store them."""
    memory = fsspec.filesystem("memory")
    for file in intact_log().iterdir():
        memory.pipe(f"/{place.partition('://')[2]}/{file.name}", file.read_bytes())
    if as_option:
        fitted([f"--data.environment.log={place}"], None, directory)
    else:
        fitted(["--config={given}"], {"data": {"environment": environment(place)}}, directory)


def environment(log: object = PLAIN, **more: object) -> dict[str, object]:
    return {"class_path": "replay.ReplayLog", "init_args": {"log": log, **more}}


def with_data_variable(place: str, _: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NL_LIGHTNING_DATA", place)
        load("magic")


def attacks() -> Iterator[Attack]:
    refused = ("credentials", "in the environment")
    for name, place in HIDDEN.items():
        for surface, work in {
            "Log": lambda _, place=place: Log(place),
            "ReplayLog": lambda _, place=place: ReplayLog(place),
            "info": lambda _, place=place: replay(["info", place]),
            "data set": lambda _, place=place: load("magic", file=place),
        }.items():
            yield Attack(f"credentials: {surface}", name, partial(kept, work), refused)
    for surface, work in {
        "Online": lambda _: Online(PLAIN),
        "data directory": partial(with_data_variable, PLAIN),
        "evaluate": lambda directory: replay(["evaluate", f"--log={PLAIN}", "--checkpoint", str(directory / "x.ckpt")]),
        "evaluate: an option too many": lambda _: replay(["evaluate", PLAIN, "--nosuch"]),
        "evaluate: as checkpoint": lambda _: replay(["evaluate", f"--checkpoint={PLAIN}"]),
        "convert": lambda directory: replay(["convert", PLAIN, str(directory / "log")]),
        "simulate": lambda _: replay(["simulate", PLAIN, "--rows=3"]),
        "report": lambda directory: bandits(["report", PLAIN, f"--out={directory / 'report.html'}"]),
        "fit: as config": lambda _: bandits(["fit", f"--config={PLAIN}"]),
        "fit: as run directory": lambda _: bandits(["fit", "--model=NeuralLogUCB2", f"--run.dir={PLAIN}"]),
        "fit: resumed": lambda _: bandits(["fit", f"--resume={PLAIN}"]),
        "compare: as config": lambda _: bandits(["compare", f"--config={PLAIN}"]),
        "test: as checkpoint": lambda _: bandits(["test", f"--ckpt_path={PLAIN}"]),
        "no command": lambda _: replay([PLAIN]),
    }.items():
        yield Attack("credentials: command", surface, partial(kept, work), refused)
    config = {"data": {"environment": environment()}}
    for name, options, content in (
        ("option", [f"--data.environment.log={PLAIN}"], None),
        ("option printed", [f"--data.environment.log={PLAIN}", "--print_config"], None),
        ("option beside an error", [f"--data.environment.log={PLAIN}", "--data.rounds=x"], None),
        ("option as JSON", ["--data.environment", str(environment())], None),
        ("config", ["--config={given}"], config),
        ("config printed", ["--config={given}", "--print_config"], config),
        ("config within the config", ["--data.environment={given}"], environment()),
        ("data set's file", ["--data.environment=Classification", f"--data.environment.file={PLAIN}"], None),
        (
            "logger",
            ["--config={given}"],
            {"trainer": {"logger": {"class_path": "CSVLogger", "init_args": {"save_dir": PLAIN}}}},
        ),
    ):
        yield Attack("credentials: fit", name, partial(fitted, options, content), refused)
    for name, place in {
        "password": f"fsspec+memory://me:{SECRET}@bucket/log",
        "token": f"fsspec+memory://bucket/log?token={SECRET}",
    }.items():
        yield Attack("credentials: a log that is there", f"{name}, option", partial(served, place, True), refused)
        yield Attack("credentials: a log that is there", f"{name}, config", partial(served, place, False), refused)
    yield Attack("credentials: compare", "config", partial(fitted, ["--config={given}"], config, command="compare"))
    # jsonargparse finds another fault first, and shows what it was given
    for name, content in {
        "unknown setting": {"data": {"environment": environment(nosuch=1)}},
        "in a list": {"data": {"environment": environment([PLAIN])}},
        "in an object": {"data": {"environment": environment({"place": PLAIN})}},
        "as the environment": {"data": {"environment": PLAIN}},
        "as a number": {"data": {"rounds": PLAIN}},
        "as the model": {"model": PLAIN},
        "as an unknown key": {"data": {PLAIN: 1}},
    }.items():
        yield Attack("credentials: fault of a config", name, partial(fitted, ["--config={given}"], content))


@table(attacks())
def test_refused(attack: Attack, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    judge(attack, tmp_path, record_property)
