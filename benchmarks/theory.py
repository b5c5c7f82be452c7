"""What the exact matrices of theory mode cost."""

from statistics import median

import lightning as L
import torch

from benchmarks.measure import Row, peak_memory, ratio, row, seconds, trainer
from nl_lightning import NeuralLogUCB2
from nl_lightning.agents.base import Agent
from nl_lightning.agents.callbacks import RoundCallback
from nl_lightning.core.types import Round
from nl_lightning.environments import Synthetic
from nl_lightning.rollout.data import BanditData


class _EveryRound(RoundCallback):
    """Has rounds played one by one."""

    def on_round_end(self, trainer: L.Trainer, agent: Agent, played: Round) -> None:
        """Nothing is done."""


def rounds_of_theory_mode() -> list[Row]:
    """Rounds of NeuralLog-UCB-2 in theory mode against those of the diagonal practical run, TrainNN aside.

    Its whole matrices want rounds one by one, and are held to a practical run that is played so; one that is played at
    once stands beside it.
    """
    rounds = 2000

    def play(dim: int, mode: str, one_by_one: bool = True) -> float:
        # TrainNN would come after more rounds than there are
        agent = NeuralLogUCB2(dim, width=20, mode=mode, update_every=2 * rounds)  # type: ignore[arg-type]
        fitting, data = (
            trainer(callbacks=[_EveryRound()] if one_by_one else []),
            BanditData(Synthetic("h1", dim=dim), rounds, threads=torch.get_num_threads()),
        )
        return seconds(lambda: fitting.fit(agent, data), 1)

    rows = []
    # [x, x]/sqrt(2) has 2d inputs: d = 10 has the 20 x 20 + 20 = 420 parameters of the practical network with d = 20
    for dim, parameters in ((10, 420), (20, 820)):
        runs = [lambda: play(dim, "theory"), lambda: play(20, "practical"), lambda: play(20, "practical", False)]
        [run() for run in runs]
        theory, practical, at_once = zip(*([run() for run in runs] for _ in range(5)), strict=True)
        what = f"rounds of theory mode, d={dim}, m=20, p={parameters}, T={rounds} / practical, diagonal, d=20"
        note = f"{median(theory) / rounds * 1e6:.0f} us a round"
        rows.append(row(f"{what}, one by one", list(theory), list(practical), 10, note))
        value, spread = ratio(list(theory), list(at_once))
        rows.append((f"{what}, at once", f"{value:.2f} ({spread})", "-", True))
    return rows


def memory() -> list[Row]:
    """Peak resident size of 500 rounds with 40,016 parameters, TrainNN included."""
    peak = peak_memory("benchmarks.theory", "wide_fit()")
    return [("peak memory of theory mode, p=40,016, 500 rounds", f"{peak:.2f} GB", "< 2 GB", peak < 2)]


def wide_fit() -> None:
    data = BanditData(Synthetic("h1"), 500, threads=torch.get_num_threads())
    trainer().fit(NeuralLogUCB2(20, width=976, mode="theory"), data)
