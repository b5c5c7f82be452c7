from nl_lightning.agents import radii
from nl_lightning.agents.base import LinearAgent

__all__ = ["AdaOFUECOLog"]


class AdaOFUECOLog(LinearAgent):
    """ada-OFU-ECOLog (Faury et al. 2022).

    A linear baseline that weights observations with their variance:

        W = sum mu'(f) x x^T + lam I,    d2 = logdet(R sum x x^T + I)
        score = f + nu S (sqrt(d2) + sqrt(lam)) |x|_{W^-1}
    """

    name = "ada-OFU-ECOLog"
    nu_scale = 0.45
    variance_weighted = True

    def radius_terms(self) -> radii.Radius:
        return radii.ada_ofu_ecolog(self.nu, self.lam, self.S)
