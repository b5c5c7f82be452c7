"""Classes that users give by their import path, and methods that they override."""

import os
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from nl_lightning.core.arguments import suggest
from nl_lightning.core.errors import InputError

__all__ = ["as_new_as", "import_callable", "import_class", "make_current_directory_importable", "overridden"]


def import_class(path: Any, base: Any, setting: str, names: Iterable[str] = (), instances: bool = False) -> Any:
    """The subclass of ``base`` that ``path`` names (``my_module.MyClass``), or that it is.

    ``setting`` is what the error message calls it, ``names`` what else it may be. With ``instances`` the path may also
    name an instance, such as one with settings of its own.
    """
    article = "an" if base.__name__[0] in "AEIOU" else "a"
    path_of = f"the import path of {article} {base.__name__} (my_module.MyClass)"
    expected = f"{setting} must be {_either([*names, path_of])}"
    found = path
    if isinstance(path, str):
        module, _, name = path.rpartition(".")
        if not module:
            raise InputError(f"{expected}; got {path!r}.{suggest(path, names)}")
        try:
            found = getattr(import_module(module), name)
        except Exception as error:
            # The user's module may raise anything.
            reason = f"{type(error).__name__}: {error}"
            raise InputError(f"{expected}; {path!r} cannot be imported ({reason}).{_meant(module, name)}") from error
    if instances and isinstance(found, base):
        return found
    if not (isinstance(found, type) and issubclass(found, base)):
        raise InputError(f"{expected}; {path!r} is no subclass of {base.__name__}.")
    return found


def import_callable(path: str, setting: str, example: str = "my_module.MyClass") -> Any:
    """What ``path`` names (``my_module.my_function``, ``my_module:my_function`` or a class), which can be called."""
    expected = f"{setting} must be the import path of a class or function ({example})"
    module, _, name = path.rpartition(":" if ":" in path else ".")
    try:
        found = getattr(import_module(module), name)
    except Exception as error:
        # The user's module may raise anything.
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"{expected}; {path!r} cannot be imported ({reason}).{_meant(module, name)}") from error
    if not callable(found):
        raise InputError(f"{expected}; {path!r} is a {type(found).__name__}.")
    return found


def make_current_directory_importable() -> None:
    """Find users' own modules in the current directory, as ``python -m`` does and a console script does not."""
    here = os.getcwd()
    if not getattr(sys.flags, "safe_path", False) and "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)


def overridden(instance: object, base: type, *names: str) -> list[str]:
    """Which of these methods an instance does not have from ``base``: its class or the instance itself has its own."""
    kind = type(instance)
    return [name for name in names if name in vars(instance) or getattr(kind, name) is not getattr(base, name)]


def as_new_as(instance: object, name: str, *others: str) -> bool:
    """Whether the class that defines ``name`` is as new as those that define the other attributes.

    A class may promise that its methods agree with each other (a batched form with the plain one, say). A subclass that
    redefines only one of them breaks the promise.
    """
    if any(other in vars(instance) for other in others):
        return name in vars(instance)
    order = type(instance).__mro__

    def definer(attribute: str) -> int:
        return next(place for place, kind in enumerate(order) if attribute in vars(kind))

    return all(definer(name) <= definer(other) for other in others)


def _meant(module: str, name: str) -> str:
    """What a name that a module does not have was probably meant to be."""
    known = vars(sys.modules[module]) if module in sys.modules else ()
    return suggest(name, (each for each in known if not each.startswith("_")))


def _either(options: list[str]) -> str:
    *first, last = options
    return f"{', '.join(first)} or {last}" if first else last
