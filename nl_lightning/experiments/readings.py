"""Readings of the paper: where its words leave a choice, each choice that is run, and under which name.

A reading is data. What is run is a figure's panels times its agents times a reading.
"""

from typing import Any, NamedTuple

from nl_lightning.experiments.paper import CONTROL, GRID, LITERAL, Description, Figure, Panel

__all__ = ["READINGS", "Reading", "quick"]


class Reading(NamedTuple):
    """How the paper's experiments are run: TrainNN, the grid, the scaling of data, and how much is run."""

    name: str
    title: str
    words: str
    """what is read how, in a sentence"""
    train: dict[str, Any]
    """settings of TrainNN; the others have the defaults of the agents"""
    shorter: bool
    """Whether TrainNN takes the panel's steps, one after the other where every setting of the grid diverges on some
    tuning seed; or else the agents' default step"""
    nu: tuple[float, ...]
    lam: tuple[float, ...]
    seeds: int
    """of the final runs; with ``most_seeds``, the first ones"""
    tuning_seeds: int
    on: tuple[str, ...] = ()
    """figures, or panels as ``fig2/mnist``; empty for all"""
    environment: tuple[tuple[str, Any], ...] = ()
    """settings of the environment, such as ``scaling``"""
    horizon: int = 2000
    """T"""
    sweep_seeds: int = 30
    """of the runs of ``fixed`` that vary one setting"""
    replay_seeds: int = 5
    """of the table on the Open Bandit Dataset"""
    events: int | None = None
    """of the simulated log; None: as many as the power calculation asks for"""
    hindsight_seeds: int = 0
    """of the models that are fitted in hindsight; 0: none are"""
    most_seeds: int = 0
    """A panel whose differences vary much gets further seeds, up to so many in all; 0: no panel does"""

    def panels(self, figure: Figure) -> tuple[Panel, ...]:
        """The panels of a figure that are run in this reading."""
        return tuple(
            panel for panel in figure.panels if not self.on or {figure.name, f"{figure.name}/{panel.name}"} & {*self.on}
        )

    def runs(self, name: str) -> bool:
        """Whether a figure, or the replay ``obd``, is run in this reading."""
        return not self.on or any(place.partition("/")[0] == name for place in self.on)

    def steps(self, panel: Panel) -> tuple[float | None, ...]:
        """The steps of TrainNN in a panel, in the order in which they are tried; None: the agents' default."""
        return panel.lr if self.shorter else (None,)

    def grid(self, agent: str) -> dict[str, list[float]]:
        """Values that nu and lam are each chosen from. Without exploration there is no nu."""
        return {**({} if agent == CONTROL else {"nu": list(self.nu)}), "lam": list(self.lam)}

    def described(self, environment: Description) -> Description:
        return environment._replace(init_args={**environment.init_args, **dict(self.environment)})


_STABLE = Reading(
    name="stable",
    title="stable",
    words=(
        "TrainNN as the library has it by default: Adam, which diverges nowhere. nu is tuned for every agent and panel "
        "on a wide grid"
    ),
    train={"optimizer": "adam"},
    shorter=False,
    nu=(0.0001, 0.001, 0.01, 0.1, 1.0, 10.0),
    lam=(0.1, 1.0),
    seeds=50,
    tuning_seeds=3,
    hindsight_seeds=10,
    most_seeds=200,
)

READINGS: dict[str, Reading] = {
    reading.name: reading
    for reading in (
        Reading(
            name="literal",
            title="literal",
            words=(
                "TrainNN as the paper's words say: 100 steps of gradient descent with a step of 0.01 on the summed "
                "loss, every 50 rounds. nu and lam are tuned for every agent and panel on the paper's grid"
            ),
            train=LITERAL,
            shorter=True,
            nu=GRID,
            lam=GRID,
            seeds=10,
            tuning_seeds=3,
            on=("fig1", "fig2", "fig3", "fig4", "fig5", "fig6", "obd"),
        ),
        _STABLE,
        _STABLE._replace(
            name="paper-grid",
            title="stable, the paper's grid",
            words="As stable, with nu and lam from the paper's grid, whose smallest nu is 0.01",
            nu=GRID,
            lam=GRID,
            on=("fig1",),
            hindsight_seeds=0,
            most_seeds=0,
        ),
        _STABLE._replace(
            name="one-nu",
            title="stable, one nu",
            words="As stable, with the same nu = 0.01 and lam = 0.1 for all agents, so that nothing is tuned",
            nu=(0.01,),
            lam=(0.1,),
            on=("fig1",),
            hindsight_seeds=0,
            most_seeds=0,
        ),
        _STABLE._replace(
            name="vector",
            title="stable, scaled by vector",
            words=(
                "As stable, with every row of a data set scaled by its own smallest and largest number, not every "
                "column by its"
            ),
            on=("fig2/mnist", "fig2/shuttle"),
            environment=(("scaling", "vector"),),
            most_seeds=0,
        ),
    )
}
"""The readings by name, in the order in which they are shown."""


def quick(reading: Reading) -> Reading:
    """For checking in minutes that everything works. Its numbers mean little."""
    nu = reading.nu if len(reading.nu) == 1 else (0.01, 1.0)
    lam = nu if reading.lam == GRID else reading.lam[:1]
    return reading._replace(
        nu=nu,
        lam=lam,
        seeds=3,
        tuning_seeds=1,
        horizon=500,
        sweep_seeds=3,
        replay_seeds=2,
        events=20_000,
        hindsight_seeds=min(2, reading.hindsight_seeds),
        most_seeds=0,
    )
