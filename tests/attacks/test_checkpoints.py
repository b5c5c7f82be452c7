"""Attacks on checkpoints: damaged, cut, foreign, crafted. Nothing in one is run, and no number changes unnoticed."""

import io
import os
import pickle
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nl_lightning.runs.directory import RunDirectory
from tests.support.attacks import Attack, judge, table
from tests.support.stored_runs import WAYS, Edit, copied, edited, flipped, stopped

pytestmark = pytest.mark.attack

Damage = Callable[[Path], Any]
"""Damages a checkpoint file."""

NAN, INF = float("nan"), float("inf")


def attack(kind: str, name: str, way: str, damage: Damage, *says: str, harmless: bool = False) -> Attack:
    """Damage a copy of a run's checkpoint and use it; it may also be ``harmless``, and the result the right one."""
    use, original, right = WAYS[way]

    def run(directory: Path) -> Any:
        here = copied(original(), directory)
        damage(RunDirectory(here).checkpoint)
        try:
            return use(here)
        finally:
            assert not (here / "ran").exists(), "the checkpoint ran code"

    return Attack(
        f"checkpoint: {kind}",
        f"{name}, {way}",
        run,
        ("last.ckpt", *says),
        (lambda result, _: right(result)) if harmless else None,
    )


def flips() -> Iterator[Attack]:
    """One bit anywhere in the file; some are in the padding of the zip file and change nothing."""
    for way, count in (("resume", 24), ("test", 12), ("load_from_checkpoint", 24), ("evaluate", 24)):
        for seed in range(count):

            def damage(path: Path, seed: int = seed) -> None:
                flipped(path, seed)

            yield attack("flipped bit", f"seed {seed}", way, damage, harmless=True)


# ---- files -----------------------------------------------------------------------------------------------------------


class Runs:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def mark(path: Path) -> Path:
    return path.parent.parent / "ran"


def with_code(path: Path) -> None:
    """Code behind an otherwise whole checkpoint."""
    stored = torch.load(path, weights_only=True)
    torch.save({**stored, "hyper_parameters": {**stored["hyper_parameters"], "more": Runs(mark(path))}}, path)


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("thesis.tex", "text")


def cut_member(path: Path) -> None:
    """A zip file with right checksums, which lacks the last tensor."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    last = max((name for name in members if "/data/" in name), key=lambda name: int(name.rpartition("/")[2]))
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            if name != last:
                archive.writestr(name, content)


def replaced_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


FILES: dict[str, Damage] = {
    "missing": Path.unlink,
    "a directory": replaced_by_directory,
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("PK\x03\x04 and no more"),
    "another zip file": zipped,
    "a tensor lost": cut_member,
    "one byte cut off": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "a tenth": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 10]),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "without its beginning": lambda path: path.write_bytes(path.read_bytes()[1000:]),
    "code in a bare pickle": lambda path: path.write_bytes(pickle.dumps({"state_dict": Runs(mark(path))})),
    "code in an old file of torch": lambda path: torch.save(
        {"state_dict": Runs(mark(path))}, path, _use_new_zipfile_serialization=False
    ),
    "code": lambda path: torch.save(Runs(mark(path)), path),
    "code in the settings": with_code,
    "a module": lambda path: torch.save(torch.nn.Linear(2, 2), path),
    "a tensor": lambda path: torch.save(torch.zeros(3), path),
    "a list": lambda path: torch.save([1, 2], path),
    "an empty dict": lambda path: torch.save({}, path),
    "weights alone": lambda path: torch.save(torch.nn.Linear(2, 2).state_dict(), path),
}


def files() -> Iterator[Attack]:
    for name, damage in FILES.items():
        for way in WAYS:
            yield attack("not ours", name, way, damage)


# ---- content ---------------------------------------------------------------------------------------------------------


def put(key: str, value: Any) -> Edit:
    """Set one number of a tensor of the state."""

    def edit(stored: dict[str, Any]) -> None:
        stored["state_dict"][key].view(-1)[-1 if key.startswith("design") else 0] = value

    return edit


def state(key: str, change: Callable[[Any], Any]) -> Edit:
    def edit(stored: dict[str, Any]) -> None:
        stored["state_dict"][key] = change(stored["state_dict"].get(key))

    return edit


def extra(change: Callable[[dict[str, Any]], None]) -> Edit:
    return lambda stored: change(stored["state_dict"]["_extra_state"])


def without(*keys: str) -> Edit:
    """Remove what lies at a path of keys."""

    def edit(stored: dict[str, Any]) -> None:
        for key in keys[:-1]:
            stored = stored[key]
        del stored[keys[-1]]

    return edit


def at(*keys: str, value: Any) -> Edit:
    """Put a value at a path of keys."""

    def edit(stored: dict[str, Any]) -> None:
        for key in keys[:-1]:
            stored = stored[key]
        stored[keys[-1]] = value

    return edit


STATES: dict[str, tuple[Edit, str]] = {
    **{
        f"{value} in {key}": (put(key, value), key)
        for key in ("network.weight_1", "initial_weights.0", "design.diagonal", "effective_dim_design.diagonal")
        for value in (NAN, INF)
    },
    **{f"NaN in {key}": (put(key, NAN), key) for key in ("radius", "effective_dimension", "nu", "buffer.x")},
    "inf in a reward": (put("buffer.reward", INF), "buffer.reward"),
    "a buffer that is too long": (put("buffer.length", 10**6), "length"),
    "a buffer of negative length": (put("buffer.length", -1), "length"),
    "rewards cut off": (state("buffer.reward", lambda old: old[:, :-3].clone()), "buffer"),
    "weights of another shape": (state("network.weight_1", lambda old: old[:, :, :-1].clone()), "network.weight_1"),
    "weights of one replica": (state("network.weight_2", lambda old: old[:1].clone()), "network.weight_2"),
    "a design of another shape": (state("design.diagonal", lambda old: old[:, :-1].clone()), "design.diagonal"),
    "whole numbers for weights": (state("network.weight_1", lambda old: old.long()), "network.weight_1"),
    "text for a tensor": (state("radius", lambda old: "large"), "radius"),
    "weights missing": (without("state_dict", "network.weight_2"), "network.weight_2"),
    "an unknown tensor": (state("network.weight_9", lambda _: torch.zeros(2, 3)), "network.weight_9"),
    "no state": (without("state_dict"), "state_dict"),
    "state of a list": (at("state_dict", value=[1, 2]), ""),
    "no identity": (without("state_dict", "_extra_state"), "bandit agent"),
    "identity of text": (at("state_dict", "_extra_state", value="NeuralLog-UCB-2"), "bandit agent"),
    "another agent": (extra(lambda found: found["identity"].update(agent="NCBF-UCB")), "NCBF-UCB"),
    "another nu": (extra(lambda found: found["identity"].update(nu=[9.0, 9.0])), "nu"),
    "other layers": (extra(lambda found: found["identity"].update(layers=[[1, 1]])), "layers"),
    "an older identity": (without("state_dict", "_extra_state", "identity", "mode"), "older version"),
    "negative draws": (extra(lambda found: found.update(draws=-3)), "draws"),
    "draws of text": (extra(lambda found: found.update(draws="many")), "draws"),
}

RESUMED: dict[str, tuple[Edit, str]] = {
    **{
        f"no {key}": (without(key), key)
        for key in ("loops", "callbacks", "optimizer_states", "lr_schedulers", "BanditData", "epoch", "global_step")
    },
    "no environment": (without("BanditData", "environment"), "environment"),
    "no rounds before": (without("BanditData", "rounds_before"), "rounds_before"),
    "text for the rounds before": (at("BanditData", "rounds_before", value="few"), "few"),
    "no record": (without("callbacks", "Recorder"), "Recorder"),
    "no parts": (without("callbacks", "Recorder", "parts"), "parts"),
    "parts of a number": (at("callbacks", "Recorder", "parts", value=3), ""),
    "no regret so far": (without("callbacks", "Recorder", "cumulative"), "cumulative"),
    "regret of one replica": (at("callbacks", "Recorder", "cumulative", value=torch.zeros(1)), ""),
    "rounds played of text": (
        at("loops", "fit_loop", "state_dict", "combined_loader", value=[{"played": "x"}]),
        "played",
    ),
    "negative rounds played": (
        at("loops", "fit_loop", "state_dict", "combined_loader", value=[{"played": -4}]),
        "played",
    ),
}

EVALUATED: dict[str, tuple[Edit, str]] = {
    "an unknown agent": (extra(lambda found: found["identity"].update(agent="Mine")), "--model"),
    "no log": (without("BanditData"), "not trained on a log"),
    "no features": (at("BanditData", "environment", "features", value=None), "features"),
    "no categories": (without("BanditData", "environment", "features", "categories"), "categories"),
    "users cut off": (at("BanditData", "environment", "features", "user", value=torch.zeros(2, 16)), "user"),
    "items of another width": (at("BanditData", "environment", "features", "item", value=torch.zeros(12, 7)), "item"),
    "NaN in items": (at("BanditData", "environment", "features", "item", value=torch.full((12, 8), NAN)), "item"),
    "no replay settings": (without("BanditData", "environment", "settings"), "settings"),
    "no arms": (without("BanditData", "environment", "settings", "arms"), "arms"),
    "environment of text": (at("BanditData", "environment", value="log"), ""),
    "no hyperparameters": (without("hyper_parameters"), "hyper_parameters"),
    "hyperparameters of text": (at("hyper_parameters", value="dim: 4"), ""),
    "a width of text": (at("hyper_parameters", "width", value="wide"), "width"),
    "no dim": (without("hyper_parameters", "dim"), "dim"),
}


def contents() -> Iterator[Attack]:
    for edits, ways in (
        (STATES, ("resume", "load_from_checkpoint", "evaluate")),
        (RESUMED, ("resume",)),
        (EVALUATED, ("evaluate",)),
    ):
        for name, (edit, says) in edits.items():
            for way in ways:
                original = WAYS[way][1]

                def damage(path: Path, edit: Edit = edit, original: Callable[[], Path] = original) -> None:
                    edited(original, edit, path)

                # an evaluation takes the class that is named, and the state is one that it could have
                if (name, way) != ("another agent", "evaluate"):
                    yield attack("crafted", name, way, damage, says)


def imported() -> Iterator[Attack]:
    """Lightning imports what a checkpoint of its command line names; an agent's never decides what is imported."""
    for name, value in (
        ("_class_path", "trap.Agent"),
        ("_instantiator", "trap.instantiate"),
        ("design", "trap.Design"),
    ):

        def run(directory: Path, name: str = name, value: str = value) -> Any:
            (directory / "trap.py").write_text("import pathlib\npathlib.Path(__file__).with_name('ran').touch()\n")
            here = copied(stopped(), directory)
            edited(stopped, at("hyper_parameters", name, value=value), RunDirectory(here).checkpoint)
            with pytest.MonkeyPatch.context() as patch:
                patch.syspath_prepend(str(directory))
                try:
                    return WAYS["load_from_checkpoint"][0](here)
                finally:
                    assert not (directory / "ran").exists(), "the checkpoint was asked what to import"

        yield Attack("checkpoint: import", name, run, (), lambda result, _: WAYS["load_from_checkpoint"][2](result))


def appended() -> Iterator[Attack]:
    """Bytes behind a whole checkpoint: torch and zipfile may disagree on where it ends, never on what it holds."""
    for name, more in (("a byte", b"\0"), ("text", b"and more"), ("a second zip file", _zip())):

        def damage(path: Path, more: bytes = more) -> None:
            path.write_bytes(path.read_bytes() + more)

        yield attack("appended", name, "load_from_checkpoint", damage, harmless=True)


def _zip() -> bytes:
    buffer = io.BytesIO()
    torch.save({}, buffer)
    return buffer.getvalue()


@table([*flips(), *files(), *contents(), *imported(), *appended()])
def test_refused_or_right(attack: Attack, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    judge(attack, tmp_path, record_property)
