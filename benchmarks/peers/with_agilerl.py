"""agilerl's NeuralUCB, in its environment."""

from benchmarks.peers.asked import answer, path_of

# isort: split
import contextlib
import io
import time
import warnings
from typing import Any

import numpy as np
import torch
from agilerl.algorithms.neural_ucb_bandit import NeuralUCB
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.modules.mlp import EvolvableMLP
from agilerl.training.train_bandits import train_bandits
from gymnasium import spaces
from tensordict import TensorDict

_EVERY, _STEPS = 50, 100


class _Rounds:
    """Rounds that were dealt before, as the environment that agilerl's training loop expects."""

    num_envs = 1

    def __init__(self, seed: int, rounds: int) -> None:
        data = np.load(path_of(f"online-{seed}.npz"))
        self.arms, self.reward, self.regret = (data[name][:rounds] for name in ("arms", "reward", "regret"))
        self.lost, self.next = 0.0, 0

    def reset(self) -> Any:
        return self.arms[self.next % len(self.arms)]

    def step(self, arm: int) -> tuple[Any, float]:
        reward = float(self.reward[self.next, arm])
        self.lost += float(self.regret[self.next, arm])
        self.next += 1
        return self.reset(), reward

    def close(self) -> None:
        """The training loop asks for it."""


def online(seed: int, rounds: int, way: str, nu: float, lam: float, lr: float) -> dict[str, Any]:
    """``way``: ``natural`` (its training loop: two minibatches of 64 after each round) or ``same`` (full batches)."""
    world = _Rounds(seed, rounds)
    torch.manual_seed(seed)
    dim, arms = world.arms.shape[2], world.arms.shape[1]
    network = EvolvableMLP(dim, 1, [20], layer_norm=False, output_vanish=False, min_mlp_nodes=1)
    agent = NeuralUCB(
        spaces.Box(-1, 1, (dim,)), spaces.Discrete(arms), actor_network=network, gamma=nu, lamb=lam, lr=lr
    )
    start = time.perf_counter()
    if way == "natural":
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            buffer = ReplayBuffer(max_size=rounds)
            steps = {"max_steps": rounds, "episode_steps": rounds, "evo_steps": rounds, "eval_steps": 0}
            train_bandits(world, "h1", "NeuralUCB", [agent], buffer, verbose=False, **steps)
    else:
        x, reward = torch.empty(rounds, dim), torch.empty(rounds, 1)
        shown = world.reset()
        for t in range(rounds):
            arm = agent.get_action(shown)
            x[t] = torch.from_numpy(shown[arm])
            shown, reward[t] = world.step(arm)
            if (t + 1) % _EVERY == 0:
                batch = TensorDict({"obs": x[: t + 1], "reward": reward[: t + 1]}, batch_size=[t + 1])
                for _ in range(_STEPS):
                    agent.learn(batch)
    return {"seconds": time.perf_counter() - start, "regret": world.lost}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    answer({"online": online})
