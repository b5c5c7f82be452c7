"""``diagnose``: the quantities of the theory for an environment and a network, and which assumptions fail."""

import math
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import lightning as L
import torch
from lightning.pytorch.cli import LightningArgumentParser, instantiate_module
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from nl_lightning.agents.base import NeuralAgent
from nl_lightning.cli.arguments import translate_model
from nl_lightning.cli.fit import ParsedCLI, parsed_strictly
from nl_lightning.cli.help import answer_help
from nl_lightning.core import lightning_logging
from nl_lightning.core.checks import check_whole
from nl_lightning.core.errors import InputError
from nl_lightning.core.files import output_directory
from nl_lightning.core.replicas import SETTINGS, per_replica
from nl_lightning.diagnostics.assumptions import Problem, diagnose
from nl_lightning.diagnostics.diagnose import failures, notes, table, write
from nl_lightning.environments import Simulation
from nl_lightning.models.inputs import dense
from nl_lightning.rollout.data import BanditData

__all__ = ["main"]

_MOST = 10_000
"""Contexts of one diagnosis: a matrix over so many takes 800 MB, and there are six or seven."""


class _Config(ParsedCLI):
    """Parses the options of fit, but makes no agent: the design matrices of a wide one may not fit into memory."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        super().add_arguments_to_parser(parser)
        parser.prog += " diagnose"
        # a run's own config.yaml names these as well
        parser.add_method_arguments(L.Trainer, "fit", skip=set(self.subcommands()["fit"]))
        parser.add_argument("--rounds", type=int, default=200, help="number T of rounds whose contexts are looked at")
        parser.add_argument("--replica", type=int, default=0, help="the replica whose problem and settings these are")
        parser.add_argument("--out", type=str | None, help="directory of the result; default: runs/diagnose/<run.name>")

    def before_instantiate_classes(self) -> None:
        if self.config.resume:
            raise InputError("diagnose takes no --resume; a run's config is --config RUN/config.yaml.")


def main(arguments: Sequence[str]) -> None:
    """``diagnose --config FILE [--rounds T] [--replica 0] [--out DIR] [options of fit]``"""
    lightning_logging.silence()
    answer_help("diagnose", arguments)
    options = translate_model(list(arguments))
    config = parsed_strictly(_Config, options, run=False).config
    problem, agent = _problem(config), resolve_name(config.model.class_path)
    out = Path(config.out or Path(config.run.dir) / "diagnose" / config.run.name)
    output_directory(out)
    with Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), transient=True) as progress:
        task = progress.add_task("", total=5, completed=-1)
        found = diagnose(problem, lambda step: progress.update(task, description=step, advance=1))
        progress.update(task, description="picture", advance=1)
        warnings = failures(problem, found, agent)
        title = f"{config.run.name}: {agent.name}, m = {problem.width}, L = {problem.depth}"
        write(problem, found, warnings, title, out)
    console = Console()
    console.print(table(problem, found, title))
    for text in [*(f"Warning: {warning}" for warning in warnings), *notes(problem, found)]:
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    console.print(f"Picture: {out / 'diagnose.png'}", soft_wrap=True)


def _problem(config: Any) -> Problem:
    """The rounds and the settings of one replica."""
    agent, given = resolve_name(config.model.class_path), config.model.init_args
    if not issubclass(agent, NeuralAgent):
        raise InputError(f"{agent.name} is linear and has no NTK; diagnose a neural agent, like --model NeuralLogUCB2.")
    check_whole(1, **{"rounds": config.rounds, "model.width": given.width})
    check_whole(2, **{"model.depth": given.depth})
    if given.width % 2:
        raise InputError(f"The theory's symmetric start needs an even width, got model.width = {given.width}.")
    if not (0 < given.delta < 1 and 0 < given.C1 < math.inf):
        raise InputError(f"0 < delta < 1 and C1 > 0 are needed, got delta = {given.delta:g}, C1 = {given.C1:g}.")
    # nu is left out where it is the agent's own; nothing here depends on it
    asked = {name: 0.0 if given[name] is None else given[name] for name in SETTINGS}
    settings = per_replica(asked, given.replicas, given.seed, given.grid)
    if not all(1e-50 < S < 1e50 for S in settings.S):
        raise InputError("S must lie between 1e-50 and 1e50: the theory's formulas have its square and its inverse.")
    if not 0 <= config.replica < len(settings.seeds):
        raise InputError(f"replica must be one of 0 to {len(settings.seeds) - 1}, got {config.replica}.")
    place = config.data.environment.class_path
    if not issubclass(resolve_name(place), Simulation):
        raise InputError(f"{place} is no simulation: the h behind logged clicks is not known. Diagnose Synthetic.")
    simulation = instantiate_module(BanditData, config.data.as_dict()).environment
    assert isinstance(simulation, Simulation)
    simulation.prepare(settings.seeds, torch.empty(0, dtype=torch.float64))
    contexts = config.rounds * simulation.deal(0, 1).arms.shape[2]
    if contexts > _MOST:
        raise InputError(
            f"{config.rounds} rounds show {contexts} contexts; matrices over more than {_MOST} would fill the memory. "
            "Take fewer --rounds."
        )
    h, own = simulation.latent(0, config.rounds), settings.of(config.replica)
    return Problem(
        x=dense(simulation.deal(0, config.rounds).arms[config.replica], simulation.blocks),
        h=None if h is None else h[config.replica],
        width=given.width,
        depth=given.depth,
        seed=settings.seeds[config.replica],
        lam=own["lam"],
        kappa=own["kappa"],
        S=own["S"],
        delta=given.delta,
        C1=given.C1,
    )
