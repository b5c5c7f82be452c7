"""The tests themselves: helpers apart from tests, no private names, directories as in the packages."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT

TESTS = ROOT / "tests"
FILES = sorted({*TESTS.rglob("*.py")} - {Path(__file__)})
OTHERS_PRIVATE = {TESTS / "support" / "device_modes.py"}
"""May use private names of torch, which has no public way to stand in for a device."""
NAMED_TUPLE = {"_asdict", "_field_defaults", "_fields", "_make", "_replace"}
"""Public, for all their underscores."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name != "_" and name not in NAMED_TUPLE


def imported_tests(tree: ast.AST) -> Iterator[str]:
    """Test modules that are imported, or named by an import path in a string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module or ''}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = re.findall(r"\btests(?:\.\w+)+", node.value)
        else:
            continue
        yield from (name for name in names if re.search(r"(^|\.)test_\w+", name) and name.startswith("tests."))


def private_names(tree: ast.AST) -> Iterator[str]:
    """Private names that a module uses and does not define itself: imported, asked for, or replaced by a patch."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    own = {node.name for node in ast.walk(tree) if isinstance(node, functions)}
    stores = [node for node in ast.walk(tree) if isinstance(getattr(node, "ctx", None), ast.Store)]
    own |= {node.id for node in stores if isinstance(node, ast.Name)}
    own |= {node.attr for node in stores if isinstance(node, ast.Attribute) and _is_self(node.value)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            parts = [part for alias in node.names for part in alias.name.split(".")]
            parts += (getattr(node, "module", None) or "").split(".")
            yield from (part for part in parts if is_private(part))
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            if not (_is_self(node.value) and node.attr in own):
                yield node.attr
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("getattr", "setattr", "delattr", "hasattr", "patch", "object"):
                texts = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
                yield from (part for text in texts for part in text.split(".") if is_private(part))


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(TESTS).as_posix())
def test_a_module_stands_on_helpers_and_public_names(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert not list(imported_tests(tree)), "helpers that tests share belong in tests/support"
    if path not in OTHERS_PRIVATE:
        assert not list(private_names(tree)), "tests use what users can use"


def test_tests_stand_where_the_packages_do() -> None:
    """tests/<layer> for nl_lightning/<layer>, tests/replay/<layer> for replay/<layer>."""
    layers = {path.parent for path in (ROOT / "nl_lightning").glob("*/__init__.py")}
    expected = {TESTS / layer.name for layer in layers}
    expected |= {TESTS / path.parent.relative_to(ROOT) for path in (ROOT / "replay").rglob("__init__.py")}
    expected |= {TESTS, TESTS / "support", TESTS / "benchmarks", TESTS / "attacks"}
    assert {path.parent for path in FILES} <= expected
    with_tests = {path.parent for path in FILES if path.name.startswith("test_")}
    assert expected - with_tests == {TESTS / "support"}


@pytest.mark.parametrize(
    "code",
    [
        "from tests.agents.test_agents import make",
        "from tests.agents import test_agents",
        "import tests.agents.test_agents",
        "path = 'tests.agents.test_agents.Absent'",
    ],
)
def test_an_imported_test_is_found(code: str) -> None:
    assert list(imported_tests(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "from nl_lightning.rollout.loop import _room",
        "from nl_lightning import _loop",
        "import nl_lightning._loop",
        "agent._batch",
        "class A(Agent):\n    def f(self):\n        return self._batch",
        "monkeypatch.setattr(loop, '_EVENTS', 3)",
        "monkeypatch.setattr('nl_lightning.rollout.loop._EVENTS', 3)",
        "agent._batch = 3",
    ],
)
def test_a_private_name_is_found(code: str) -> None:
    assert list(private_names(ast.parse(code)))


def test_own_private_names_and_those_of_named_tuples_are_fine() -> None:
    code = (
        "class A:\n    def f(self):\n        self._x = 1\n        return self._x, t._replace(a=self.__class__)\n_y = 1"
    )
    assert not list(private_names(ast.parse(code)))
