"""The growing replay buffer of every replica: what was shown, and whether it was clicked."""

import torch
from torch import Tensor, nn

__all__ = ["ReplayBuffer"]


_FIRST_CAPACITY = 64


class ReplayBuffer(nn.Module):
    """x (R, capacity + 1, d) and reward (R, capacity + 1), which grow by doubling; ``length`` (R,) rows are in use.

    Rows that are not in use are zero, which TrainNN relies on. The last one never is: rows that are masked out land
    there before it is cleared. Weights are kept from the first observation on that has one.
    """

    x: Tensor
    reward: Tensor
    weight: Tensor
    """(R, capacity + 1), or (R, 0) where every observation counts once"""
    length: Tensor

    def __init__(self, replicas: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("x", torch.zeros(replicas, _FIRST_CAPACITY + 1, dim))
        self.register_buffer("reward", torch.zeros(replicas, _FIRST_CAPACITY + 1))
        self.register_buffer("weight", torch.zeros(replicas, 0))
        self.register_buffer("length", torch.zeros(replicas, dtype=torch.long))
        # An upper bound of `length`, known without asking the device.
        self._bound = 0

    @property
    def capacity(self) -> int:
        return self.x.shape[1] - 1

    @property
    def weighted(self) -> bool:
        return self.weight.shape[1] > 0

    def append(self, x: Tensor, reward: Tensor, accepted: Tensor | None = None, weight: Tensor | None = None) -> None:
        """Append N rows x (R, N, d), reward and weight (R, N), but not where ``accepted`` (R, N) is False."""
        rows = x.shape[1]
        if self._bound + rows > self.capacity:
            self._bound = int(self.length.max())
            self.reserve(self._bound + rows)
        if weight is not None and not self.weighted:
            self._keep_weights()
        self._bound += rows
        place, appended = self.length.unsqueeze(1), rows if accepted is None else accepted.sum(1)
        if accepted is not None:
            place = torch.where(accepted, place + accepted.cumsum(1) - 1, self.capacity)
        elif rows > 1:
            place = place + torch.arange(rows, device=place.device)
        self.x.scatter_(1, place.unsqueeze(-1).expand_as(x), x.to(self.x.dtype))
        columns = [(self.reward, reward)]
        if self.weighted:
            columns.append((self.weight, torch.ones_like(reward) if weight is None else weight))
        for column, values in columns:
            column.scatter_(1, place.expand_as(values), values.to(column.dtype))
        if accepted is not None:
            self.x[:, self.capacity].zero_()
            for column, _ in columns:
                column[:, self.capacity].zero_()
        self.length.add_(appended)

    def rows(self, newest: int | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
        """x (R, n, d), reward (R, n) and weight (R, n) or None, for the longest replica's n; shorter ones end in zeros.

        With ``newest``, only so many of each replica, the last ones.
        """
        self._bound = int(self.length.max())
        weight = self.weight if self.weighted else None
        if newest is None or self._bound <= newest:
            kept = None if weight is None else weight[:, : self._bound]
            return self.x[:, : self._bound], self.reward[:, : self._bound], kept
        first = (self.length - newest).clamp_min(0).unsqueeze(1)
        place = first + torch.arange(newest, device=first.device)
        x = self.x.gather(1, place.unsqueeze(-1).expand(-1, -1, self.x.shape[2]))
        return x, self.reward.gather(1, place), None if weight is None else weight.gather(1, place)

    def newest(self) -> Tensor:
        """(R, 1, d), the row that each replica appended last; anything where it has none."""
        place = (self.length - 1).clamp_min(0).view(-1, 1, 1)
        return self.x.gather(1, place.expand(-1, 1, self.x.shape[2]))

    def reserve(self, rows: int) -> None:
        """Have room for so many rows a replica."""
        capacity = self.capacity
        while capacity < rows:
            capacity *= 2
        if capacity == self.capacity:
            return
        # A caller's inference mode must not make rows that cannot be written outside it.
        with torch.inference_mode(False):
            self.x, self.reward = _grown(self.x, capacity), _grown(self.reward, capacity)
            if self.weighted:
                self.weight = _grown(self.weight, capacity)

    def _keep_weights(self) -> None:
        """From now on observations have weights; those before count once."""
        with torch.inference_mode(False):
            place = torch.arange(self.capacity + 1, device=self.length.device)
            self.weight = (place < self.length.unsqueeze(1)).to(self.reward.dtype)

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs) -> None:  # type: ignore[no-untyped-def]
        """Take on the capacity of a stored buffer before its rows are copied."""
        for name in ("x", "reward", "weight"):
            stored, mine = state_dict.get(prefix + name), getattr(self, name)
            if stored is not None and stored.dim() == mine.dim() and stored.shape[1] != mine.shape[1]:
                setattr(self, name, mine.new_zeros(mine.shape[0], stored.shape[1], *mine.shape[2:]))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self._bound = self.capacity


def _grown(old: Tensor, capacity: int) -> Tensor:
    """The rows of ``old`` but its last, then zeros."""
    grown = old.new_zeros(old.shape[0], capacity + 1, *old.shape[2:])
    grown[:, : old.shape[1] - 1] = old[:, :-1]
    return grown
