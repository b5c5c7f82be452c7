import torch
from torch import Tensor

from nl_lightning.agents import radii
from nl_lightning.agents.base import NeuralAgent

__all__ = ["NeuralLogTS2"]


class NeuralLogTS2(NeuralAgent):
    """NeuralLog-TS-2, Thompson sampling on the design matrix of NeuralLog-UCB-2.

        W = sum mu'(f) g g^T + lam I,    d2 = logdet(R sum g g^T + I)
        score ~ N(f, (nu rho |g|_{W^-1})^2),    rho = (1 + S + S^2) (sqrt(d2) + 1 / sqrt(lam))

    Theory mode (phi = g(x; theta_0)/sqrt(m), W_t of NeuralLog-UCB-2):

        score ~ N(g(x; theta_0)^T (theta - theta_0), (nu2_t |phi|_{W_t^-1})^2)
    """

    name = "NeuralLog-TS-2"
    nu_scale = 0.02
    variance_weighted = True
    default_exploration = "thompson"

    def radius_terms(self) -> radii.Radius:
        return radii.neurallog_2(self.nu, self.lam, self.S)

    def theory_factor(self) -> Tensor:
        return torch.ones_like(self.kappa)
