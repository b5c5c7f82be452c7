"""What the package asks for: no release that is known to be unsafe, and obp only where it is used."""

import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from nl_lightning.core.errors import InputError
from replay.__main__ import main
from replay.formats.sample import bundled_log
from tests.support.fresh_interpreter import run_fresh
from tests.support.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REQUIRED = {
    requirement.name: requirement.specifier
    for requirement in map(Requirement, [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]])
}
EXTRA = "pip install 'nl-lightning[obp]'"


@pytest.mark.parametrize(
    ("package", "unsafe"),
    [
        ("lightning", "2.4.0"),
        ("lightning", "2.6.2"),
        ("lightning", "2.6.3"),
        ("lightning", "2.6.5"),
        ("torch", "2.5.1"),
        ("torch", "2.9.1"),
        ("pyarrow", "14.0.0"),
        ("pyarrow", "23.0.0"),
        ("scikit-learn", "1.4.2"),
        ("setuptools", "78.1.0"),
    ],
)
def test_unsafe_releases_are_refused(package: str, unsafe: str) -> None:
    assert unsafe not in REQUIRED[package]


def test_the_pins_and_what_is_installed_are_allowed() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split("\n") if "==" in line)
    for package, allowed in REQUIRED.items():
        assert pins[package] in allowed, package
        if package != "setuptools":
            assert version(package) in allowed, package


def test_obp_is_an_extra() -> None:
    assert "obp" not in REQUIRED
    extras = PROJECT["project"]["optional-dependencies"]
    assert extras["obp"] == ["obp==0.4.1"]
    (own,) = (Requirement(text) for text in extras["dev"] if text.startswith("nl-lightning"))
    assert "obp" in own.extras, "`make` installs dev: its tests need obp"
    assert EXTRA in (ROOT / "README.md").read_text()


@pytest.fixture
def without_obp(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "obp"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "obp", None)
    monkeypatch.delitem(sys.modules, "replay.evaluation.obp", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.usefixtures("without_obp")
def test_obp_is_asked_for_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError) as error:
        bundled_log()
    assert EXTRA in str(error.value)
    with pytest.raises(InputError) as error:
        import replay.evaluation.obp  # noqa: F401
    assert EXTRA in str(error.value)
    with pytest.raises(SystemExit) as stop:
        main(["convert", str(tmp_path / "log")])
    assert stop.value.code == 1
    assert EXTRA in capsys.readouterr().err
    assert not (tmp_path / "log").exists()


def test_everything_else_works_without_obp(tmp_path: Path) -> None:
    """In an interpreter that cannot import obp: a log is simulated, learned on and evaluated."""
    log, checkpoint = tmp_path / "log", tmp_path / "runs/fit/a/checkpoints/last.ckpt"
    program = f"""
import sys
sys.modules["obp"] = None
import nl_lightning, replay
from nl_lightning.cli.main import main as fit
from replay.__main__ import main
main(["simulate", {str(log)!r}, "--rows=400", "--items=6", "--users=9"])
main(["info", {str(log)!r}])
fit(["fit", "--model=NeuralLogUCB2", "--data.environment=replay.ReplayLog", "--data.environment.log={log}",
    "--data.rounds=30", "--trainer.enable_progress_bar=false", "--run.dir={tmp_path / "runs"}", "--run.id=a"])
main(["evaluate", "--log={log}", "--checkpoint={checkpoint}"])
try:
    main(["evaluate", "--log={log}", "--checkpoint={checkpoint}", "--obp"])
except SystemExit as stop:
    print("stopped with", stop.code)
"""
    done = run_fresh(program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("stopped with 1")
    assert done.stdout.count("The log is simulated") == 1, "the second one must be refused before its time"
    assert EXTRA in done.stderr
