"""Lists the pages of the repository, and reads those of processor/docs in pieces that tests can run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "processor" / "docs"

_BY_LINE = re.MULTILINE | re.DOTALL


def _pages(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        # Packages of others have thousands of files: each process of the tests would walk over all of them.
        folders[:] = [name for name in folders if name != "node_modules"]
        yield from (Path(place) / name for name in names if name.endswith(".md") and not name.startswith("."))


PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(
            page
            for folder in (".github", "deploy", "processor", "schemas", "spark_integration", "tests")
            for page in _pages(ROOT / folder)
        ),
    ]
)
"""Every page of the repository."""


class Block(NamedTuple):
    """A block of code."""

    section: str
    """The heading above the block."""
    language: str
    """The language after its opening fence."""
    text: str
    """The code."""


def page(name: str) -> str:
    """The text of a page."""
    return (FOLDER / name).read_text(encoding="utf-8")


def blocks(name: str) -> list[Block]:
    """The blocks of a page, in order."""
    parts = re.finditer(r"^#+ (?P<heading>[^\n]*)$|^```(?P<language>\w*)\n(?P<text>.*?)^```$", page(name), _BY_LINE)
    heading, result = "", []
    for part in parts:
        if part["heading"] is not None:
            heading = part["heading"]
        else:
            result.append(Block(heading, part["language"], part["text"]))
    return result


def block(name: str, section: str, language: str, number: int = 0) -> str:
    """The code of a block under a heading and in a language, the first one or a later one."""
    return [block.text for block in blocks(name) if (block.section, block.language) == (section, language)][number]
