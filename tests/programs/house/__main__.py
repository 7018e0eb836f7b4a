"""`python -m tests.programs.house`: print the shape of the code: files, folders, lines, and who imports whom.

The files that git has are counted, of the working tree and of a commit: those of the product (`processor`,
`spark_integration`, `sowstream`, `pyspark_sowstream`: `.py`, `.pyx` and `.pxd`, without the example plug-in, which is a
package of its own) and those of the tests (`.py`).

    code lines                lines that are not blank, not a comment, not a docstring
    folders                   folders with a file that is counted
    modules under 60 lines    by code lines; without `__init__` and `__main__`
    with a single importer    modules that one other module of the product imports, imports for types and within
                              functions included
    pairs of folders          that import each other, a folder within the other included
"""

from __future__ import annotations

import argparse
import ast
import io
import posixpath
import re
import subprocess
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[3]
PRODUCT = ("processor/", "spark_integration/", "sowstream/", "pyspark_sowstream/")
SMALL = 60
"""A module of fewer code lines needs a reason."""
LARGE = 400
"""A file of more lines, comments included, has two ideas."""
FULL = 14
"""Modules that a folder holds before it needs an order of its own."""

_NO_CODE = frozenset(
    (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
)
_CYTHON_IMPORT = re.compile(r"^\s*from\s+([\w.]+)\s+c?import\s", re.MULTILINE)


class Shape(NamedTuple):
    """The counts of one state of the code."""

    lines: int
    files: int
    folders: int
    small: int
    single: int
    single_in_folder: int
    pairs: int
    large: int
    full: int
    test_lines: int
    test_files: int


ROWS: dict[str, tuple[str, int | None]] = {
    "lines": ("code lines of the product", 56_000),
    "files": ("files", 440),
    "folders": ("folders", 60),
    "small": (f"modules under {SMALL} code lines", None),
    "single": ("modules with a single importer", None),
    "single_in_folder": ("... which is in the same folder", None),
    "pairs": ("pairs of folders that import each other", 0),
    "large": (f"files over {LARGE} lines", 0),
    "full": (f"folders with more than {FULL} modules", 0),
    "test_lines": ("code lines of the tests", 78_000),
    "test_files": ("files of the tests", 650),
}
"""For each count, its name and the figure aimed at."""


def working_tree() -> dict[str, str]:
    """The counted files of the working tree by their path."""
    return {path: (ROOT / path).read_text(encoding="utf-8") for path in _listed() if (ROOT / path).is_file()}


def commit(name: str) -> dict[str, str]:
    """The counted files of a commit by their path."""
    listed = _git("ls-tree", "-r", "--name-only", "-z", name).decode().split("\0")
    paths = [path for path in listed if _is_counted(path)]
    asked = "".join(f"{name}:{path}\n" for path in paths).encode()
    answer = io.BytesIO(_git("cat-file", "--batch", stdin=asked))
    files = {}
    for path in paths:
        size = int(answer.readline().split()[-1])
        files[path] = answer.read(size).decode()
        answer.read(1)
    return files


def shape(files: dict[str, str]) -> Shape:
    """Count the files of one state of the code."""
    product = {path: text for path, text in files.items() if path.startswith(PRODUCT)}
    tests = {path: text for path, text in files.items() if path.startswith("tests/")}
    lines = {path: code_lines(path, text) for path, text in files.items()}
    graph = imports(product)
    one = single_importers(graph)
    return Shape(
        lines=sum(lines[path] for path in product),
        files=len(product),
        folders=len({posixpath.dirname(path) for path in product}),
        small=len(small(product)),
        single=len(one),
        single_in_folder=sum(posixpath.dirname(module) == posixpath.dirname(by) for module, by in one.items()),
        pairs=len(pairs(graph)),
        large=len(large(product)),
        full=len(full(product)),
        test_lines=sum(lines[path] for path in tests),
        test_files=len(tests),
    )


def small(product: dict[str, str]) -> dict[str, int]:
    """The modules with few code lines, and these."""
    counts = {path: code_lines(path, text) for path, text in product.items() if _is_module(path)}
    return {path: count for path, count in counts.items() if count < SMALL}


def large(product: dict[str, str]) -> dict[str, int]:
    """The files with many lines, and these."""
    counts = {path: text.count("\n") for path, text in product.items()}
    return {path: count for path, count in counts.items() if count > LARGE}


def full(product: dict[str, str]) -> dict[str, int]:
    """The folders with many modules, and their number."""
    counts = Counter(posixpath.dirname(path) for path in product if _is_module(path))
    return {folder: count for folder, count in counts.items() if count > FULL}


def single_importers(graph: dict[str, set[str]]) -> dict[str, str]:
    """The modules that one module imports, and that one; an `__init__` that passes a name on is an importer."""
    importers: dict[str, set[str]] = defaultdict(set)
    for path, imported in graph.items():
        for other in imported:
            importers[other].add(path)
    return {path: next(iter(by)) for path, by in importers.items() if _is_module(path) and len(by) == 1}


def pairs(graph: dict[str, set[str]]) -> dict[tuple[str, str], list[str]]:
    """The pairs of folders that import each other, with each import."""
    arrows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path, imported in graph.items():
        for other in imported:
            arrows[posixpath.dirname(path), posixpath.dirname(other)].append(f"{path} -> {other}")
    return {
        (one, other): sorted(arrows[one, other] + arrows[other, one])
        for one, other in sorted(arrows)
        if one < other and (other, one) in arrows
    }


def imports(product: dict[str, str]) -> dict[str, set[str]]:
    """The files that each file imports, for type checkers and within functions included."""
    modules = {_dotted(path): path for path in product if not path.endswith(".pxd")}
    return {path: {modules[name] for name in _imported(path, text, modules)} - {path} for path, text in product.items()}


@cache
def code_lines(path: str, text: str) -> int:
    """Count the lines that are not blank, not a comment and not a docstring."""
    if not path.endswith(".py"):
        return sum(1 for line in text.splitlines() if line.strip() and not line.strip().startswith("#"))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in _nodes(text):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def _imported(path: str, text: str, modules: dict[str, str]) -> Iterator[str]:
    if not path.endswith(".py"):
        yield from (match[1] for match in _CYTHON_IMPORT.finditer(text) if match[1] in modules)
        return
    for node in _nodes(text):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if name in modules or node.module in modules:
                    yield name if name in modules else node.module


@cache
def _nodes(text: str) -> list[ast.AST]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr | ast.Import | ast.ImportFrom)]


def _listed() -> list[str]:
    names = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard").decode().split("\0")
    return [name for name in names if _is_counted(name)]


def _is_counted(path: str) -> bool:
    if path.startswith("tests/"):
        return path.endswith(".py")
    return path.startswith(PRODUCT) and path.endswith((".py", ".pyx", ".pxd")) and "/docs/examples/" not in path


def _is_module(path: str) -> bool:
    return path.endswith(".py") and not path.endswith(("/__init__.py", "/__main__.py"))


def _dotted(path: str) -> str:
    parts = path.rpartition(".")[0].split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _git(*words: str, stdin: bytes | None = None) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, input=stdin, capture_output=True, check=True).stdout


def main() -> None:
    """Print the table, and the files and folders behind it if asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.house", description=__doc__.split("\n")[0])
    parser.add_argument("--before", metavar="COMMIT", help="count this commit, too")
    parser.add_argument("--names", action="store_true", help="list the files and folders that the last rows count")
    options = parser.parse_args()
    now = working_tree()
    columns = {options.before: shape(commit(options.before))} if options.before else {}
    columns["now"] = shape(now)
    table = Table("", *columns, "aimed at")
    for field, (name, goal) in ROWS.items():
        counts = [f"{getattr(column, field):,}" for column in columns.values()]
        table.add_row(name, *counts, "" if goal is None else f"{goal:,}")
    console = Console(width=100)
    console.print(table)
    if options.names:
        product = {path: text for path, text in now.items() if path.startswith(PRODUCT)}
        graph = imports(product)
        for title, counted in (("small", small(product)), ("large", large(product)), ("full", full(product))):
            print(f"\n{title}")
            print("\n".join(f"{count:5}  {path}" for path, count in sorted(counted.items())))
        print("\nsingle importers")
        print("\n".join(f"{path}  <-  {by}" for path, by in sorted(single_importers(graph).items())))
        print("\npairs of folders")
        for (one, other), arrows in pairs(graph).items():
            print(f"{one} <-> {other}", *arrows, sep="\n    ")


if __name__ == "__main__":
    main()
