"""Agents of a user's own, by import path: fit, compare, report, resume."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from nl_lightning import AGENTS, NCBFUCB
from nl_lightning.cli.main import main
from nl_lightning.reporting.discovery import find
from nl_lightning.reporting.page_data import gather, read_entries
from tests.support.cli import H1, SMALL, fails
from tests.support.paths import ROOT

MODULE = '''
from nl_lightning import LogisticUCB1, NeuralLogUCB2

class Bold(NeuralLogUCB2):
    """Explores more."""

    name = "Bold-UCB"

class Nameless(LogisticUCB1):
    pass

class Impostor(NeuralLogUCB2):
    name = "NCBF-UCB"

class NCBFUCB(NeuralLogUCB2):
    name = "Another"

class Stranger:
    pass

number = 3
'''
TINY = [*SMALL, "--model.replicas=2"]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, with a module of the user's; it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("my_agents.py").write_text(MODULE)
    Path("broken_agents.py").write_text("import no_such_package\n")
    yield tmp_path
    for name in ("my_agents", "broken_agents"):
        sys.modules.pop(name, None)


def names(where: str) -> list[str]:
    return [row["agent"] for row in json.loads(Path(where, "comparison.json").read_text())]


def test_an_own_agent_is_fitted_and_resumed() -> None:
    main(["fit", H1, *TINY, "--model=my_agents.Bold", "--run.id=x", "--trainer.max_steps=1"])
    main(["fit", "--resume=runs/h1/x"])
    summary = json.loads(Path("runs/h1/x/summary.json").read_text())
    assert (summary["agent"], summary["finished"], summary["rounds"]) == ("Bold-UCB", True, 40)
    assert yaml.safe_load(Path("runs/h1/x/config.yaml").read_text())["model"]["class_path"] == "my_agents.Bold"


def test_own_agents_are_compared_with_those_of_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of the paper come first, own ones follow in the order given; each has a directory and a name."""
    agents = ["my_agents.Nameless", "NeuralLog-UCB-2", "my_agents.Bold", "NCBFUCB"]
    main(["compare", H1, "--agents", *agents, "--id=x", *TINY])
    expected = ["NCBF-UCB", "NeuralLog-UCB-2", "Nameless", "Bold-UCB"]
    assert names("runs/h1-x") == expected
    table = capsys.readouterr().out.split("Agents, ")[1]
    assert sorted(expected, key=table.index) == expected
    made = {path.name for path in Path("runs/h1-x").iterdir() if path.is_dir()}
    assert made == {"NCBFUCB", "NeuralLogUCB2", "Nameless", "Bold"}
    assert Path("runs/h1-x/comparison.png").stat().st_size > 10_000
    # the page takes them as well
    found = find([Path("runs/h1-x")])
    page = gather("own", found.runs, [entry for run in found.runs for entry in read_entries(run)], found.left_out)
    entries = page["sections"][0]["entries"]
    assert [entry["agent"] for entry in entries] == ["NCBF-UCB", "NeuralLog-UCB-2", "Bold-UCB", "Nameless"]
    main(["report", "runs/h1-x"])
    assert "Bold-UCB" in Path("report.html").read_text()
    # a second time nothing is run
    capsys.readouterr()
    main(["compare", H1, "--agents", *agents, "--id=x", *TINY])
    assert capsys.readouterr().out.count("This run is finished") == 4


@pytest.mark.parametrize(
    ("agent", "text"),
    [
        ("nosuch", "there is no agent nosuch"),
        ("no_such_module.Agent", "No module named 'no_such_module'"),
        ("broken_agents.Agent", "No module named 'no_such_package'"),
        (
            "my_agents.Missing",
            "'my_agents.Missing' cannot be imported (AttributeError: ",
        ),
        ("my_agents.Bould", "has no attribute 'Bould'). Did you mean Bold?"),
        ("my_agents.Stranger", "'my_agents.Stranger' is no subclass of Agent"),
        ("my_agents.number", "'my_agents.number' is no subclass of Agent"),
    ],
)
@pytest.mark.parametrize("command", ["compare", "fit"])
def test_what_is_no_agent_is_refused(command: str, agent: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    option = ["--agents", agent] if command == "compare" else [f"--model={agent}"]
    said = fails([command, H1, *option, *TINY], capsys)
    if command == "compare" or "." in agent:
        (line,) = said.splitlines()
        assert line.startswith("error: ")
        assert text in line
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("agent", "text"),
    [
        ("my_agents.NCBFUCB", "two agents with the same class name NCBFUCB"),
        ("my_agents.Impostor", "two agents with the same agent name NCBF-UCB"),
    ],
)
def test_agents_that_could_not_be_told_apart_are_refused(
    agent: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert text in fails(["compare", H1, "--agents", "NCBF-UCB", agent, "--id=x", *TINY], capsys)
    assert not Path("runs").exists()


def test_an_agent_that_is_given_twice_is_run_once() -> None:
    agents = ["NCBFUCB", "NCBF-UCB", "nl_lightning.NCBFUCB", "my_agents.Bold", "my_agents.Bold"]
    main(["compare", H1, "--agents", *agents, "--id=x", *TINY])
    assert names("runs/h1-x") == ["NCBF-UCB", "Bold-UCB"]


def test_a_script_finds_modules_of_the_current_directory(directory: Path) -> None:
    """A console script, unlike ``python -m``, does not look there by itself."""
    script = directory / "bin" / "script.py"
    script.parent.mkdir()
    script.write_text(f"import sys\nsys.path.append({str(ROOT)!r})\nfrom nl_lightning.cli.main import main\nmain()\n")
    command = [sys.executable, str(script), "fit", H1, *TINY, "--model=my_agents.Bold", "--print_config"]
    done = subprocess.run(command, cwd=directory, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "class_path: my_agents.Bold" in done.stdout


def test_an_eighth_built_in_agent_is_compared_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is added to AGENTS is one more row, behind the others."""

    class Eighth(NCBFUCB):
        name = "Eighth"

    monkeypatch.setitem(AGENTS, "Eighth", Eighth)
    begun: list[str] = []
    from nl_lightning.cli import compare

    compare.main([H1, "--id=x"], fit=lambda options: begun.append(options[-1]))
    assert begun == [f"--run.id={agent.__name__}" for agent in AGENTS.values()]
    assert begun[-1] == "--run.id=Eighth"


def test_an_environment_without_regret_has_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table, a picture and a comparison by its rewards."""
    (tmp_path / "my_clicks.py").write_text(
        "from tests.support.extensions import FewRounds\n\n"
        "class Clicks(FewRounds):\n"
        "    knows_regret = False\n"
        "    def deal(self, start, count):\n"
        "        return super().deal(start, count)._replace(regret=None)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = tmp_path / "clicks.yaml"
    config.write_text(
        "model:\n  class_path: nl_lightning.NeuralLogUCB2\n  init_args:\n    lr: 0.001\n    replicas: 2\n"
    )
    given = [f"--config={config}", "--data.environment=my_clicks.Clicks", "--data.rounds=60"]
    main(["compare", *given, "--agents", "NeuralLogUCB2", "NCBFUCB", "--id=a"])
    for agent in ("NeuralLogUCB2", "NCBFUCB"):
        run = tmp_path / "runs" / "clicks-a" / agent
        assert (run / "curve.png").exists()
        summary = json.loads((run / "summary.json").read_text())
        assert summary["measure"] == "ctr"
        rows = pq.read_table(run / "rounds.parquet").to_pandas()
        assert len(rows) == 120
        best = summary["over_replicas"][0]
        assert best["ctr"] == pytest.approx(rows["reward"].mean())
        assert best["accepted"] == 60
    assert (tmp_path / "runs" / "clicks-a" / "comparison.png").exists()
