"""What a user's module must be like to be a reward network: it is tried once, before anything is computed with it."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from nl_lightning.core.errors import InputError

__all__ = ["DRAWING", "check_module", "first_line", "one_number", "trial_samples"]

DRAWING = (nn.modules.dropout._DropoutNd, nn.RReLU)
"""Layers that draw random numbers while they are trained."""


def check_module(module: nn.Module, dim: int) -> None:
    """A module maps (N, d) to (N,) or (N, 1), each sample by itself, and changes nothing."""
    name = type(module).__name__
    trial = copy.deepcopy(module).to(torch.get_default_dtype()).train()
    for part in trial.modules():
        if isinstance(part, DRAWING):
            part.eval()
    samples, before = trial_samples(dim), {key: values.clone() for key, values in trial.named_buffers()}
    with torch.no_grad():
        try:
            together = one_number(trial(samples), len(samples))
            alone = torch.cat([one_number(trial(sample.unsqueeze(0)), 1) for sample in trial_samples(dim)])
        except InputError:
            raise
        except Exception as error:
            # the user's module may raise anything
            if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in trial.modules()):
                # which refuses a batch of one sample
                raise InputError(_mixing(name)) from error
            raise InputError(
                f"network: {name} must map features (N, {dim}) to (N,) or (N, 1), each sample by itself; it failed "
                f"({type(error).__name__}: {first_line(error)})."
            ) from error
    if not torch.equal(samples, trial_samples(dim)):
        raise InputError(f"network: {name} changes the features that it is given; let it work on a copy, x.clone().")
    if not together.isfinite().all():
        raise InputError(
            f"network: {name} gives {together[~together.isfinite()][0].item()} for features of 0 and 1; it must be "
            "finite for all features (a division by a norm needs a small number beside it)."
        )
    if not torch.allclose(together, alone, rtol=1e-3, atol=1e-5):
        raise InputError(_mixing(name))
    for key, values in trial.named_buffers():
        if not torch.equal(values, before[key]):
            raise InputError(
                f"network: {name} changes its buffer {key} when it is called, so that what it says of an arm would "
                "depend on the calls before; take layers without running statistics."
            )


def _mixing(name: str) -> str:
    return (
        f"network: {name} mixes the samples of a batch (as BatchNorm does) or draws random numbers outside of "
        "torch.nn.Dropout. The output for an arm must depend on the features of that arm alone: use LayerNorm in place "
        "of BatchNorm, and torch.nn.Dropout for dropout."
    )


def trial_samples(dim: int) -> Tensor:
    """(4, d), to try a module with: zeros and ones, so that columns that are looked up in an embedding are in it."""
    return torch.tensor([[0.0], [1.0], [0.0], [1.0]]).repeat(1, dim)


def one_number(f: Any, samples: int) -> Tensor:
    """(N,) of what a module returned for N samples."""
    if not isinstance(f, Tensor) or tuple(f.shape) not in ((samples,), (samples, 1)):
        came = tuple(f.shape) if isinstance(f, Tensor) else type(f).__name__
        raise InputError(f"network must map features (N, d) to (N,) or (N, 1); for {samples} samples it gave {came}.")
    return f if f.dim() == 1 else f.squeeze(-1)


def first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:200]
