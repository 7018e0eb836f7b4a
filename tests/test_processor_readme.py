"""processor/README.md agrees with the code."""

import re
from pathlib import Path
from typing import Any

from processor.cli.plugins import GROUPS
from processor.config import TopicConfig
from processor.hosting.declaration import check_declaration
from processor.testing import ProcessorTestChain

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


def test_the_example_processor_runs_under_its_example_test():
    """The code of the page is executed as it stands: the processor, and the test of it."""
    [processor] = re.findall(r"```python\n(from processor.api import Input.*?)```", TEXT, re.DOTALL)
    [test] = re.findall(r"```python\n(from processor.testing.*?)```", TEXT, re.DOTALL)
    names: dict[str, Any] = {"__name__": "readme"}
    exec(processor + test, names)
    check_declaration(names["Count"], "count")
    chain = ProcessorTestChain(TopicConfig(partitions=2))
    chain.add(names["Count"], {"alert_at": 3}, name="visits")
    for _ in range(3):
        chain.pipe_input("visits", "anna", {})
    chain.commit()
    assert [record.value for record in chain.read_output("visits", "delta")] == [
        b'{"count":1}',
        b'{"count":2}',
        b'{"count":3}',
    ]
    assert [record.value for record in chain.read_output("visits", "alerts")] == [b'{"count":3}']


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
