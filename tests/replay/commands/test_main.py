"""The command line: what it loads, what it explains, what it refuses."""

import importlib
from pathlib import Path

import pytest

from nl_lightning.cli.main import main as nl_lightning
from replay.__main__ import main
from replay.commands import COMMANDS
from replay.simulation.simulated_world import SimulatedWorld
from tests.support.fresh_interpreter import heavy_after
from tests.support.replay_logs import SMALL, write_log


def test_help_loads_nothing_heavy() -> None:
    assert heavy_after("from replay.__main__ import main\ntry: main(['--help'])\nexcept SystemExit: pass") == []


def test_info_loads_nothing_heavy(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", SimulatedWorld(**SMALL), 300)
    assert heavy_after(f"from replay.__main__ import main\nmain(['info', {str(log.path)!r}])") == []


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_a_module(name: str) -> None:
    module = importlib.import_module(f"replay.commands.{name}")
    assert callable(module.add_arguments)
    assert callable(module.run)


def test_the_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert all(f"{name} {text}" in shown for name, text in COMMANDS.items())


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_explains(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert f"python -m replay {name} " in shown.split("example", 1)[1]
    assert "None" not in shown


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "a command is needed. The commands: schema, convert, "),
        (["nosuch"], "there is no command nosuch. The commands: schema, convert, simulate, info, evaluate, power."),
        (["convrt"], "Did you mean convert?"),
        (["--nosuch"], "a command is needed"),
        (["info"], "LOG is needed. What a command takes: python -m replay info --help."),
        (["info", "x", "--nosuch"], "there is no option --nosuch. All of them: python -m replay info --help."),
        (["evaluate", "--polcy=logged"], "Did you mean --policy? All of them: python -m replay evaluate --help."),
        (["simulate", "x", "--rows", "ten"], "--rows must be a whole number, got 'ten'"),
        (["simulate", "x", "--rows", "3", "--see", "1"], "Did you mean --seed?"),
    ],
)
def test_what_is_no_command_is_refused(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert text in line


def test_the_help_of_the_environment_explains(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        nl_lightning(["fit", "--data.environment.help=replay.ReplayLog"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "the CTR is that of no single policy" in shown
    assert "``uniform``: drawn uniformly, whatever was logged" in shown
    assert "undoes the preferences of the logging policy" in shown
