from torch import Tensor

from nl_lightning.agents import radii
from nl_lightning.agents.base import NeuralAgent

__all__ = ["NCBFUCB"]


class NCBFUCB(NeuralAgent):
    """NCBF-UCB (Verma et al. 2025).

    A neural baseline whose radius grows with kappa:

        V = sum g g^T + kappa lam I,    d1 = logdet(sum g g^T / kappa + I)
        score = f + nu (kappa sqrt(d1) + S sqrt(kappa lam)) |g|_{V^-1}
    """

    name = "NCBF-UCB"
    nu_scale = 0.2
    variance_weighted = False

    def observation_weight(self) -> Tensor:
        return 1 / self.kappa

    def radius_terms(self) -> radii.Radius:
        return radii.ncbf_ucb(self.nu, self.lam, self.kappa, self.S)
