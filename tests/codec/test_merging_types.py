"""Merging in each message type, and messages without any field."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.client.publish.outbox import Outbox
from processor.codec.contract import GROUP
from processor.config import TopicConfig
from processor.entry_points import installed_names
from processor.errors import RecordRejected
from processor.merge import apply_delta
from processor.testing import ProcessorTestDriver
from tests.builtin.merging import merging, rejected, told
from tests.codec.specimens import SPECIMENS, codec_of, refused, strict, topic_of

DELTAS = sorted(name for name, specimen in SPECIMENS.items() if specimen.bodies is not None)
WHOLE = sorted(set(SPECIMENS) - set(DELTAS))


def merging_type(name: str, **more) -> ProcessorTestDriver:
    """A driver with a delta merge on a topic of a message type."""
    topic = topic_of(name, **more)
    return ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)


def at(name: str, key: str, body: dict) -> dict:
    """A body with its key field set."""
    path = SPECIMENS[name].key.split("/")[1:]
    keyed = dict(body)
    node = keyed
    for step in path[:-1]:
        inner = node.get(step)
        node[step] = dict(inner) if isinstance(inner, dict) else {}
        node = node[step]
    node[path[-1]] = key
    return keyed


STORIES = {
    "nvfix": (b"id=7\x01a=1\x01a=2\x01b=\x01", b"b=x\x01", b"id=7\x01a=1\x01a=2\x01b=x\x01", b"id=7\x01b=x\x01"),
    "fix": (b"11=7\x0155=IBM\x0154=1\x01", b"54=2\x01", b"11=7\x0155=IBM\x0154=2\x01", b"11=7\x0154=2\x01"),
    "xml": (
        b'<?xml version="1.0"?>\n<order id="7">\n  <leg>a</leg><leg>b</leg>\n  <px ccy="EUR">1</px>\n</order>',
        b'<order><px ccy="EUR">2</px></order>',
        b'<order id="7"><leg>a</leg><leg>b</leg><px ccy="EUR">2</px></order>',
        b'<order id="7"><px><?sowstream object?>2</px></order>',
    ),
    "protobuf-presence": (
        # id, a { b, cash }, c, rows { 1: {} }, card, and field 77, which is not in the schema.
        b"\x3a\x01x\x0a\x017\x12\x0b\x18\x05\x31\0\0\0\0\0\0\xf8\x3f\x22\x02\x08\x05\x2a\x04\x08\x01\x12\0\xe8\x04\x01",
        b"\x12\x02\x18\0\x22\x02\x08\0",
        b"\x0a\x017\x12\x0b\x18\0\x31\0\0\0\0\0\0\xf8\x3f\x22\0\x2a\x04\x08\x01\x12\0\x3a\x01x\xe8\x04\x01",
        b"\x0a\x017\x12\x02\x18\0\x22\0",
    ),
    "composite-local": (
        b'\0\0\0\x10{"id":"7","a":1}\0\0\0\x04b=1\x01\0\0\0\x02\xff\0',
        b"\0\0\0\0\0\0\0\x04b=2\x01",
        b'\0\0\0\x10{"id":"7","a":1}\0\0\0\x04b=2\x01\0\0\0\x02\xff\0',
        b'\0\0\0\x0a{"id":"7"}\0\0\0\x04b=2\x01\0\0\0\0',
    ),
}


@pytest.mark.parametrize("name", sorted(STORIES))
def test_a_publish_a_delta_and_a_delete(name):
    """A delta publish keeps fields that it does not name; its delta has the key and the changes, byte for byte."""
    record, delta, merged, changed = STORIES[name]
    driver = merging_type(name)
    driver.pipe_batch([("7", record, {"command": "publish"}), ("7", delta, None), ("7", None, None)])
    assert not driver.pending_output("dlq")
    sow, deltas = driver.pending_output("sow"), driver.pending_output("delta")
    assert [out.value for out in sow[1:]] == [merged, None]
    assert deltas[1].value == changed
    codec = codec_of(name)
    assert apply_delta(codec.decode(record), codec.decode_own(changed)) == codec.decode_own(merged)
    assert told(deltas[2])["kind"] == "delete"
    assert codec.decode_own(deltas[2].value) == at(name, "7", {})


@pytest.mark.parametrize("name", DELTAS)
def test_a_record_without_kafka_key_gets_the_one_in_its_body(name):
    """A record without a Kafka key is re-keyed by the key field in its body, in every message type."""
    driver = merging_type(name)
    driver.pipe_input(None, at(name, "7", {}))
    assert [record.key for record in driver.pending_output("publish")] == [b"7"]


@pytest.mark.parametrize("name", DELTAS)
def test_bad_bytes_go_to_the_dead_letters(name):
    """A message with bad bytes becomes a dead letter with its reason; the records around it are merged."""
    bad = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"
    driver = merging_type(name)
    driver.pipe_batch([("7", at(name, "7", {}), None), ("7", bad, None), ("8", at(name, "8", {}), None)])
    [rejected] = driver.pending_output("dlq")
    assert (rejected.value, told(rejected)["dlq_reason"]) == (bad, "undecodable")
    assert [record.key for record in driver.pending_output("sow")] == [b"7", b"8"]


POLICIES = [{}, {"null_policy": "set", "merge_depth": 1}, {"null_policy": "remove"}]


@pytest.mark.random
@pytest.mark.parametrize("name", [name for name in DELTAS if name != "json"])
def test_replayed_deltas_are_the_record(name):
    """The law: after any commands, the deltas of a key in order give its SOW record, strictly."""
    codec = codec_of(name)
    bodies = SPECIMENS[name].bodies
    commands = st.tuples(
        st.sampled_from(["publish", "delta_publish", "delta_publish", "sow_delete"]),
        bodies,
        st.booleans(),
        st.lists(
            st.sampled_from(
                ["/a", "/b", "/a/b", "/1", "/order/a", "/order/@a", "/0/a", "/1/b", "/c", "/rows/1", "/n/x", "/77"]
            ),
            max_size=2,
        ),
    )

    @settings(max_examples=40, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
    @given(st.sampled_from(POLICIES), st.lists(commands, max_size=8))
    def prove(more, steps):
        driver = merging_type(name, **more)
        for command, body, is_keyed, remove in steps:
            headers = {"command": command}
            if remove and command != "publish":
                headers["remove"] = json.dumps(remove)
            data = codec.encode(at(name, "7", body) if is_keyed or command == "publish" else body)
            driver.pipe_input("7", data, headers)
        assert set(driver.rejections) <= {"undecodable"}  # An empty message.
        world = None
        sow = driver.pending_output("sow")
        for record, delta in zip(sow, driver.pending_output("delta"), strict=True):
            headers = told(delta)
            if headers.get("kind") == "delete":
                world = None
                assert record.value is None
                continue
            changes = codec.decode_own(delta.value)
            removed = json.loads(headers.get("removed", "[]"))
            world = apply_delta(world, changes, removed)
            assert strict(world) == strict(codec.decode_own(record.value))

    prove()


@pytest.mark.parametrize("name", WHOLE)
def test_a_type_without_deltas_carries_the_publishers_bytes(name):
    """A message type without deltas replaces records in full and keeps the publisher's bytes in both outputs."""
    messages = {
        "composite-global": [b'\0\0\0\x0a{"id": 7 }', b'\0\0\0\x09{"id": 7}\0\0\0\x04b=2\x01\0\0\0\0'],
        # The second one has its fields in reverse order, and one that is not in the schema.
        "protobuf": [b"\x08\x07\x6a\x00"[:2], b"\x10\x05\x08\x07\xf8\x07\x01"],
        "binary": [b"\x00\xff", b""],
    }[name]
    driver = merging_type(name)
    for message in messages:
        driver.pipe_input("7", message, {"sow_key": "7"} if name == "binary" else None)
    assert not driver.pending_output("dlq")
    for role in ("sow", "delta"):
        assert [record.value for record in driver.pending_output(role)] == messages


def test_no_type_that_can_do_deltas_is_left_out():
    """Every installed message type is covered by the examples and the law of this file."""
    assert set(DELTAS) | set(WHOLE) >= set(installed_names(GROUP)) - {"avro"}


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
