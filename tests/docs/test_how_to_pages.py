"""The pages for people who come from AMPS, and for authors of plug-ins, say what is so."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from processor.cli.diagnosis import GROUPS
from processor.cli.main import command_line
from processor.client import Client
from processor.config import Config
from processor.errors import ConfigurationError
from processor.subscriptions import parse_options
from tests.docs.pages import block, page

_PAGE = Path(__file__).parents[2] / "processor" / "docs" / "reference" / "amps-and-um.md"
_ROWS = re.findall(r"^\| (.+?) \| (has|differs|lacks) \| ?(.*?) ?\|$", _PAGE.read_text(encoding="utf-8"), re.MULTILINE)
_COMMANDS = ("publish", "delta_publish", "sow", "subscribe", "sow_and_subscribe", "delta_subscribe",
             "sow_and_delta_subscribe", "sow_delete", "flush")  # fmt: skip
_OPTIONS = {
    "oof": "oof",
    "timestamp": "timestamp",
    "no_empties": "no_empties",
    "no_sowkey": "no_sowkey",
    "send_keys": "send_keys",
    "select": "select=[-/,+/id]",
    "conflation": "conflation=1s",
    "conflation_key": "conflation=1s,conflation_key=[/a]",
    "order_by": "order_by=[/a],top_n=1",
    "top_n": "order_by=[/a],top_n=1",
    "skip_n": "order_by=[/a],top_n=1,skip_n=1",
    "bookmark": "bookmark=epoch",
    "grouping": "grouping=[/a],projection=[COUNT(*) AS /n]",
    "projection": "projection=[SUM(/a) AS /a]",
}


def test_every_row_has_a_state_of_the_list() -> None:
    """Each row of the tables begins with the foreign name and a known state; `has` and `differs` have a counterpart."""
    text = _PAGE.read_text(encoding="utf-8")
    lines = [
        line for line in text.splitlines() if line.startswith("| ") and not re.match(r"\| [^|]* \| \| |\|---", line)
    ]
    assert len(lines) == len(_ROWS)
    assert len(_ROWS) > 60
    assert [name for name, state, ours in _ROWS if state in ("has", "differs") and not ours] == []


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`client\.(\w+)`", str(_ROWS)))))
def test_a_call_of_the_client_exists(name: str) -> None:
    """Each `client.name` is a method of the client."""
    assert callable(getattr(Client, name))


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`sowstream ([a-z ]+)`", str(_ROWS)))))
def test_a_command_exists(name: str) -> None:
    """Each `sowstream name` is a command."""
    group: Any = typer.main.get_command(command_line())
    for word in name.split():
        group = group.commands[word]


@pytest.mark.parametrize(
    "place", sorted(set(re.findall(r"`((?:topics|conflated|views|queues|runtime)\.(?:<name>\.)?\w+)", str(_ROWS))))
)
def test_a_setting_exists(place: str) -> None:
    """Each setting is one of the tree."""
    section, *_, name = place.split(".")
    model = Config.model_fields[section].annotation
    model = getattr(model, "__args__", (None, model))[1]
    assert name in model.model_fields  # type: ignore[union-attr]


@pytest.mark.parametrize("name", list(_OPTIONS))
def test_an_option_exists(name: str) -> None:
    """Each option that the page claims is understood."""
    assert f"`{name}`" in str(_ROWS)
    is_delta = name in ("no_empties", "no_sowkey", "send_keys")
    assert parse_options(_OPTIONS[name], live=True, delta=is_delta)


@pytest.mark.parametrize("name", ["rate", "live"])
def test_an_option_that_is_lacking_is_refused(name: str) -> None:
    """Each option that the page denies is an error."""
    assert any(f"`{name}`" in foreign and state == "lacks" for foreign, state, _ in _ROWS)
    with pytest.raises(ConfigurationError):
        parse_options(f"{name}=1", live=True, delta=False)


@pytest.mark.parametrize("command", _COMMANDS)
def test_every_command_of_amps_has_a_row(command: str) -> None:
    """The commands of AMPS' guide that the client has are on the page."""
    assert any(f"`{command}`" in foreign for foreign, _, _ in _ROWS)


PAGE = "how-to/write-a-plug-in.md"


def test_the_processor_of_the_page_passes_the_test_of_the_page():
    """The test in the page passes with the processor in the page."""
    names: dict[str, Any] = {}
    exec(block(PAGE, "1. Write it", "python") + block(PAGE, "2. Test it", "python"), names)
    names["test_a_visit_is_counted"]()


def test_the_times_of_the_page_are_those_of_a_test():
    """The second test in the page passes, and would fail where the stream time is that of the clock."""
    names: dict[str, Any] = {}
    exec(block(PAGE, "The times that a test sees", "python"), names)
    names["test_a_session_ends"]()
    names["ProcessorTestDriver"] = partial(names["ProcessorTestDriver"], behind_ms=0)
    with pytest.raises(AssertionError):
        names["test_a_session_ends"]()


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
