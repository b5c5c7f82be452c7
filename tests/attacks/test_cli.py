"""Attacks on the command line: misspelt words, wrong values, configs that are none, paths that lead nowhere."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nl_lightning.cli.main import main
from replay.__main__ import main as replay
from tests.support.attacks import Attack, judge, table
from tests.support.cli import H1

pytestmark = pytest.mark.attack

# A config of its own: the attacks count its lines, which a shipped config may change.
TEXT = """\
# NeuralLog-UCB-2 on h1.
# Ten seeds.
run:
  name: h1
model:
  class_path: nl_lightning.NeuralLogUCB2
  init_args:
    nu: 0.01
    lam: 1.0
    kappa: 10.0
    S: 1.0
    replicas: 10
    width: 20
    depth: 2
data:
  environment:
    class_path: nl_lightning.environments.Synthetic
    init_args:
      function: h1
  rounds: 2000
"""

AGENT_OPTIONS = {
    "--model.nuu=3": ("--model.nuu", "Did you mean nu?"),
    "--model.init_args.lamda=3": ("--model.lamda", "Did you mean lam?"),
    "--model.initargs=3": ("Did you mean init_args?",),
    "--model.nosuch.deeper=3": ("there is no option --model.nosuch.deeper",),
    "--model=NeuralLogUCB3": ("no agent NeuralLogUCB3", "Did you mean NeuralLogUCB2?", "LogisticUCB1"),
    "--model=neurallogucb2": ("Did you mean NeuralLogUCB2?",),
    "--model=3": ("there is no agent 3",),
    "--model.class_path=NeuralLogUCB3": ("Did you mean NeuralLogUCB2?",),
    "--model.nu=abc": ("model.nu must be a number", "abc"),
    "--model.lr=fast": ("model.lr must be a number",),
    "--model.seed=x": ("model.seed must be a whole number",),
    "--model.mode=thery": ("practical", "Did you mean theory?"),
    "--model.grid=3": ("model.grid must be a mapping",),
    "--model.grid={nu: [1": ("model.grid must be a mapping",),
    "--model.grid={nu: [1], nu: [2]}": ("--model.grid", "nu is there twice"),
    "--model.exploration=ucbb": ("Did you mean ucb?",),
    "--model.design=dagonal": ("Did you mean diagonal?",),
    "--model.replicas=10000000000": ("at most 1,000,000 replicas",),
    "--model.width=100000000": ("GiB",),
    "--model.network=nosuch.Deep": (
        "there is no network nosuch.Deep (No module named 'nosuch'). A network of your own",
    ),
    "--model.network=5": ("there is no network 5. A network of your own",),
    "--model.network=torch.optim.SGD": (
        "model.network must be a class or function that makes a Module; torch.optim.SGD",
    ),
    "--model.network=torch.relu": ("model.network: torch.relu must be a class, or a function that says what it makes",),
    "--model.network=torch.pi": (
        "model.network must be a class or a function, by its import path; torch.pi is neither",
    ),
    "--model.optimizer={class_path: torch.optim.SGD, init_args: {momentun: 1}}": (
        "there is no option --model.optimizer.momentun of SGD. Did you mean momentum?",
    ),
    "--model.optimizer={class_path: torch.nn.ReLU}": ("model.optimizer must be a class or function that makes an Opt",),
    "--model.optimizer={class_path: torch.optim.Nope}": (
        "torch.optim.Nope cannot be imported (module 'torch.optim' has",
    ),
    "--model.optimizer={class_path: torch.optim.SGD, init_args: {lr: abc}}": ("model.optimizer.lr must be a number",),
}
OTHER_OPTIONS = {
    "--data.round=3": ("Did you mean --data.rounds?",),
    "--data.rounds=1.5": ("data.rounds must be a whole number", "1.5"),
    "--data.rounds=1e30": ("data.rounds must be a whole number",),
    "--data.threads=two": ("data.threads must be a whole number",),
    "--threads=1000000000": ("threads must be at most",),
    "--data=3": ("data must be a mapping",),
    "--data.environment=Sythetic": ("Did you mean Synthetic?", "Classification"),
    "--data.environment=nosuch.module.E": ("no environment nosuch.module.E", "nosuch"),
    "--data.environment=nl_lightning.NeuralLogUCB2": ("no environment",),
    "--data.environment=Classification": ("needs dataset",),
    "--data.environment.functon=h1": ("Did you mean function?", "noise_seed"),
    "--data.environment.function=h9": ("h1, h2, h3, h4, h5, h6", "h9"),
    "--data.environment.arms=many": ("data.environment.arms must be a whole number",),
    "--trainer.max_tim=3": ("Did you mean --trainer.max_time?",),
    "--trainer.nosuch=3": ("there is no option --trainer.nosuch",),
    "--trainer.max_steps=abc": ("trainer.max_steps must be a whole number",),
    "--trainer=3": ("trainer must be a mapping",),
    "--trainer.callbacks=EarlyStoping": ("Did you mean EarlyStopping?",),
    "--trainer.logger=CSVLoger": ("Did you mean CSVLogger?",),
    "--trainer.precision=7": ("trainer.precision must be one of", "32-true"),
    "--trainer.accelerator=nosuch": ("accelerator", "cpu"),
    "--trainer.devices=-5": ("trainer.devices must be", "-5"),
    "--trainer.devices=0": ("trainer.devices must be", "0"),
    "--trainer.devices=1.5": ("trainer.devices must be", "1.5"),
    "--trainer.devices=abc": ("trainer.devices must be", "abc"),
    "--trainer.devices=[]": ("trainer.devices must be", "[]"),
    "--trainer.devices=-1": ("devices",),
    "--trainer.num_nodes=0": ("trainer.num_nodes must be a whole number of at least 1",),
    "--trainer.num_nodes=-1": ("trainer.num_nodes must be a whole number of at least 1",),
    "--seed_everything=-4": ("seed_everything must be a whole number",),
    "--seed_everything=99999999999": ("seed_everything must be a whole number",),
    "--seed_everything=abc": ("seed_everything must be",),
    "--run.nam=x": ("Did you mean --run.name?",),
    "--run=3": ("run must be a mapping",),
    "--nosuch=3": ("there is no option --nosuch",),
    "--model": ("--model needs a value",),
    "word": ("word belongs to no option",),
}

CONFIG_TEXTS = {
    "key twice": (TEXT + "run:\n  id: x\n", ("line 21", "run is there twice", "line 3")),
    "key twice below": (TEXT.replace("nu: 0.01", "nu: 0.01\n    nu: 3.0"), ("line 9", "model.init_args.nu", "line 8")),
    "key twice in braces": (TEXT + "trainer: {max_steps: 1, max_steps: 2}\n", ("trainer.max_steps is there twice",)),
    "unknown setting": (TEXT.replace("nu:", "nuu:"), ("line 8", "Did you mean nu?")),
    "unknown setting of the environment": (
        TEXT.replace("function:", "functon:"),
        ("line 19", "Did you mean function?"),
    ),
    "unknown section": (TEXT.replace("data:", "daa:"), ("there is no option", "daa")),
    "unknown key": (TEXT.replace("rounds:", "round:"), ("line 20", "Did you mean --data.rounds?")),
    "unknown flag": (TEXT + "trainer:\n  max_tim: 3\n", ("line 22", "Did you mean --trainer.max_time?")),
    "unknown agent": (TEXT.replace("LogUCB2", "LogUCB3", 1).replace("LogUCB2", "LogUCB3"), ("Did you mean", "line 7")),
    "class_path misspelt": (TEXT.replace("class_path", "clss_path"), ("class_path",)),
    "init_args misspelt": (TEXT.replace("init_args", "initargs"), ("init_args",)),
    "number of text": (TEXT.replace("nu: 0.01", "nu: abc"), ("line 8", "model.nu must be a number")),
    "whole number of text": (TEXT.replace("replicas: 10", "replicas: ten"), ("line 12", "model.replicas")),
    "fraction": (TEXT.replace("rounds: 2000", "rounds: 1.5"), ("line 20", "data.rounds must be a whole number")),
    "section fit": ("fit:\n  model: 3\n", ("fit.model",)),
    "model of a number": ("model: 3\n", ("line 1", "class_path")),
    "trainer of text": (TEXT + "trainer: abc\n", ("line 21", "trainer must be a mapping")),
    "empty": ("", ("is empty",)),
    "only a comment": ("# nothing\n", ("is empty",)),
    "list": ("[1, 2]\n", ("holds a list",)),
    "scalar": ("abc\n", ("holds a value",)),
    "number": ("3\n", ("holds a value",)),
    "cut off": (TEXT + "trainer: [", ("not valid YAML", "line")),
    "tabs": ("model:\n\tnu: 3\n", ("not valid YAML", "line 2")),
    "number as key": (TEXT + "1: 3\n", ("line 21", "key must be")),
    "list as key": (TEXT + "? [a, b]\n: 3\n", ("key must be",)),
    "alias of itself": (TEXT + "trainer: &a\n  callbacks: *a\n", ("alias",)),
    "aliases without end": (
        "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"{b}: &{b} [{','.join(['*' + a] * 10)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)),
        ("alias",),
    ),
}
CONFIG_BYTES = {
    "UTF-16": (TEXT.encode("utf-16"), ("not UTF-8",)),
    "Latin-1": (TEXT.replace("# Neural", "# Schärfe").encode("latin-1"), ("not UTF-8",)),
    "picture": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), ("not UTF-8",)),
    "NUL": (b"\x00\x01\x02", ("not valid YAML",)),
}


PLACES = {"absent": "nosuch", "directory": ".", "text": "file", "below a file": "file/x", "too long": "x" * 300}
"""Paths below a directory with a file of text."""


def config_file(directory: Path, content: str | bytes, name: str = "mine.yaml") -> Path:
    path = directory / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def options() -> Iterator[Attack]:
    for argument, says in {**AGENT_OPTIONS, **OTHER_OPTIONS}.items():
        yield Attack("option of fit", argument, lambda where, a=argument: fit(where, H1, a), says)
    for argument in ("--model.nuu=3", "--data.round=3", "--model.nu=abc", "--nosuch=3"):
        says = ({**AGENT_OPTIONS, **OTHER_OPTIONS})[argument]
        yield Attack("option of diagnose", argument, lambda _, a=argument: main(["diagnose", H1, a]), says)
        yield Attack("option of compare", argument, lambda _, a=argument: main(["compare", H1, a]), says)
    yield Attack("option of fit", "none", lambda _: main(["fit"]), ("--data.environment", "--model", "--config"))
    yield Attack("option of diagnose", "--rounds=abc", lambda _: main(["diagnose", H1, "--rounds=abc"]), ("rounds",))
    named = ["compare", H1, "--agents", "NeuralLogUCB3"]
    yield Attack("option of compare", "--agents", lambda _: main(named), ("Did you mean NeuralLogUCB2?",))


def fit(directory: Path, *arguments: str) -> None:
    main(["fit", *arguments, f"--run.dir={directory / 'runs'}"])


def configs() -> Iterator[Attack]:
    for name, (content, says) in {**CONFIG_TEXTS, **CONFIG_BYTES}.items():

        def run(where: Path, content: str | bytes = content) -> None:
            fit(where, f"--config={config_file(where, content)}")

        # what is wrong with the whole of a config names the file, and so does a line of it
        file = (
            ()
            if name in ("class_path misspelt", "init_args misspelt", "section fit", "unknown section")
            else ("mine.yaml",)
        )
        yield Attack("config", name, run, (*says, *file))
    twice = CONFIG_TEXTS["key twice"][0]
    for command in ("test", "diagnose", "compare"):
        run = lambda where, c=command: main([c, f"--config={config_file(where, twice)}"])  # noqa: E731
        yield Attack(f"config of {command}", "key twice", run, ("mine.yaml", "run is there twice"))
    part = "class_path: nl_lightning.NeuralLogUCB2\ninit_args: {nu: 1, nu: 2}\n"
    latin = "# Schärfe\nclass_path: nl_lightning.NeuralLogUCB2\n".encode("latin-1")
    for name, (content, says) in {"key twice": (part, ("there twice",)), "Latin-1": (latin, ("not UTF-8",))}.items():

        def by_option(where: Path, content: str | bytes = content) -> None:
            fit(where, H1, f"--model={config_file(where, content, 'part.yaml')}")

        def by_config(where: Path, content: str | bytes = content) -> None:
            config_file(where, content, "part.yaml")
            fit(where, f"--config={config_file(where, 'model: part.yaml' + chr(10))}")

        yield Attack("config of the model", f"{name}, by --model", by_option, ("part.yaml", *says))
        yield Attack("config of the model", f"{name}, named by a config", by_config, ("part.yaml", *says))
    joined = lambda where: fit(where, f"-c{config_file(where, twice)}")  # noqa: E731
    yield Attack("config", "key twice, by -cFILE", joined, ("mine.yaml", "run is there twice"))
    inline = "--config={run: {name: a}, run: {name: b}}"
    yield Attack(
        "config", "key twice on the command line", lambda where: fit(where, H1, inline), ("run is there twice",)
    )


def commands() -> Iterator[Attack]:
    for word, meant in {"fitt": "fit", "tset": "test", "comapre": "compare", "reprot": "report"}.items():
        yield Attack("command", word, lambda _, word=word: main([word]), (f"Did you mean {meant}?", "reproduce"))
    for word, meant in {"convrt": "convert", "evalute": "evaluate", "simulat": "simulate", "inf": "info"}.items():
        yield Attack("command of replay", word, lambda _, w=word: replay([w]), (f"Did you mean {meant}?", "simulate"))
    for arguments, says in {
        ("compare",): ("--config is needed",),
        ("compare", "--conf=x"): ("--config is needed",),
        ("report",): ("PATH is needed",),
        ("report", "x", "--titel=y"): ("Did you mean --title?",),
        ("tailbound", "--dim=2"): ("Did you mean --dims?",),
        ("tailbound", "--dims", "two"): ("--dims must be a whole number", "two"),
        ("tailbound", "--lam=x"): ("--lam must be a number",),
        ("confidence", "--widht=4"): ("Did you mean --width?",),
        ("reproduce", "fig9"): ("WHAT must be one of", "fig6"),
        ("reproduce", "fig1", "--seed=3"): ("Did you mean --seeds?",),
    }.items():
        yield Attack("option of a command", " ".join(arguments), lambda _, a=arguments: main(list(a)), says)
    for arguments, says in {
        ("info",): ("LOG is needed",),
        ("simulate", "x", "--rows=ten"): ("--rows must be a whole number",),
        ("simulate", "x", "--rows=3", "--item=2"): ("Did you mean --items?",),
        ("simulate", "x", "--rows=3", "--policy=unifrm"): ("Did you mean uniform?",),
        ("evaluate",): ("--checkpoint is needed, or --policy",),
        ("evaluate", "--checkpoint=x", "--candidates=al"): ("Did you mean all?",),
        ("convert", "x", "y", "--on-error=skp"): ("Did you mean skip?",),
    }.items():
        yield Attack("option of replay", " ".join(arguments), lambda _, a=arguments: replay(list(a)), says)


def paths() -> Iterator[Attack]:
    for name, place in PLACES.items():
        for command in ("fit", "diagnose", "compare"):

            def run(where: Path, command: str = command, place: str = place) -> None:
                (where / "file").write_text("text")
                main([command, f"--config={where / place}"])

            yield Attack(f"path of {command}'s config", name, run, ("config",))


def attacks() -> Iterator[Attack]:
    for some in (options, configs, commands, paths):
        yield from some()


@table(attacks())
def test_refused_or_right(
    attack: Attack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    judge(attack, tmp_path, record_property)
