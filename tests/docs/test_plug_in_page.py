"""In processor/docs/how-to/write-a-plug-in.md the programs work, and the tables agree with the code."""

import re
from typing import Any

import yaml

from processor.cli.diagnosis import GROUPS
from tests.docs.pages import block, page

PAGE = "how-to/write-a-plug-in.md"


def test_the_processor_of_the_page_passes_the_test_of_the_page():
    """The test in the page passes with the processor in the page."""
    names: dict[str, Any] = {}
    exec(block(PAGE, "1. Write it", "python") + block(PAGE, "2. Test it", "python"), names)
    names["test_a_visit_is_counted"]()


def test_the_entry_point_and_the_settings_name_the_processor():
    """The packaging and the settings of the page use the processor's name and the field of its settings."""
    [(name, target)] = re.findall(r'^(\w+) = "my_package:(\w+)"$', block(PAGE, "3. Ship it", "toml"), re.MULTILINE)
    names: dict[str, Any] = {}
    exec(block(PAGE, "1. Write it", "python"), names)
    entry = yaml.safe_load(block(PAGE, "3. Ship it", "yaml"))["processors"]["visits"]
    assert entry["use"] == name
    assert names[target].settings_type.model_validate(entry["settings"]).alert_at == 10


def test_every_kind_of_plug_in_is_listed():
    """The page lists the entry-point groups that `sowstream plugins` prints."""
    assert set(re.findall(r"sowstream\.(\w+)[`\"]", page(PAGE))) == {
        group.removeprefix("sowstream.") for group in GROUPS
    }


def test_the_smaller_plug_ins_of_the_page_work():
    """The preprocessor, the enricher and the merge rule of the page return what their names promise."""
    names: dict[str, Any] = {}
    exec(block(PAGE, "Smaller plug-ins", "python"), names)
    assert names["upper"]()({"symbol": "ibm"}) == {"symbol": "IBM"}
    assert names["stamp"](by=2)({"id": 1}, {"id": 1, "seen": 2}) == {"id": 1, "seen": 4}
    assert names["longest"]("ab", "c") == "ab"
