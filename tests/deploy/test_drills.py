"""Each drill has a row with its times and a page in deploy/DRILLS.md, whose commands are those of `sowstream`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.deploy.test_commands import accepted
from tests.programs.drills.drills import DRILLS

PAGE = (Path(__file__).parents[2] / "deploy" / "DRILLS.md").read_text(encoding="utf-8")
VALUES = {"OFFSET": "42"}
"""The values of the page's placeholders."""


def commands() -> list[str]:
    """Every command line of the page, without its comment."""
    lines = re.findall(r"^(sowstream [^#\n]+)", PAGE, re.MULTILINE)
    return sorted({line.strip() for line in [*lines, *re.findall(r"`(sowstream [^`]+)`", PAGE)]})


def test_each_drill_has_a_row() -> None:
    """The table has each drill of `make program NAME=drills` once, and no other."""
    assert sorted(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == sorted(DRILLS)


def test_each_drill_has_a_page() -> None:
    """There are as many pages as drills; each has a place to look, and commands or the advice to do nothing."""
    pages = PAGE.split("\n## ")[1:]
    assert len(pages) == len(DRILLS)
    assert [page.splitlines()[0] for page in pages if "**Look:**" not in page] == []
    assert [page.splitlines()[0] for page in pages if "```" not in page and "**Do:**" not in page] == []


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_page_is_accepted(command: str) -> None:
    """A command of a drill parses, with a value for each placeholder."""
    assert accepted([VALUES.get(word, word) for word in command.split()[1:]]) is not None
