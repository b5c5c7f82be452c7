"""What an exploration rule promises."""

import torch

from nl_lightning.agents.exploration import Exploration, make_exploration

__all__ = ["check_exploration"]

_CPU = torch.device("cpu")


def check_exploration(rule: str | Exploration | type[Exploration]) -> None:
    """Check the promises of an exploration rule.

    Scores and choices have the right shapes; several rounds at once are those rounds one by one; arms that a round does
    not have are never chosen; and asking changes nothing.
    """
    found = make_exploration(rule)
    name = type(found).__name__
    g = torch.Generator(_CPU).manual_seed(0)
    shape = (2, 30, 4)
    mean, normal = (torch.randn(shape, generator=g, dtype=torch.float64, device=_CPU) for _ in range(2))
    bonus, uniform = (torch.rand(shape, generator=g, dtype=torch.float64, device=_CPU) for _ in range(2))
    mask = torch.rand(shape, generator=g, device=_CPU) < 0.7
    mask[..., 0] = True
    mean, uniform = mean.masked_fill(~mask, -torch.inf), (1 - uniform).masked_fill(~mask, 0)
    drawn = normal if found.stochastic else None
    score = found.score(mean, bonus, drawn)
    assert score.shape == shape, f"{name}.score must return the shape of the means, {shape}, got {tuple(score.shape)}"
    assert score[mask].isfinite().all(), f"{name}.score must be finite for arms that exist"
    arm = found.choose(score, uniform, drawn, 1e-12)
    assert arm.shape == shape[:-1], f"{name}.choose must return one arm a round, {shape[:-1]}, got {tuple(arm.shape)}"
    assert mask.gather(-1, arm.unsqueeze(-1)).all(), f"{name} has chosen an arm that a round does not have"
    for t in range(shape[1]):
        one = None if drawn is None else drawn[:, t]
        alone = found.score(mean[:, t], bonus[:, t], one)
        assert torch.equal(alone, score[:, t]), f"{name}.score must treat rounds independently of each other"
        picked = found.choose(alone, uniform[:, t], one, 1e-12)
        assert torch.equal(picked, arm[:, t]), f"{name}.choose must treat rounds independently of each other"
    if found.is_per_arm:
        single = found.score(mean.unsqueeze(-1), bonus.unsqueeze(-1), None).squeeze(-1)
        assert torch.equal(single, score), f"{name} is per_arm, but a score depends on the other arms of its round"
