"""processor/README.md agrees with the code."""

import re
from pathlib import Path
from typing import Any

from processor.cli.plugins import GROUPS

PROCESSOR = Path(__file__).parent.parent / "processor"
TEXT = (PROCESSOR / "README.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    """The text under a heading."""
    return TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def test_every_kind_of_plug_in_is_told():
    """The groups that the command lists are the ones an author is told of."""
    assert set(re.findall(r"sowstream\.(\w+)[`\"]", section("Writing a processor"))) == {
        group.removeprefix("sowstream.") for group in GROUPS
    }


def test_the_example_steps_run():
    """What an author would copy does what it says."""
    [code] = re.findall(r"```python\n(from processor.api import RecordRejected.*?)```", TEXT, re.DOTALL)
    found: dict[str, Any] = {}
    exec(code, found)
    assert found["upper"]()({"symbol": "ibm"}) == {"symbol": "IBM"}
    assert found["stamp"](by=2)({"id": 1}, {"id": 1, "seen": 2}) == {"id": 1, "seen": 4}
    assert found["longest"]("ab", "c") == "ab"


def test_every_folder_and_file_it_names_exists():
    """A newcomer is never sent to a room that is not there."""
    named = re.findall(r"`([a-z_]+/(?:[a-z_]+\.py)?|[a-z_]+\.py)`", TEXT)
    assert named
    assert [name for name in named if not (PROCESSOR / name).exists()] == []
    folders = {path.name for path in PROCESSOR.iterdir() if (path / "__init__.py").exists()}
    assert folders <= {name.rstrip("/") for name in named}
