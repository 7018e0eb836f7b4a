"""Measures the prose of docstrings and Markdown pages: `python -m tests.prose [PATH…]` lists the clauses to rewrite.

A clause is a stretch of at least four words between punctuation marks. Counted are clauses built on `what`, `whatever`
or `whoever`, and those built on `tell`, `say` or `hear`; words that the style guide rules out are listed one by one.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_WORDS_MIN = 4
_CODE = re.compile(r"```.*?```|``[^`]*``|`[^`]*`|<!--.*?-->|https?://\S+", re.DOTALL)
_END = re.compile(r"[.;:,!?()|]|\s[-\u2013\u2014]\s|\n\s*\n|\n\s*[-*] |\n\s*\d+\. |\n#+ ")
_WHAT = re.compile(r"\b(?:what|whatever|whoever)\b", re.IGNORECASE)
_TELL = re.compile(r"\b(?:tell|tells|told|telling|say|says|said|saying|hear|hears|heard|hearing)\b", re.IGNORECASE)
# "Save" is forbidden for "except" only: to save a file is good English.
_FORBIDDEN = re.compile(
    r"\b(?:anew|nought|save (?:where|when|for|in|by|one|that|of)|foretell|foretells|foretold|foretelling"
    r"|whoever|whatever|somebody|nobody)\b",
    re.IGNORECASE,
)


@dataclass(slots=True)
class Prose:
    """The figures of one or several texts."""

    clauses: int = 0
    """The number of clauses."""
    what: list[str] = field(default_factory=list)
    """The clauses built on `what`, each with its place."""
    tell: list[str] = field(default_factory=list)
    """The clauses built on `tell`, `say` or `hear`, each with its place."""
    forbidden: list[str] = field(default_factory=list)
    """The words that the style guide rules out, each with its place."""

    def add(self, place: str, text: str) -> None:
        """Measure one text."""
        for part in _END.split(_CODE.sub("code", text)):
            clause = " ".join(part.split())
            for match in _FORBIDDEN.finditer(clause):
                self.forbidden.append(f"{place}: {match[0]}: {clause}")
            if len(re.findall(r"[\w'\u2019-]+", clause)) < _WORDS_MIN:
                continue
            self.clauses += 1
            if _WHAT.search(clause):
                self.what.append(f"{place}: {clause}")
            if _TELL.search(clause):
                self.tell.append(f"{place}: {clause}")


def docstrings(path: Path) -> Iterator[tuple[str, str]]:
    """Every docstring of a module, those under fields included, with its place."""
    nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    # Only through statements: most nodes are of expressions, which have no docstring.
    for node in nodes:
        for child in getattr(node, "body", ()):
            if (
                isinstance(child, ast.Expr)
                and isinstance(child.value, ast.Constant)
                and isinstance(child.value.value, str)
            ):
                yield f"{path}:{child.lineno}", child.value.value
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            nodes.extend(getattr(node, block, ()))


def measure(paths: Sequence[Path]) -> Prose:
    """The figures of the files and folders: of Python's docstrings, of pages as a whole."""
    prose = Prose()
    for root in paths:
        files = sorted(root.rglob("*")) if root.is_dir() else [root]
        files = [file for file in files if "node_modules" not in file.parts]
        for path in files:
            if path.suffix == ".py":
                for place, text in docstrings(path):
                    prose.add(place, text)
            elif path.suffix == ".md":
                prose.add(str(path), path.read_text(encoding="utf-8"))
    return prose


def main() -> None:
    """Print the figures, and the clauses to rewrite."""
    prose = measure([Path(name) for name in sys.argv[1:]] or [Path("processor"), Path("spark_integration")])
    for title, lines in (("WHAT", prose.what), ("TELL", prose.tell), ("FORBIDDEN", prose.forbidden)):
        print(f"== {title}")
        print("\n".join(lines))
    count = max(prose.clauses, 1)
    print(
        f"{prose.clauses} clauses: what {len(prose.what) / count:.1%}, tell {len(prose.tell) / count:.1%}, "
        f"forbidden words {len(prose.forbidden)}"
    )


if __name__ == "__main__":
    main()
