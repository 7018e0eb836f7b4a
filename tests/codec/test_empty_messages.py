"""Empty values, byte order marks and messages in UTF-16, of every message type."""

from __future__ import annotations

import pytest

from processor.client.publish.outbox import Outbox
from processor.config import TopicConfig
from processor.errors import RecordRejected
from tests.builtin.merging import merging, rejected
from tests.codec.specimens import SPECIMENS, codec_of, refused, topic_of

HINT = "an empty value is no message; send null, a tombstone, to delete a record"
GENUINE = ("binary", "protobuf", "protobuf-presence")
"""The types that have an empty message: any bytes are one, or a message without fields that are set."""
MARK = b"\xef\xbb\xbf"


def explicit(name: str, **settings) -> dict:
    """The settings of a topic of a message type whose key is explicit."""
    topic = topic_of(name, **settings)
    return {"message_type": topic.message_type, **SPECIMENS[name].settings, "key": "explicit", **settings}


@pytest.mark.parametrize("command", ["publish", "delta_publish"])
@pytest.mark.parametrize("name", sorted(SPECIMENS.keys() - GENUINE))
def test_an_empty_value_is_a_dead_letter_with_a_hint(name, command):
    """An empty value makes no record and changes none, in a topic with key fields or without, keyed or not."""
    for key_setting in ("explicit", [SPECIMENS[name].key]):
        settings = {**explicit(name), "key": key_setting}
        driver = merging(**settings)
        driver.pipe_input(b"7", b"", {"command": command})
        if key_setting != "explicit":
            driver.pipe_input(None, b"", {"command": command})
        assert set(rejected(driver)) == {("undecodable", HINT)}
        assert driver.pending_output("sow") == driver.pending_output("delta") == []


@pytest.mark.parametrize("name", sorted(SPECIMENS.keys() - GENUINE))
def test_a_publisher_is_refused_an_empty_message(name):
    """Empty bytes, and a value that would be written with no bytes, are refused when they are published."""
    topic = TopicConfig.model_validate(explicit(name))
    outbox = Outbox("orders", topic, codec_of(name))
    with pytest.raises(RecordRejected, match="send null"):
        outbox.record("publish", b"", "7", None)
    if name in ("nvfix", "fix", "xml"):
        with pytest.raises(RecordRejected, match="no fields to write: an empty value is no message"):
            outbox.record("delta_publish", {}, "7", None)


@pytest.mark.parametrize("name", GENUINE)
def test_the_empty_message_of_a_type_that_has_one_is_published(name):
    """Binary and protobuf have an empty message, which replaces the record as any other one does."""
    driver = merging(**explicit(name))
    driver.pipe_input(b"7", b"", {"command": "publish"})
    assert rejected(driver) == []
    assert [record.value for record in driver.pending_output("sow")] == [b""]


@pytest.mark.parametrize(
    ("name", "message", "fields"),
    [
        ("json", b'{"id":"7","a":"1"}', "a"),
        ("json-schema", b'{"id":"7","a":"1"}', "a"),
        ("nvfix", b"id=7\x01a=1\x01", "a"),
        ("fix", b"11=7\x0158=1\x01", "58"),
        ("xml", b'<order id="7"><a>1</a></order>', "order"),
    ],
)
def test_a_byte_order_mark_is_skipped(name, message, fields):
    """A message of text with a byte order mark in front is the message without it, with two of them it is refused."""
    driver = merging(**{**explicit(name), "key": [SPECIMENS[name].key]})
    for value in (message, MARK + message, MARK + MARK + message):
        driver.pipe_input(b"7", value)
    assert [reason for reason, _ in rejected(driver)] == ["undecodable"]
    values = [record.value for record in driver.pending_output("sow")]
    assert len(values) == 2
    assert values[0] == values[1]
    assert fields in codec_of(name).decode(values[1])


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize(
    ("name", "message"),
    [("json", '{"id":"7"}'), ("json-schema", '{"id":"7"}'), ("nvfix", "id=7\x01"), ("fix", "11=7\x01")],
)
def test_utf_16_is_refused(name, message, encoding):
    """A message in UTF-16, with a byte order mark or without, is undecodable and no record of other fields."""
    assert refused(codec_of(name), message.encode(encoding)).startswith("undecodable: ")
