"""Slow twins of the diagnostics: scalar loops, numerical integrals, autograd a sample, dense determinants."""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.integrate import quad

from nl_lightning.models.mlp import MLP

Matrix = NDArray[np.float64]


def expectations(a: float, b: float, c: float) -> tuple[float, float]:
    """E relu(u) relu(v) and P(u >= 0, v >= 0) for (u, v) ~ N(0, [[a, c], [c, b]]): integrals over u of v given u."""
    spread = math.sqrt(max(b - c * c / a, 1e-30))

    def positive_part(u: float) -> float:
        mean = c / a * u
        return mean * cdf(mean / spread) + spread * pdf(mean / spread)

    def integral(of: Any) -> float:
        root = math.sqrt(a)
        return float(quad(lambda u: of(u) * pdf(u / root) / root, 0, 12 * root, epsabs=1e-12, epsrel=1e-11)[0])

    return integral(lambda u: u * positive_part(u)), integral(lambda u: cdf(c / a * u / spread))


def cdf(z: float) -> float:
    return math.erfc(-z / math.sqrt(2)) / 2


def pdf(z: float) -> float:
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def ntk(x: list[list[float]], depth: int) -> tuple[Matrix, Matrix, Matrix]:
    """H, H^(L) and Sigma^(L) by the paper's recursion, one pair after the other."""
    n = range(len(x))
    sigma = [[sum(p * q for p, q in zip(x[i], x[j], strict=True)) for j in n] for i in n]
    hat = [list(row) for row in sigma]
    for _ in range(depth - 1):
        pairs = [[expectations(sigma[i][i], sigma[j][j], sigma[i][j]) for j in n] for i in n]
        sigma = [[2 * pairs[i][j][0] for j in n] for i in n]
        hat = [[2 * hat[i][j] * pairs[i][j][1] + sigma[i][j] for j in n] for i in n]
    return (np.array(hat) + np.array(sigma)) / 2, np.array(hat), np.array(sigma)


def features(x: torch.Tensor, width: int, depth: int, seed: int, blocks_only: bool = False) -> Matrix:
    """phi = g(x'; theta_0)/sqrt(m), (N, p), by autograd of f = sqrt(m) W_L relu(...); all entries of the matrices are
    parameters, or only those of the two blocks."""
    weights = [w[0].detach().double().requires_grad_() for w in start(x.shape[1], width, depth, seed)]
    rows = []
    for context in x:
        z = torch.cat([context, context]) / math.sqrt(2)
        for weight in weights[:-1]:
            z = torch.relu(weight @ z)
        f = math.sqrt(width) * (weights[-1] @ z).squeeze()
        assert abs(f.item()) < 1e-12
        gradients = torch.autograd.grad(f, weights)
        kept = [g[w != 0] if blocks_only else g.flatten() for g, w in zip(gradients, weights, strict=True)]
        rows.append(torch.cat(kept) / math.sqrt(width))
    return torch.stack(rows).numpy()


def start(dim: int, width: int, depth: int, seed: int) -> tuple[torch.Tensor, ...]:
    return MLP([2 * dim, *[width] * (depth - 1), 1], [seed], "symmetric").weights


def logdet(matrix: Matrix) -> float:
    sign, value = np.linalg.slogdet(matrix)
    assert sign == 1
    return float(value)


def slope(f: float) -> float:
    return math.exp(-f) / (1 + math.exp(-f)) ** 2
