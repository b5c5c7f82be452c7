"""The one abstract agent: a LightningModule over R replicas that acts, observes and trains its network.

An algorithm (``nl_lightning.agents``) states only what differs: the design matrix, the mean, the radius, the optimism.
The state of an agent is its network, its design matrices, its radii, its buffer and the number of its random draws;
``state_dict`` holds all of it. The network computes in the module's precision, design matrices, radii and scores in
float64.
"""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, cast

import lightning as L
import torch
from torch import Tensor, nn

from nl_lightning.agents.buffer import ReplayBuffer
from nl_lightning.agents.callbacks import Confidence
from nl_lightning.agents.radii import Radius
from nl_lightning.agents.state import StoredAgent
from nl_lightning.agents.theory import Constants, Theory
from nl_lightning.core.checks import (
    check_arms,
    check_finite,
    check_reward,
    check_theory,
    check_training_settings,
    check_whole,
)
from nl_lightning.core.errors import InputError
from nl_lightning.core.link import SLOPE_BOUND, mu, slope
from nl_lightning.core.replicas import SETTINGS, PerReplica, SettingName, Share, per_replica
from nl_lightning.core.rng import ActionNoise
from nl_lightning.core.types import Choice, View
from nl_lightning.designs.adaptive import AdaptiveDesign
from nl_lightning.designs.blocks import BlockDiagonalDesign, make_design
from nl_lightning.designs.diagonal import DesignKind, DiagonalDesign, FullDesign, log_product
from nl_lightning.environments import Deal
from nl_lightning.models.inputs import input_size
from nl_lightning.models.mlp import MLP, Factors, Init
from nl_lightning.models.mlp import factors as network_factors
from nl_lightning.rollout.lookahead import Confidences, Window

Mode = Literal["practical", "theory"]


class Agent(StoredAgent):
    """A logistic bandit algorithm over R replicas.

    Args:
        dim: number d of features of an arm; with blocks the numbers of an arm, d features and the block's.
        nu: exploration parameter, >= 0.
        lam: regularisation parameter, > 0.
        kappa: 1/kappa bounds the slope of mu from below, >= 4.
        S: bound on the norm of the true parameter, > 0.
        mode: ``practical``, the setting of the paper's experiments, or ``theory``, its Algorithms 1 and 2 as printed
            (the four NeuralLog agents): gradients at the initial parameters, a regularisation lam_t and a radius that
            follow from S, kappa, delta and the constants; nu and lam have no effect there.
        design: ``diagonal`` keeps the diagonal of the design matrix, ``full`` all of it; left out, ``diagonal``, and in
            theory mode ``full``, which is all there is.
        replicas: number R of independent replicas, with seeds ``seed``, ``seed + 1``, ...; beside a grid, the number of
            seeds of each of its combinations.
        seed: seed of the first replica, or a list of R seeds.
        grid: lists of values of nu, lam, kappa, S; every combination becomes a replica.
        delta: confidence level of theory mode (no effect in practical mode, where nu absorbs it).
        C1: constant of lam_t and iota_t in theory mode.
        C4: constant of the number of gradient steps in theory mode.
        C5: constant of the gradient step in theory mode.
        C6: constant of the radius nu1_t of NeuralLog-UCB-1 and -TS-1 in theory mode.
        C7: constant of the radius nu2_t of NeuralLog-UCB-2 and -TS-2 in theory mode.
        horizon: number T of rounds, for theory mode's steps; left out, a fit takes data.rounds.
        init: ``uniform`` in +-1/sqrt(fan_in), or the paper's ``symmetric`` start (even dim and width); left out,
            ``uniform``, and in theory mode ``symmetric``, which is all there is (on [x, x]/sqrt(2): any dim will do).
        lr: step of gradient descent in TrainNN; left out, 0.01, and in theory mode that of the paper's Condition.
        steps: number J of gradient steps of one TrainNN; left out, 100, and in theory mode that of the Condition.
        update_every: rounds between two calls of TrainNN (1 in the paper's algorithms).
        warm_start: whether TrainNN starts from the current parameters, or from the initial ones as always in theory
            mode.
        blocks: more than one: an arm is (x, k), whose last number says in which of so many blocks x stands. The network
            is that of the vectors [0, .., x, .., 0], which are nowhere stored.
        on_divergence: ``stop`` with an error when TrainNN of a replica diverges, or ``mark`` that replica and go on
            with the others; ``auto`` marks where replicas compare settings and stops where only their seeds differ.
    """

    name: str
    """The algorithm's name in the paper's tables."""
    variance_weighted: bool
    """Whether the design matrix is W = sum mu'(f) g g^T + lam I, or V = sum g g^T + kappa lam I."""
    mean_is_probability: bool = False
    """Whether the bonus is added to mu(f), or to f."""
    thompson: bool = False
    """Whether the score is a normal draw around the mean, or the mean plus the bonus."""

    nu: Tensor
    lam: Tensor
    kappa: Tensor
    S: Tensor
    radius: Tensor
    """(R,), by which an arm's norm is multiplied"""
    effective_dimension: Tensor
    """(R,), the log-determinant that the radius grows with"""
    _information_weight: Tensor

    def __init__(
        self,
        dim: int,
        nu: PerReplica = 0.1,
        lam: PerReplica = 1.0,
        kappa: PerReplica = 10.0,
        S: PerReplica = 1.0,
        mode: Mode = "practical",
        design: DesignKind | None = None,
        replicas: int = 1,
        seed: int | list[int] = 0,
        grid: dict[SettingName, list[float]] | None = None,
        delta: float = 0.05,
        C1: float = 1.0,
        C4: float = 1.0,
        C5: float = 1.0,
        C6: float = 1.0,
        C7: float = 1.0,
        horizon: int | None = None,
        init: Init | None = None,
        lr: float | None = None,
        steps: int | None = None,
        update_every: int = 50,
        warm_start: bool = True,
        blocks: int = 1,
        on_divergence: Literal["auto", "stop", "mark"] = "auto",
    ) -> None:
        super().__init__()
        check_training_settings(
            dim=dim,
            blocks=blocks,
            mode=mode,
            design=design,
            init=init,
            on_divergence=on_divergence,
            delta=delta,
            lr=lr,
            steps=steps,
            update_every=update_every,
            horizon=horizon,
            constants={"C1": C1, "C4": C4, "C5": C5, "C6": C6, "C7": C7},
        )
        values: dict[SettingName, PerReplica] = {"nu": nu, "lam": lam, "kappa": kappa, "S": S}
        self.settings = per_replica(values, replicas, seed, grid)
        self.share = Share.whole(self.replicas)
        self.dim, self.blocks = dim, blocks
        self.mode: Mode = mode
        self.design_kind: DesignKind = design or ("full" if mode == "theory" else "diagonal")
        self.init: Init = init or ("symmetric" if mode == "theory" else "uniform")
        self.lr, self.steps, self.update_every, self.warm_start = lr, steps, update_every, warm_start
        self.delta, self.constants, self.horizon = delta, Constants(C1, C4, C5, C6, C7), horizon
        self.theory: Theory | None = None
        self._mark_divergence = self.settings.compared if on_divergence == "auto" else on_divergence == "mark"
        self.automatic_optimization = False
        self.noise = ActionNoise(self.settings.seeds, normal=self.thompson)
        for name in SETTINGS:
            self.register_buffer(name, torch.tensor(getattr(self.settings, name), dtype=torch.float64))
        self.register_buffer("diverged_at", torch.zeros(self.replicas, dtype=torch.long))
        self._any_diverged = False

    def _build(self, layers: list[int]) -> None:
        """Make the network with layers of these sizes behind its inputs, and what is kept of its parameters."""
        sizes = [input_size(self.dim, self.blocks), *layers]
        if self.mode == "theory":
            check_theory(self, depth=len(layers), width=sizes[-2])
            # x' = [x, x]/sqrt(2)
            sizes = [2 * sizes[0], *sizes[1:]]
        self.network = MLP(sizes, self.settings.seeds, self.init, self.blocks)
        self.initial_weights = nn.ParameterList(nn.Parameter(w.detach().clone(), False) for w in self.network.weights)
        factor = self.theory_factor()
        self.design: DiagonalDesign | BlockDiagonalDesign | FullDesign | AdaptiveDesign
        self.information: DiagonalDesign | BlockDiagonalDesign | FullDesign
        if self.mode == "theory" and factor is not None:
            self.theory = Theory(
                self.network, self.S, self.kappa, factor, self.variance_weighted, self.delta, self.constants
            )
            self.design, self.information = self.theory.designs()
            information_weight = self.theory.information_weight()
        else:
            kind, shapes, ridge = self.design_kind, self.network.shapes, self.lam
            if not self.variance_weighted:
                ridge = self.kappa * ridge
            self.design = make_design(kind, shapes, ridge, self.blocks)
            self.information = make_design(kind, shapes, torch.ones_like(self.lam), self.blocks)
            information_weight = self.information_weight()
        # the columns of an observation: its weight, then the factors
        self.observation_columns = [1, *self.information.factor_sizes]
        self.register_buffer("_information_weight", information_weight.view(-1, 1, 1), persistent=False)
        # Plain references: to ask nn.Module for a submodule takes as long as a small operation on tensors.
        self._designs = (self.design, self.information)
        self.buffer = ReplayBuffer(self.replicas, self.dim)
        self._derive()
        nothing = torch.zeros_like(self.lam)
        self.register_buffer("effective_dimension", nothing)
        self.register_buffer("radius", self._radius(nothing))
        if not self._radius(nothing + 1).isfinite().all():
            raise InputError("The radius overflows with these values of nu, lam, kappa and S; take less extreme ones.")

    def _radius(self, dimension: Tensor) -> Tensor:
        """(R,), the radius at an effective dimension (R,)"""
        return self._radius_terms.at(dimension) if self.theory is None else self.theory.radius(dimension)

    def _derive(self) -> None:
        """What follows from the settings and the precision."""
        self._radius_terms = self.radius_terms()
        self._tie_tolerance = 32 * torch.finfo(self.network.weights[0].dtype).eps

    # ---- what an algorithm states -------------------------------------------------------------------------------

    @abstractmethod
    def radius_terms(self) -> Radius:
        """The radius as a function of the effective dimension."""

    def information_weight(self) -> Tensor:
        """(R,): w in the effective dimension logdet(w sum g g^T + I): R, but for NCBF-UCB"""
        return torch.full_like(self.lam, SLOPE_BOUND)

    def theory_factor(self) -> Tensor | None:
        """(R,): what nu_t is multiplied by to the radius in theory mode; None of an algorithm that has no such mode"""
        return None

    # ---- a round ------------------------------------------------------------------------------------------------

    def act(self, arms: Tensor) -> Choice:
        """Choose an arm for every replica from (R, K, d), or from (K, d) shown to all. Only random draws change."""
        arms = check_arms(arms, self.replicas, self.dim, self.network.weights[0], self.blocks)
        if arms.dim() == 2:
            arms = arms.expand(self.replicas, -1, -1)
        choice = self.choose(self.look(arms))
        check_finite("scores", choice.score)
        return choice

    @torch.no_grad()
    def observe(self, choice: Choice, reward: Tensor, accepted: Tensor | None = None) -> None:
        """Learn a choice's reward (R,): buffer, design matrix, radii. Replicas with ``accepted`` (R,) False do not."""
        expected = (self.replicas, choice.score.shape[1], sum(self.observation_columns))
        if choice.view.observation.shape != expected or choice.view.arms.shape[-1] != self.dim:
            raise InputError("This choice is another agent's: its replicas, features or network differ.")
        reward, accepted = check_reward(reward, accepted, choice.arm)
        rows = None if accepted is None else accepted.unsqueeze(1)
        index = choice.arm.view(-1, 1, 1).expand(-1, 1, self.dim)
        self.buffer.append(choice.view.arms.gather(1, index), reward.unsqueeze(1), rows)
        self.update_confidence(choice.observed, accepted)

    def look(self, arms: Tensor) -> View:
        """The view of one round (R, K, d), unchecked."""
        mean, factors, observation = self.evaluate(arms)
        return View(arms, mean, factors, observation, *self.noise.take(1, mean, arms.shape[1])[0])

    def look_at(self, arms: Tensor) -> View:
        """The view of C rounds (R, C, K, d) together: the network does not change between two calls of TrainNN."""
        mean, factors, observation = self.evaluate(arms.flatten(1, 2))

        def split(values: Tensor) -> Tensor:
            return values.unflatten(1, arms.shape[1:3])

        noise = self.noise.take(arms.shape[1], mean, arms.shape[2])
        uniform = torch.stack([numbers for numbers, _ in noise], dim=1)
        normal = [numbers for _, numbers in noise if numbers is not None]
        drawn = torch.stack(normal, dim=1) if normal else None
        return View(arms, split(mean), tuple(map(split, factors)), split(observation), uniform, drawn)

    def look_ahead(self, arms: Tensor) -> list[View]:
        """The views of C rounds (R, C, K, d), one by one."""
        view = self.look_at(arms)
        rounds = arms.shape[1]
        factors = zip(*(factor.unbind(1) for factor in view.factors), strict=True)
        others = (view.arms, view.mean, view.observation, view.uniform)
        shown, means, observations, uniform = (values.unbind(1) for values in others)
        normal = [None] * rounds if view.normal is None else view.normal.unbind(1)
        return list(map(View, shown, means, factors, observations, uniform, normal))

    @torch.no_grad()
    def evaluate(self, arms: Tensor, spare: int = 0, replicas: Tensor | None = None) -> tuple[Tensor, Factors, Tensor]:
        """Of arms (R, N, d) the mean that the bonus is added to, (R, N), the factors, and the observations (R, N, ...).

        The factors are views of the observations, so that those of an arm lie side by side. Observations have
        ``spare`` columns in front that the caller may fill. Arms may be those of some ``replicas`` only, by
        number (not in theory mode).
        """
        weights: tuple[Tensor, ...] = self.network.weights
        if replicas is not None:
            weights = tuple(weight[replicas] for weight in weights)
        if self.theory is None:
            f, factors = network_factors(weights, arms, self.blocks)
            mean = f
        else:
            f, mean, factors = self.theory.look(weights, tuple(self.initial_weights), arms)
        if self.mean_is_probability:
            mean = mu(mean)
        weight = slope(f) if self.variance_weighted else torch.ones_like(f)
        observation = self.lam.new_empty(*f.shape, spare + sum(self.observation_columns))
        first, *prepared = torch.split_with_sizes(observation[..., spare:], self.observation_columns, dim=-1)
        first.copy_(weight.unsqueeze(-1))
        self.design.prepare(factors, tuple(prepared))
        return mean.to(self.lam.dtype), tuple(prepared), observation

    @torch.no_grad()
    def mean_and_bonus(self, arms: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and bonus (R, N) of arms (R, N, d), for an agent that is asked and does not learn."""
        mean, factors, _ = self.evaluate(arms)
        return mean, self.score(mean, factors, None)[1]

    def choose(self, view: View) -> Choice:
        """Score the arms of a view and take the best one; of equal ones any, with equal chances.

        UCB: score = mean + bonus.  Thompson sampling: score ~ N(mean, bonus^2).  bonus = radius * norm
        Scores are equal up to rounding: a matrix product gives the same arm another last digit in another row.
        """
        score, bonus = self.score(view.mean, view.factors, view.normal)
        return Choice(self.best(score, view.uniform), score, view.mean, bonus, view)

    def score(
        self, mean: Tensor, factors: Factors, normal: Tensor | None, replicas: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Score and bonus (R, N) of arms: mean + bonus, or with normal numbers a draw of N(mean, bonus^2).

        Arms may be those of some ``replicas`` only, by number, where the design matrix is diagonal.
        """
        radius, design = cast(Tensor, self._buffers["radius"]), self._designs[0]
        if replicas is None:
            norm = design.norm(factors)
        else:
            assert isinstance(design, DiagonalDesign)
            norm, radius = design.norm_of(replicas, factors), radius.index_select(0, replicas)
        return self.score_of(mean, norm, radius.unsqueeze(1), normal)

    @staticmethod
    def score_of(mean: Tensor, norm: Tensor, radius: Tensor, normal: Tensor | None) -> tuple[Tensor, Tensor]:
        """Score and bonus of arms with these norms, which become the bonus in their place."""
        bonus = norm.mul_(radius)
        return mean + bonus if normal is None else torch.addcmul(mean, bonus, normal), bonus

    def best(self, score: Tensor, uniform: Tensor) -> Tensor:
        """The arm of the highest score, (..., K) -> (...); of equal ones that with the largest uniform number."""
        highest = score.amax(-1, keepdim=True)
        worse = score < highest.sub(highest.abs(), alpha=self._tie_tolerance)
        return uniform.masked_fill(worse, 0).argmax(-1)

    def update_confidence(self, observed: Tensor, accepted: Tensor | None = None) -> None:
        """Design matrix, effective dimension and radius after an observation (R, 1, ...)."""
        design, information = self._designs
        if accepted is not None:
            # A gradient of zeros adds nothing.
            observed = observed * accepted.view(-1, 1, 1)
        weight, *picked = torch.split_with_sizes(observed, self.observation_columns, dim=-1)
        factors = tuple(picked)
        information.add(factors, cast(Tensor, self._buffers["_information_weight"]), accepted)
        design.add(factors, weight, accepted)
        # nn.Module's own assignment would cost more than the formulas. New tensors: who kept the old ones keeps them.
        dimension = self._buffers["effective_dimension"] = information.logdet()
        if self.theory is not None and isinstance(design, AdaptiveDesign):
            self.theory.count(dimension, accepted)
            design.set_ridge(self.theory.ridge())
        self._buffers["radius"] = self._radius(dimension)

    def take(self, window: Window) -> None:
        """Design matrix, effective dimension and radius after rounds that were played at once."""
        for design, diagonals in zip(self._designs, window.after[:2], strict=True):
            assert isinstance(design, DiagonalDesign)
            design.take(diagonals[:, -1])
        self._buffers["effective_dimension"] = window.effective_dimension[:, -1]
        self._buffers["radius"] = window.radius[:, -1]

    def confidences(self, observed: Tensor, replicas: Tensor | None = None) -> Confidences:
        """What C observations (R, C, ...) would make of diagonal design matrices, effective dimension and radius.

        They may be those of some ``replicas`` only, by number.
        """
        design, information = self._designs
        assert isinstance(design, DiagonalDesign)
        assert isinstance(information, DiagonalDesign)
        weight, *picked = torch.split_with_sizes(observed, self.observation_columns, dim=-1)
        factors = tuple(picked)
        information_weight, radius = cast(Tensor, self._buffers["_information_weight"]), self._radius_terms
        if replicas is not None:
            information_weight, radius = information_weight.index_select(0, replicas), radius.of(replicas)
        informed = information.cumulated(factors, information_weight, replicas)
        dimension = log_product(informed)
        return Confidences(design.cumulated(factors, weight, replicas), informed, dimension, radius.at(dimension.mT).mT)

    @contextmanager
    def room_for(self, count: int, start: int) -> Iterator[None]:
        """Replicas that have observed ``start`` rounds of a replay, or fewer, observe up to ``count`` more, each in its
        own time."""
        rounds = self.rounds_before + start + count
        for design in self._designs:
            design.hold(rounds, fixed=True)
        try:
            yield
        finally:
            for design in self._designs:
                design.hold(rounds, fixed=False)

    def _has_trained(self, replicas: Tensor) -> None:
        if self.theory is not None and self.variance_weighted and isinstance(self.design, AdaptiveDesign):
            # W_t weighs round t by mu'(f(x_t; theta_t)): by the parameters in force at the next decision
            f = self.theory.f(self.network.weights, self.buffer.newest())
            self.design.reweigh(slope(f).squeeze(1), replicas & (self.rounds > 0))

    def regularisation(self, dimension: Tensor, t: Tensor) -> Tensor:
        """lam (C, R), in theory mode lam_t, of rounds with numbers (C,) and effective dimensions (C, R)."""
        lam = self.lam.expand_as(dimension)
        return lam if self.theory is None else self.theory.formulas.lam(dimension, t.unsqueeze(1).to(lam.device))

    # ---- Lightning ----------------------------------------------------------------------------------------------

    def test_step(self, batch: Deal, batch_idx: int) -> None:
        """The frozen agent on rounds it has not seen: mean reward and regret of a round."""
        choices = [self.choose(view) for view in self.look_ahead(batch.arms)]
        arm = torch.stack([choice.arm for choice in choices], dim=1)[: self.share.own].unsqueeze(2)
        for name, values in (("reward", batch.reward), ("regret", batch.regret)):
            mean = values.gather(2, arm).sum() / max(arm.numel(), 1)
            self.log(f"test/{name}", mean, batch_size=arm.numel(), sync_dist=True)

    def configure_callbacks(self) -> list[L.Callback]:
        return [Confidence()]


class LinearAgent(Agent):
    """An agent on f(x) = x . theta: a network of depth 1, with x as its gradient."""

    def __init__(self, dim: int, **settings: Any) -> None:
        super().__init__(dim, **settings)
        self._build([1])
        self.save_hyperparameters({"dim": dim, **settings})


class NeuralAgent(Agent):
    """An agent on f(x) = W_L relu(... relu(W_1 x)).

    Args:
        width: number m of hidden units a layer.
        depth: number L of layers, >= 1.
    """

    def __init__(self, dim: int, width: int = 20, depth: int = 2, **settings: Any) -> None:
        super().__init__(dim, **settings)
        check_whole(1, width=width, depth=depth)
        self._build([*[width] * (depth - 1), 1])
        self.save_hyperparameters({"dim": dim, "width": width, "depth": depth, **settings})
