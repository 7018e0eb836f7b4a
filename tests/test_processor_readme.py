"""processor/README.md agrees with the code."""

import re
from pathlib import Path

PROCESSOR = Path(__file__).parent.parent / "processor"
TEXT = (PROCESSOR / "README.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    """The text under a heading."""
    return TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def test_every_file_of_the_journey_exists():
    """Each path in the page leads to a file or folder of the package or of the repository."""
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_.]*|[a-z_]+\.pyx?)`", TEXT)
    places = [PROCESSOR, PROCESSOR.parent, *(path for path in PROCESSOR.rglob("*") if path.is_dir())]
    assert named
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_the_journey_has_the_steps_of_the_picture():
    """The table has the steps of the picture at the top, in the same order."""
    picture = re.findall(r"─▶ (\w+)", TEXT.split("```")[1])
    assert re.findall(r"^\| (\w+) \|", section("One record's journey"), re.MULTILINE)[1:] == picture


def test_the_methods_of_the_loop_exist():
    """The methods in the journey are methods of the loop."""
    code = (PROCESSOR / "runtime" / "loop" / "stream_thread.py").read_text(encoding="utf-8")
    methods = re.findall(r"`(_\w+)`", section("One record's journey"))
    assert methods
    assert [name for name in methods if f"def {name}(" not in code] == []


def test_the_map_has_every_folder():
    """Each package of the processor has a row, and each row names an existing folder or file."""
    rows = [line.split("|")[1] for line in section("The map").splitlines() if line.startswith("| `")]
    named = re.findall(r"`([a-z_]+(?:/|\.py))`", " ".join(rows))
    assert [name for name in named if not (PROCESSOR / name).exists()] == []
    folders = {path.name for path in PROCESSOR.iterdir() if (path / "__init__.py").exists()}
    assert folders <= {name.rstrip("/") for name in named}
