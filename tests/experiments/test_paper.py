"""The experiments are about the paper's seven agents, however many there are."""

import subprocess
import sys

from nl_lightning import AGENTS
from nl_lightning.experiments import claims, figures, paper, paper_table
from tests.support.paths import ROOT

PROGRAM = """
from importlib import import_module
from pkgutil import iter_modules

from nl_lightning import AGENTS, NCBFUCB, experiments

class Eighth(NCBFUCB):
    name = "Eighth"

AGENTS["Eighth"] = Eighth
for module in iter_modules(experiments.__path__):
    import_module(f"nl_lightning.experiments.{module.name}")
from nl_lightning.experiments import claims, figures, obd, paper, paper_table, shared
from nl_lightning.experiments.readings import READINGS
for agents in (claims.ALL, figures.STYLES, *paper_table.CTR.values(), *(f.agents for f in paper.FIGURES.values())):
    assert "Eighth" not in agents
assert "Eighth" not in {part.agent for part in obd.parts("obd", READINGS["literal"], None)}
print("imported")
"""


def test_the_papers_agents_are_there() -> None:
    assert len(paper.PAPER_AGENTS) == 7
    assert set(paper.PAPER_AGENTS) <= set(AGENTS)
    assert tuple(figures.STYLES) == claims.ALL == paper.PAPER_AGENTS
    assert all(tuple(row) == paper.PAPER_AGENTS for row in paper_table.CTR.values())
    optimistic = tuple(name for name in paper.PAPER_AGENTS if AGENTS[name].default_exploration == "ucb")
    assert optimistic == paper.WITHOUT_THOMPSON
    assert {AGENTS[name].default_exploration for name in paper.PAPER_AGENTS} == {"ucb", "thompson"}
    assert set(paper.DEFAULTS) == set(paper.PAPER_AGENTS)


def test_an_eighth_agent_is_none_of_the_papers() -> None:
    """In a process of its own, because the modules must see eight agents when they are imported."""
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
    assert done.stdout == "imported\n", done.stderr
