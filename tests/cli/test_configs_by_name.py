"""Configs that come with the package, by name, for every command that takes --config."""

from pathlib import Path

import pytest

from nl_lightning.cli.errors import UsageError
from nl_lightning.cli.main import main
from nl_lightning.cli.shipped import find_config, name_configs, shipped_configs
from tests.support.cli import CONFIGS, SMALL, fails


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Names are found from any directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_config_of_the_repository_has_a_name() -> None:
    files = {path.relative_to(CONFIGS).with_suffix("").as_posix() for path in CONFIGS.rglob("*.yaml")}
    names = shipped_configs()
    assert files - set(names) == {"sweep"}
    for name, path in names.items():
        assert path.read_text() == (CONFIGS / f"{name}.yaml").read_text()


@pytest.mark.parametrize(
    "arguments",
    [["--config", "h1"], ["--config=h1"], ["-c", "h1"], ["-ch1"], ["-c=h1"]],
)
def test_a_name_becomes_a_path(arguments: list[str]) -> None:
    named = name_configs(["fit", *arguments, "--run.name", "h1"])
    assert " ".join(named).replace(str(shipped_configs()["h1"]), "h1") == f"fit {' '.join(arguments)} --run.name h1"
    assert str(shipped_configs()["h1"]) in " ".join(named)


def test_a_file_wins_over_a_name_and_a_directory_does_not(elsewhere: Path) -> None:
    (elsewhere / "h1").mkdir()
    assert find_config("h1") == str(shipped_configs()["h1"])
    (elsewhere / "obd").write_text("run: {name: mine}\n")
    assert find_config("obd") == "obd"


@pytest.mark.parametrize("given", ["{run: {name: a}}", " {a: b}", "s3://bucket/config.yaml", ""])
def test_what_is_no_name_stays(given: str) -> None:
    assert find_config(given) == given


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("h11", "Did you mean h1? The names: banknote, "),
        ("h1.yaml", "Did you mean h1?"),
        ("configs/h1.yaml", "Did you mean h1?"),
        ("mushrom", "Did you mean mushroom?"),
        ("wandb", "Did you mean loggers/wandb?"),
        ("logers/csv", "Did you mean loggers/csv?"),
        ("mien.yaml", "Did you mean mine.yaml?"),
        ("here/mine.yml", "there is no config here/mine.yml: it is neither a file nor the name of a config"),
        ("sweep", "wandb sweep "),
        ("a" * 5000, "there is no config a"),
        ("nul\0", "there is no config nul"),
    ],
)
def test_a_wrong_name_says_what_was_meant(given: str, text: str, elsewhere: Path) -> None:
    (elsewhere / "mine.yaml").write_text("run: {name: mine}\n")
    with pytest.raises(UsageError) as error:
        find_config(given)
    assert text in str(error.value)


def test_nothing_close_is_suggested_where_nothing_is() -> None:
    with pytest.raises(UsageError) as error:
        find_config("qqqqqqq")
    assert "Did you mean" not in str(error.value)
    assert ", ".join(shipped_configs()) in str(error.value)


@pytest.mark.parametrize("command", ["fit", "test", "compare", "diagnose"])
def test_every_command_explains_a_wrong_name(command: str, capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    shown = fails([command, "--config=obdd"], capsys)
    assert shown.startswith("error: there is no config obdd")
    assert "Did you mean obd?" in shown
    assert len(shown.splitlines()) == 1
    assert not list(elsewhere.iterdir())


def test_fit_and_compare_by_name(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    small = [*SMALL, "--model.replicas=2"]
    main(["fit", "--config", "h1", "--config=loggers/csv", "--run.id=a", *small])
    assert (elsewhere / "runs/h1/a/summary.json").exists()
    assert list((elsewhere / "runs/h1/a/csv").rglob("metrics.csv"))
    main(["compare", "--config", "h2", "--agents", "NCBFUCB", "--id=b", *small])
    assert (elsewhere / "runs/h2-b/NCBFUCB/summary.json").exists()
    assert "NCBF-UCB" in capsys.readouterr().out


def test_diagnose_by_name(elsewhere: Path) -> None:
    main(["diagnose", "--config=h1", "--rounds=3", "--model.width=4", "--data.environment.pool=20"])
    assert (elsewhere / "runs/diagnose/h1/diagnose.json").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--config=h1"], "a command is needed, such as python -m nl_lightning fit --config h1."),
        (["--config=h1", "fit"], "has no section fit, so it belongs after the command"),
        (["--config"], "a command is needed"),
        (["--confg=h1"], "a command is needed"),
    ],
)
def test_a_config_without_its_command(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = fails(arguments, capsys)
    assert text in shown
    assert len(shown.splitlines()) == 1
