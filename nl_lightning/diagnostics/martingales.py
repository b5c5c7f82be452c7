"""Simulated self-normalised martingales and three tail inequalities: the paper's, Faury's and Verma's.

    s_t = sum_{i<=t} x_i eta_i,    H_t = sum_{i<=t} mu'(x_i^T theta*) x_i x_i^T + lam I,    eta = r - mu(x^T theta*)

Clicks r are Bernoulli, so that |eta| <= M = 1 and eta has the variance mu'(x^T theta*); |x| <= N = 1, theta* = S e_1.
Runs, n of them, are the leading dimension of every tensor; everything is float64.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from nl_lightning.core.link import SLOPE_BOUND, mu, slope
from nl_lightning.core.rng import Stream, generator

__all__ = [
    "DESIGNS",
    "Design",
    "MartingalePaths",
    "MartingaleSetting",
    "bounds",
    "faury",
    "logdets",
    "paper",
    "simulate",
    "verma",
]

# ---- bounds on |s_t|_{H_t^-1}, elementwise in the logarithms of determinants -----------------------------------------


def paper(logdet: Tensor, t: Tensor, lam: float, delta: float, M: float = 1.0, N: float = 1.0) -> Tensor:
    """8 sqrt(D_t log(4t^2/delta)) + 4MN/sqrt(lam) log(4t^2/delta), Theorem 1, for all t at once.

    D_t = log(det H_t / det lam I), or in its second, weaker form log det(sum R/lam x x^T + I) with R = 1/4 >= mu'.

    The proof applies Freedman's inequality, where v and the bound on |l_i| are constants, with v = 8 beta_t^2 D_t and
    |l_i| <= 2MN/sqrt(lam) beta_t. These are constants given all x; where x_t depends on past noise they are random.
    """
    log = math.log(4 / delta) + 2 * t.to(logdet.dtype).log()
    return 8 * (logdet * log).sqrt() + 4 * M * N / math.sqrt(lam) * log


def faury(logdet: Tensor, d: int, lam: float, delta: float, M: float = 1.0, N: float = 1.0) -> Tensor:
    """2MN/sqrt(lam) (log(det H_t / (delta det lam I)) + d log 2) + sqrt(lam)/(2MN), as the paper prints it.

    Faury et al. (2020) prove more: with the root of det H_t / det lam I, which is this function of ``logdet / 2``.
    They state it for M = N = 1; eta/M, x/N and lam/(MN)^2 leave the norm and the quotient as they are and give this.
    """
    c = 2 * M * N / math.sqrt(lam)
    return c * (logdet - math.log(delta) + d * math.log(2)) + 1 / c


def verma(logdet: Tensor, kappa: float, delta: float, M: float = 1.0) -> Tensor:
    """M sqrt(kappa log(det V_t / det kappa lam I) + 2 kappa log(1/delta)),    V_t = sum x x^T + kappa lam I

    |s_t|_{H_t^-1} <= sqrt(kappa) |s_t|_{V_t^-1}, and |eta| <= M makes eta M-sub-Gaussian. (For clicks half of this
    bound would do: their eta has a range of length 1 and is 1/2-sub-Gaussian.)
    """
    return M * (kappa * logdet - 2 * kappa * math.log(delta)).sqrt()


# ---- designs: x_t (n, k) from t, standard normal numbers (n, k) and y = H_{t-1}^-1 s_{t-1} (n, k) --------------------


def _sphere(t: int, normal: Tensor, y: Tensor) -> Tensor:
    return normalize(normal, dim=-1)


def _axes(t: int, normal: Tensor, y: Tensor) -> Tensor:
    return torch.eye(normal.shape[-1], dtype=normal.dtype)[t % normal.shape[-1]].expand_as(normal)


def _aligned(t: int, normal: Tensor, y: Tensor) -> Tensor:
    """x = 0.95 e_1 + sqrt(1 - 0.95^2) u,    u uniform on the sphere orthogonal to e_1"""
    u = normalize(normal[:, 1:], dim=-1)
    return torch.cat((torch.full_like(normal[:, :1], 0.95), math.sqrt(1 - 0.95**2) * u), dim=-1)


def _adversarial(t: int, normal: Tensor, y: Tensor) -> Tensor:
    """x uniform on the sphere orthogonal to y. With Z_t = |s_t|_{H_t^-1} and h = x^T H_{t-1}^-1 x,

        E[Z_t^2 | past] = Z_{t-1}^2 + mu' (h - (x^T y)^2) / (1 + mu' h)

    so that Z grows at every step, while x along y would make it shrink. In one dimension nothing is orthogonal to y.
    """
    along = normalize(y, dim=-1) if normal.shape[-1] > 1 else torch.zeros_like(y)
    return normalize(normal - (normal * along).sum(-1, keepdim=True) * along, dim=-1)


class Design(NamedTuple):
    """How x_t is chosen."""

    x: Callable[[int, Tensor, Tensor], Tensor]
    text: str
    rank: int | None = None
    """k, if it is not d: in dimensions where all x are 0, H_t stays lam I and s_t stays 0, so these are left out"""


DESIGNS = {
    "sphere": Design(_sphere, "uniform on the unit sphere"),
    "axes": Design(_axes, "the unit vectors in turn"),
    "low-rank": Design(_sphere, "uniform on the unit circle of one plane, with theta* in it", rank=2),
    "aligned": Design(_aligned, "near the direction of theta*, where variances are smallest"),
    "adversarial": Design(_adversarial, "orthogonal to H^-1 s, so that no step makes past noise count less"),
}

# ---- the simulation --------------------------------------------------------------------------------------------------


class MartingaleSetting(NamedTuple):
    """What is simulated, with the lam and delta of the bounds."""

    design: str
    d: int
    S: float
    rounds: int
    runs: int
    lam: float
    delta: float
    seed: int

    @property
    def kappa(self) -> float:
        """1 / min mu'(x^T theta) over |x| <= 1, |theta| = S"""
        return 1 / float(slope(torch.tensor(self.S, dtype=torch.float64)))

    @property
    def k(self) -> int:
        """The dimension of the space in which x_t moves."""
        return min(self.d, DESIGNS[self.design].rank or self.d)


class MartingalePaths(NamedTuple):
    """Measurements of every run at t = 1, ..., T, (T, n) each."""

    norm: Tensor  # |s_t|_{H_t^-1}
    logdet_H: Tensor  # log(det H_t / det lam I)
    logdet_R: Tensor  # log det(sum R/lam x x^T + I), R = 1/4
    logdet_V: Tensor  # log(det V_t / det kappa lam I)


def simulate(setting: MartingaleSetting, tick: Callable[[], object] = lambda: None) -> MartingalePaths:
    """Simulate all runs together; ``tick`` is called after every round. By the matrix inversion and determinant lemmas

        u = H_{t-1}^-1 x,    H_t^-1 = H_{t-1}^-1 - mu' u u^T / (1 + mu' x^T u),    log det H_t += log(1 + mu' x^T u)
        y_t = H_t^-1 s_t = y_{t-1} + u (eta - mu' x^T y_{t-1}) / (1 + mu' x^T u),    |s_t|^2_{H_t^-1} = s_t^T y_t

    Random numbers depend on the seed, the design and d: settings that differ in S share them.
    """
    design, rounds, runs, k = DESIGNS[setting.design], setting.rounds, setting.runs, setting.k
    numbers = generator(setting.seed, Stream.ROUNDS, list(DESIGNS).index(setting.design), setting.d)
    double: dict[str, Any] = {"dtype": torch.float64}
    inverse = (torch.eye(k, **double) / setting.lam).repeat(runs, 1, 1)
    s, y = torch.zeros(2, runs, k, **double)
    X = torch.empty(rounds, runs, k, **double)
    norm, growth = torch.empty(2, rounds, runs, **double)
    for t in range(rounds):
        x = X[t] = design.x(t, torch.randn(runs, k, generator=numbers, **double), y)
        f = setting.S * x[:, 0]
        p, variance = mu(f), slope(f)
        eta = (torch.rand(runs, generator=numbers, **double) < p).double() - p
        u = (inverse @ x[:, :, None]).squeeze(-1)
        growth[t] = variance * (u * x).sum(-1)
        y += u * ((eta - variance * (x * y).sum(-1)) / (1 + growth[t]))[:, None]
        inverse.addcmul_((u * (variance / (1 + growth[t]))[:, None])[:, :, None], u[:, None, :], value=-1)
        s += eta[:, None] * x
        norm[t] = (s * y).sum(-1).clamp_min(0).sqrt()  # s^T y >= 0 but for rounding
        tick()
    logdet_R, logdet_V = (logdets(X, ridge * setting.lam) for ridge in (1 / SLOPE_BOUND, setting.kappa))
    return MartingalePaths(norm, growth.log1p().cumsum(dim=0), logdet_R, logdet_V)


def logdets(x: Tensor, ridge: float) -> Tensor:
    """log det(I + sum_{i<=t} x_i x_i^T / ridge) at every t, (T, n), of x (T, n, k), some rounds at once.

    With A before some rounds and X = (x_1, ..., x_b)^T, the leading minors of I + X A^-1 X^T = L L^T are what the
    determinant has grown by after each of them, and (A + X^T X)^-1 = A^-1 - W^T W with W = L^-1 X A^-1.
    """
    inverse = (torch.eye(x.shape[-1], dtype=x.dtype) / ridge).repeat(x.shape[1], 1, 1)
    steps = []
    for X in x.transpose(0, 1).split(16, dim=1):
        XA = X @ inverse
        L = torch.linalg.cholesky(torch.eye(X.shape[1], dtype=x.dtype) + XA @ X.mT)
        W = torch.linalg.solve_triangular(L, XA, upper=False)
        inverse.baddbmm_(W.mT, W, alpha=-1)
        steps.append(2 * L.diagonal(dim1=1, dim2=2).log())
    return torch.cat(steps, dim=1).cumsum(dim=1).T


def bounds(paths: MartingalePaths, setting: MartingaleSetting) -> dict[str, Tensor]:
    """Every bound on ``paths.norm``, (T, n)."""
    lam, delta, d = setting.lam, setting.delta, setting.d
    t = torch.arange(1, len(paths.norm) + 1)[:, None]
    return {
        "paper": paper(paths.logdet_H, t, lam, delta),
        "paper_R": paper(paths.logdet_R, t, lam, delta),
        "faury": faury(paths.logdet_H, d, lam, delta),
        "faury_original": faury(paths.logdet_H / 2, d, lam, delta),
        "verma": verma(paths.logdet_V, setting.kappa, delta),
    }
