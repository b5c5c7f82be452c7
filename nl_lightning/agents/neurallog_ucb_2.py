import torch
from torch import Tensor

from nl_lightning.agents import radii
from nl_lightning.agents.base import NeuralAgent

__all__ = ["NeuralLogUCB2"]


class NeuralLogUCB2(NeuralAgent):
    """NeuralLog-UCB-2 (the paper's Algorithm 2, as in its experiments).

        W = sum mu'(f) g g^T + lam I,    d2 = logdet(R sum g g^T + I)
        score = f + nu rho |g|_{W^-1},    rho = (1 + S + S^2) (sqrt(d2) + 1 / sqrt(lam))

    Theory mode (Algorithm 2 as printed; phi = g(x; theta_0)/sqrt(m)):

        W_t = sum mu'(f) phi phi^T + lam_t I,    score = g(x; theta_0)^T (theta - theta_0) + nu2_t |phi|_{W_t^-1}
    """

    name = "NeuralLog-UCB-2"
    variance_weighted = True

    def radius_terms(self) -> radii.Radius:
        return radii.neurallog_2(self.nu, self.lam, self.S)

    def theory_factor(self) -> Tensor:
        return torch.ones_like(self.kappa)
