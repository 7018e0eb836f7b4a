"""The tables of processor/README.md say what the code says."""

import re
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY

import processor.runtime.process.metrics
from processor.cli.plugins import GROUPS
from processor.record import Name

PROCESSOR = Path(__file__).parent.parent / "processor"
TEXT = (PROCESSOR / "README.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    """The text under a heading."""
    return TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def first_column(heading: str) -> str:
    """The first cells of a section's table."""
    return "\n".join(line.split("|")[1] for line in section(heading).splitlines() if line.startswith("|"))


def test_every_metric_is_told_with_its_labels():
    """The catalogue and the table have the same metrics."""
    assert processor.runtime.process.metrics.CONSUMED
    ours = {}
    for collector in list(REGISTRY._collector_to_names):
        name = getattr(collector, "_name", "")
        if name.startswith("sowstream_"):
            suffix = "_total" if collector._type == "counter" else ""
            ours[name + suffix] = ",".join(collector._labelnames)
    observed = processor.runtime.process.metrics.OBSERVED
    ours[observed.name] = ",".join(observed.labels)
    assert dict(re.findall(r"`(sowstream_\w+)(?:\{([\w,]+)\})?`", first_column("What can be watched"))) == ours


def test_every_event_is_told():
    """The table has the events that our processors count, and no others."""
    code = "".join(path.read_text(encoding="utf-8") for path in (PROCESSOR / "builtin").rglob("*.py"))
    told = set(re.findall(r"^\| `((?!sowstream_)\w+)` \|", section("What can be watched"), re.MULTILINE))
    assert told == set(re.findall(r'context\.count\("(\w+)"', code))


def test_every_gauge_and_timing_is_told():
    """The same for what a processor says of itself now, and for what it times."""
    code = "".join(path.read_text(encoding="utf-8") for path in (PROCESSOR / "builtin").rglob("*.py"))
    told = re.findall(r"^\| (gauge|timing) `(\w+)` \|", section("What can be watched"), re.MULTILINE)
    counted = [("gauge", name) for name in re.findall(r'gauge\("(\w+)"', code)]
    assert sorted(told) == sorted([*counted, *(("timing", name) for name in re.findall(r'observe\("(\w+)"', code))])


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


def test_every_header_is_told():
    """The table has the headers that the code reads or writes, and no others."""
    names = {value for name, value in vars(Name).items() if not name.startswith("_")}
    assert set(re.findall(r"`([\w-]+)`", first_column("Headers"))) == names


def test_every_folder_and_file_it_names_exists():
    """A newcomer is never sent to a room that is not there."""
    named = re.findall(r"`([a-z_]+/(?:[a-z_]+\.py)?|[a-z_]+\.py)`", TEXT)
    assert named
    assert [name for name in named if not (PROCESSOR / name).exists()] == []
    folders = {path.name for path in PROCESSOR.iterdir() if (path / "__init__.py").exists()}
    assert folders <= {name.rstrip("/") for name in named}


def test_every_rule_has_a_test_that_exists():
    """The table of rules and proofs names tests that are there, and leaves none of the numbered rules out."""
    rows = [line.split("|")[1:3] for line in section("Rules and their proof").splitlines() if line.startswith("| ")][1:]
    assert {number for rule, _ in rows for number in re.findall(r"^ (\d+) ", rule)} == {str(n) for n in range(1, 12)}
    tests = Path(__file__).parent
    for rule, proof in rows:
        named = re.findall(r"`(\S+\.py)::(\w+)`", proof)
        assert named, rule
        for file, name in named:
            assert f"def {name}(" in (tests / file).read_text(encoding="utf-8"), f"{file}::{name}"
