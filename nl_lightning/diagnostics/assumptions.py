"""What the theory assumes about a problem and a network, in numbers: pure functions in float64.

N contexts x (N, d), of which the network sees x' = [x, x]/sqrt(2): it has the inner products of x, so that its neural
tangent kernel (NTK) is that of x. At the paper's symmetric start theta_0 the features of a context are

    phi(x) = g(x; theta_0)/sqrt(m),   g = grad_theta f,   f = sqrt(m) W_L relu(... relu(W_1 x')),

the gradient of a network without the factor sqrt(m). What grows like exp(|h|) is handed out as its logarithm.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

from nl_lightning.agents.radii import TheoryRadius
from nl_lightning.agents.theory import doubled
from nl_lightning.core.errors import InputError
from nl_lightning.core.link import SLOPE_BOUND
from nl_lightning.designs.samples import inner
from nl_lightning.models.mlp import MLP

__all__ = [
    "Diagnosis",
    "Kernels",
    "Problem",
    "diagnose",
    "gram",
    "log10_width",
    "log_determinants",
    "log_inverse_slope",
    "log_kappa_star",
    "log_kappa_within",
    "ntk",
    "parallel_pairs",
    "rank",
    "smallest_S",
]

_PARALLEL = 1e-12
"""Contexts are parallel where 1 - |cos| is below this: angles below 1e-6."""


class Kernels(NamedTuple):
    """The NTK of N contexts, (N, N) each."""

    printed: Tensor
    """H = (H^(L) + Sigma^(L))/2, as the paper defines it"""
    limit: Tensor
    """H^(L) = 2H - Sigma^(L), the limit of phi . phi' in a wide network"""


def ntk(x: Tensor, depth: int) -> Kernels:
    """The NTK of contexts (N, d) for L layers, the paper's Definition C.1.

        Sigma^(1) = H^(1) = <x, x'>
        Sigma^(l+1) = 2 E relu(u) relu(v)                     = sqrt(Sigma_ii Sigma_jj) (sin t + (pi - t) cos t)/pi
        H^(l+1) = 2 H^(l) E [u >= 0][v >= 0] + Sigma^(l+1)    = H^(l) (pi - t)/pi + Sigma^(l+1)

    over (u, v) ~ N(0, [[Sigma_ii, Sigma_ij], [Sigma_ij, Sigma_jj]]) of layer l (printed with Sigma_ij four times), with
    cos t = Sigma_ij / sqrt(Sigma_ii Sigma_jj). So Sigma_ii = |x_i|^2 in every layer, and the recursion is one of cos t
    and H^(l)_ij / (|x_i| |x_j|).

    The paper's network does not come to its H. Layer l adds (delta_l . delta_l')(z_{l-1} . z_{l-1}') to phi . phi', and
    with blocks of m/2 units, W ~ N(0, 4/m) and w ~ N(0, 2/m),

        z_{l-1} . z_{l-1}' -> Sigma^(l),   delta_l . delta_l' -> prod_{k=l}^{L-1} (pi - t_k)/pi:   phi . phi' -> H^(L).

    H would be the limit for w ~ N(0, 1/m), or if only the two blocks of a W_l were parameters and not the zeros beside
    them: both halve what all layers but the last add. As H <= H^(L) <= 2H, a bound with H^-1 holds for the network too.
    """
    norms = x.norm(dim=1)
    unit = normalize(x, dim=1)
    # arccos near 1 halves the digits, so values that are known to be 1 are set to 1
    cosine = (unit @ unit.mT).clamp_(-1, 1).fill_diagonal_(1)
    kernel = cosine.clone()
    for _ in range(depth - 1):
        angle = cosine.arccos()
        kernel *= (math.pi - angle) / math.pi
        cosine = (angle.sin() + (math.pi - angle) * cosine).div_(math.pi).clamp_(-1, 1)
        kernel += cosine
    scale = norms.unsqueeze(1) * norms
    return Kernels(printed=(kernel + cosine).mul_(scale / 2), limit=kernel.mul_(scale))


def gram(x: Tensor, width: int, depth: int, seed: int) -> Tensor:
    """phi . phi' of contexts (N, d) in the network of this width and seed, (N, N)"""
    network = MLP([2 * x.shape[1], *[width] * (depth - 1), 1], [seed], "symmetric").double()
    with torch.no_grad():
        _, factors = network.factors(doubled(x).unsqueeze(0))
    return inner(factors, factors).squeeze(0)


def rank(eigenvalues: Tensor) -> int:
    """The number of eigenvalues (N,) of a positive semidefinite matrix that exceed rounding errors."""
    return int((eigenvalues > len(eigenvalues) * torch.finfo(eigenvalues.dtype).eps * eigenvalues.max()).sum())


def parallel_pairs(x: Tensor) -> int:
    """The number of pairs of contexts (N, d) on one line through 0; zero vectors do not count."""
    unit = normalize(x, dim=1)
    return int(((unit @ unit.mT).abs_().triu_(1) > 1 - _PARALLEL).sum())


def log_determinants(matrix: Tensor, scale: float) -> Tensor:
    """log det(I + scale M_n) of the leading blocks M_n of M (N, N), n = 1, ..., N: (N,)

    A leading block's Cholesky factor is the leading block of the factor, so one factorisation gives all. M is a Gram
    matrix: log det(I + c sum phi phi^T) = log det(I + c Phi Phi^T), Phi (N, p), whose right side needs no p x p matrix.
    """
    shifted = matrix * scale
    shifted.diagonal().add_(1)
    lower, failed = torch.linalg.cholesky_ex(shifted)
    if failed:
        raise InputError(f"I is lost in rounding beside {scale:.3g} H: take a larger lam or kappa, or a smaller S.")
    return 2 * lower.diagonal().log().cumsum(0)


def smallest_S(H: Tensor, h: Tensor) -> float:
    """S_min = sqrt(2 h^T H^-1 h) of H (N, N), not singular, and h (N,): |L^-1 h|^2 = h^T H^-1 h for H = L L^T"""
    solved = torch.linalg.solve_triangular(torch.linalg.cholesky(H), h.unsqueeze(1), upper=False)
    return math.sqrt(2) * float(solved.norm())


def log_inverse_slope(f: Tensor) -> Tensor:
    """log(1/mu'(f)) = -log mu(f) - log mu(-f), about |f| for large |f|"""
    return -logsigmoid(f) - logsigmoid(-f)


def log_kappa_within(S: float, phi: float) -> float:
    """log(1/min mu'(g^T(theta - theta_0))) over sqrt(m) |theta - theta_0| <= S, for the largest |phi|: Assumption 6.3

    g^T(theta - theta_0) reaches S |phi|, where theta - theta_0 is along phi.
    """
    return float(log_inverse_slope(torch.tensor(S * phi, dtype=torch.float64)))


def log_kappa_star(h: Tensor) -> float:
    """log kappa* of h (T, K):  1/kappa* = (1/T) sum_t mu'(h(x_t*)),  x_t* = argmax h"""
    return math.log(len(h)) - float((-log_inverse_slope(h.amax(1))).logsumexp(0))


def log10_width(rounds: int, arms: int, depth: int, delta: float, lam_0: float, lam_H: float) -> float:
    """log10 of the smallest width m that the paper's Condition C.2 allows, with C0 = 1.

        m >= T^4 K^4 L^6 log(T^2 K^2 L/delta)/lam_H^4    (printed there: times lam_H^4; Lemma 6.1 divides)
        m/(log m)^3 >= T^7 L^21/lam_0 + T^16 L^27 R^6/lam_0^7 + T^10 L^21 R^6/lam_0^4 + T^7 L^18/lam_0^4

    Of the second line the largest summand is taken. (A third line asks for next to nothing.)
    """
    if lam_H <= 0:
        return math.inf
    T, K, L, l_0, R = (math.log10(value) for value in (rounds, arms, depth, lam_0, SLOPE_BOUND))
    logarithm = math.log10(math.log(rounds**2 * arms**2 * depth / delta))
    return max(
        4 * T + 4 * K + 6 * L + logarithm - 4 * math.log10(lam_H),
        7 * T + 21 * L - l_0,
        16 * T + 27 * L + 6 * R - 7 * l_0,
        10 * T + 21 * L + 6 * R - 4 * l_0,
        7 * T + 18 * L - 4 * l_0,
    )


@dataclass(frozen=True)
class Problem:
    """The contexts of some rounds, and the settings of an agent."""

    x: Tensor
    """(T, K, d)"""
    h: Tensor | None
    """(T, K); None if it is not known"""
    width: int
    depth: int
    seed: int
    lam: float
    kappa: float
    S: float
    delta: float
    C1: float

    @property
    def lam_0(self) -> float:
        S = torch.tensor(self.S, dtype=torch.float64)
        return float(TheoryRadius(S, self.depth, self.delta, self.C1, C=1.0).lam_0)


@dataclass(frozen=True)
class Diagnosis:
    """What was found at N = T K contexts, D of them distinct."""

    contexts: int
    distinct: int
    norm_low: float
    norm_high: float
    parallel: int
    """pairs of distinct contexts"""
    lam_H: float
    """smallest eigenvalue of H over the distinct contexts, 0 if it is within rounding errors"""
    S_min: float | None
    """infinite if lam_H is 0; None if h is not known, as for the next two"""
    log_kappa_seen: float | None
    """of 1/min mu'(h(x)) over the contexts"""
    log_kappa_star: float | None
    log_kappa_formal: float
    phi: float
    """largest |phi|"""
    rank: int
    """dimensions that phi spans"""
    distance: float
    """|phi . phi' - H^(L)| / |H^(L)|, Frobenius norms: how far the network is from infinite width"""
    log10_width: float
    ntk: Tensor
    """(D,), the eigenvalues of H, descending"""
    network: Tensor
    """(D,), those of phi . phi'"""
    dimensions: dict[str, Tensor]
    """effective dimensions of the first 1, ..., T rounds, (T,) each"""


def diagnose(problem: Problem, tell: Callable[[str], None] = lambda step: None) -> Diagnosis:
    """Diagnose a problem. ``tell`` is called with the name of each of four steps before it is taken."""
    rounds, arms = problem.x.shape[:2]
    x, place = problem.x.flatten(0, 1).unique(dim=0, return_inverse=True)
    norms = x.norm(dim=1)
    tell("kernels")
    H, limit = ntk(x, problem.depth)
    network = gram(x, problem.width, problem.depth, problem.seed)
    phi = float(network.diagonal().max().sqrt())
    tell("eigenvalues of the NTK")
    eigenvalues = torch.linalg.eigvalsh(H)
    lam_H = float(eigenvalues[0]) if rank(eigenvalues) == len(x) else 0.0
    tell("eigenvalues of the network")
    of_network = torch.linalg.eigvalsh(network)
    tell("effective dimensions")
    dimensions = _dimensions(problem, H, network, place)
    S_min = log_seen = log_star = None
    if problem.h is not None:
        log_seen, log_star = float(log_inverse_slope(problem.h).max()), log_kappa_star(problem.h)
        h = x.new_empty(len(x)).scatter_(0, place, problem.h.flatten())
        S_min = smallest_S(H, h) if lam_H else math.inf
    return Diagnosis(
        contexts=rounds * arms,
        distinct=len(x),
        norm_low=float(norms.min()),
        norm_high=float(norms.max()),
        parallel=parallel_pairs(x),
        lam_H=lam_H,
        S_min=S_min,
        log_kappa_seen=log_seen,
        log_kappa_star=log_star,
        log_kappa_formal=log_kappa_within(problem.S, phi),
        phi=phi,
        rank=rank(of_network),
        distance=float((network - limit).norm() / limit.norm()),
        log10_width=log10_width(rounds, arms, problem.depth, problem.delta, problem.lam_0, lam_H),
        ntk=eigenvalues.flip(0),
        network=of_network.flip(0),
        dimensions=dimensions,
    )


def _dimensions(problem: Problem, H: Tensor, network: Tensor, place: Tensor) -> dict[str, Tensor]:
    """The effective dimensions that the paper names; H~ = sum phi phi^T over the contexts of t rounds, H their NTK.

        paper (Definition 4.3)   log det(R/lam_0 H~ + I)
        Zhou et al. 2020         log det(H/lam + I) / log(1 + tK/lam)
        Verma et al. 2025        log det(H~/(kappa lam) + I)

    A context counts as often as it comes: ``place`` (N,) says which of the distinct ones each is.
    """
    arms = problem.x.shape[1]
    contexts = torch.arange(arms, len(place) + 1, arms)

    def after_each_round(matrix: Tensor, scale: float) -> Tensor:
        return log_determinants(matrix[place.unsqueeze(1), place], scale)[contexts - 1]

    return {
        "paper": after_each_round(network, SLOPE_BOUND / problem.lam_0),
        "zhou": after_each_round(H, 1 / problem.lam) / (contexts.double() / problem.lam).log1p(),
        "verma": after_each_round(network, 1 / (problem.kappa * problem.lam)),
    }
