"""A slow, plain float64 twin of the agents (practical mode), written from ALGORITHMS.md alone.

One replica, loops over samples, dense p x p matrices rebuilt from the stored gradients at every call. Tests compare
the fast implementation with it, so nothing here is shared with the package and nothing here is clever.
"""

from math import sqrt

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

NAMES = (
    "NCBF-UCB",
    "Logistic-UCB-1",
    "ada-OFU-ECOLog",
    "NeuralLog-UCB-1",
    "NeuralLog-UCB-2",
    "NeuralLog-TS-1",
    "NeuralLog-TS-2",
    "Greedy",
)
LINEAR = ("Logistic-UCB-1", "ada-OFU-ECOLog")  # f = x . theta, g = x: a network of depth 1
PROBABILITY = ("Logistic-UCB-1", "NeuralLog-UCB-1")  # the score starts from mu(f); the others start from f
WEIGHTED = ("ada-OFU-ECOLog", "NeuralLog-UCB-2", "NeuralLog-TS-2")  # design matrix W; the others use V
R = 0.25  # the upper bound of mu'


class Twin:
    """One agent: `observe` and `train_nn` change it, every other method only computes from what is stored."""

    def __init__(
        self,
        name: str,
        weights: list[Tensor],
        *,
        nu: float,
        lam: float,
        kappa: float,
        S: float,
        design: str = "diagonal",
        lr: float = 0.01,
        steps: int = 100,
        start: str = "warm",
        optimizer: str = "gd",
    ) -> None:
        if name not in NAMES or design not in ("diagonal", "full"):
            raise ValueError(f"unknown agent or design: {name}, {design}")
        if weights[-1].shape[0] != 1 or (name in LINEAR and len(weights) != 1):
            raise ValueError("the last layer has one output, and a linear agent has one layer")
        self.name, self.design, self.start, self.optimizer = name, design, start, optimizer
        self.nu, self.lam, self.kappa, self.S, self.lr, self.steps = nu, lam, kappa, S, lr, steps
        self.initial = [w.detach().clone().double() for w in weights]
        self.weights = [w.clone() for w in self.initial]
        self.p = sum(w.numel() for w in self.initial)
        self.xs: list[Tensor] = []
        self.rewards: list[Tensor] = []
        self.counts: list[float] = []  # what an observation counts, in loss and design
        self.gradients: list[Tensor] = []  # g(x_i; theta_{i-1}), as it was at the decision
        self.slopes: list[Tensor] = []  # mu'(f(x_i; theta_{i-1})), as it was at the decision

    def _network(self, x: Tensor, weights: list[Tensor]) -> Tensor:
        """f(x; theta) = W_L relu(W_{L-1} ... relu(W_1 x)), c = 1, no relu after the last layer. A weight with a column
        more than its layer has inputs has its biases there."""
        z = x.detach().double()
        for layer, w in enumerate(weights):
            z = w @ z if w.shape[1] == len(z) else w[:, :-1] @ z + w[:, -1]
            if layer < len(weights) - 1:
                z = torch.relu(z)  # torch takes the derivative of relu at 0 to be 0
        return z[0]

    def f(self, x: Tensor) -> Tensor:
        """f(x; theta) at the current weights, for one x (d,)."""
        return self._network(x, self.weights)

    def gradient(self, x: Tensor) -> Tensor:
        """g(x; theta) = grad_theta f at the current weights: W_1 row by row, then W_2, ... (p,)."""
        weights = [w.clone().requires_grad_() for w in self.weights]
        parts = torch.autograd.grad(self._network(x, weights), weights)
        return torch.cat([part.reshape(-1) for part in parts])

    def mean(self, arms: Tensor) -> Tensor:
        """mu(f) for Logistic-UCB-1 and NeuralLog-UCB-1, f for the other five."""
        f = torch.stack([self.f(x) for x in arms])
        return torch.sigmoid(f) if self.name in PROBABILITY else f

    def _maybe_diagonal(self, matrix: Tensor) -> Tensor:
        """The matrix itself for `full`; the same dense matrix with zeros off the diagonal for `diagonal`."""
        return torch.diag(torch.diagonal(matrix)) if self.design == "diagonal" else matrix

    def design_matrix(self) -> Tensor:
        """V = sum_i g_i g_i^T + kappa lam I, or W = sum_i mu'(f_i) g_i g_i^T + lam I."""
        weighted = self.name in WEIGHTED
        matrix = (self.lam if weighted else self.kappa * self.lam) * torch.eye(self.p, dtype=torch.float64)
        for g, slope, count in zip(self.gradients, self.slopes, self.counts, strict=True):
            matrix = matrix + count * (slope if weighted else 1.0) * torch.outer(g, g)
        return self._maybe_diagonal(matrix)

    def effective_dimension(self) -> float:
        """NCBF-UCB: d1 = logdet(sum_i g_i g_i^T / kappa + I); others: d2 = logdet(R sum_i g_i g_i^T + I)."""
        matrix = torch.eye(self.p, dtype=torch.float64)
        for g, count in zip(self.gradients, self.counts, strict=True):
            matrix = matrix + count * (1.0 / self.kappa if self.name == "NCBF-UCB" else R) * torch.outer(g, g)
        return float(torch.linalg.slogdet(self._maybe_diagonal(matrix)).logabsdet)

    def radius(self) -> float:
        """What norm(x; V) or norm(x; W) is multiplied by; d is d1 for NCBF-UCB and d2 for the others."""
        nu, lam, kappa, S, d = self.nu, self.lam, self.kappa, self.S, self.effective_dimension()
        # rho = (1 + S + S^2) (sqrt(d2) + 1/sqrt(lam))
        rho = (1 + S + S**2) * (sqrt(d) + 1 / sqrt(lam))
        if self.name == "NCBF-UCB":  # nu (kappa sqrt(d1) + S sqrt(kappa lam))
            return nu * (kappa * sqrt(d) + S * sqrt(kappa * lam))
        if self.name == "Logistic-UCB-1":  # nu R sqrt(kappa) (1 + 2S) (S sqrt(lam) + d2/sqrt(lam))
            return nu * R * sqrt(kappa) * (1 + 2 * S) * (S * sqrt(lam) + d / sqrt(lam))
        if self.name == "ada-OFU-ECOLog":  # nu S (sqrt(d2) + sqrt(lam))
            return nu * S * (sqrt(d) + sqrt(lam))
        if self.name == "NeuralLog-UCB-1":  # nu R sqrt(kappa) rho
            return nu * R * sqrt(kappa) * rho
        if self.name == "NeuralLog-TS-1":  # nu sqrt(kappa) rho
            return nu * sqrt(kappa) * rho
        if self.name == "Greedy":
            return 0.0
        return nu * rho  # NeuralLog-UCB-2 and NeuralLog-TS-2: nu rho

    def bonus(self, arms: Tensor) -> Tensor:
        """radius * norm(x; M), norm(x; M) = sqrt(g^T M^{-1} g); the standard deviation for the two TS agents."""
        matrix, radius = self.design_matrix(), self.radius()
        widths = []
        for x in arms:
            g = self.gradient(x)
            widths.append(radius * torch.sqrt(g @ torch.linalg.solve(matrix, g)))
        return torch.stack(widths)

    def observe(self, x: Tensor, reward: float | Tensor, weight: float = 1.0) -> None:
        """Store x, r, its weight, g(x; theta) and mu'(f) = mu(f) mu(-f) at the weights of this moment."""
        f = self.f(x)
        self.counts.append(weight)
        self.xs.append(x.detach().clone().double())
        self.rewards.append(torch.tensor(float(reward), dtype=torch.float64))
        self.gradients.append(self.gradient(x))
        self.slopes.append(torch.sigmoid(f) * torch.sigmoid(-f))

    def train_nn(self, fresh: list[Tensor] | None = None) -> None:
        """`steps` steps down sum_i w_i BCE(f(x_i; theta), r_i) + lam |theta|^2, all samples, from the current weights,
        the initial ones, or a mean of the current and fresh ones."""
        weights = [w.clone() for w in (self.initial if self.start == "cold" else self.weights)]
        if self.start == "shrink":
            assert fresh is not None
            weights = [0.55 * w + 0.45 * new for w, new in zip(weights, fresh, strict=True)]
        m = [torch.zeros_like(w) for w in weights]
        v = [torch.zeros_like(w) for w in weights]
        for t in range(1, self.steps + 1):
            weights = [w.detach().requires_grad_() for w in weights]
            loss = torch.zeros((), dtype=torch.float64)
            for x, reward, count in zip(self.xs, self.rewards, self.counts, strict=True):
                loss = loss + count * binary_cross_entropy_with_logits(self._network(x, weights), reward)
            for w in weights:
                loss = loss + self.lam * (w**2).sum()
            slopes = torch.autograd.grad(loss, weights)
            if self.optimizer == "gd":
                weights = [w - self.lr * slope for w, slope in zip(weights, slopes, strict=True)]
                continue
            # Kingma and Ba, Algorithm 1, with a learning rate that falls linearly
            for i, g in enumerate(slopes):
                m[i] = 0.9 * m[i] + 0.1 * g
                v[i] = 0.999 * v[i] + 0.001 * g * g
                m_hat, v_hat = m[i] / (1 - 0.9**t), v[i] / (1 - 0.999**t)
                weights[i] = weights[i] - self.lr * (self.steps - t + 1) / self.steps * m_hat / (
                    torch.sqrt(v_hat) + 1e-8
                )
        self.weights = [w.detach() for w in weights]
