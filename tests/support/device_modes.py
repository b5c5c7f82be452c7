"""What shows without a GPU whether code would work, and would not wait, on one.

``ExplicitDevices`` fails where a tensor is made without saying on which device.
``host_pulls`` records where data passes between host and device, each time a wait for the device.
``Accelerator`` pretends that there is a GPU: its tensors say that they are there and refuse to meet tensors of the CPU,
which computes them, so that results can be compared. (torch's own FakeTensorMode knows shapes only: it ends at the
first number that decides something, and without CUDA it cannot move a module.)
"""

import linecache
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from tests.support.paths import ROOT

FACTORIES = {
    getattr(torch, name)
    for name in (
        *("arange", "as_tensor", "asarray", "empty", "eye", "full", "linspace", "logspace", "ones", "rand", "randint"),
        *("randn", "randperm", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros"),
    )
}
"""What makes a tensor of nothing. Not ``*_like`` and ``x.new_*``, which follow another tensor; not ``from_numpy``,
which stays where the array is."""

_PACKAGES = [ROOT / name for name in ("nl_lightning", "replay")]


def _place() -> str:
    """The innermost function of the project that is running, and its line."""
    frame = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if any(package in path.parents for package in _PACKAGES):
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            return f"{path.stem}.{frame.f_code.co_name}: {line}"
        frame = frame.f_back  # type: ignore[assignment]
    return "test"


class ExplicitDevices(TorchFunctionMode):
    """Fails when the project makes a tensor without ``device=``; what others make (Lightning, torch) is theirs."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in FACTORIES and kwargs.get("device") is None and _caller_is_of_the_project():
            raise AssertionError(f"torch.{func.__name__} without device= in {_place()}")
        return func(*args, **kwargs)


def _caller_is_of_the_project() -> bool:
    frame = sys._getframe(1)
    while frame.f_code.co_filename == __file__:
        frame = frame.f_back  # type: ignore[assignment]
    return any(package in Path(frame.f_code.co_filename).parents for package in _PACKAGES)


@contextmanager
def host_pulls(device: torch.device) -> Iterator[Counter[str]]:
    """Counts, by the function of the project and its line, what passes between the host and a device: numbers that
    decide something, shapes that depend on data (masks as indices, ``nonzero``, ``unique``), copies either way."""
    found: Counter[str] = Counter()
    busy = [False]

    def there(values: Any) -> bool:
        return any(isinstance(leaf, Tensor) and leaf.device.type == device.type for leaf in tree_leaves(values))

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            pulls = func in (Tensor.tolist, Tensor.numpy, Tensor.cpu) and there(args)
            if pulls or _moves(func, args, kwargs):
                found[_place()] += 1
                # what it is made of is not counted again
                busy[0] = True
                try:
                    return func(*args, **kwargs)
                finally:
                    busy[0] = False
            return func(*args, **kwargs)

    class Operations(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.overloadpacket in _INDEXED:
                indices = [leaf for leaf in tree_leaves(args[1]) if isinstance(leaf, Tensor)]
                waits = any(index.dtype == torch.bool or index.device != args[0].device for index in indices)
            else:
                tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
                waits = bool(tags & set(func.tags)) or func.overloadpacket in _WAITING
            if waits and not busy[0] and there(args):
                found[_place()] += 1
            return func(*args, **(kwargs or {}))

    with Functions(), Operations():
        yield found


_ATEN = torch.ops.aten
_INDEXED = {_ATEN.index, _ATEN.index_put, _ATEN.index_put_, _ATEN._index_put_impl_}
# In inference mode these come as they are, and not as what they are made of.
_WAITING = {_ATEN.is_nonzero, _ATEN.item, _ATEN.allclose, _ATEN.nonzero_numpy, _ATEN.argwhere, _ATEN.repeat_interleave}


def _moves(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a call copies numbers to another device, or from Python to a device that is not the host."""
    if func is Tensor.to:
        return _target(args, kwargs)[0].type != args[0].device.type
    device = kwargs.get("device")
    if func in (torch.tensor, torch.as_tensor, torch.asarray) and device is not None:
        source = args[0].device.type if isinstance(args[0], Tensor) else "cpu"
        return torch.device(device).type != source
    return False


def _target(args: Any, kwargs: Any) -> tuple[torch.device, torch.dtype]:
    """What ``Tensor.to`` is asked for."""
    if len(args) > 1 and isinstance(args[1], Tensor):
        return args[1].device, args[1].dtype
    asked = torch._C._nn._parse_to(*args[1:], **{k: v for k, v in kwargs.items() if k != "copy"})
    return asked[0] or args[0].device, asked[1] or args[0].dtype


# ---- the pretended accelerator --------------------------------------------------------------------------------------

PRETENDED = torch.device("cuda", 0)


class _Away(Tensor):
    """A tensor that says it is on the accelerator; ``held`` are its numbers."""

    held: Tensor

    # Of inference mode only what is held knows: torch cannot make views of such a tensor in it.
    @staticmethod
    @torch.inference_mode(False)
    def __new__(cls, held: Tensor) -> "_Away":
        # torch's own code is told that it is on the CPU, so that nothing of it looks for a driver.
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device="meta",
            dispatch_device=True,
        )
        made.held = held
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return PRETENDED

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    def __deepcopy__(self, memo: Any) -> "_Away":
        return _Away(self.held.clone())

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]
        return f"away: {self.held}"

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # as on a real one, a single number of the CPU may be used anywhere, indices of the CPU where something is
        # indexed, and any other tensor nowhere
        met = (args[0], args[2:], kwargs) if func.overloadpacket in _INDEXED else (args, kwargs)
        tensors = [leaf for leaf in tree_leaves(met) if isinstance(leaf, Tensor)]
        if func is not _ATEN.copy_.default and any(t.dim() for t in tensors if not isinstance(t, _Away)):
            raise AssertionError(f"{func} of tensors on two devices in {_place()}")
        result = func(*tree_map(_held, args), **tree_map(_held, kwargs))
        changed = _changed(func._schema, args, kwargs)
        if changed:
            return changed[0] if len(changed) == 1 else tuple(changed)
        # What leaves the device does so by ``Tensor.to`` and the like, which come to ``Accelerator``.
        return tree_map(lambda value: _Away(value) if isinstance(value, Tensor) else value, result)


def _held(value: Any) -> Any:
    if isinstance(value, _Away):
        return value.held
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _changed(schema: Any, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that an operation writes to (in place, ``out=``) and gives back."""
    written = {}
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            written[frozenset(argument.alias_info.before_set)] = value
    aliases = [returned.alias_info for returned in schema.returns]
    return [written[frozenset(alias.before_set)] for alias in aliases if alias is not None and alias.is_write]


class Accelerator(TorchFunctionMode):
    """Within it there is a device ``cuda``, as far as tensors and modules are concerned."""

    def __enter__(self) -> Any:
        # A module's parameters are replaced: they become of another class.
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
        super().__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.cpu:
            return _copied(args[0], torch.device("cpu"))
        if func is Tensor.tolist:
            return _held(args[0]).tolist()
        if func is Tensor.to:
            device, dtype = _target(args, kwargs)
            if device.type != args[0].device.type:
                return _copied(args[0], device).to(dtype)
            # in words that do not make torch look for a driver
            return func(args[0], dtype, copy=kwargs.get("copy", False))
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == PRETENDED.type and func in FACTORIES:
            if isinstance(args[0], Tensor):
                return args[0] if isinstance(args[0], _Away) else _copied(args[0], PRETENDED)
            return _Away(func(*args, **{**kwargs, "device": "cpu"}))
        return func(*args, **kwargs)


def _copied(tensor: Tensor, device: torch.device) -> Tensor:
    held = tensor.held if isinstance(tensor, _Away) else tensor
    held = held.detach().clone()
    return _Away(held) if device.type == PRETENDED.type else held
