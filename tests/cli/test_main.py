"""The top level of the command line, and what importing the package loads."""

import subprocess
import sys
from pathlib import Path

import pytest

import nl_lightning
from nl_lightning.cli.main import COMMANDS, main
from tests.support.paths import ROOT

HEAVY = "{name.split('.')[0] for name in sys.modules} & {'torch', 'lightning', 'pytorch_lightning', 'matplotlib'}"


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a new interpreter; the heavy modules that it loaded are the last line of its output."""
    program = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{code}\nprint(sorted({HEAVY}))"
    return subprocess.run([sys.executable, "-c", program, *arguments], text=True, capture_output=True, check=False)


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], [], ["nosuch"], ["--version"]])
def test_the_top_level_loads_neither_torch_nor_lightning(arguments: list[str]) -> None:
    call = f"from nl_lightning.cli.main import main\ntry:\n    main({arguments!r})\nexcept SystemExit: pass"
    assert python(call).stdout.splitlines()[-1] == "[]"


def test_the_entry_point_of_the_module_is_light() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "nl_lightning", "--help"], cwd=ROOT, text=True, capture_output=True
    )
    assert done.returncode == 0
    assert not [line for line in done.stderr.splitlines() if line.split("|")[-1].strip() in ("torch", "lightning")]


def test_help_has_a_line_for_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    for name, command in COMMANDS.items():
        assert [line for line in lines if line.split()[:1] == [name] and command.text in line]


@pytest.mark.parametrize("arguments", [[], ["nosuch"]])
def test_a_command_is_needed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert ", ".join(COMMANDS) in line


def test_a_config_may_come_before_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As LightningCLI takes it: a section for each command."""
    config = tmp_path / "all.yaml"
    config.write_text("fit:\n  model:\n    class_path: nl_lightning.NCBFUCB\n    init_args:\n      nu: 0.25\n")
    with pytest.raises(SystemExit) as stop:
        main([f"--config={config}", "fit", "--print_config"])
    assert stop.value.code == 0
    assert "nu: 0.25" in capsys.readouterr().out


@pytest.mark.parametrize("module", ["nl_lightning", "nl_lightning.core.errors", "nl_lightning.core.files"])
def test_light_modules_stay_light(module: str) -> None:
    assert python(f"import {module}").stdout.splitlines()[-1] == "[]"


def test_public_names_are_resolved_when_they_are_used() -> None:
    assert set(nl_lightning.__all__) <= set(dir(nl_lightning))
    for name in nl_lightning.__all__:
        assert getattr(nl_lightning, name) is not None
    assert nl_lightning.AGENTS["NeuralLog-UCB-2"] is nl_lightning.NeuralLogUCB2
    assert issubclass(nl_lightning.NCBFUCB, nl_lightning.NeuralAgent)
    with pytest.raises(AttributeError, match="no attribute 'NoSuchName'"):
        _ = nl_lightning.NoSuchName
