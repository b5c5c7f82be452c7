"""The base agent: a LightningModule over R replicas that acts, observes, and trains its reward network.

    agent = reward model + design matrix + radius + exploration rule

An algorithm states only what differs from the others. The state of an agent is its network, design matrices, radii,
replay buffer and the number of its random draws; ``state_dict`` holds all of it. The network computes in the module's
precision; design matrices, radii and scores are float64.
"""

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from nl_lightning.agents import state
from nl_lightning.agents.asking import asked_probabilities
from nl_lightning.agents.buffer import ReplayBuffer
from nl_lightning.agents.checks import check_radius_defined, check_settings, check_size, check_theory, warn_of_unused
from nl_lightning.agents.construction import default_nu, make_formulas, make_network
from nl_lightning.agents.design_pair import DesignPair
from nl_lightning.agents.divergence import Divergence
from nl_lightning.agents.exploration import Exploration, make_exploration
from nl_lightning.agents.lightning_module import AgentModule
from nl_lightning.agents.noise import ActionNoise
from nl_lightning.agents.own_methods import check_methods, check_rule, first_radius
from nl_lightning.agents.probabilities import DRAWS
from nl_lightning.agents.radii import Radius
from nl_lightning.agents.theory import Constants
from nl_lightning.agents.train_nn import Schedule, TrainNN
from nl_lightning.core.checks import (
    check_arms,
    check_finite,
    check_observations,
    check_replica,
    check_reward,
    check_same_agent,
    check_weight,
    plain,
)
from nl_lightning.core.errors import InputError
from nl_lightning.core.imports import overridden
from nl_lightning.core.link import SLOPE_BOUND, mu, slope
from nl_lightning.core.replicas import SETTINGS, PerReplica, ReplicaSettings, SettingName, Share, per_replica
from nl_lightning.core.types import Choice, Factors, Prefix, TrainingBatch, View, Window
from nl_lightning.core.whole import check_whole
from nl_lightning.designs import DesignMatrix
from nl_lightning.models.mlp import Init
from nl_lightning.models.optimizers import OptimizerLike, make_step_rule
from nl_lightning.models.training import Start

__all__ = ["Agent", "LinearAgent", "NeuralAgent"]

Mode = Literal["practical", "theory"]


class Agent(AgentModule):
    """A logistic bandit algorithm over R replicas.

    Subclass ``NeuralAgent`` (or ``LinearAgent``, or any of the algorithms) to bring your own. Any public method
    may be redefined: what you define is what runs, in ``fit``, ``test`` and ``replay evaluate`` alike. Faster ways to
    play rounds step aside where they could not honour it. State of your own belongs in buffers whose first dimension is
    R: checkpoints store them, and several devices divide them.
    """

    name: ClassVar[str]
    """The algorithm's name in tables and plots; left out, the name of the class."""
    variance_weighted: ClassVar[bool] = False
    """Whether the design matrix is W = sum mu'(f) g g^T + lam I, or V = sum g g^T + kappa lam I."""
    mean_is_probability: ClassVar[bool] = False
    """Whether the bonus is added to mu(f), or to f."""
    default_exploration: ClassVar[str] = "ucb"
    """The exploration rule where none is given."""
    nu_scale: ClassVar[float] = 0.1
    """If nu is left out, it is this over sqrt(p), for p parameters: effective dimension and norms grow with p."""
    linear: ClassVar[bool] = False
    """Whether f(x) = x . theta, a network of depth 1."""

    nu: Tensor
    lam: Tensor
    kappa: Tensor
    S: Tensor

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in vars(cls):
            cls.name = cls.__name__
        # help(MyAgent) begins with the algorithm and its settings
        own, settings = inspect.getdoc(cls) if "__doc__" in vars(cls) else None, inspect.getdoc(Agent.__init__)
        if own and settings and "Args:" not in own and "__init__" not in vars(cls):
            cls.__doc__ = f"{own}\n\n{settings[settings.index('Args:') :]}"

    def __init__(
        self,
        dim: int,
        width: int = 20,
        depth: int = 2,
        nu: PerReplica | None = None,
        lam: PerReplica = 0.1,
        kappa: PerReplica = 10.0,
        S: PerReplica = 1.0,
        mode: Mode = "practical",
        design: str | type[DesignMatrix] | None = None,
        design_args: dict[str, Any] | None = None,
        exploration: str | Exploration | None = None,
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
        network: Callable[[], nn.Module] | nn.Module | None = None,
        optimizer: OptimizerLike | None = None,
        lr: float | None = None,
        steps: int | None = None,
        start: Start | None = None,
        update_every: int = 50,
        update_growth: float = 0.025,
        batch_size: int | None = None,
        window: int | None = None,
        bias: bool | None = None,
        epsilon: float = 0.0,
        blocks: int = 1,
        on_divergence: Literal["auto", "stop", "mark"] = "auto",
    ) -> None:
        """Settings that every agent has.

        Args:
            dim: number d of features of an arm; with blocks, the d features and the number of the block.
            width: number m of hidden units per layer. Linear agents have none.
            depth: number L of layers, >= 1. Linear agents have one.
            nu: exploration parameter, >= 0; left out, ``nu_scale`` of the algorithm over the square root of the number
                of parameters.
            lam: regularisation parameter, > 0.
            kappa: 1/kappa bounds the slope of mu from below, >= 4.
            S: bound on the norm of the true parameter, > 0.
            mode: ``practical``, the setting of the paper's experiments, or ``theory``, its Algorithms 1 and 2 as
                printed (the four NeuralLog agents): gradients at the initial parameters, and a regularisation lam_t and
                a radius that follow from S, kappa, delta and the constants; nu and lam have no effect there.
            design: ``diagonal`` keeps the diagonal of the design matrix, ``full`` all of it; or a DesignMatrix subclass
                of your own, by class or import path. Left out, ``diagonal``; theory mode has its own.
            design_args: settings of the design matrix, if it has any.
            exploration: ``ucb``, ``thompson``, ``greedy``, or an Exploration of your own, as an instance or by import
                path. Left out, that of the algorithm.
            replicas: number R of independent replicas, with seeds ``seed``, ``seed + 1``, ...; with a grid, the number
                of seeds of each of its combinations.
            seed: seed of the first replica, or a list of R seeds.
            grid: lists of values of nu, lam, kappa, S; every combination becomes a replica.
            delta: confidence level of theory mode (no effect in practical mode, where nu absorbs it).
            C1: constant of lam_t and iota_t in theory mode.
            C4: constant of the number of gradient steps in theory mode.
            C5: constant of the gradient step in theory mode.
            C6: constant of the radius nu1_t of NeuralLog-UCB-1 and -TS-1 in theory mode.
            C7: constant of the radius nu2_t of NeuralLog-UCB-2 and -TS-2 in theory mode.
            horizon: number T of rounds, for theory mode's steps; left out, a fit takes data.rounds.
            init: ``uniform`` in +-1/sqrt(fan_in), or the paper's ``symmetric`` start (even dim and width). Left out,
                ``uniform``, and in theory mode ``symmetric``, its only one (on [x, x]/sqrt(2), so any dim will do).
            network: a reward network of your own instead of the built-in one: a callable without arguments that makes
                a torch.nn.Module from (N, d) to (N,) or (N, 1), or such a module, which is copied and reset. Each
                replica has its own initial parameters.
            optimizer: ``adam``, ``gd`` (gradient descent on the summed loss, the paper's words read literally), the
                import path of a torch.optim class that works entry by entry, or a callable that makes an optimiser from
                parameters. Left out, ``adam``; theory mode has ``gd`` only.
            lr: learning rate of TrainNN; left out, that of the optimiser (``gd``: the paper's 0.01), and in theory mode
                that of the paper's Condition.
            steps: number J of gradient steps of one TrainNN; left out, that of the optimiser (``gd``: the paper's 100),
                and in theory mode that of the Condition.
            start: parameters that TrainNN starts from: the current ones (``warm``), the initial ones (``cold``, as
                always in theory mode), or a mean of the current and fresh ones (``shrink``: 0.55 theta + 0.45 fresh,
                and beyond 4,000 observations less of the fresh ones). Left out, ``warm`` for ``gd``, else ``shrink``.
            update_every: fewest rounds between two calls of TrainNN (1 in the paper's algorithms).
            update_growth: TrainNN runs after max(update_every, update_growth * rounds) more rounds; 0 is the paper's
                fixed schedule, with which the time of a run grows with the square of its rounds.
            batch_size: samples of a gradient step, drawn from the buffer; left out, all of them.
            window: TrainNN and design matrix look at so many of the newest observations only, for worlds that drift;
                left out, at all of them.
            bias: whether the layers of the built-in network have biases, penalised like the weights. Left out, they do;
                linear agents, ``gd`` and theory mode, which follow the paper, have none.
            epsilon: chance of a random arm, for the exploration rule ``greedy``.
            blocks: more than one: an arm is (x, k), whose last number says in which of that many blocks x stands. The
                network is that of the vectors [0, .., x, .., 0], which are never stored; with biases, each block has
                its own in the first layer.
            on_divergence: ``stop`` with an error when TrainNN of a replica diverges, or ``mark`` that replica and
                continue with the others; ``auto`` marks where replicas compare settings and stops where only their
                seeds differ.
        """
        super().__init__()
        check_radius_defined(self, Agent)
        check_methods(self, Agent)
        # Numbers of NumPy or torch become Python's own, also in a checkpoint.
        dim, width, depth, blocks, replicas, seed = map(plain, (dim, width, depth, blocks, replicas, seed))
        nu, lam, kappa, S, delta, lr = map(plain, (nu, lam, kappa, S, delta, lr))
        steps, update_every, horizon = map(plain, (steps, update_every, horizon))
        C1, C4, C5, C6, C7 = map(plain, (C1, C4, C5, C6, C7))
        check_settings(dim=dim, width=width, depth=depth, blocks=blocks, update_every=update_every)
        check_settings(steps=steps, horizon=horizon, batch_size=batch_size, window=window, mode=mode, init=init)
        check_settings(start=start, on_divergence=on_divergence, bias=bias, epsilon=epsilon)
        check_settings(update_growth=update_growth, delta=delta, lr=lr, C1=C1, C4=C4, C5=C5, C6=C6, C7=C7)
        own = {"design": design, "exploration": exploration, "network": network, "optimizer": optimizer}
        self.save_hyperparameters(ignore=state.not_plain(**own))
        # Left out, nu follows from the number of parameters, see below.
        given: dict[SettingName, PerReplica] = {"nu": 0.0 if nu is None else nu, "lam": lam, "kappa": kappa, "S": S}
        self.settings: ReplicaSettings = per_replica(given, replicas, seed, grid)
        self.share = Share.whole(self.replicas)
        self.dim, self.blocks, self.mode = dim, blocks, mode
        check_size(self, network, width, depth)
        self.lr, self.steps, self.update_every = lr, steps, update_every
        self.step_rule = make_step_rule(optimizer or ("gd" if mode == "theory" else "adam"), lr)
        left_out: Start = "cold" if mode == "theory" else "warm" if self.step_rule.plain else "shrink"
        self.learner = TrainNN(start or left_out, batch_size, window)
        self.schedule = Schedule(update_every, update_growth, window)
        self.delta, self.constants, self.horizon = delta, Constants(C1, C4, C5, C6, C7), horizon
        self.init: Init = init or ("symmetric" if mode == "theory" else "uniform")
        self.design_kind = ("full" if mode == "theory" else "diagonal") if design is None else design
        rule = self.default_exploration if exploration is None else exploration
        self.exploration = make_exploration(rule, epsilon)
        check_rule(self.exploration)
        warn_of_unused(self, network, width, depth, nu)
        self.noise = ActionNoise(self.settings.seeds, normal=self.exploration.stochastic)
        self.divergence = Divergence(self.settings.compared if on_divergence == "auto" else on_divergence == "mark")
        self.rounds_before = 0
        """the most rounds that a replica had observed when a fit began"""
        self.register_buffer("diverged_at", torch.zeros(self.replicas, dtype=torch.long))
        self.register_buffer("train_calls", torch.zeros(self.replicas, dtype=torch.long))
        if mode == "theory":
            others = {"network": network, "batch_size": batch_size, "window": window, "bias": bias or None}
            check_theory(self, Agent, depth, width, design_args, practical=others)
        self.network = make_network(self, network, width, depth, init, bias)
        if nu is None and "nu" not in (grid or {}):
            nu = default_nu(self.network, self.nu_scale)
            self.settings = replace(self.settings, nu=[nu] * self.replicas)
        for name in SETTINGS:
            self.register_buffer(name, torch.tensor(getattr(self.settings, name), dtype=torch.float64))
        self._build(design_args)
        self.owner = state.owner(self)
        """by which the agent knows its choices again"""

    def _build(self, design_args: dict[str, Any] | None) -> None:
        """Make what is kept of the network's parameters."""
        self.initial_weights = nn.ParameterList(nn.Parameter(w.detach().clone(), False) for w in self.network.weights)
        self.formulas = make_formulas(self, design_args)
        self._designs = DesignPair(self.formulas)
        self.design, self.effective_dim_design = self._designs.design, self._designs.effective_dim_design
        self.observation_columns = self._designs.columns
        """the numbers of an observation: its weight, then the factors"""
        self.buffer = ReplayBuffer(self.replicas, self.dim)
        self._derive()
        nothing = torch.zeros_like(self.lam)
        self.register_buffer("effective_dimension", nothing)
        self.register_buffer("radius", first_radius(self, Agent, nothing))

    def _derive(self) -> None:
        """What follows from the settings and the precision."""
        if self.mode == "practical":
            self.formulas.derive(self.radius_terms())
        self._designs.derive()
        self.tie_tolerance = 32 * torch.finfo(self.network.weights[0].dtype).eps
        """scores that differ by less, relatively, count as equal"""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        # what is derived from a part follows when a user replaces it
        if name in ("design", "effective_dim_design", "formulas") and "_designs" in vars(self):
            setattr(self._designs, name, value)
        elif name == "exploration" and "noise" in vars(self):
            self.noise.normal = value.stochastic
            self.noise.forget()

    # ---- what an algorithm states -------------------------------------------------------------------------------

    def radius_terms(self) -> Radius:
        """The coefficients of a radius that is affine in the effective dimension d, or in sqrt(d).

        Define this, or ``radius_at`` for any other form.
        """
        return Radius(torch.zeros_like(self.nu), torch.zeros_like(self.nu))

    def radius_at(self, dimension: Tensor) -> Tensor:
        """The radius at effective dimension (..., R), one number per replica.

        Rounds of an agent that redefines this are played one by one, so that it may use ``self.rounds`` as well.
        """
        return self._designs.formulas.radius(dimension)

    def observation_weight(self) -> Tensor:
        """(R,): w in the effective dimension logdet(w sum g g^T + I)"""
        return torch.full_like(self.lam, SLOPE_BOUND)

    def theory_factor(self) -> Tensor | None:
        """(R,): nu_t times this is the radius in theory mode; None for an algorithm that has no such mode"""
        return None

    # ---- a round ------------------------------------------------------------------------------------------------

    @property
    def replicas(self) -> int:
        """R"""
        return len(self.settings.seeds)

    @property
    def rounds(self) -> Tensor:
        """(R,): observed rounds"""
        return self.buffer.length

    @property
    def alive(self) -> Tensor | None:
        """(R,): the replicas whose TrainNN did not diverge; None where that is all of them."""
        return self.diverged_at == 0 if self.divergence.any_diverged else None

    @property
    def own_choice(self) -> list[str]:
        """The methods that choose an arm, as far as a subclass has redefined them: it must then be asked event by
        event."""
        return overridden(self, Agent, "act", "choose", "score")

    @property
    def draws_choices(self) -> bool:
        """Whether the choice may be random beyond breaking ties, so that its probability takes Monte Carlo draws."""
        return self.exploration.stochastic or bool(self.own_choice)

    @property
    def decides_by_score(self) -> bool:
        """Whether the arm with the highest score is taken, ties broken uniformly: the chance of an arm then follows
        from the scores. An agent or a rule with a choice of its own must be asked instead."""
        own = self.own_choice or overridden(self, Agent, "best")
        return not own and not overridden(self.exploration, Exploration, "choose")

    def probabilities(self, arms: Tensor, draws: int | None = None, mask: Tensor | None = None) -> Tensor:
        """The probability (R, K) that each arm is chosen. The agent does not change.

        It is exact if scores are not drawn, as in UCB: arms that tie share their probability. For Thompson sampling it
        is a mean over Monte Carlo draws. For an agent or an exploration rule with a choice of its own, it is the
        frequency of each arm in as many draws.

        Args:
            arms: features of the arms, (R, K, d), or (K, d) to show all replicas the same arms.
            draws: number of Monte Carlo draws (default: 20).
            mask: (R, K) or (K,), False for arms that cannot be chosen.
        """
        draws = DRAWS if draws is None else draws
        check_whole(1, draws=draws)
        shown, of_arms = check_arms(arms, mask, self.replicas, self.dim, self.network.weights[0], self.blocks)
        return asked_probabilities(self, shown, of_arms, draws)

    def weights(self, replica: int = 0) -> list[Tensor]:
        """The matrices [W_1, ..., W_L] of one replica, each (out, in). If there are biases, they are the last column.

        For a network of your own, its parameters in their order.
        """
        check_replica(replica, self.replicas)
        return [weight[replica].detach().clone() for weight in self.network.weights]

    def module(self, replica: int = 0) -> nn.Module:
        """An ordinary torch module (..., d) -> (...) with a copy of the reward network of one replica."""
        check_replica(replica, self.replicas)
        return self.network.module(replica)

    def act(self, arms: Tensor, mask: Tensor | None = None) -> Choice:
        """Choose an arm for every replica.

        The agent does not change, except for the number of its random draws.

        Args:
            arms: features of the arms, (R, K, d), or (K, d) to show all replicas the same arms.
            mask: (R, K) or (K,), False for arms that cannot be chosen.
        """
        arms, mask = check_arms(arms, mask, self.replicas, self.dim, self.network.weights[0], self.blocks)
        choice = self.choose(self.featurize(arms, mask))
        check_finite("scores", choice.score if mask is None else choice.score[mask])
        return choice

    def choose(self, view: View) -> Choice:
        """Score the arms of a round and take the best one."""
        score, bonus = self.score(view)
        return Choice(self.best(score, view.uniform, view.normal), score, view.mean, bonus, view)

    def best(self, score: Tensor, uniform: Tensor, normal: Tensor | None = None) -> Tensor:
        """The arm that the exploration rule takes, (..., K) -> (...), given scores and random numbers of a round, or of
        several rounds."""
        return self.exploration.choose(score, uniform, normal, self.tie_tolerance)

    def score(self, view: View, replicas: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Score and bonus (R, K) of a round's arms; bonus = radius * norm.

        With ``replicas`` (indices) the view belongs to these replicas only.
        """
        radius, design = cast(Tensor, self._buffers["radius"]), self._designs.design
        if replicas is None:
            norm = design.norm(view.factors)
        else:
            norm, radius = design.norm(view.factors, replicas), radius.index_select(0, replicas)
        bonus = norm.mul_(radius.unsqueeze(1))
        return self.exploration.score(view.mean, bonus, view.normal), bonus

    @torch.no_grad()
    def evaluate(self, arms: Tensor, replicas: Tensor | None = None) -> tuple[Tensor, Tensor, Factors]:
        """What the network says of arms (R, N, d).

        Returns the mean that the bonus is added to and the weight that an observation would have in the design matrix,
        both (R, N), and the factors of the gradient. It is called for many rounds at once, so it must depend on the
        network and the arms alone, not on the round.

        With ``replicas`` (indices) the arms belong to these replicas only.
        """
        f, mean, factors = self.formulas.evaluate(self.network, tuple(self.initial_weights), arms, replicas)
        if self.mean_is_probability:
            mean = mu(mean)
        return mean, slope(f) if self.variance_weighted else torch.ones_like(f), factors

    def featurize(
        self,
        arms: Tensor,
        mask: Tensor | None = None,
        noise: tuple[Tensor, Tensor | None] | None = None,
        replicas: Tensor | None = None,
        packed: bool = False,
    ) -> View:
        """The view of a round's arms (R, K, d), or of C rounds (R, C, K, d) together, unchecked.

        The network does not change between two calls of TrainNN, so that many rounds can be evaluated at once.
        ``noise`` are uniform and normal numbers (R, .., K); left out, the agent's next draws. With ``packed`` all that
        belongs to an arm lies side by side.
        """
        rounds, head = arms.shape[1:-1], self.packed_head if packed else 0
        subset = {} if replicas is None else {"replicas": replicas}
        found, weight, factors = self.evaluate(arms.flatten(1, -2), **subset)
        rows, prepared = self._designs.observations(weight, factors, head)
        mean = found.to(self.lam.dtype)
        if arms.dim() == 4:
            mean, rows = mean.unflatten(1, rounds), rows.unflatten(1, rounds)
            prepared = tuple(factor.unflatten(1, rounds) for factor in prepared)
        uniform, normal = self.noise.draw(mean, rounds) if noise is None else noise
        if mask is not None:
            mean, uniform = mean.masked_fill(~mask, -torch.inf), uniform.masked_fill(~mask, 0)
        for place, values in enumerate((mean, uniform, normal)[:head]):
            assert values is not None
            rows[..., place] = values
        return View(arms, mean, prepared, rows[..., head:], uniform, normal, rows if packed else None, self.owner)

    @property
    def packed_head(self) -> int:
        """The numbers of an arm in a packed view before its observation: mean, uniform and, where asked for, normal."""
        return 2 + self.exploration.stochastic

    # ---- what was observed ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def observe(
        self,
        choice: Choice,
        reward: Tensor | float,
        accepted: Tensor | None = None,
        weight: Tensor | float | None = None,
        importance: Tensor | float | None = None,
    ) -> None:
        """Learn the reward of a choice: it enters the replay buffer, and the design matrix and the radius are updated.

        Args:
            choice: the result of ``act``. It may be older: an observation counts with the gradient of its decision.
            reward: 0 or 1, (R,), or a plain number if R = 1.
            accepted: (R,), False for replicas that learn nothing.
            weight: (R,) or a number, the weight of the observation in the loss and in the design matrix (default: 1).
            importance: (R,) or a number, another weight in the design matrix, which needs no reward: it counts also
                where ``accepted`` is False. 0: the design matrix stays as it is.
        """
        check_same_agent(choice, self.owner, self.replicas, self.dim, sum(self.observation_columns))
        reward, accepted = check_reward(reward, accepted, choice.arm)
        if (weight is not None or importance is not None) and self.mode == "theory":
            raise InputError("Theory mode has no weights: every observation counts once.")
        like = self.network.weights[0]
        given = None if weight is None else check_weight(weight, reward.shape, like)
        self.buffer.append(
            choice.x,
            reward.unsqueeze(1),
            None if accepted is None else accepted.unsqueeze(1),
            None if given is None else given.unsqueeze(1),
        )
        if importance is not None:
            counted = check_weight(importance, reward.shape, like)
            self.update_confidence(choice.observed, counted > 0, counted)
        elif given is None:
            self.update_confidence(choice.observed, accepted)
        else:
            self.update_confidence(choice.observed, accepted, given)

    @torch.no_grad()
    def learn(self, x: Tensor, reward: Tensor, weight: Tensor | None = None) -> None:
        """Learn observations that somebody else chose: replay buffer, then TrainNN, then the design matrix.

        x is (n, d) for all replicas, or (R, n, d); reward and weight are (n,) or (R, n). TrainNN is called each time
        that the number of observations has doubled (and not before ``update_every`` new ones), and at the end: a few
        steps on all of a long history at once would not fit it. Gradients are those of the network after the last call.
        """
        if self.mode == "theory":
            raise InputError("Theory mode learns from its own choices only: use observe, or mode 'practical'.")
        like = self.network.weights[0]
        x, reward, weight = check_observations(x, reward, weight, self.replicas, self.dim, like, self.blocks)
        known, first, n = int(self.rounds.max()), 0, reward.shape[1]
        while first < n:
            part = slice(first, min(n, first + max(self.update_every, known + first)))
            self.buffer.append(x[:, part], reward[:, part], None, None if weight is None else weight[:, part])
            self.train_nn()
            first = part.stop
        if self.learner.window is not None:
            return
        if overridden(self, Agent, "update_confidence"):
            self._learn_one_by_one(x, weight)
        else:
            self._follow(self._designs.add_many(x, weight, self.evaluate))

    def _learn_one_by_one(self, x: Tensor, weight: Tensor | None) -> None:
        """Tell an ``update_confidence`` of the user's own about every observation."""
        for number in range(x.shape[1]):
            _, slope, factors = self.evaluate(x[:, number : number + 1])
            observed, _ = self._designs.observations(slope, factors)
            if weight is None:
                self.update_confidence(observed, None)
            else:
                self.update_confidence(observed, None, weight[:, number])

    def observe_window(self, window: Window) -> None:
        """``observe`` for several rounds that were looked ahead together: their states are there already."""
        assert window.prefix is not None
        self.buffer.append(window.x, window.reward, window.filled)
        self._designs.set_prefix(window.prefix.design[:, -1], window.prefix.effective_dim_design[:, -1])
        self._buffers["effective_dimension"] = window.effective_dimension[:, -1]
        self._buffers["radius"] = window.radius[:, -1]

    def update_confidence(
        self, observed: Tensor, accepted: Tensor | None = None, importance: Tensor | None = None
    ) -> None:
        """Design matrix, effective dimension and radius after an observation (R, 1, ...), which may count more or less
        than once: ``importance`` (R,)."""
        self._follow(self._designs.add(observed, accepted, importance))

    def _follow(self, dimension: Tensor) -> None:
        """Take on an effective dimension (R,), and the radius there."""
        # nn.Module's own assignment would cost more than the formulas. New tensors: who kept the old ones keeps them.
        self._buffers["effective_dimension"] = dimension
        self._buffers["radius"] = self.radius_at(dimension)

    def prefix(self, observed: Tensor, replicas: Tensor | None = None, known: Tensor | None = None) -> Prefix:
        """What S observations (R, S, ...) would make of design matrices, effective dimension and radius.

        With ``replicas`` (indices) they belong to these replicas only; ``known`` (R, S + 1) are then the effective
        dimensions of all.
        """
        design, effective_dim_design, dimension = self._designs.prefix(observed, replicas)
        if replicas is None or known is None:
            radius = self.radius_at(dimension.mT).mT
        else:
            radius = self.radius_at(known.index_copy(0, replicas, dimension).mT).mT.index_select(0, replicas)
        return Prefix(design, effective_dim_design, dimension, radius)

    def reserve(self, count: int, start: int) -> AbstractContextManager[None]:
        """Replicas that have observed at most ``start`` rounds of a replay observe up to ``count`` more, each at its
        own pace."""
        return self._designs.reserve(self.rounds_before + start + count)

    # ---- TrainNN --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def train_nn(self) -> None:
        """TrainNN on the replay buffer; in a fit, on the batch that the DataModule handed over."""
        window = self.learner.window
        length = self.rounds if window is None else self.rounds.clamp_max(window)
        batch = self._batch or TrainingBatch(*self.buffer.rows(window), None, True)
        inactive = self.diverged_at > 0
        some_inactive = batch.inactive is not None or self.divergence.any_diverged
        if batch.inactive is not None:
            inactive = inactive | batch.inactive
        horizon = self.fit_horizon if self.horizon is None else self.horizon
        initial = tuple(self.initial_weights)
        descent = self.formulas.descent(self.step_rule, self.lr, self.steps, horizon, initial)
        self.train_calls = self.train_calls + ~inactive
        failed = self.learner(
            self.network,
            initial,
            batch._replace(x=self.formulas.inputs(batch.x)),
            length,
            descent,
            inactive,
            some_inactive,
            self.settings.seeds,
            self.train_calls.tolist() if self.learner.draws(self.network) else [],
        )
        if failed is not None:
            self.diverged_at = self.divergence.record(
                failed, self.diverged_at, self.rounds, self.settings, self.share, self.formulas.unused, descent
            )
        self.formulas.after_training(self.design, self.network.weights, self.buffer.newest(), ~inactive)
        if window is not None:
            # the sums of M and E go over the window, with gradients at the new parameters
            self._designs.clear()
            dimension = self._designs.add_many(batch.x, batch.weight, self.evaluate, length)
            # a replica that has ended keeps its radius, whoever is trained beside it
            self._follow(torch.where(inactive, cast(Tensor, self._buffers["effective_dimension"]), dimension))
        # in a fit, processes agree first: see ``sync``
        if self._batch is None:
            self.divergence.check()


class NeuralAgent(Agent):
    """An agent on a network f(x) = W_L relu(... relu(W_1 x))."""


class LinearAgent(Agent):
    """An agent on f(x) = x . theta: a network of depth 1, with x as its gradient."""

    linear = True
