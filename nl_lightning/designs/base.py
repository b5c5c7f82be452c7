"""The design matrix M = ridge I + sum_i w_i g_i g_i^T of R replicas, as everybody else sees it.

Three verbs: ``norm``, ``add``, ``logdet``. Whoever calls a design never asks what kind it is. To bring a structure of
your own, subclass ``DesignMatrix``, define these three, and give an agent ``design="my_module.MyDesign"``.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from nl_lightning.core.errors import InputError
from nl_lightning.core.imports import as_new_as
from nl_lightning.core.types import Factors
from nl_lightning.models.inputs import dense

__all__ = ["DesignMatrix"]


class DesignMatrix(nn.Module, ABC):
    """M = ridge I + sum_i w_i g_i g_i^T of R replicas, over the factors of the gradients g.

    A gradient comes as the factors (delta_1, z_0, delta_2, z_1, ..., z_{L-1}) of its layers, each (R, N, features):
    layer l is the outer product delta_l (x) z_{l-1}, and delta_L = 1 is left out. ``gradient(factors)`` in
    ``nl_lightning.designs.samples`` turns them into whole gradients (R, N, p). Everything that is part of the state
    belongs in buffers whose first dimension is R, so that checkpoints and several devices know of it.

    Args:
        shapes: (out, in) of each layer of the network.
        ridge: (R,), the regularisation. A design computes in the precision of its ridge.
        blocks: number of blocks that arms (x, k) stand in; 1 where arms are vectors.
        settings: those of a subclass, given to an agent as ``design_args``.
    """

    supports_prefix: ClassVar[bool] = False
    """Whether ``prefix``, ``norm_at``, ``logdet_at`` and ``set_prefix`` exist, so that rounds can be looked ahead. A
    subclass that redefines ``prepare``, ``norm``, ``add`` or ``logdet`` must say so again, or rounds are played one by
    one."""
    supports_subset: ClassVar[bool] = False
    """Whether ``norm`` takes ``replicas``; to be said again by a subclass that redefines ``norm``."""

    def __init__(self, shapes: Sequence[tuple[int, int]], ridge: Tensor, blocks: int = 1, **settings: Any) -> None:
        super().__init__()
        if settings:
            raise InputError(
                f"{type(self).__name__} has no setting {', '.join(settings)}; leave it out of design_args."
            )
        self.shapes, self.blocks = list(shapes), blocks

    @property
    def factor_sizes(self) -> list[int]:
        """The numbers of each prepared factor (delta_1, z_0, ..., z_{L-1})."""
        *hidden, last = self.shapes
        return [*(size for shape in hidden for size in shape), last[1]]

    @property
    def parameters_count(self) -> int:
        """p"""
        return sum(n_out * n_in for n_out, n_in in self.shapes)

    @property
    def numbers_per_arm(self) -> int:
        """Numbers that ``norm`` holds for one arm, beside its factors: p where it needs whole gradients."""
        return self.parameters_count

    def prepare(self, factors: Factors, places: Factors) -> None:
        """Put what ``norm`` and ``add`` take into ``places``: the factors as they are, blocks as dense vectors."""
        arms = min(1, len(factors) - 1)
        for number, (factor, place) in enumerate(zip(factors, places, strict=True)):
            place.copy_(dense(factor, self.blocks) if number == arms else factor)

    @abstractmethod
    def norm(self, factors: Factors, replicas: Tensor | None = None) -> Tensor:
        """sqrt(g^T M^{-1} g), (R, N), of prepared factors, as a new tensor: the caller changes it in place.

        With ``replicas`` (indices) the factors belong to these replicas only; asked where ``supports_subset``.
        """

    @abstractmethod
    def add(self, factors: Factors, weight: Tensor, accepted: Tensor | None = None) -> None:
        """M += w g g^T for one sample per replica (N = 1), w (R, 1, 1).

        Factors are zero where ``accepted`` (R,) is False: adding them changes nothing.
        """

    def add_many(self, factors: Factors, weight: Tensor) -> None:
        """M += sum_i w_i g_i g_i^T for N samples per replica, w (R, N, 1). By default they are added one by one."""
        for sample in range(weight.shape[1]):
            one = slice(sample, sample + 1)
            self.add(tuple(factor[:, one] for factor in factors), weight[:, one])

    @abstractmethod
    def logdet(self) -> Tensor:
        """log det M, (R,), as a new tensor: the caller keeps it."""

    def reserve(self, count: int, fixed: bool) -> None:
        """Make room for ``count`` samples per replica; with ``fixed``, for no more until it is called again."""

    @property
    def can_look_ahead(self) -> bool:
        """Whether rounds with this design can be looked ahead."""
        return self.supports_prefix and as_new_as(self, "supports_prefix", "prepare", "norm", "add", "logdet")

    @property
    def can_take_subsets(self) -> bool:
        """Whether ``norm`` can be asked for some replicas only."""
        return self.supports_subset and as_new_as(self, "supports_subset", "norm")

    # ---- looking ahead: the states before each of several observations ----------------------------------------------

    def prefix(self, factors: Factors, weight: Tensor, replicas: Tensor | None = None) -> Tensor:
        """The states before each of C observations (R, C, features) and after the last, (R, C + 1, ...).

        w is (R, C, 1) or (R, 1, 1). With ``replicas`` (indices) everything belongs to these replicas only.
        """
        raise NotImplementedError

    def norm_at(self, states: Tensor, factors: Factors, index: Tensor | None = None) -> Tensor:
        """The norms (R, C, N) of factors (R, C, N, features), each round with its own state (R, C, ...).

        With ``index`` (R, C), a round has the state with that number among states (R, D, ...).
        """
        raise NotImplementedError

    def logdet_at(self, states: Tensor) -> Tensor:
        """log det M of states (R, C, ...), (R, C)"""
        raise NotImplementedError

    def set_prefix(self, state: Tensor) -> None:
        """Take on one of the states, (R, ...)."""
        raise NotImplementedError
