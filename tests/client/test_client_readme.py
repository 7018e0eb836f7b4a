"""The pages describe the client's calls and messages as they are."""

from __future__ import annotations

import json
import re
import threading
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from processor.client import Message
from processor.client.feeds import continuity
from tests.client.family import Family
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from processor.client import Client


README = (Path(continuity.__file__).parents[1] / "README.md").read_text(encoding="utf-8")
SECTION = README.split("\n### Several calls and topics on one connection\n")[1].split("\n### ")[0]


def test_the_bound_of_remembered_versions_is_that_of_the_page():
    """The number of keys and the bytes per key in the page are those of the code."""
    assert f"The versions of {continuity.KEYS_MAX:,} keys" in README
    assert f"{continuity.KEY_BYTES} bytes each" in README


@pytest.mark.broker
def test_the_example_of_a_connection_prints_the_output_of_the_page(client: Client, family: Family):
    """Three calls share messages: each message lists its subscriptions, and an update of two comes once."""

    def own(text: str) -> str:
        return text.replace("orders", family.name).replace("customers", family.conflated)

    [code] = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    [output] = re.findall(r"```\n(orders.*?)```", SECTION, re.DOTALL)
    expected = own(output).splitlines()
    printed: list[str] = []
    steps = threading.Semaphore(0)

    def take(*values: object) -> None:
        printed.append(" ".join(map(str, values)))
        steps.release()

    family.sow("1", {"id": 1, "state": "open", "qty": 5})
    program = compile(own(code), "README.md", "exec")
    running = threading.Thread(target=exec, args=(program, {"client": client, "print": take}))
    running.start()
    for _ in range(3):
        assert steps.acquire(timeout=PATIENCE_S)
    family.sow("1", {"id": 1, "state": "open", "qty": 7}, 2)
    assert steps.acquire(timeout=PATIENCE_S)
    family.sow("1", {"id": 1, "state": "done", "qty": 7}, 3)
    assert steps.acquire(timeout=PATIENCE_S)
    with family.transaction():
        family.write(f"{family.conflated}.sow", "c", {"id": "c", "city": "Bern"}, version="1")
    assert steps.acquire(timeout=PATIENCE_S)
    client.close()
    running.join(PATIENCE_S)
    assert printed == expected


MESSAGES_PAGE = Path(__file__).parents[2] / "processor" / "client" / "README.md"


def test_empty_fields_are_left_out():
    """A group mark has only its command and topic."""
    assert Message("group_begin", "orders").to_json() == '{"command":"group_begin","topic":"orders"}'


def test_one_line_with_every_field():
    """Every field with a value is in the line, under its own name; a null in the record is kept."""
    message = Message(
        "publish", "orders", "7", {"id": 7, "gone": None}, True, 3, "2026-01-02T03:04:05.678Z", "abc", None, ("/x",)
    )
    line = message.to_json()
    assert "\n" not in line
    assert json.loads(line) == {
        "command": "publish",
        "topic": "orders",
        "sow_key": "7",
        "data": {"id": 7, "gone": None},
        "delta": True,
        "version": 3,
        "timestamp": "2026-01-02T03:04:05.678Z",
        "correlation_id": "abc",
        "removed": ["/x"],
    }


def test_numbers_keep_every_digit():
    """A number beyond the precision of a double is written as it was published."""
    assert '"n":18446744073709551616}' in Message("sow", "t", "k", {"n": Decimal(2**64)}).to_json()


def test_an_empty_record_is_still_data():
    """`{}` is a record, not a missing one."""
    assert '"data":{}' in Message("sow", "t", "k", {}).to_json()


def test_the_readme_has_every_field():
    """The table of messages in the README has the fields of a message, in order."""
    section = MESSAGES_PAGE.read_text(encoding="utf-8").split("\n### Messages\n")[1].split("\n### ")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == Message._fields


def test_a_message_for_other_subscriptions_is_the_same_message():
    """Every field except `sub_ids` stays the same."""
    message = Message(*(f"{name}" for name in Message._fields))  # type: ignore[arg-type]
    assert message.addressed(("a",)) == message._replace(sub_ids=("a",))
