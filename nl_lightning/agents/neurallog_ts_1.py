from torch import Tensor

from nl_lightning.agents import radii
from nl_lightning.agents.base import NeuralAgent

__all__ = ["NeuralLogTS1"]


class NeuralLogTS1(NeuralAgent):
    """NeuralLog-TS-1, Thompson sampling on the design matrix of NeuralLog-UCB-1.

        V = sum g g^T + kappa lam I,    d2 = logdet(R sum g g^T + I)
        score ~ N(f, (nu sqrt(kappa) rho |g|_{V^-1})^2),    rho = (1 + S + S^2) (sqrt(d2) + 1 / sqrt(lam))

    Theory mode (phi = g(x; theta_0)/sqrt(m), V_t of NeuralLog-UCB-1):

        score ~ N(f, (sqrt(kappa) nu1_t |phi|_{V_t^-1})^2)
    (The paper's appendix has nu1_T, of the last round, for nu1_t: one cannot know it before.)
    """

    name = "NeuralLog-TS-1"
    nu_scale = 0.04
    variance_weighted = False
    default_exploration = "thompson"

    def radius_terms(self) -> radii.Radius:
        return radii.neurallog_1(self.nu, self.lam, self.kappa, self.S)

    def theory_factor(self) -> Tensor:
        return self.kappa.sqrt()
