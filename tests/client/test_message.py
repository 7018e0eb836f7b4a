import json
from decimal import Decimal

from processor.client import Message


def test_what_says_nothing_is_left_out():
    """A mark of a group is its command and topic."""
    assert Message("group_begin", "orders").to_json() == '{"command":"group_begin","topic":"orders"}'


def test_one_line_with_every_field():
    """Every field that is set is in the line, under its own name; a null in the record stays one."""
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
    """A number that no double holds is written as it was published."""
    assert '"n":18446744073709551616}' in Message("sow", "t", "k", {"n": Decimal(2**64)}).to_json()


def test_an_empty_record_is_still_data():
    """`{}` is a record, not a missing one."""
    assert '"data":{}' in Message("sow", "t", "k", {}).to_json()
