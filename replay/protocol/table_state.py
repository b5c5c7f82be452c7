"""Settings and stored state of ``TableFeatures``: what they may be, and what is wrong with damaged ones."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, get_args

import torch
from torch import Tensor

from nl_lightning.core.arguments import suggest
from nl_lightning.core.errors import InputError
from nl_lightning.core.whole import is_whole
from replay.logs.schema import Schema
from replay.protocol.one_hot import width
from replay.protocol.scaling import FEW_VALUES, Numeric

__all__ = ["DEFAULTS", "STATE_NAMES", "check_settings", "state_faults"]

DEFAULTS: dict[str, Any] = {"numeric": "standard", "max_categories": 256, "components": 16, "products": False}
"""The settings, and what they are by default."""


def check_settings(given: Mapping[str, Any], source: str = "features") -> dict[str, Any]:
    """All settings, given some of them."""
    for name in given:
        if name not in DEFAULTS:
            hint = suggest(str(name), DEFAULTS)
            raise InputError(
                f"{source}: there is no setting {name!r:.60}.{hint} The settings are {', '.join(DEFAULTS)}."
            )
    settings = {**DEFAULTS, **given}
    if settings["numeric"] not in get_args(Numeric):
        raise InputError(
            f"{source}: numeric must be one of {', '.join(get_args(Numeric))}; got {settings['numeric']!r:.60}."
        )
    for name in ("max_categories", "components"):
        if not is_whole(settings[name], 1):
            raise InputError(f"{source}: {name} must be a whole number of at least 1, got {settings[name]!r:.60}.")
    if not isinstance(settings["products"], bool):
        raise InputError(f"{source}: products must be true or false, got {settings['products']!r:.60}.")
    return settings


STATE_NAMES = (
    "schema", "settings", "actions", "categories", "values", "context", "shift", "factor", "indicators", "action",
    "pair_shift", "pair_factor", "small_pairs", "items_digest",
)  # fmt: skip


def state_faults(state: Any) -> Iterator[tuple[str, str, str]]:
    """What is wrong with the state of features: a name, what was expected, what was found."""
    if not isinstance(state, dict):
        yield "their state", "a dictionary", type(state).__name__
        return
    if set(state) != {"kind", *STATE_NAMES}:
        yield "their state", f"{', '.join(('kind', *STATE_NAMES))}", ", ".join(map(str, state))[:200] or "nothing"
        return
    try:
        schema = Schema.from_dict(state["schema"], stored=True)
        settings = check_settings(state["settings"]) if isinstance(state["settings"], dict) else {}
    except (InputError, TypeError) as error:
        yield "schema and settings", "those of a log", f"{str(error)[:200]}"
        return
    if state["settings"] != settings:
        yield "settings", f"a dictionary with {', '.join(DEFAULTS)}", _kind(state["settings"])
        return
    names = state["actions"]
    if not (isinstance(names, list) and names and all(isinstance(name, str) for name in names)):
        yield "actions", "a list of names", _kind(names)
        return
    columns = schema.context
    categories, values = state["categories"], state["values"]
    if not (_is_list(categories, len(columns.categorical)) and all(map(_is_known, categories))):
        yield "categories", f"{len(columns.categorical)} lists of different texts, or numbers", _kind(categories)
        return
    if not (_is_list(values, len(columns.numeric)) and all(map(_is_values, values))):
        yield "values", f"{len(columns.numeric)} ascending lists of whole numbers, or nothing", _kind(values)
        return
    rows = sum(width(known) + 1 for known in categories) + sum(len(seen) + 1 for seen in values if seen is not None)
    continuous, pairs = sum(seen is None for seen in values), len(schema.pair)
    yield from _wrong_tables(state, rows, len(names), continuous, pairs)
    if not isinstance(state["small_pairs"], bool):
        yield "small_pairs", "true or false", _kind(state["small_pairs"])
    if not isinstance(state["items_digest"], str):
        yield "items_digest", "text", _kind(state["items_digest"])


def _wrong_tables(
    state: dict[str, Any], rows: int, actions: int, continuous: int, pairs: int
) -> Iterator[tuple[str, str, str]]:
    shapes: dict[str, tuple[int | None, ...]] = {
        "context": (rows, None),
        "shift": (continuous,),
        "factor": (continuous,),
        "indicators": (continuous,),
        "action": (actions, None),
        "pair_shift": (pairs,),
        "pair_factor": (pairs,),
    }
    for name, shape in shapes.items():
        table, dtype = state[name], torch.bool if name == "indicators" else torch.float64
        words = f"finite {str(dtype)[6:]} numbers of shape ({', '.join(str(n or '?') for n in shape)})"
        if not isinstance(table, Tensor) or table.layout != torch.strided or table.dtype != dtype:
            yield name, words, _kind(table)
        elif table.dim() != len(shape) or any(n not in (None, m) for n, m in zip(shape, table.shape, strict=True)):
            yield name, words, f"the shape {tuple(table.shape)}"
        elif not table.isfinite().all():
            yield name, words, "numbers that are not finite"
        elif name.endswith("factor") and not (table > 0).all():
            yield name, "positive numbers", "others"
        elif name == "action" and not table.shape[1]:
            yield name, "a table with columns", "none"


def _is_list(value: Any, length: int) -> bool:
    return isinstance(value, list) and len(value) == length


def _is_known(known: Any) -> bool:
    if isinstance(known, list):
        return all(isinstance(text, str) for text in known) and len(set(known)) == len(known)
    return is_whole(known, 1) and known <= 2**31


def _is_values(seen: Any) -> bool:
    if seen is None:
        return True
    if not (isinstance(seen, list) and 0 < len(seen) <= FEW_VALUES):
        return False
    numbers = all(isinstance(value, float) and value.is_integer() for value in seen)
    return numbers and all(low < high for low, high in pairwise(seen))


def _kind(value: Any) -> str:
    """A value for a message: a number as it is, anything else by its type."""
    return str(value)[:60] if isinstance(value, int | float) else type(value).__name__
