"""What is asked of ``python -m replay power``: the spread of two policies of which only their agreement is known.

Nothing here loads torch.
"""

from nl_lightning.core.errors import InputError
from nl_lightning.core.power import Spread

__all__ = ["agreement_spread", "check_share", "relative_effect"]


def agreement_spread(ctr: float, mean_inverse_propensity: float, agreement: float) -> Spread:
    """The spread of two deterministic policies that choose the same action in a share of the events.

    Where they differ, each is met with a chance p, and then |d| = 1/p: s2 = 2 (1 - agreement) ctr E[1/p] and
    b = 2 E[1/p^2]. E[1/p] is that over the actions of policies that choose as the log does, its mean of 1/p. The mean
    of 1/p^2 is not known from it; its lower bound E[1/p]^2 is taken, which is exact for uniform logs.
    """
    check_share("--agreement", agreement)
    return Spread(2 * (1 - agreement) * ctr * mean_inverse_propensity, 2 * mean_inverse_propensity**2)


def relative_effect(text: str | float) -> float:
    """A share such as ``10%`` or ``0.1``."""
    given = str(text).strip()
    try:
        value = float(given.removesuffix("%")) / (100 if given.endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise InputError(f"--effect must be a relative difference above 0, like 10% or 0.1; got {text!r}.")
    return value


def check_share(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise InputError(f"{name} must be at least 0 and below 1; got {value:g}.")
