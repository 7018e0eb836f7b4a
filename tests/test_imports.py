"""The packages have no import circles and few class names with two meanings."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import re
from collections import defaultdict
from pathlib import Path

from tests.programs.house.__main__ import imports, working_tree

ROOT = Path(__file__).parents[1]
PACKAGES = ("processor", "spark_integration")
NAMES_TWICE_MAX = 5
"""Limit of the class names that stand for two classes; a new clash needs a noun of its own."""


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that import each other, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for target in sorted(graph[module]):
            if target not in index:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], index[target])
        if low[module] == index[module]:
            at = stack.index(module)
            if len(group := stack[at:]) > 1:
                groups.append(sorted(group))
            del stack[at:]

    for module in graph:
        if module not in index:
            visit(module)
    return groups


def classes_by_name(modules: dict[str, str]) -> dict[str, list[str]]:
    """The modules that define each class, private classes left out."""
    places: dict[str, list[str]] = defaultdict(list)
    for module, text in modules.items():
        if module.endswith(".py"):
            for name in re.findall(r"^class ([A-Za-z]\w*)", text, re.MULTILINE):
                places[name].append(module)
    return places


@functools.cache
def product() -> dict[str, str]:
    """The text of every module of both packages by its path."""
    return {path: text for path, text in working_tree().items() if path.split("/")[0] in PACKAGES}


def test_no_import_circle() -> None:
    """No module imports itself through others, also in imports for type checkers alone."""
    assert circles(imports(product())) == []


def test_class_names_are_unique() -> None:
    """A class name stands for one class in both packages, with few exceptions."""
    twice = {name: places for name, places in classes_by_name(product()).items() if len(places) > 1}
    listed = "\n".join(f"{name}: {', '.join(places)}" for name, places in sorted(twice.items()))
    assert len(twice) <= NAMES_TWICE_MAX, listed


def exists(module: str, name: str) -> bool:
    """Return whether a module has the name, or a package has the module."""
    if hasattr(importlib.import_module(module), name):
        return True
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module(f"{module}.{name}")
        return True
    return False


def test_every_name_that_a_test_program_imports_exists():
    """The programs run for hours and rarely, so a name that was renamed elsewhere is found here."""
    missing = []
    for path in sorted((ROOT / "tests" / "programs").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (module := node.module or "").split(".")[0] in (*PACKAGES, "tests"):
                missing += [
                    f"{path.relative_to(ROOT)}:{node.lineno}: {module} has no {alias.name}"
                    for alias in node.names
                    if not exists(module, alias.name)
                ]
    assert missing == []
