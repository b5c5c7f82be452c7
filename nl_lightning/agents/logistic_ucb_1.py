from nl_lightning.agents import radii
from nl_lightning.agents.base import LinearAgent

__all__ = ["LogisticUCB1"]


class LogisticUCB1(LinearAgent):
    """Logistic-UCB-1 (Faury et al. 2020).

    A linear baseline with a bonus on the probability of a click:

        V = sum x x^T + kappa lam I,    d2 = logdet(R sum x x^T + I)
        score = mu(f) + nu R sqrt(kappa) (1 + 2S) (S sqrt(lam) + d2 / sqrt(lam)) |x|_{V^-1}
    """

    name = "Logistic-UCB-1"
    nu_scale = 0.015
    variance_weighted = False
    mean_is_probability = True

    def radius_terms(self) -> radii.Radius:
        return radii.logistic_ucb_1(self.nu, self.lam, self.kappa, self.S)
