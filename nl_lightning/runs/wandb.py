"""Weights & Biases: whether runs can be uploaded."""

import os

__all__ = ["wandb_is_offline"]


def wandb_is_offline() -> bool:
    """Whether W&B has no key to log in with, or the user asked for offline mode (``WANDB_MODE=offline``)."""
    import wandb

    mode = os.environ.get("WANDB_MODE")
    return mode == "offline" or (mode is None and not wandb.login(prompt=False, verify=False))
