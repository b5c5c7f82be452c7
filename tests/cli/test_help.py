"""What --help and --version say, and how the programs name themselves."""

import inspect
import re
import sys
from pathlib import Path

import lightning as L
import pytest

import nl_lightning
from nl_lightning.agents import AGENTS
from nl_lightning.cli.help import ENVIRONMENTS, HELPS, TRAINER
from nl_lightning.cli.main import COMMANDS, main
from nl_lightning.cli.shipped import shipped_configs
from nl_lightning.core.arguments import program
from replay.__main__ import main as replay
from replay.commands import COMMANDS as REPLAY_COMMANDS
from tests.support.cli import fails


def shown(capsys: pytest.CaptureFixture[str], *arguments: str, run: object = main) -> str:
    assert callable(run)
    with pytest.raises(SystemExit) as stop:
        run(list(arguments))
    assert stop.value.code == 0
    return capsys.readouterr().out


def settings(text: str, prefix: str) -> set[str]:
    return set(re.findall(rf"^  --{re.escape(prefix)}\.(\w+) VALUE", text, re.MULTILINE))


@pytest.fixture(params=["script", "module"])
def called(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The programs as the console scripts or ``python -m`` call them."""
    if request.param == "script":
        monkeypatch.setattr(sys, "argv", ["/somewhere/bin/nl-lightning", "x"])
        return {"nl_lightning": "nl-lightning", "replay": "nl-replay"}
    monkeypatch.setattr(sys, "argv", ["/somewhere/nl_lightning/__main__.py", "x"])
    return {"nl_lightning": "python -m nl_lightning", "replay": "python -m replay"}


def test_a_program_is_named_as_it_was_called(called: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    for package, name in called.items():
        assert program(package) == name
    for command in COMMANDS:
        text = shown(capsys, command, "--help")
        assert text.startswith(f"usage: {called['nl_lightning']} {command} ")
        assert called["replay"] == "python -m replay" or "python -m" not in text
    for command in REPLAY_COMMANDS:
        text = shown(capsys, command, "--help", run=replay)
        assert text.startswith(f"usage: {called['replay']} {command} ")
        assert f"  {called['replay']} {command} " in text.split("example", 1)[1]
        assert called["replay"] == "python -m replay" or "python -m" not in text


def test_a_windows_script_is_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["nl-replay.exe"])
    assert program("replay") == "nl-replay"


def test_all_commands_stand_in_the_usage_line(called: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    line = f"usage: {called['nl_lightning']} {{{','.join(COMMANDS)}}} ..."
    assert shown(capsys, "--help").splitlines()[0] == line
    line = f"usage: {called['replay']} {{{','.join(REPLAY_COMMANDS)}}} ..."
    assert shown(capsys, "--help", run=replay).splitlines()[0] == line


def test_versions(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "--version") == f"nl-lightning {nl_lightning.__version__}\n"
    assert shown(capsys, "--version", run=replay) == f"nl-replay {nl_lightning.__version__}\n"


def test_the_top_help_names_the_configs(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(shown(capsys, "--help").split())
    assert ", ".join(shipped_configs()) in text


@pytest.mark.parametrize("command", HELPS)
def test_the_help_of_a_fit_is_short_and_has_the_settings(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    text = shown(capsys, command, "--help")
    assert len(text.splitlines()) < 115
    assert max(map(len, text.splitlines())) <= 120
    wanted = set(inspect.signature(nl_lightning.NeuralLogUCB2).parameters) - {"dim", "blocks"}
    assert settings(text, "model") == wanted
    assert settings(text, "data") == {"rounds", "threads"}
    assert {"function", "arms", "pool", "seed"} <= settings(text, "data.environment")
    assert settings(text, "trainer") == (set() if command == "diagnose" else set(TRAINER))
    for name in (*ENVIRONMENTS, *(kind.__name__ for kind in AGENTS.values())):
        assert name in text
    assert "exploration parameter, >= 0" in text
    assert re.search(r"--model\.width VALUE +number m of hidden units per layer \(default: 20\)", text)


def test_the_flags_of_the_trainer_exist_and_help_all_has_all(capsys: pytest.CaptureFixture[str]) -> None:
    flags = set(inspect.signature(L.Trainer).parameters)
    assert set(TRAINER) <= flags
    text = shown(capsys, "fit", "--help-all")
    assert settings(text, "trainer") == flags
    assert "nu_scale of the algorithm" in " ".join(text.split()), "the whole text of a setting"


def test_help_shows_the_chosen_agent_and_environment(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "fit", "--config", "obd", "--model", "NCBFUCB", "--help")
    assert "settings of NCBFUCB:" in text
    assert "settings of ReplayLog:" in text
    assert {"log", "candidates", "rejection"} <= settings(text, "data.environment")


def test_help_shows_a_class_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_helped.py").write_text(
        "from nl_lightning import NeuralLogUCB2\n\n\nclass Mine(NeuralLogUCB2):\n"
        '    """Mine.\n\n    Args:\n        patience: rounds to wait.\n    """\n\n'
        "    def __init__(self, dim: int, patience: int = 7, **kwargs) -> None:\n"
        "        super().__init__(dim, **kwargs)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    text = shown(capsys, "fit", "--model=my_helped.Mine", "--help")
    assert re.search(r"--model\.patience VALUE +rounds to wait \(default: 7\)", text)
    assert "--model.nu VALUE" in text


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["fit", "--model=NeuralLogUCB3", "--help"], "Did you mean NeuralLogUCB2?"),
        (["fit", "--data.environment=Synthetc", "--help"], "Did you mean Synthetic?"),
        (["fit", "--config=hh1", "--help"], "Did you mean h1?"),
        (["fti", "--help"], "Did you mean fit?"),
        (["fit", "--config=h1", "--model.nuu=1"], "Did you mean nu?"),
        (["fit", "--config=h1", "--data.environment.functoin=h1"], "Did you mean function?"),
        (["fit", "--config=h1", "--data.environment=Synthetc"], "Did you mean Synthetic?"),
        (["fit", "--config=h1", "--trainer.device=2"], "Did you mean --trainer.devices?"),
        (["fit", "--config=h1", "--resum=x"], "Did you mean --resume?"),
        (["compare", "--config=h1", "--agents", "NeuralLogUCB3"], "Did you mean NeuralLogUCB2?"),
        (["compare", "--config=h1", "--agent", "NCBFUCB"], "Did you mean --agents?"),
        (["diagnose", "--config=h1", "--round=3"], "Did you mean --rounds?"),
        (["fit", "--config=h1", "--round=3"], "Did you mean --data.rounds?"),
        (["fit", "--config=h1", "--seed=3"], "Did you mean --model.seed?"),
        (["fit", "--config=h1", "--modle=Greedy"], "Did you mean --model?"),
    ],
)
def test_a_wrong_name_says_what_was_meant(
    arguments: list[str],
    meant: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    text = fails(arguments, capsys)
    assert meant in text
    assert len(text.splitlines()) == 1
    assert not list(tmp_path.iterdir())
