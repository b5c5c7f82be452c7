"""A slow, plain float64 twin of the four NeuralLog agents in theory mode, written from ALGORITHMS.md and the paper.

One replica, loops over samples, gradients at theta_0 by autograd, dense p x p matrices rebuilt from the stored features
at every call. Tests compare the fast implementation with it, so nothing here is shared with the package and nothing
here is clever. Notation: m width, L depth, t observed rounds, phi = g(x; theta_0)/sqrt(m), R = 1/4 >= mu'.
"""

from math import ceil, log, sqrt

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

NAMES = ("NeuralLog-UCB-1", "NeuralLog-UCB-2", "NeuralLog-TS-1", "NeuralLog-TS-2")
WEIGHTED = ("NeuralLog-UCB-2", "NeuralLog-TS-2")  # design matrix W, nu2 and a linear mean; the others use V and nu1
R = 0.25  # the upper bound of mu'


class TheoryTwin:
    """One agent: `observe` and `train_nn` change it, every other method only computes from what is stored."""

    def __init__(
        self,
        name: str,
        weights: list[Tensor],
        *,
        kappa: float,
        S: float,
        delta: float = 0.05,
        C1: float = 1.0,
        C4: float = 1.0,
        C5: float = 1.0,
        C6: float = 1.0,
        C7: float = 1.0,
        horizon: int | None = None,
        lr: float | None = None,
        steps: int | None = None,
    ) -> None:
        if name not in NAMES:
            raise ValueError(f"unknown agent: {name}")
        if len(weights) < 2 or weights[-1].shape[0] != 1 or weights[0].shape[1] % 2 != 0:
            raise ValueError("two layers or more, one output, and an even number of inputs (x is doubled)")
        self.name = name
        self.kappa, self.S, self.delta = kappa, S, delta
        self.C1, self.C4, self.C5, self.C6, self.C7 = C1, C4, C5, C6, C7
        self.horizon, self.lr, self.steps = horizon, lr, steps
        self.initial = [w.detach().clone().double() for w in weights]  # theta_0
        self.weights = [w.clone() for w in self.initial]  # theta_t
        self.m, self.L = self.initial[0].shape[0], len(self.initial)
        self.p = sum(w.numel() for w in self.initial)
        # lam_0 = 8 sqrt(2) C1 sqrt(L) log(4/delta) / S
        self.lam_0 = 8 * sqrt(2) * C1 * sqrt(self.L) * log(4 / delta) / S
        self.xs: list[Tensor] = []
        self.rewards: list[Tensor] = []
        self.phis: list[Tensor] = []  # phi_i = g(x_i; theta_0)/sqrt(m)
        self.slopes: list[Tensor] = []  # mu'(f(x_i; theta_i)), theta_i in force at the decision after round i
        self.lams: list[float] = [self.lam_0]  # lam_0, lam_1, ..., lam_t

    def _network(self, x: Tensor, weights: list[Tensor]) -> Tensor:
        """f(x; theta) = sqrt(m) W_L relu(W_{L-1} ... relu(W_1 x')), x' = [x, x]/sqrt(2): no biases."""
        x = x.detach().double()
        z = torch.cat([x, x]) / sqrt(2)
        for w in weights[:-1]:
            z = torch.relu(w @ z)  # torch takes the derivative of relu at 0 to be 0
        return sqrt(self.m) * (weights[-1] @ z)[0]

    def f(self, x: Tensor) -> Tensor:
        """f(x; theta_t) at the current weights, for one x (d,)."""
        return self._network(x, self.weights)

    def gradient_at_start(self, x: Tensor) -> Tensor:
        """g(x; theta_0) = grad_theta f at theta_0: W_1 row by row, then W_2, ... (p,), every entry of every W_l."""
        weights = [w.clone().requires_grad_() for w in self.initial]
        parts = torch.autograd.grad(self._network(x, weights), weights)
        return torch.cat([part.reshape(-1) for part in parts])

    def phi(self, x: Tensor) -> Tensor:
        """phi = g(x; theta_0)/sqrt(m) (p,)."""
        return self.gradient_at_start(x) / sqrt(self.m)

    def _log_term(self) -> float:
        """log(4 t^2/delta); at t = 0 the logarithm uses t = 1."""
        return log(4 * max(len(self.xs), 1) ** 2 / self.delta)

    def D(self) -> float:
        """D_t = logdet(sum_{i<=t} phi_i phi_i^T / (4 lam_0) + I)."""
        matrix = torch.eye(self.p, dtype=torch.float64)
        for phi in self.phis:
            matrix = matrix + torch.outer(phi, phi) / (4 * self.lam_0)
        return float(torch.linalg.slogdet(matrix).logabsdet)

    def lam(self) -> float:
        """lam_t <- max(64/S^2 D_t log(4t^2/delta) + 16 C1^2 L/(S^2 lam_0) log^2(4t^2/delta), lam_{t-1}).

        The paper has no max: it says lam_0 <= lam_1, but as printed the second term is lam_0/8 at t = 1.
        """
        return self.lams[-1]

    def iota(self) -> float:
        """iota_t = 16 sqrt(D_t log(4t^2/delta)) + 8 C1 sqrt(L/lam_0) log(4t^2/delta)."""
        ell = self._log_term()
        return 16 * sqrt(self.D() * ell) + 8 * self.C1 * sqrt(self.L / self.lam_0) * ell

    def nu(self) -> float:
        """nu1_t = C6 (1 + sqrt(L) S + L S^2) iota_t + 1, or nu2_t: the same with C7."""
        constant = self.C7 if self.name in WEIGHTED else self.C6
        return constant * (1 + sqrt(self.L) * self.S + self.L * self.S**2) * self.iota() + 1

    def design_matrix(self) -> Tensor:
        """V_t = sum_i phi_i phi_i^T + kappa lam_t I, or W_t = sum_i mu'(f(x_i; theta_i)) phi_i phi_i^T + lam_t I."""
        weighted = self.name in WEIGHTED
        matrix = (self.lam() if weighted else self.kappa * self.lam()) * torch.eye(self.p, dtype=torch.float64)
        for phi, slope in zip(self.phis, self.slopes, strict=True):
            matrix = matrix + (slope if weighted else 1.0) * torch.outer(phi, phi)
        return matrix

    def radius(self) -> float:
        """What |phi|_{M^-1} is multiplied by: UCB-1 R sqrt(kappa) nu1, TS-1 sqrt(kappa) nu1, UCB-2 and TS-2 nu2."""
        if self.name == "NeuralLog-UCB-1":
            return R * sqrt(self.kappa) * self.nu()
        if self.name == "NeuralLog-TS-1":
            return sqrt(self.kappa) * self.nu()
        return self.nu()

    def mean(self, arms: Tensor) -> Tensor:
        """UCB-1: mu(f(x; theta_t)); TS-1: f(x; theta_t); UCB-2 and TS-2: g(x; theta_0)^T (theta_t - theta_0)."""
        means = []
        for x in arms:
            if self.name == "NeuralLog-UCB-1":
                means.append(torch.sigmoid(self.f(x)))
            elif self.name == "NeuralLog-TS-1":
                means.append(self.f(x))
            else:
                now = torch.cat([w.reshape(-1) for w in self.weights])
                start = torch.cat([w.reshape(-1) for w in self.initial])
                means.append(self.gradient_at_start(x) @ (now - start))
        return torch.stack(means)

    def bonus(self, arms: Tensor) -> Tensor:
        """radius * |phi|_{M^-1}, |phi|_{M^-1} = sqrt(phi^T M^{-1} phi); the standard deviation for the TS agents."""
        matrix, radius = self.design_matrix(), self.radius()
        widths = []
        for x in arms:
            phi = self.phi(x)
            widths.append(radius * torch.sqrt(phi @ torch.linalg.solve(matrix, phi)))
        return torch.stack(widths)

    def _slope(self, x: Tensor) -> Tensor:
        """mu'(f(x; theta_t)) = mu(f) mu(-f) at the current weights."""
        f = self.f(x)
        return torch.sigmoid(f) * torch.sigmoid(-f)

    def observe(self, x: Tensor, reward: float | Tensor) -> None:
        """Round t: store x, r, phi and mu'(f) at the weights of this moment, then lam_t from the t rounds."""
        self.xs.append(x.detach().clone().double())
        self.rewards.append(torch.tensor(float(reward), dtype=torch.float64))
        self.phis.append(self.phi(x))
        self.slopes.append(self._slope(x))
        ell = self._log_term()
        first = 64 / self.S**2 * self.D() * ell
        second = 16 * self.C1**2 * self.L / (self.S**2 * self.lam_0) * ell**2
        self.lams.append(max(first + second, self.lams[-1]))

    def step_size(self) -> float:
        """`lr`, or the Condition's C5 / (m T L + m lam_t)."""
        if self.lr is not None:
            return self.lr
        if self.horizon is None:
            raise ValueError("the step size of the Condition needs a horizon")
        return self.C5 / (self.m * self.horizon * self.L + self.m * self.lam())

    def number_of_steps(self) -> int:
        """`steps`, or the Condition's J = ceil(2 log((sqrt(T) lam_t + C4 T^1.5 L)/(lam_t S)) T L/lam_t), at least 1.

        The paper prints the fraction in the logarithm upside down, which makes J negative.
        """
        if self.steps is not None:
            return self.steps
        if self.horizon is None:
            raise ValueError("the number of steps of the Condition needs a horizon")
        T, lam = self.horizon, self.lam()
        ratio = (sqrt(T) * lam + self.C4 * T**1.5 * self.L) / (lam * self.S)
        return max(1, ceil(2 * log(ratio) * T * self.L / lam))

    def train_nn(self) -> None:
        """From theta_0, J times theta <- theta - eta grad(sum_i BCE(f(x_i), r_i) + m lam_t/2 |theta - theta_0|^2).

        The subroutine is printed with J - 1 steps, its proof takes J. Then mu' of the last observed round is
        taken at the new theta_t; earlier rounds keep theirs.
        """
        lam, eta = self.lam(), self.step_size()
        weights = [w.clone() for w in self.initial]
        for _ in range(self.number_of_steps()):
            weights = [w.detach().requires_grad_() for w in weights]
            loss = torch.zeros((), dtype=torch.float64)
            for x, reward in zip(self.xs, self.rewards, strict=True):
                loss = loss + binary_cross_entropy_with_logits(self._network(x, weights), reward)
            for w, start in zip(weights, self.initial, strict=True):
                loss = loss + self.m * lam / 2 * ((w - start) ** 2).sum()
            slopes = torch.autograd.grad(loss, weights)
            weights = [w - eta * slope for w, slope in zip(weights, slopes, strict=True)]
        self.weights = [w.detach() for w in weights]
        if self.xs:
            self.slopes[-1] = self._slope(self.xs[-1])
