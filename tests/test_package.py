"""The package: what the wheel and the sdist carry, and that the wheel works alone, outside the repository."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

import nl_lightning
from nl_lightning.cli.shipped import shipped_configs
from tests.support.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOURCES = ["nl_lightning", "replay", "configs", "examples", "tests"]


def run(command: list[str], directory: Path, timeout: float = 600) -> str:
    """Run a command without the repository on its path; its output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=directory, env=environment, text=True, capture_output=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel and the sdist, built from a copy, so that nothing is written into the repository."""
    pytest.importorskip("build")
    where = tmp_path_factory.mktemp("build")
    copy = where / "source"
    copy.mkdir()
    for name in SOURCES:
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ROOT.iterdir():
        if file.is_file() and file.name != ".git":
            shutil.copy(file, copy)
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(where / "dist"), str(copy)], where)
    return where / "dist"


@pytest.mark.slow
def test_the_built_files_are_sound_and_complete(built: Path) -> None:
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    run([sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)], built)
    carried = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        path.relative_to(ROOT).as_posix()
        for package in ("nl_lightning", "replay")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    wanted |= {f"nl_lightning/configs/{name}.yaml" for name in [*shipped_configs(), "sweep"]}
    assert {"nl_lightning/reporting/page.html", "nl_lightning/py.typed", "replay/py.typed"} <= wanted
    inside = {name for name in carried if ".dist-info/" not in name}
    assert inside == wanted
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert wanted <= names
    assert {"CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "configs/h1.yaml"} <= names


@pytest.mark.slow
def test_the_wheel_works_alone(built: Path, tmp_path: Path) -> None:
    """In a new environment that has the dependencies of this one and, of the project, only the wheel."""
    (wheel,) = built.glob("*.whl")
    home, here = tmp_path / "environment", tmp_path / "elsewhere"
    here.mkdir()
    venv.create(home, with_pip=False, symlinks=True)
    run([sys.executable, "-m", "pip", "--python", str(home / "bin/python"), "install", "--no-deps", str(wheel)], here)
    (site,) = home.glob("lib/*/site-packages")
    # A .pth in that file's directory is not read, so an editable install of this environment is not seen.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = run([str(home / "bin/python"), "-c", "import nl_lightning, replay; print(nl_lightning.__file__)"], here)
    assert where.startswith(str(site))

    def call(name: str, *arguments: str) -> str:
        return run([str(home / "bin" / name), *arguments], here)

    assert call("nl-lightning", "--version") == f"nl-lightning {nl_lightning.__version__}\n"
    assert call("nl-replay", "--version") == f"nl-replay {nl_lightning.__version__}\n"
    quiet = ["--trainer.enable_progress_bar=false", "--run.id=a"]
    assert "NeuralLog-UCB-2" in call("nl-lightning", "fit", "--config", "h1", "--data.rounds=60", *quiet)
    call("nl-replay", "simulate", "log", "--rows=400", "--items=6", "--users=9")
    options = ["--data.environment.log=log", "--data.rounds=30"]
    call("nl-lightning", "fit", "--config", "log", "--config", "loggers/csv", *options, *quiet)
    checkpoint = "--checkpoint=runs/log/a/checkpoints/last.ckpt"
    assert "SNIPS" in call("nl-replay", "evaluate", "--log=log", checkpoint, "--policy=logged")
    call("nl-lightning", "report", "runs")
    assert "NeuralLog-UCB-2" in (here / "report.html").read_text()


def test_the_version_stands_in_one_place() -> None:
    assert "version" not in PROJECT["project"]
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "nl_lightning.__version__"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", nl_lightning.__version__)
    assert f"## [{nl_lightning.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_stated_versions_of_python_are_those_that_are_tried() -> None:
    """CI has one Python; another is stated when the tests have run with it."""
    named = [text.rpartition(" ")[2] for text in PROJECT["project"]["classifiers"] if ":: Python :: 3." in text]
    allowed = SpecifierSet(PROJECT["project"]["requires-python"])
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in named
    assert all(version in allowed for version in named)
    assert "3.10" not in allowed


def test_extras_and_scripts() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert {"obp", "wandb", "dev"} <= set(extras)
    assert {"build", "twine"} <= set(extras["dev"])
    pins = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert {"build", "twine"} <= pins
    assert set(PROJECT["project"]["scripts"]) == {"nl-lightning", "nl-replay"}


def test_the_citation_names_software_and_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert citation["title"] == "nl-lightning"
    assert citation["license"] == PROJECT["project"]["license"]
    assert "version" not in citation, "the version stands in nl_lightning/__init__.py"
    paper = citation["preferred-citation"]
    assert paper["title"] == "Neural Logistic Bandits"
    assert [author["family-names"] for author in paper["authors"]] == ["Bae", "Lee"]


def test_pre_commit_runs_what_ci_lints_with() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    (repository,) = config["repos"]
    assert repository["repo"] == "local", "no network is needed"
    entries = [hook["entry"] for hook in repository["hooks"]]
    makefile = (ROOT / "Makefile").read_text()
    lint, types = (re.search(rf"^{name}:.*\n((\t.*\n)+)", makefile, re.MULTILINE) for name in ("lint", "types"))
    assert lint
    assert types
    assert [f"\t{entry.replace('.venv/bin', '$(BIN)')}" for entry in entries] == (lint[1] + types[1]).splitlines()


def test_contributing_names_the_layers() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for layer in (ROOT / "nl_lightning").glob("*/__init__.py"):
        assert f"`{layer.parent.name}`" in text, layer.parent.name
