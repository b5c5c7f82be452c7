"""Design matrices, one file a structure."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from nl_lightning.core.errors import InputError
from nl_lightning.core.imports import import_class
from nl_lightning.designs.adaptive import AdaptiveDesign
from nl_lightning.designs.base import DesignMatrix
from nl_lightning.designs.blocks import BlockDiagonalDesign
from nl_lightning.designs.diagonal import DiagonalDesign
from nl_lightning.designs.full import FullDesign

__all__ = [
    "DESIGNS",
    "AdaptiveDesign",
    "BlockDiagonalDesign",
    "DesignMatrix",
    "DiagonalDesign",
    "FullDesign",
    "design_class",
    "make_design",
]

DESIGNS: dict[str, type[DesignMatrix]] = {"diagonal": DiagonalDesign, "full": FullDesign}
"""The structures that have a name; any other is given by its class or import path."""


def design_class(design: str | type[DesignMatrix]) -> type[DesignMatrix]:
    """The class of a design given by its name, its import path, or itself."""
    if isinstance(design, str) and design in DESIGNS:
        return DESIGNS[design]
    found: type[DesignMatrix] = import_class(design, DesignMatrix, "design", DESIGNS)
    return found


def make_design(
    design: str | type[DesignMatrix],
    shapes: Sequence[tuple[int, int]],
    ridge: Tensor,
    blocks: int = 1,
    settings: Mapping[str, Any] | None = None,
) -> DesignMatrix:
    """The design matrix of a network with layers of these shapes."""
    kind = design_class(design)
    if settings is not None and not isinstance(settings, Mapping):
        raise InputError(f"design_args must be a mapping of the design's settings, got {settings!r}.")
    if kind is DiagonalDesign and blocks > 1:
        kind = BlockDiagonalDesign
    try:
        return kind(shapes, ridge, blocks, **(settings or {}))
    except TypeError as error:
        raise InputError(f"{kind.__name__} cannot be made with design_args {dict(settings or {})}: {error}.") from error
