"""`processor.wire` is the one owner of the bytes of every topic: nothing else uses the names of headers."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
OWNER = ROOT / "processor" / "wire"
VERSION_LOOPS = {
    "processor/builtin/delta_merge/command_merge.py",
    "processor/builtin/delta_merge/plain.py",
}
"""The merges that write a version above `VERSIONS_MAX` in place, without a call."""


@cache
def product() -> dict[Path, str]:
    """The text of each module of the product."""
    files = (path for folder in ("processor", "spark_integration") for path in sorted((ROOT / folder).rglob("*.py")))
    return {path: path.read_text(encoding="utf-8") for path in files}


def uses_of_names(source: str) -> Iterator[int]:
    """Yield the lines of a module that use an attribute of the class `Name` under this or another name."""
    if "Name" not in source:
        return
    tree = ast.parse(source)
    names = {"Name"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname for alias in node.names if alias.name == "Name" and alias.asname}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not node.attr.isupper():
            continue
        owner = node.value
        if (isinstance(owner, ast.Name) and owner.id in names) or (
            isinstance(owner, ast.Attribute) and owner.attr == "Name"
        ):
            yield node.lineno


def place(path: Path, line: int) -> str:
    """Return a file and a line as a reader finds them."""
    return f"{path.relative_to(ROOT)}:{line}"


def test_no_module_outside_wire_uses_the_names_of_headers():
    """`Name.X` occurs in `processor/wire` alone: a header is written and read by one module."""
    uses = [
        place(path, line)
        for path, source in product().items()
        if OWNER not in path.parents
        for line in uses_of_names(source)
    ]
    assert uses == []


def test_no_compiled_module_uses_the_names_of_headers():
    """A Cython module gets the header lists ready-made from its caller."""
    compiled = [path for suffix in ("*.pyx", "*.pxd") for path in sorted((ROOT / "processor").rglob(suffix))]
    assert compiled, "the compiled merge has moved"
    uses = [
        place(path, number)
        for path in compiled
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"\bName\.[A-Z]", line)
    ]
    assert uses == []


def test_only_the_merge_loops_write_a_version_in_place():
    """`VERSION_NAME` is for loops that may not call a function for each record; every other writer calls one."""
    users = {
        str(path.relative_to(ROOT))
        for path, source in product().items()
        if OWNER not in path.parents and re.search(r"\bVERSION_NAME\b", source)
    }
    assert users == VERSION_LOOPS


def test_names_for_columns_are_used_by_spark_alone():
    """`wire.columns` exports names of headers for Spark's expressions; a module that reads records needs none."""
    users = [
        str(path.relative_to(ROOT))
        for path, source in product().items()
        if ROOT / "spark_integration" not in path.parents
        and re.search(r"processor\.wire(\.columns| import columns)", source)
    ]
    assert users == []


@pytest.mark.parametrize(
    "source",
    [
        "from processor.api import Name\nx = (Name.VERSION, b'1')",
        "from processor.wire.headers import Name as N\nx = N.KIND",
        "from processor import api\nx = api.Name.SOURCE",
    ],
)
def test_every_way_to_use_a_name_is_noticed(source: str):
    """An import under another name and a use by way of the module count, too."""
    assert list(uses_of_names(source)) == [2]
