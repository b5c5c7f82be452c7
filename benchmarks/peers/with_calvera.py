"""calvera's NeuralUCB, in its environment."""

from benchmarks.peers.asked import answer, path_of

# isort: split
import logging
import time
import warnings
from typing import Any

import lightning as L
import numpy as np
import torch
from calvera.bandits import NeuralUCBBandit
from torch.utils.data import DataLoader

_EVERY, _STEPS = 50, 100


class _WholeBuffer(NeuralUCBBandit):
    """Trains on its buffer as it lies there, without a data loader that picks it apart and puts it together again."""

    def train_dataloader(self, *_: Any) -> Any:
        self._custom_data_loader_passed = False
        x, _embedded, reward, _chosen = self.buffer.get_all_data()
        only: Any = [(x.unsqueeze(1), None, reward.unsqueeze(1), None)]
        return DataLoader(only, batch_size=None)


def online(seed: int, rounds: int, way: str, nu: float, lam: float, lr: float) -> dict[str, Any]:
    """``way``: ``natural`` (an epoch of minibatches of 32), ``same`` (100 epochs of one batch), ``fastest``."""
    data = np.load(path_of(f"online-{seed}.npz"))
    arms, reward, regret = (torch.from_numpy(data[name][:rounds]) for name in ("arms", "reward", "regret"))
    torch.manual_seed(seed)
    dim = arms.shape[2]
    network = torch.nn.Sequential(torch.nn.Linear(dim, 20), torch.nn.ReLU(), torch.nn.Linear(20, 1))
    bandit = (_WholeBuffer if way == "fastest" else NeuralUCBBandit)(
        dim,
        network,
        exploration_rate=nu,
        weight_decay=lam,
        learning_rate=lr,
        train_batch_size=32 if way == "natural" else rounds,
        early_stop_threshold=None,
        min_samples_required_for_training=_EVERY,
        initial_train_steps=0,
    )
    lost = torch.zeros((), dtype=regret.dtype)
    start = time.perf_counter()
    for t in range(rounds):
        one_hot, _ = bandit(arms[t : t + 1])
        arm = int(one_hot.argmax())
        bandit.record_feedback(arms[t : t + 1, arm : arm + 1], reward[t : t + 1, arm : arm + 1])
        lost += regret[t, arm]
        if (t + 1) % _EVERY == 0:
            trainer = L.Trainer(
                max_epochs=1 if way == "natural" else _STEPS,
                accelerator="cpu",
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            trainer.fit(bandit)
    return {"seconds": time.perf_counter() - start, "regret": float(lost)}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning.pytorch.utilities.rank_zero", "calvera"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    answer({"online": online})
