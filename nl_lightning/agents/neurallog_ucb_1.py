from torch import Tensor

from nl_lightning.agents import radii
from nl_lightning.agents.base import NeuralAgent
from nl_lightning.core.link import SLOPE_BOUND

__all__ = ["NeuralLogUCB1"]


class NeuralLogUCB1(NeuralAgent):
    """NeuralLog-UCB-1 (the paper's Algorithm 1, as in its experiments).

        V = sum g g^T + kappa lam I,    d2 = logdet(R sum g g^T + I)
        score = mu(f) + nu R sqrt(kappa) rho |g|_{V^-1},    rho = (1 + S + S^2) (sqrt(d2) + 1 / sqrt(lam))

    Theory mode (Algorithm 1 as printed; phi = g(x; theta_0)/sqrt(m)):

        V_t = sum phi phi^T + kappa lam_t I,    score = mu(f) + R sqrt(kappa) nu1_t |phi|_{V_t^-1}
    """

    name = "NeuralLog-UCB-1"
    nu_scale = 0.003
    variance_weighted = False
    mean_is_probability = True

    def radius_terms(self) -> radii.Radius:
        return radii.neurallog_1(SLOPE_BOUND * self.nu, self.lam, self.kappa, self.S)

    def theory_factor(self) -> Tensor:
        return SLOPE_BOUND * self.kappa.sqrt()
