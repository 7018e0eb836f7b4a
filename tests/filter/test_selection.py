"""The filter of a setting, and the metadata of a record that it sees."""

from __future__ import annotations

import pytest

from processor.errors import ConfigurationError
from processor.filter.filter import compile_selection, metadata_of, require_fields, selects
from processor.record import Record
from processor.subscriptions.request.subscribed_topic import key_text

WHY = "a copy changes with its topic alone"


def record(key: bytes) -> Record:
    """A SOW record with a key."""
    return Record(key, b'{"qty":1}', [("correlation_id", b"QQ==")], 7, 1_700_000_000_000)


def test_a_filter_sees_the_metadata_of_a_record():
    """Size, key, topic, correlation id and time of a record are known."""
    assert metadata_of(record(b"k"), "orders")[:5] == (9, "k", "orders", "QQ==", 1_700_000_000_000)


@pytest.mark.parametrize("key", [b"plain", "schlüssel".encode(), b"\xff\xfe", b"\\xff", b""])
def test_the_key_has_one_text_for_every_reader(key: bytes):
    """SOW_KEY() of a copy, a view and a queue is the text that subscribers get, also of bytes that are not UTF-8."""
    assert metadata_of(record(key), "orders").sow_key == key_text(record(key))


def test_a_filter_is_a_function_of_value_and_record():
    """A filter that uses metadata sees those of each record, and one that does not sees its value alone."""
    by_key = compile_selection("conflated.slow.filter", "SOW_KEY() = 'k' AND TOPIC_NAME() = 'orders'", changes_with=WHY)
    by_field = compile_selection("conflated.slow.filter", "/qty = 1", changes_with=WHY)
    assert by_key is not None
    assert by_field is not None
    assert [selects(by_key, "orders")({}, record(key)) for key in (b"k", b"other")] == [True, False]
    assert [selects(by_field, "orders")({"qty": qty}, record(b"k")) for qty in (1, 2)] == [True, False]


def test_a_setting_without_a_filter_has_none():
    """A copy without a filter has every record."""
    assert compile_selection("conflated.slow.filter", None, changes_with=WHY) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("/qty >", r"conflated\.slow\.filter: "),
        ("/at > UNIX_TIMESTAMP()", "changes with the clock, and a copy changes with its topic alone"),
    ],
)
def test_a_filter_that_cannot_be_used_is_refused_with_its_setting(text: str, words: str):
    """A filter that cannot be read or that the clock changes is an error of configuration, with the setting's name."""
    with pytest.raises(ConfigurationError, match=words):
        compile_selection("conflated.slow.filter", text, changes_with=WHY)


def test_a_filter_on_records_without_fields_is_refused():
    """A message type without fields has nothing for a filter to look at."""
    require_fields("conflated.slow.filter", "orders", can_delta=True)
    with pytest.raises(ConfigurationError, match="the records of orders have no fields"):
        require_fields("conflated.slow.filter", "orders", can_delta=False)
