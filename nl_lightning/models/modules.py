"""Any torch module as the reward network of R replicas: gradients by torch.func, TrainNN by autograd.

The module maps features (N, d) to f (N,) or (N, 1). Its parameters are stacked over replicas, (R, ...), and each
replica has its own initial ones. A gradient is handed out whole, as that of one layer with p inputs: designs need not
know the difference. Parameters that do not require a gradient stay as they are: TrainNN and the designs leave them out.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import softplus

from nl_lightning.core.errors import InputError
from nl_lightning.core.rng import Stream, generator
from nl_lightning.core.types import Factors
from nl_lightning.models.base import Descent, Observations, RewardModel, select
from nl_lightning.models.inputs import parts
from nl_lightning.models.module_checks import DRAWING, check_module, first_line, one_number, trial_samples
from nl_lightning.models.steps import in_one_row, loss, rates, take_steps

__all__ = ["GRADIENT_NUMBERS", "MakeModule", "ModuleModel"]

MakeModule = Callable[[], nn.Module]

GRADIENT_NUMBERS = 8_000_000
"""Entries of per-sample gradients that are computed at once, over all replicas."""


class ModuleModel(RewardModel):
    """R copies of a user's module.

    Args:
        network: makes a module, or is one: it is then copied, and ``reset_parameters`` draws its parameters anew;
            frozen ones stay.
        dim: number d of features.
        seeds: one a replica; its initial parameters are a function of it.
    """

    learns_from_padding = True

    def __init__(self, network: MakeModule | nn.Module, dim: int, seeds: Sequence[int]) -> None:
        super().__init__()
        self.blocks = 1
        if not callable(network):
            raise InputError(
                f"network must be a callable that makes a torch.nn.Module, or such a module; got {network!r:.50}."
            )
        self._make = _resetting(network) if isinstance(network, nn.Module) else network
        # Lightning changes the default in a fit in float64, and torch then draws other numbers.
        self._dtype = torch.get_default_dtype()
        drawn = [self._made(seed, Stream.INITIAL_WEIGHTS) for seed in seeds]
        # Not a submodule: its own parameters are never used, only its code.
        self._template = [drawn[0]]
        check_module(drawn[0], dim)
        self._names = [name for name, values in drawn[0].named_parameters() if values.requires_grad]
        frozen = [name for name, values in drawn[0].named_parameters() if not values.requires_grad]
        buffers = [name for name, _ in drawn[0].named_buffers()]
        if not self._names:
            why = "all of its parameters are frozen" if frozen else "it has no parameters"
            raise InputError(f"network: {why}, so there is nothing that TrainNN could train.")
        for name, values in _stacked(drawn, self._names).items():
            self.register_parameter(_flat(name), nn.Parameter(values))
        for name, values in _stacked(drawn, frozen).items():
            self.register_buffer(_flat(name), values)
        for name in buffers:
            self.register_buffer(_flat(name), torch.stack([module.get_buffer(name) for module in drawn]))
        self._buffer_names = [*frozen, *buffers]
        self.shapes = [(1, sum(values[0].numel() for values in self.parameters()))]
        self.weights = tuple(self.parameters())
        self.draws = any(isinstance(part, DRAWING) for part in drawn[0].modules())
        self._check_batched(dim)

    # ---- asking -----------------------------------------------------------------------------------------------------

    def forward(self, x: Tensor) -> Tensor:
        """f(x): (R, N, d) -> (R, N)"""
        return self._f(self.weights, x, None)

    def factors(self, x: Tensor, replicas: Tensor | None = None) -> tuple[Tensor, Factors]:
        given, buffers = select(self.weights, replicas), self._buffers_of(replicas)
        module = self._template[0].eval()

        def value(parameters: dict[str, Tensor], buffers: dict[str, Tensor], sample: Tensor) -> tuple[Tensor, Tensor]:
            f = one_number(functional_call(module, (parameters, buffers), (sample.unsqueeze(0),)), 1).squeeze(0)
            return f, f

        of_samples = vmap(grad(value, has_aux=True), in_dims=(None, None, 0))
        of_replicas = vmap(of_samples)
        stacked = dict(zip(self._names, (weight.detach() for weight in given), strict=True))
        size = max(1, GRADIENT_NUMBERS // (len(x) * self.shapes[0][1]))
        found = [self._explained(of_replicas, stacked, buffers, part) for part in x.split(size, dim=1)]
        f = torch.cat([of_part for _, of_part in found], dim=1)
        g = torch.cat([_joined(gradients, self._names) for gradients, _ in found], dim=1)
        return f.detach(), (g,)

    def _f(self, weights: Sequence[Tensor], x: Tensor, replicas: Tensor | None) -> Tensor:
        """f (R, N) of samples (R, N, d), layers as they are at decisions"""
        module = self._template[0].eval()

        def value(parameters: dict[str, Tensor], buffers: dict[str, Tensor], samples: Tensor) -> Tensor:
            return one_number(functional_call(module, (parameters, buffers), (samples,)), len(samples))

        stacked = dict(zip(self._names, weights, strict=True))
        result: Tensor = self._explained(vmap(value), stacked, self._buffers_of(replicas), x)
        return result

    def _training_f(
        self, weights: Sequence[Tensor], x: Tensor, replicas: Tensor | None, generators: Sequence[torch.Generator]
    ) -> Tensor:
        """f (R, N) with dropout and the like at work: replica by replica, each with random numbers of its own."""
        if not self.draws:
            return self._f(weights, x, replicas)
        module, stacked = self._template[0].train(), self._buffers_of(replicas)
        found = []
        for replica, (samples, state) in enumerate(zip(x, generators, strict=True)):
            parameters = dict(zip(self._names, (weight[replica] for weight in weights), strict=True))
            buffers = {name: values[replica] for name, values in stacked.items()}
            with _random_numbers(state, x.device):
                f = self._explained(functional_call, module, (parameters, buffers), (samples,))
            found.append(one_number(f, len(samples)))
        return torch.stack(found)

    def _buffers_of(self, replicas: Tensor | None) -> dict[str, Tensor]:
        found = select([getattr(self, _flat(name)) for name in self._buffer_names], replicas)
        return dict(zip(self._buffer_names, found, strict=True))

    def _explained(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the user's code, which may raise anything."""
        try:
            return function(*args)
        except InputError:
            raise
        except Exception as error:
            name, reason = type(self._template[0]).__name__, f"{type(error).__name__}: {first_line(error)}"
            raise InputError(
                f"network: {name} failed on features that it was given ({reason}). Where columns are looked up in an "
                "embedding, it must have a row for every number that they hold."
            ) from error

    def _check_batched(self, dim: int) -> None:
        """Compute two replicas together, so that what torch cannot batch is told now and not in the first round."""
        replicas = torch.tensor(sorted({0, len(self.weights[0]) - 1}))
        x = trial_samples(dim).expand(len(replicas), -1, -1)
        generators = [torch.Generator("cpu") for _ in replicas]
        try:
            with torch.inference_mode(False), torch.enable_grad():
                self.factors(x, replicas)
                weights = [values.detach().requires_grad_() for values in select(self.weights, replicas)]
                f = self._training_f(weights, x, replicas, generators)
                torch.autograd.grad(f.sum(), weights, allow_unused=True)
        except Exception as error:
            reason = first_line(error.__cause__ or error)
            raise InputError(
                f"network: {type(self._template[0]).__name__} cannot be computed for several replicas at once "
                f"({reason}); its forward must consist of torch operations that torch.vmap can batch."
            ) from error

    # ---- TrainNN ----------------------------------------------------------------------------------------------------

    def descend(
        self,
        weights: Sequence[Tensor],
        data: Observations,
        descent: Descent,
        lr: Tensor,
        replicas: Tensor | None,
        seeds: Sequence[int],
    ) -> Tensor:
        x, reward, weight = data
        weight = torch.ones_like(reward) if weight is None else weight
        if not isinstance(descent.steps, int):
            raise InputError("A network of your own takes the same number of steps for all replicas; give steps.")
        lam, lr = descent.lam.to(x.dtype), lr.to(x.dtype)
        theta, layers = in_one_row([values.detach() for values in weights])
        rate = rates(lr, descent.rule).view(-1, 1)
        generators = [torch.Generator("cpu").manual_seed(seed) for seed in seeds] if self.draws else []

        def move(step: int) -> Tensor:
            some_x, some_reward, some_weight = x, reward, weight
            if descent.batches is not None:
                place = descent.batches.place[step]
                some_x = x.gather(1, place.unsqueeze(-1).expand(-1, -1, x.shape[2]))
                some_reward, some_weight = reward.gather(1, place), weight.gather(1, place) * descent.batches.weight
            total = torch.zeros_like(theta)
            with torch.enable_grad():
                for part in zip(parts(some_x), parts(some_reward), parts(some_weight), strict=True):
                    current = [layer.detach().requires_grad_() for layer in layers]
                    f = self._training_f(current, part[0], replicas, generators)
                    # - rate sum_i w_i BCE_i, whose gradient is the move
                    gained = -(rate * part[2] * (softplus(f) - part[1] * f)).sum()
                    found = torch.autograd.grad(gained, current, allow_unused=True)
                    filled = (
                        torch.zeros_like(layer) if g is None else g for layer, g in zip(layers, found, strict=True)
                    )
                    total += torch.cat([g.flatten() for g in filled])
            return total

        take_steps(theta, layers, move, lam, lr, descent.steps, descent.rule)
        for values, layer in zip(weights, layers, strict=True):
            values.copy_(layer)
        f = torch.cat([self._f(weights, part, replicas) for part in parts(x)], dim=1)
        return loss(f, reward, weights, lam, weight)

    def fresh(self, seeds: Sequence[int], numbers: Sequence[int]) -> list[Tensor]:
        pairs = zip(seeds, numbers, strict=True)
        drawn = _stacked([self._made(seed, Stream.FRESH_WEIGHTS, number) for seed, number in pairs], self._names)
        return [values.to(weight) for values, weight in zip(drawn.values(), self.weights, strict=True)]

    def module(self, replica: int) -> nn.Module:
        found = copy.deepcopy(self._template[0]).to(self.weights[0].device).eval()
        with torch.no_grad():
            for name, values in zip(self._names, self.weights, strict=True):
                parameter = found.get_parameter(name)
                parameter.data = values[replica].detach().clone()
            kept = {**dict(found.named_parameters()), **dict(found.named_buffers())}
            for name in self._buffer_names:
                kept[name].data = getattr(self, _flat(name))[replica].clone()
        return found

    def identity(self) -> Any:
        shapes = zip(self._names, self.weights, strict=True)
        return [[name, *values.shape[1:]] for name, values in shapes]

    # ---- making -----------------------------------------------------------------------------------------------------

    def _made(self, seed: int, stream: Stream, *index: int) -> nn.Module:
        with _random_numbers(generator(seed, stream, *index), torch.device("cpu")):
            default = torch.get_default_dtype()
            torch.set_default_dtype(self._dtype)
            try:
                made = self._make()
            except InputError:
                raise
            except Exception as error:
                # the user's code may raise anything
                raise InputError(
                    f"network cannot be made ({type(error).__name__}: {error}). It is called without arguments: give "
                    "those that it needs as --model.network.NAME VALUE, as defaults, or in a function that makes it."
                ) from error
            finally:
                torch.set_default_dtype(default)
        if not isinstance(made, nn.Module):
            raise InputError(f"network must make a torch.nn.Module, got {type(made).__name__}.")
        for name, parameter in made.named_parameters():
            if isinstance(parameter, nn.parameter.UninitializedParameter):
                raise InputError(f"network: {name} is not initialised; give lazy modules their sizes.")
            if not parameter.is_floating_point():
                raise InputError(f"network: {name} must be of floating point, got {parameter.dtype}.")
        return made

    # nn.Module may put new parameters into the place of the old ones.
    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> "ModuleModel":
        super()._apply(fn, *args, **kwargs)
        self.weights = tuple(self.parameters())
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.weights = tuple(self.parameters())


class _random_numbers:
    """Let torch's global random numbers be those of a generator, and put the old ones back."""

    def __init__(self, source: torch.Generator, device: torch.device) -> None:
        self.source, self.device = source, device

    def __enter__(self) -> None:
        devices = [self.device] if self.device.type == "cuda" else []
        self._fork = torch.random.fork_rng(devices=devices)
        self._fork.__enter__()
        torch.manual_seed(int(torch.randint(2**62, (), generator=self.source)))

    def __exit__(self, *args: Any) -> None:
        self._fork.__exit__(*args)


def _resetting(module: nn.Module) -> MakeModule:
    """Copies of a module as it is now, each with new parameters; frozen ones stay."""
    for name, part in module.named_modules():
        trained = any(values.requires_grad for values in part.parameters(recurse=False))
        if trained and not callable(getattr(part, "reset_parameters", None)):
            where = f"its part {name!r}" if name else "it"
            raise InputError(
                f"network: {type(module).__name__} cannot be copied for every replica, because {where} has parameters "
                "and no reset_parameters(); pass a callable that makes the module, such as a function or its class."
            )

    original = copy.deepcopy(module)

    def make() -> nn.Module:
        made = copy.deepcopy(original)
        for part in made.modules():
            reset = getattr(part, "reset_parameters", None)
            if callable(reset):
                reset()
        for parameter, old in zip(made.parameters(), original.parameters(), strict=True):
            if not old.requires_grad:
                parameter.data = old.detach().clone()
        return made

    return make


def _stacked(modules: Sequence[nn.Module], names: Sequence[str]) -> dict[str, Tensor]:
    """Parameters of each module as one (R, ...)"""
    device, dtype = torch.get_default_device(), torch.get_default_dtype()
    found = {name: torch.stack([module.get_parameter(name).detach() for module in modules]) for name in names}
    return {name: values.to(device, dtype) for name, values in found.items()}


def _joined(gradients: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """(R, N, p) of gradients (R, N, ...) by parameter"""
    return torch.cat([gradients[name].flatten(2) for name in names], dim=-1)


def _flat(name: str) -> str:
    """A name that nn.Module takes for a parameter of its own, and that no attribute of a model has."""
    return f"module/{name.replace('.', '/')}"
