"""Which of Lightning's Trainer flags a fit takes: those that work do what users know, the others are refused."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from lightning.pytorch.accelerators import MPSAccelerator

from nl_lightning.core.errors import InputError

__all__ = ["DEFAULTS", "HALF_PRECISION", "NO_FLOAT64", "RULES", "Rule", "check", "choose_strategy", "settled"]


class Rule(NamedTuple):
    """The values of a flag that a fit takes, and why no others."""

    allowed: tuple[Any, ...]
    reason: str


_FULL_BATCH = "TrainNN takes plain full-batch gradient steps, as the paper does"

HALF_PRECISION = (
    "TrainNN sums over all rounds, and with products in half precision it ends with other weights (measured by python "
    "-m benchmarks --only variants); design matrices and radii are float64 in any case; use 32-true or 64-true"
)
NO_FLOAT64 = "MPS has no float64, in which design matrices, radii and scores are kept"

DEFAULTS: dict[str, Any] = {
    "max_epochs": 1,
    "devices": 1,
    "logger": False,
    "enable_model_summary": False,
}
"""The Trainer's defaults under ``python -m nl_lightning``."""

RULES: dict[str, Rule] = {
    "max_epochs": Rule((None, 1), "rounds bound the run: set data.rounds"),
    "min_epochs": Rule((None, 0, 1), "rounds bound the run: set data.rounds"),
    "min_steps": Rule((None,), "rounds bound the run: set data.rounds"),
    "limit_train_batches": Rule(
        (None,), "rounds bound the run: set data.rounds, or max_steps to stop after so many calls of TrainNN"
    ),
    "precision": Rule((None, 32, "32", "32-true", 64, "64", "64-true"), HALF_PRECISION),
    "overfit_batches": Rule((0, 0.0), "the batches of a bandit are its own rounds, each comes once"),
    "accumulate_grad_batches": Rule((1,), _FULL_BATCH),
    "gradient_clip_val": Rule((None,), _FULL_BATCH),
    "gradient_clip_algorithm": Rule((None,), _FULL_BATCH),
    "reload_dataloaders_every_n_epochs": Rule((0,), "a fit has one epoch"),
}


_FORMS = {
    "devices": (r"auto|-1|[1-9]\d*|\d+(,\d+)+|\[\d+(, \d+)*\]", "a number of at least 1, a list of devices or auto"),
    "num_nodes": (r"[1-9]\d*", "a whole number of at least 1"),
}
"""How flags are written that Lightning refuses in many ways, or late."""


def choose_strategy(trainer: Any) -> None:
    """Several devices share out the replicas; another strategy would make them one model."""
    given = trainer.strategy
    name = str(getattr(given, "class_path", given)).rsplit(".", 1)[-1]
    several = str(trainer.devices) != "1" or trainer.num_nodes != 1
    if name == "auto" and several:
        trainer.strategy = "replica"
    elif name not in ("auto", "replica", "ReplicaStrategy"):
        raise InputError(
            f"trainer.strategy must be replica, got {name}: devices share out replicas, which have no gradients and no "
            "parameters in common."
        )


def check(trainer: Mapping[str, Any]) -> None:
    """Refuse what a fit cannot do, with the reason."""
    for flag, rule in RULES.items():
        if flag in trainer and trainer[flag] not in rule.allowed:
            allowed = " or ".join(str(value) for value in dict.fromkeys(map(str, rule.allowed)))
            raise InputError(f"trainer.{flag} must be {allowed}, got {trainer[flag]}: {rule.reason}.")
    if trainer.get("max_steps") == 0:
        raise InputError(
            "trainer.max_steps must be at least 1, or -1 for all of the run, got 0: it would not call TrainNN at all."
        )
    for flag, (form, expected) in _FORMS.items():
        if flag in trainer and not re.fullmatch(form, str(trainer[flag])):
            raise InputError(f"trainer.{flag} must be {expected}, got {trainer[flag]}.")
    asked = trainer.get("accelerator")
    # a name, or an accelerator given by its class
    if "mps" in str(asked).lower() or (asked == "gpu" and MPSAccelerator.is_available()):
        raise InputError(f"trainer.accelerator cannot be {asked} here: {NO_FLOAT64}; use cpu.")


def settled(trainer: Mapping[str, Any]) -> dict[str, Any]:
    """What a flag that leaves the choice to Lightning comes to, where Lightning would choose what cannot be."""
    if trainer.get("accelerator") == "auto" and MPSAccelerator.is_available():
        return {"accelerator": "cpu"}
    return {}
