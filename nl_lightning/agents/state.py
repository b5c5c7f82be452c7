"""The stored half of an agent: what its state is, and agents of some of its replicas."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from nl_lightning.agents.learner import Learner
from nl_lightning.agents.theory import Constants
from nl_lightning.agents.trainer_flags import HALF_PRECISION, NO_FLOAT64
from nl_lightning.core.errors import InputError
from nl_lightning.core.replicas import SETTINGS, ReplicaSettings, Share
from nl_lightning.core.rng import ActionNoise
from nl_lightning.designs.diagonal import DesignKind


class StoredAgent(Learner):
    """An agent that can be stored, moved and divided."""

    name: str
    mode: str
    design_kind: DesignKind
    delta: float
    constants: Constants
    noise: ActionNoise
    radius: Tensor
    effective_dimension: Tensor
    design: nn.Module
    information: nn.Module

    def _derive(self) -> None:
        """What follows from the settings and the precision."""

    def part(self, share: Share) -> "StoredAgent":
        """An agent of some of the replicas, as they are now; all else is that of the whole."""
        trainer, self._trainer = self._trainer, None
        part = deepcopy(self)
        self._trainer = trainer
        part.share = share
        seeds = [self.settings.seeds[r] for r in share.replicas]
        part.settings = ReplicaSettings(**self.settings.part(share.replicas), seeds=seeds)
        part.noise.seeds = seeds
        # as tensors are moved or cast: what is derived from them goes along
        part._apply(lambda tensor: tensor[share.replicas])
        part._any_diverged = bool((part.diverged_at > 0).any())
        return part

    def state_of(self, part: "StoredAgent") -> dict[str, Any]:
        """This agent's state, as far as it is that of a part of it."""
        replicas = part.share.replicas
        state: dict[str, Any] = {k: v[replicas] if isinstance(v, Tensor) else v for k, v in self.state_dict().items()}
        return state | {"_extra_state": {**state["_extra_state"], "identity": part.identity()}}

    def to(self, *args: Any, **kwargs: Any) -> "StoredAgent":
        """As of any module, but not to MPS."""
        device = torch._C._nn._parse_to(*args, **kwargs)[0]
        if device is not None and device.type == "mps":
            raise InputError(f"An agent cannot go to {device}: {NO_FLOAT64}. Leave it on the CPU.")
        return super().to(*args, **kwargs)

    def _apply(self, fn: Any, recurse: bool = True) -> "StoredAgent":
        """Move or cast. A cast is of network and buffer, all else stays in float64; what is derived goes along."""
        dtype = fn(self.network.weights[0].detach()).dtype
        if dtype not in (torch.float32, torch.float64):
            raise InputError(f"An agent computes in float32 or float64, not in {dtype}: {HALF_PRECISION}.")

        def kept(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        exact = (self.design, self.information, self.theory)
        for module in self.children():
            module._apply(kept if module in exact else fn)
        super()._apply(kept, recurse=False)
        self._derive()
        self.noise.forget()
        return self

    def identity(self) -> dict[str, Any]:
        """What a stored state must agree with."""
        return {
            "agent": self.name,
            "layers": [list(shape) for shape in self.network.shapes],
            "blocks": self.network.blocks,
            "design": self.design_kind,
            **{name: getattr(self.settings, name) for name in (*SETTINGS, "seeds")},
            "mode": self.mode,
            **({} if self.theory is None else {"delta": self.delta, **self.constants._asdict()}),
        }

    def get_extra_state(self) -> dict[str, Any]:
        return {"identity": self.identity(), "draws": self.noise.position}

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        self.noise.position = state["draws"]

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """Look at the identity first, so that a state of another agent changes nothing."""
        state = state_dict.get(f"{prefix}_extra_state")
        if state is None:
            raise InputError("This checkpoint is not of a bandit agent: it says nothing of algorithm and settings.")
        for name, mine in self.identity().items():
            # a state of before there were blocks has none
            stored = state["identity"].get(name, 1 if name == "blocks" else None)
            if stored != mine:
                raise InputError(
                    f"This checkpoint is of another agent: its {name} is {stored}, here it is {mine}. "
                    "Load it into an agent with the settings it was made with."
                )
        # Rounds may have been played in inference mode, whose tensors cannot be written outside it.
        self.radius, self.effective_dimension = self.radius.clone(), self.effective_dimension.clone()
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self._any_diverged = bool((self.diverged_at > 0).any())
