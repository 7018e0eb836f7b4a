import json
import re
from decimal import Decimal
from pathlib import Path

from processor.client import Message

README = Path(__file__).parents[2] / "processor" / "client" / "README.md"


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
    section = README.read_text(encoding="utf-8").split("\n### Messages\n")[1].split("\n### ")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == Message._fields


def test_a_message_for_other_subscriptions_is_the_same_message():
    """Every field except `sub_ids` stays the same."""
    message = Message(*(f"{name}" for name in Message._fields))  # type: ignore[arg-type]
    assert message.addressed(("a",)) == message._replace(sub_ids=("a",))
